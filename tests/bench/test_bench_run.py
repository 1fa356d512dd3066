"""The bench in small: it ends, says something about everything, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from benchmarks import __main__ as program
from benchmarks import contained
from benchmarks.figures import Figure, Spread
from benchmarks.sizes import QUICK, Bench, NotInstalled
from benchmarks.suite import AREAS, Area, run

DOCS = Path(__file__).parents[2] / "docs" / "dev" / "performance.md"
END_TIMEOUT_S = 60.0


def started(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--quick", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quick_bench_measures_everything(bench_environment, tmp_path):
    figures_file = tmp_path / "figures.md"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    bench = started(
        bench_environment,
        "--json",
        *("--markdown-file", str(figures_file), "--directory", str(scratch)),
    )
    output, progress = bench.communicate()
    assert bench.returncode == 0, progress
    raw = json.loads(output)
    assert [area["name"] for area in raw["areas"]] == [area.name for area in AREAS]
    assert raw["machine"]["cores"] >= 1
    for area in raw["areas"]:
        assert f"## {area['title']}" in figures_file.read_text()
        # What this machine lacks is said; nothing else is left out.
        assert area["figures"] or area["missing"], (area, progress)
        for figure in area["figures"]:
            assert figure["min"] <= figure["median"] <= figure["max"]
            assert figure["name"] in progress
            # An update can overtake the acknowledgement of the commits that it brings.
            assert figure["min"] > 0 or figure["name"].startswith("from ingest acknowledged")
            assert all(peer["ratio"] != 0 for peer in figure["compared_with"])
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_cancelled_bench_leaves_nothing_behind(bench_environment, tmp_path, number, code):
    bench = started(bench_environment, "--only", "cycle", "--directory", str(tmp_path))
    assert bench.stderr is not None
    for line in bench.stderr:
        if "starting the evaluator" in line:
            break
    process = psutil.Process(bench.pid)
    while not any("evaluator_main" in " ".join(c.cmdline()) for c in process.children()):
        assert bench.poll() is None
        time.sleep(0.02)
    family = process.children(recursive=True)
    bench.send_signal(number)
    output, _ = bench.communicate()
    assert bench.returncode == code
    assert output == ""
    _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_area_is_refused(bench_environment):
    bench = started(bench_environment, "--only", "everything")
    _, said = bench.communicate()
    assert bench.returncode == 2
    assert "insert, query" in said.replace("'", "")


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_the_documentation_explains_each_area(area):
    assert f"## {area.title} (`{area.name}`)" in DOCS.read_text()


def _well(bench: Bench) -> Iterator[Figure]:
    yield Figure("a thing that was measured", "s", Spread.of([1.0, 2.0]))


def _badly(bench: Bench) -> Iterator[Figure]:
    yield from _well(bench)
    raise AssertionError("expected 2 labels, got 3")


def test_an_area_that_fails_loses_no_other_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    areas = (Area("bad", "What fails", _badly), Area("good", "What is well", _well))
    monkeypatch.setattr(program, "AREAS", areas)
    monkeypatch.setattr(program, "COMPARISONS", ())
    monkeypatch.setattr("sys.argv", ["bench", "--all", "--json", "--directory", str(tmp_path)])
    with pytest.MonkeyPatch.context() as handlers:
        handlers.setattr(signal, "signal", lambda *_: None)
        assert program.main() == program.FAILED
    said = capsys.readouterr()
    bad, good = json.loads(said.out)["areas"]
    assert "AssertionError: expected 2 labels, got 3" in bad["failure"]
    assert [len(one["figures"]) for one in (bad, good)] == [1, 1]
    assert good["failure"] == ""
    assert "failed: bad; the others are in the report" in said.err


def test_the_report_of_an_area_that_failed_has_its_figures_and_the_error(tmp_path: Path) -> None:
    bench = Bench(QUICK, tmp_path, lambda _: None)
    text = run([Area("bad", "What fails", _badly)], bench).to_markdown()
    assert "| a thing that was measured | 1.50 s |" in text
    assert "**Failed**" in text
    assert "    AssertionError: expected 2 labels, got 3" in text


def test_an_area_without_a_figure_and_without_a_reason_has_failed(tmp_path: Path) -> None:
    bench = Bench(QUICK, tmp_path, lambda _: None)
    [section] = run([Area("none", "What yields nothing", lambda _: iter(()))], bench).sections
    assert "expected at least one figure, got none" in section.failure


def test_an_area_that_lacks_something_keeps_its_figures_and_says_what(tmp_path: Path) -> None:
    def lacking(bench: Bench) -> Iterator[Figure]:
        yield from _well(bench)
        raise NotInstalled("its peer is not installed")

    report = run([Area("half", "What lacks a peer", lacking)], Bench(QUICK, tmp_path, print))
    assert report.sections[0].failure == ""
    assert "| a thing that was measured | 1.50 s |" in report.to_markdown()
    assert "\n\nNot measured: its peer is not installed" in report.to_markdown()


def test_a_busy_machine_is_asked_again_whether_it_contains_samplers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = Figure("start", "s", Spread.of([1.0]))
    monkeypatch.setattr(contained, "_start", lambda *, runs: start)
    bench = Bench(QUICK, tmp_path, lambda _: None)
    answers = iter(["the machine is busy", None])
    monkeypatch.setattr(contained, "obstacle", lambda: next(answers))
    assert next(contained.measure(bench)) is start
    monkeypatch.setattr(contained, "obstacle", lambda: "bubblewrap is not installed")
    with pytest.raises(NotInstalled, match="bubblewrap is not installed"):
        next(contained.measure(bench))
