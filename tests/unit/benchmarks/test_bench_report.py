from __future__ import annotations

import json
from dataclasses import replace

import made_up_machine
import pytest

from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.report import Report, Section

MACHINE = replace(made_up_machine.MACHINE, peers={"duckdb": "2.0.0"})
FLOOR = Peer("floor", Spread.of([0.001, 0.004, 0.002]))
FIGURES = (
    Figure(
        "a thing",
        "s",
        Spread.of([0.005, 0.003, 0.004]),
        (FLOOR, FLOOR),
        (Goal("at most", 0.01), Goal("at most", 1.3, of_peer=True)),
    ),
    Figure("its size", "B/path", Spread.of([60.0]), goals=(Goal("at least", 60.0),)),
)


@pytest.fixture
def report() -> Report:
    section = Section("query", "Querying", list(FIGURES), took_s=12.4)
    return Report(MACHINE, quick=False, sections=[section], load_at_end=(3.0, 2.0, 1.0))


def test_markdown_has_a_table_for_each_area(report):
    lines = report.to_markdown().splitlines()
    table = lines[lines.index("## Querying") + 2 :]
    assert table == [
        "| figure | median | lowest to highest | compared with |",
        "|---|---:|---:|---|",
        "| a thing | 4.00 ms | 3.00 ms to 5.00 ms (3) "
        "| 2.00 times floor (2.00 ms); 2.00 times floor (2.00 ms) |",
        "| its size | 60.0 B/path |  |  |",
    ]


def test_markdown_says_which_goals_were_met(report):
    lines = report.to_markdown().splitlines()
    start = lines.index("## What was aimed at") + 4
    assert lines[start : start + 3] == [
        "| a thing | at most 10.0 ms | 4.00 ms | met |",
        "| a thing | at most 1.30 times floor | 2.00 times floor | **missed** |",
        "| its size | at least 60.0 B/path | 60.0 B/path | met |",
    ]


def test_markdown_states_the_machine(report):
    text = report.to_markdown()
    assert "Abacus 3000, 2 cores, 25.0 GB memory, Linux 6.1, ext4 on /dev/vda" in text
    assert "CPython 3.11.7, numpy 2.4.6" in text
    assert "Compared with: duckdb 2.0.0" in text
    assert "Begun 2026-01-02T03:04:05+00:00, took 12 s" in text
    assert "0.1, 1.0, 2.1 at the start, 3.0, 2.0, 1.0 at the end" in text
    assert "full sizes" in text


def test_to_json_has_every_value(report):
    raw = json.loads(report.to_json())
    assert (raw["machine"]["cpu"], raw["quick"]) == ("Abacus 3000", False)
    (section,) = raw["sections"]
    assert section["took_s"] == 12.4
    assert section["figures"][0]["spread"]["values"] == [0.005, 0.003, 0.004]
    assert section["figures"][0]["peers"][0]["name"] == "floor"


def test_markdown_of_an_area_that_failed_or_lacks_software_keeps_its_figures(report):
    (section,) = report.sections
    section.failure = "AssertionError: expected 2 labels, got 3"
    section.missing = "its peer is not installed"
    text = report.to_markdown()
    assert "| a thing | 4.00 ms |" in text
    assert "**Failed**" in text
    assert "    AssertionError: expected 2 labels, got 3" in text
    assert "\n\nNot measured: its peer is not installed" in text
