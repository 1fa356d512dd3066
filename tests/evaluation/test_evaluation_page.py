"""The page, made of results that nobody measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from evaluation import __main__ as program
from evaluation import published, stored
from evaluation.page import plots
from evaluation.page.plots import Axes, Line
from evaluation.page.section import extent, percent, table, times
from evaluation.page.whole import Told, written
from evaluation.parts.failures import Failover
from evaluation.parts.history import Grown, History
from evaluation.parts.intervals import Fresh, Freshness
from evaluation.parts.label_sizes import AllSizes, Form, LabelSizes
from evaluation.parts.node_memory import ClusterMemory, NodeMemory
from evaluation.parts.retrieval import Retrieval, Retrieved
from evaluation.parts.scaling import WORKS, Cluster, Scaling, Work
from evaluation.parts.simulated import Simulated, Times
from evaluation.parts.streamed import Retrieval as Came
from evaluation.parts.streamed import Standing, Stream, Streaming
from evaluation.registry import PARTS
from made_up_machine import MACHINE

ROOT = Path(__file__).parents[2]
PICTURES_BYTES_MAX = 300_000
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
            for count in (1_000, published.LABELS)
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


def told(names: list[str]) -> list[Told]:
    parts = []
    for part in PARTS:
        taken = section = None
        if part.name in names:
            result = RESULTS[part.name]
            taken = stored.Taken(part.name, False, 61.0, MACHINE, (0.5, 0.5, 0.5), result)
            section = part.tell(result)
        parts.append(Told(part.name, part.title, taken, section))
    return parts


def section_of(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_part_has_a_made_up_result_here() -> None:
    assert [part.name for part in PARTS] == list(RESULTS)
    assert all(isinstance(RESULTS[part.name], part.kind) for part in PARTS)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_part_shows_all_its_pictures_and_tables_of_one_width(part: Any) -> None:
    section = part.tell(RESULTS[part.name])
    text = "\n".join(section.lines)
    assert set(re.findall(r"\(img/(paper-\w+\.svg)\)", text)) == set(section.pictures)
    for found in re.findall(r"(?:^\|.*\|\n)+", text + "\n", re.MULTILINE):
        assert len({line.count("|") for line in found.splitlines()}) == 1
    assert section.summary


@pytest.mark.parametrize("name", ["retrieval", "memory", "failover"])
def test_the_same_results_draw_the_same_bytes(name: str) -> None:
    part = next(one for one in PARTS if one.name == name)
    (draw,) = part.tell(RESULTS[name]).pictures.values()
    assert draw() == draw()


def test_the_pages_figures_are_those_of_the_results() -> None:
    text = written(told(list(RESULTS)))
    retrieval = section_of(text, PARTS[0].title)
    assert "| 9,876 | 50.0 ms | 40.0 ms to 60.0 ms (3) | 5.00 ms |" in retrieval
    assert "takes 10.0 times what the fetch takes" in retrieval
    memory = section_of(text, PARTS[2].title)
    assert "| together | 200 MB | 210 MB | +5.0 % | 10 |" in memory
    assert "single ones by +0.0 % to +10.0 %" in memory
    assert "deviation between nodes is 5.00 percentage points" in memory
    assert "node-1 runs 7, node-2 runs 3" in memory
    streaming = section_of(text, PARTS[3].title)
    assert "| 1,000 | 5 s | 32.3 blocks/s | 2 | 333 | 15.0 ms |" in streaming
    assert "| 101 ms |" in streaming
    assert "| 178 ms |" in streaming
    scaling = section_of(text, PARTS[4].title)
    assert "does 25.0 % of the work that a single node has with a tick" in scaling
    assert "an equal share would be 12.5 %" in scaling
    assert "fetch takes 1.50 times what it took, a tick's scans 1.50 times, its job 1.00" in text
    assert "8 parts" in text
    assert "8.13 min" in text


def test_only_as_many_labels_as_the_paper_has_are_compared_with_its() -> None:
    text = section_of(written(told(["labels"])), PARTS[1].title)
    assert f"{times(1.75, published.COMPACTED_B)} what the paper's compacted labels take" in text
    few = AllSizes("humidity < 60", RESULTS["labels"].sizes[:1])
    assert "what the paper's" not in "\n".join(PARTS[1].tell(few).lines)


def test_what_was_not_measured_is_said_with_the_command() -> None:
    text = written(told(["failover"]))
    assert "Not measured: `scripts/paper --only history`" in text
    assert "Kill of a coordinator until the next new answer | left out | 2.10 s" in text
    nothing = written(told([]))
    assert "Nothing has been measured yet." in nothing
    assert "img/" not in nothing


def test_a_busy_machine_is_told() -> None:
    (part,) = [one for one in told(["failover"]) if one.taken is not None]
    assert part.taken is not None
    busy = replace(part.taken, machine=replace(MACHINE, load=(2.5, 0.0, 0.0)))
    assert "busy with other work" in written([replace(part, taken=busy)])
    assert "busy with other work" not in written([part])


def test_the_load_of_a_run_itself_does_not_make_the_machine_busy() -> None:
    (first,) = [one for one in told(["failover"]) if one.taken is not None]
    (second,) = [one for one in told(["history"]) if one.taken is not None]
    before, after = first.taken, second.taken
    assert before is not None
    assert after is not None

    def begun_after(pause_s: float) -> str:
        pause = timedelta(seconds=before.took_s + pause_s)
        at = (datetime.fromisoformat(MACHINE.started_at) + pause).isoformat()
        machine = replace(MACHINE, load=(2.5, 0.0, 0.0), started_at=at)
        return written([first, replace(second, taken=replace(after, machine=machine))])

    assert "busy with other work" not in begun_after(2.0)
    assert "busy with other work" in begun_after(3600.0)


def test_figures_of_small_sizes_say_so() -> None:
    (part,) = [one for one in told(["failover"]) if one.taken is not None]
    assert part.taken is not None
    quick = stored.Taken("failover", True, 1.0, MACHINE, (0.0, 0.0, 0.0), part.taken.result)
    text = written([Told(part.name, part.title, quick, part.section)])
    assert "Small sizes" in text
    assert "Small sizes" not in written([part])


def test_a_table_refuses_rows_of_another_width() -> None:
    assert table(("a", "b"), [("x", "1")]) == ["| a | b |", "| --- | ---: |", "| x | 1 |"]
    with pytest.raises(ValueError, match="expected 2 cells, got 1"):
        table(("a", "b"), [("x",)])


def test_phrases() -> None:
    assert percent(-0.0123) == "-1.2 %"
    assert extent([0.002, 0.001]) == "1.00 ms to 2.00 ms (2)"
    assert times(3, 2) == "1.50 times"
    assert times(3, 0) == "no multiple of nothing"


def test_a_band_and_a_dashed_line_are_drawn() -> None:
    axes = Axes("a title", "x", "y", log_x=True, x_ticks=(1, 10))
    band = Line("band", (1, 10), (2, 3), (1, 2), (3, 4))
    dashed = Line("dashed", (1, 10), (1, 1), dashed=True)
    text = plots.lines(axes, [band, dashed]).decode()
    for word in ("a title", "band", "dashed", "stroke-dasharray", "fill-opacity"):
        assert word in text
    assert text.endswith("</svg>\n")
    assert not re.search(r"[ \t]\n", text)


def test_results_become_a_page_with_pictures_beside_it(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "docs" / "dev" / "paper.md"
    for part in told(list(RESULTS)):
        assert part.taken is not None
        stored.save(results, part.taken)
    page.parent.mkdir(parents=True)
    program.write_page(program.Places(results, page))
    assert page.read_text() == written(told(list(RESULTS)))
    shown = set(re.findall(r"\(img/(.*?)\)", page.read_text()))
    written_files = list((page.parent / "img").iterdir())
    assert shown == {path.name for path in written_files}
    assert sum(path.stat().st_size for path in written_files) < PICTURES_BYTES_MAX
    for path in written_files:
        assert ET.parse(path).getroot().tag.endswith("svg")


def test_the_documented_page_has_every_section() -> None:
    text = (ROOT / "docs" / "dev" / "paper.md").read_text()
    for part in PARTS:
        assert f"## {part.title}\n" in text
    assert "Small sizes" not in text
    pictures = (ROOT / "docs" / "dev" / "img").glob("paper-*.svg")
    assert sum(path.stat().st_size for path in pictures) < PICTURES_BYTES_MAX
