"""The evaluation in small, the page of made-up results, and simulated clusters."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import interrupts
import pytest
from made_up_machine import MACHINE

from benchmarks.evaluation import __main__ as program
from benchmarks.evaluation import labels, plots
from benchmarks.evaluation.__main__ import PARTS, Part
from benchmarks.evaluation.ccqs import Failover, Fresh, Freshness
from benchmarks.evaluation.labels import AllSizes, Form, LabelSizes
from benchmarks.evaluation.memory import ClusterMemory, NodeMemory
from benchmarks.evaluation.page import Taken, extent, percent, renewed, table, times
from benchmarks.evaluation.plots import Axes, Line
from benchmarks.evaluation.retrieval import Grown, History, Retrieval, Retrieved
from benchmarks.evaluation.scaling import WORKS, Cluster, Scaling, Work
from benchmarks.evaluation.simulated import (
    BUSY_SHARE,
    INTERVAL_S,
    Quiet,
    Simulated,
    Times,
    simulate,
)
from benchmarks.evaluation.sizes import QUICK, Sizes
from benchmarks.evaluation.streaming import Retrieval as Came
from benchmarks.evaluation.streaming import Standing, Stream, Streaming
from benchmarks.evaluation.subscribers import Gluing, Local, Nearby, Point, Side, Way
from benchmarks.sizes import Bench

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "dev"
PAGE = PAGES / "paper.md"
PICTURES_BYTES_MAX = 300_000
PROGRAM_PATH = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "kit")])

FORMS = (
    "path labels as text",
    "path labels as text, all together deflated",
    "Arrow IPC",
    "Arrow IPC, lz4",
    "Arrow IPC, zstd",
    "the cache, compacted",
    "the cache, compressed with lz4",
)


def cluster(nodes: int) -> Cluster:
    """The busiest node has twice what an equal share would be."""
    shares = [2.0 / nodes if nodes > 1 else 1.0, *[0.5 / nodes] * (nodes - 1)]
    works = tuple(Work(name, 10, tuple(8.0 * share for share in shares)) for name in WORKS)
    return Cluster(nodes, (1_000 // nodes,) * nodes, (90,) * nodes, (70,) * nodes, works)


RESULTS: dict[str, Any] = {
    "retrieval": Retrieval(
        3,
        1_000_000,
        (
            Retrieved(0, (0.004, 0.006, 0.005), (0.001, 0.002, 0.003), (0.001,)),
            Retrieved(9_876, (0.040, 0.050, 0.060), (0.004, 0.005, 0.006), (0.00125,)),
        ),
    ),
    "labels": AllSizes(
        "humidity < 60",
        tuple(
            LabelSizes(
                count,
                tuple(Form(name, 56.0 / 2**n, (1e6,), (2e6,)) for n, name in enumerate(FORMS)),
            )
            for count in (1_000, labels.PAPER_LABELS)
        ),
    ),
    "memory": ClusterMemory(
        1_000_000,
        10,
        100_000,
        (NodeMemory("node-1", 1e8, 1.1e8, 7), NodeMemory("node-2", 1e8, 1e8, 3)),
        4e6,
        6e8,
        7e8,
    ),
    "streaming": Streaming(
        3,
        30.0,
        tuple(
            Stream(
                blocks,
                31.0,
                tuple(
                    Standing(interval_s, (Came(0.01, blocks // 3), Came(0.02, blocks // 3)))
                    for interval_s in (1.0, 5.0)
                ),
            )
            for blocks in (1_000, 1_000_000)
        ),
    ),
    "scaling": Scaling(
        8_000,
        500,
        1_000,
        "humidity < 60",
        4_321,
        (cluster(1), cluster(2), cluster(8)),
        Simulated(
            1.0,
            1.6,
            5e-7,
            0.6,
            1.2e6,
            (
                Times(1, (0.01,), (0.9, 1.1), (), (0.0,)),
                Times(8, (0.09,), (0.6, 0.8), (1.7, 1.9), (180.0,)),
            ),
        ),
    ),
    "freshness": Freshness(
        3, 2_000, 20.0, (Fresh(0.25, (0.2, 0.3), 1999.0), Fresh(5.0, (1.0, 4.0), 2000.0))
    ),
    "failover": Failover(5, 2.0, 0.25, (2.1, 1.9, 2.4)),
    "history": History(
        3,
        10_000,
        (
            Grown(100_000, 10_000, (0.002,), (0.01,), (0.05,), (0.004,)),
            Grown(10_000_000, 10_000, (0.003,), (0.2,), (0.05,), (0.006,)),
        ),
    ),
}

SIDES = (
    Side("Galileo", (Point(1_000, 400, (0.1, 0.3), (0.5, 0.7)),)),
    Side("PostgreSQL, polled", (Point(1_000, 400, (11.0, 13.0), (12.0, 14.0)),)),
)
RESULTS |= {
    "gluing": Gluing(1_000, 400, (Way("all, copied", (2.0,)), Way("staged", (1.0,)))),
    "subscribers": Local("PostgreSQL 15.1", SIDES),
    "most-subscribers": Local("", SIDES[:1]),
    "most-peers": Local("PostgreSQL 15.1", SIDES[1:]),
    "nearby": Nearby("PostgreSQL 15.1", SIDES),
}

BY_NAME = {part.name: part for part in PARTS}


def taken(name: str, *, quick: bool = False) -> Taken:
    result = RESULTS[name]
    block = BY_NAME[name].tell(result)
    drawn = {picture: draw().decode() for picture, draw in block.pictures.items()}
    load = (0.5, 0.5, 0.5)
    return Taken(
        name, quick, 61.0, MACHINE, load, block.lines, block.summary, drawn, asdict(result)
    )


def block_of(text: str, name: str) -> str:
    return text.partition(f"<!-- {name}: begin -->\n")[2].partition("<!-- ")[0]


def test_paper_page_has_block_of_every_part() -> None:
    assert list(BY_NAME) == list(RESULTS)
    for page in {part.page for part in PARTS}:
        text, names = (PAGES / page).read_text(), [p.name for p in PARTS if p.page == page]
        assert all(block_of(text, name) for name in (*names, "circumstances", "summary"))
        assert "Small sizes" not in text
    pictures = (ROOT / "docs" / "dev" / "img").glob("paper-*.svg")
    assert sum(path.stat().st_size for path in pictures) < PICTURES_BYTES_MAX


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_tell_shows_all_pictures_and_tables_of_one_width(part: Part) -> None:
    block = part.tell(RESULTS[part.name])
    text = "\n".join(block.lines)
    assert set(re.findall(r"\(img/([\w-]+\.svg)\)", text)) == set(block.pictures)
    for rows in re.findall(r"(?:^\|.*\|\n)+", text + "\n", re.MULTILINE):
        assert len({line.count("|") for line in rows.splitlines()}) == 1
    assert block.summary
    for draw in block.pictures.values():
        assert draw() == draw()
        assert ET.fromstring(draw()).tag.endswith("svg")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("retrieval", "| 9,876 | 50.0 ms | 40.0 ms to 60.0 ms (3) | 5.00 ms |"),
        ("retrieval", "takes 10.0 times what the fetch takes"),
        ("labels", f"That is {times(1.75, 27.4)} what the paper's compacted labels take"),
        ("memory", "| together | 200 MB | 210 MB | +5.0 % | 10 |"),
        ("memory", "single ones by +0.0 % to +10.0 %"),
        ("memory", "deviation between nodes is 5.00 percentage points"),
        ("streaming", "| 1,000 | 5 s | 32.3 blocks/s | 2 | 333 | 15.0 ms |"),
        ("streaming", "| 178 ms |"),
        ("scaling", "does 25.0 % of the work that a single node has with a tick"),
        ("scaling", "an equal share would be 12.5 %"),
        ("failover", "2.10 s"),
        ("subscribers", "Galileo: at least 1,000 within 10 s (200 ms, longest 300 ms)"),
        ("subscribers", "PostgreSQL, polled: fewer than 1,000, which took 12.0 s"),
        ("history", "a tick's scans 1.50 times, its job 1.00"),
    ],
)
def test_tell_has_the_figures_of_the_result(name: str, words: str) -> None:
    assert words in "\n".join(BY_NAME[name].tell(RESULTS[name]).lines)


def test_tell_of_other_numbers_of_labels_compares_nothing_with_the_paper() -> None:
    few = AllSizes("humidity < 60", RESULTS["labels"].sizes[:1])
    assert "what the paper's" not in "\n".join(labels.tell(few).lines)


def test_renewed_with_some_results_keeps_the_other_blocks_and_the_prose() -> None:
    before = PAGE.read_text()
    after = renewed(before, [taken("failover")])
    assert "2.10 s" in block_of(after, "failover")
    assert block_of(after, "history") == block_of(before, "history")
    assert "| Kill of a coordinator until the next new answer | left out |" in after
    assert "Abacus 3000" in block_of(after, "circumstances")
    assert "Small sizes" in renewed(before, [taken("failover", quick=True)])
    with pytest.raises(ValueError, match="failover: begin"):
        renewed("nothing", [taken("failover")])


def test_write_page_of_stored_results_writes_their_pictures(tmp_path: Path) -> None:
    results, pages = tmp_path / "results", tmp_path / "docs"
    for name in RESULTS:
        program.save(results, taken(name))
    pages.mkdir()
    texts = [page.read_text() for page in program.write_pages(pages, results)]
    shown = {name for text in texts for name in re.findall(r"\(img/(.*?)\)", text)}
    assert shown == {path.name for path in (pages / "img").iterdir()}
    assert [one.part for one in program.load(results)] == list(RESULTS)


def test_table_with_rows_of_another_width_is_refused() -> None:
    assert table(("a", "b"), [("x", "1")]) == ["| a | b |", "| --- | ---: |", "| x | 1 |"]
    with pytest.raises(ValueError, match="expected 2 cells, got 1"):
        table(("a", "b"), [("x",)])


def test_evaluation_phrases_have_known_text() -> None:
    assert percent(-0.0123) == "-1.2 %"
    assert extent([0.002, 0.001]) == "1.00 ms to 2.00 ms (2)"
    assert times(3, 2) == "1.50 times"
    assert times(3, 0) == "no multiple of nothing"


def test_lines_with_band_and_dashes_draws_both() -> None:
    axes = Axes("a title", "x", "y", log_x=True, x_ticks=(1, 10))
    band = Line("band", (1, 10), (2, 3), (1, 2), (3, 4))
    dashed = Line("dashed", (1, 10), (1, 1), dashed=True)
    text = plots.lines(axes, [band, dashed]).decode()
    for word in ("a title", "band", "dashed", "stroke-dasharray", "fill-opacity"):
        assert word in text
    assert text.endswith("</svg>\n")
    assert not re.search(r"[ \t]\n", text)


@pytest.mark.slow
def test_paper_with_small_sizes_stores_and_shows_a_part(tmp_path: Path) -> None:
    results, scratch = tmp_path / "results", tmp_path / "scratch"
    scratch.mkdir()
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.evaluation",
            "--quick",
            "--only",
            "labels",
            "--results",
            results,
        ],
        env={**os.environ, "PYTHONPATH": PROGRAM_PATH, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    raw = json.loads((results / "labels.json").read_text())
    for sizes in raw["result"]["sizes"]:
        by_name = {form["name"]: form["bytes_per_label"] for form in sizes["forms"]}
        assert by_name["the cache, compacted"] < by_name["path labels as text"] / 4
    assert "Small sizes" in (results / "paper.md").read_text()
    assert (results / "img" / "paper-labels.svg").exists()
    assert list(scratch.iterdir()) == []


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Of a run in this process, whose signals stay as they are."""
    words = ["paper", "--quick", "--results", str(tmp_path / "results")]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return words


def test_main_with_a_part_that_fails_measures_the_others_and_resume_takes_it_alone(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[str] = []

    def part(name: str, *, fails: bool) -> Part:
        def measure(*_: object) -> object:
            calls.append(name)
            if fails:
                raise AssertionError("expected 2 labels, got 3")
            return RESULTS["failover"]

        return Part(name, measure, BY_NAME["failover"].tell, 1)

    monkeypatch.setattr(program, "write_pages", lambda *_: [])
    monkeypatch.setattr(program, "PARTS", (part("bad", fails=True), part("good", fails=False)))
    assert program.main() == program.FAILED
    said = capsys.readouterr().err
    assert "AssertionError: expected 2 labels, got 3" in said
    assert "failed: bad" in said
    assert calls == ["bad", "good"]
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["good.json"]
    arguments.append("--resume")
    assert program.main() == program.FAILED
    assert calls == ["bad", "good", "bad"]


def test_main_when_cancelled_says_how_to_go_on_and_leaves_nothing(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scratches: list[Path] = []

    def cancelled(sizes: Sizes, bench: Bench) -> object:
        assert sizes is QUICK
        (bench.directory / "a-cluster").mkdir()
        scratches.append(bench.directory)
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "PARTS", (replace(PARTS[0], measure=cancelled),))
    assert program.main() == interrupts.CANCELLED
    assert "go on with --resume" in capsys.readouterr().err
    assert not scratches[0].exists()
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_quiet_world_same_seed_plays_same() -> None:
    played = Quiet(2, seed=5).play()
    assert played == Quiet(2, seed=5).play()
    assert played != Quiet(2, seed=6).play()


@pytest.mark.slow
def test_simulate_more_nodes_share_scans_and_fail_over() -> None:
    taken = simulate((1, 4), worlds=1, row_s=1e-6)
    alone, four = taken.points
    assert (alone.failover_s, alone.messages_per_s) == ((), (0.0,))
    (failover_s,) = four.failover_s
    assert taken.failure_timeout_s / 2 < failover_s < taken.failure_timeout_s + 3 * INTERVAL_S
    slow, quick = (statistics.median(one.cached_s) for one in taken.points)
    assert INTERVAL_S / 2 < quick < slow < INTERVAL_S * (1.5 + BUSY_SHARE)
    # A single node is busy with all that comes in for the share that is meant, about.
    assert taken.rows_per_s * taken.row_s == pytest.approx(BUSY_SHARE, rel=0.25)
