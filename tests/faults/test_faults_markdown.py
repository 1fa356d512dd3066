"""The tables of the page are renewed row by row, in the order of the scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.markdown import update
from faults.registry import Outcome, Scenario
from faults.table import SCENARIOS

PAGE = """before
<!-- verdicts: begin -->
<!-- verdicts: end -->
between
<!-- floods: begin -->
<!-- floods: end -->
<!-- bombs: begin -->
<!-- bombs: end -->
after
"""


def scenario(name: str) -> Scenario:
    return Scenario(name, f"{name}s: it must hold", (), 1, lambda _: None, row="luck")


def outcome(name: str, seed: int, **counts: int) -> Outcome:
    return Outcome(name, f"{name}s: it must hold", "held", seed, 2.4, counts=counts, row="luck")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_run_of_some_renews_their_rows_and_keeps_the_others(page: Path) -> None:
    known = [scenario(name) for name in ("toss", "spin", "deal")]
    update(page, [outcome("deal", 1, lost=0, cards=3), outcome("spin", 1)], known)
    update(page, [outcome("spin", 2, rounds=1_000), outcome("toss", 3)], known)
    lines = page.read_text().splitlines()
    table = [line for line in lines if line.startswith("| luck")]
    assert ["toss" in table[0], "spin" in table[1], "deal" in table[2]] == [True] * 3
    assert "seed 2" in table[1]
    assert "rounds 1,000" in table[1]
    assert "cards 3" in table[2]
    assert "lost" not in table[2]
    assert lines[0] == "before"
    assert lines[-1] == "after"


def test_figures_of_floods_and_bombs_have_tables_of_their_own(page: Path) -> None:
    figures = {"memory before, MiB": 90.0, "memory over that, MiB": 12.0}
    figures |= {f"{share} {when}, ms": 4.5 for share in ("p50", "p99") for when in BEFORE_DURING}
    flood = Outcome("spin", "spins: hold", "held", 1, 1.0, counts={"flood: asked": 7})
    flood.figures.update(figures)
    bombs = Outcome("bombs", "bombs: hold", "held", 1, 1.0)
    bombs.figures.update({"zip: MiB": 3.0, "zip: s": 0.2, "zip: sent, KB": 600.0})
    update(page, [flood, bombs], [scenario("spin"), scenario("bombs")])
    text = page.read_text()
    assert "| spins | 90 | 12 | 4.5 before, 4.5 | 4.5 before, 4.5 | asked 7 |" in text
    assert "| zip | 600 | 3 | 0.2 | 0 |" in text
    assert "flood: asked" not in text


BEFORE_DURING = ("before", "during")


def test_what_was_skipped_says_why(page: Path) -> None:
    skipped = Outcome("spin", "spins: hold", "skipped", 1, 0.0, reason="no luck: sold out")
    update(page, [skipped], [scenario("spin")])
    assert "no luck: sold out |" in page.read_text()


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("nothing")
    with pytest.raises(ValueError, match="verdicts"):
        update(path, [outcome("spin", 1)], [scenario("spin")])
    assert path.read_text() == "nothing"


def test_every_scenario_belongs_to_a_row_of_the_table_of_faults() -> None:
    assert all(one.row for one in SCENARIOS)
