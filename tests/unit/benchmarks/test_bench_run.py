"""`scripts/bench` in small: it ends, has a figure of everything, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks import contained
from benchmarks.figures import Figure, Spread
from benchmarks.report import Section
from benchmarks.sizes import QUICK, Bench, NotInstalled
from benchmarks.test_areas import AREAS, COMPARISONS, Area, test_area

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "dev" / "performance.md"
END_TIMEOUT_S = 60.0
measure_area = test_area
del test_area  # It is no test of this file.


def started(scratch: Path, *options: str) -> subprocess.Popen[str]:
    command = ["-m", "pytest", "benchmarks", "-s", "--quick", *options]
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory with a short path: Spark has sockets below it, whose paths are bounded."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.slow(250)
@pytest.mark.timeout(600)
def test_bench_with_small_sizes_measures_every_area(tmp_path, scratch):
    markdown, values = tmp_path / "figures.md", tmp_path / "figures.json"
    bench = started(scratch, *("--markdown-file", str(markdown), "--json-file", str(values)))
    output, progress = bench.communicate()
    assert bench.returncode == 0, output + progress
    raw = json.loads(values.read_text())
    assert [section["name"] for section in raw["sections"]] == [area.name for area in AREAS]
    assert raw["machine"]["cores"] >= 1
    for section in raw["sections"]:
        assert f"## {section['title']}" in markdown.read_text()
        # Other software that this machine lacks is named; nothing else is left out.
        assert section["figures"] or section["missing"], (section, progress)
        for figure in section["figures"]:
            assert figure["name"] in progress
            # An update can overtake the acknowledgement of the commits that it brings.
            overtakes = figure["name"].startswith("from ingest acknowledged")
            assert min(figure["spread"]["values"]) > 0 or overtakes
            assert all(peer["spread"]["values"] for peer in figure["peers"])
    assert [path.name for path in scratch.iterdir() if path.name.startswith("galileo")] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_bench_when_cancelled_leaves_nothing_behind(tmp_path, scratch, number):
    report = tmp_path / "figures.md"
    options = ("--only", "cycle", "--markdown-file", str(report))
    bench = started(scratch, *options)
    assert bench.stderr is not None
    for line in bench.stderr:
        if "starting the evaluator" in line:
            break
    process = psutil.Process(bench.pid)
    while not any("galileo.spark.evaluator" in " ".join(c.cmdline()) for c in process.children()):
        assert bench.poll() is None
        time.sleep(0.02)
    family = process.children(recursive=True)
    bench.send_signal(number)
    bench.communicate()
    assert bench.returncode == pytest.ExitCode.INTERRUPTED
    assert not report.exists()
    _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
    assert alive == []
    assert [path.name for path in scratch.iterdir() if path.name.startswith("galileo")] == []


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_performance_page_has_each_area(area):
    assert f"## {area.title} (`{area.name}`)" in DOCS.read_text()


def test_bench_areas_have_unique_names():
    names = [area.name for area in (*AREAS, *COMPARISONS)]
    assert len(set(names)) == len(names)


def test_area_that_fails_keeps_its_figures_and_one_without_a_figure_fails(tmp_path):
    figure = Figure("a thing that was measured", "s", Spread.of([1.0, 2.0]))

    def failing(bench):
        yield figure
        raise AssertionError("expected 2 labels, got 3")

    def lacking(bench):
        yield figure
        raise NotInstalled("its peer is not installed")

    bench = Bench(QUICK, tmp_path, lambda _: None)
    sections = [Section(name, name) for name in ("bad", "half", "none")]
    with pytest.raises(AssertionError, match="expected 2 labels"):
        measure_area(Area("bad", "", failing), bench, sections[0])
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        measure_area(Area("half", "", lacking), bench, sections[1])
    with pytest.raises(AssertionError, match="at least one figure"):
        measure_area(Area("none", "", lambda _: iter(())), bench, sections[2])
    assert [section.figures for section in sections] == [[figure], [figure], []]
    assert sections[1].missing == "its peer is not installed"


def test_contained_on_a_busy_machine_looks_again_for_an_obstacle(monkeypatch, tmp_path):
    start = Figure("start", "s", Spread.of([1.0]))
    monkeypatch.setattr(contained, "_start", lambda *, runs: start)
    bench = Bench(QUICK, tmp_path, lambda _: None)
    answers = iter(["the machine is busy", None])
    monkeypatch.setattr(contained, "unavailable_reason", lambda: next(answers))
    assert next(contained.measure(bench)) is start
    monkeypatch.setattr(contained, "unavailable_reason", lambda: "bubblewrap is not installed")
    with pytest.raises(NotInstalled, match="bubblewrap is not installed"):
        next(contained.measure(bench))
