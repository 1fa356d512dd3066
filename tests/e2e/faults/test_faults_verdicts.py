"""The tables of docs/dev/faults.md are renewed row by row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from fault_injection.verdicts import Outcome, table, update_page

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


def outcome(name: str, seed: int = 1, *, verdict: str = "held", **counts: int) -> Outcome:
    holds = f"{name}s: it must hold"
    return Outcome(name, "luck", holds, verdict, seed, 2.4, counts=Counter(counts))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_update_page_with_some_outcomes_renews_their_rows_and_keeps_the_others(page: Path) -> None:
    update_page(page, [outcome("spin"), outcome("deal", lost=0, cards=3)])
    update_page(page, [outcome("toss", 3), outcome("spin", 2, rounds=1_000)])
    lines = page.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| luck")]
    assert [row.split("`")[1] for row in rows] == ["spin", "deal", "toss"]
    assert "seed 2" in rows[0]
    assert "rounds 1,000" in rows[0]
    assert "cards 3" in rows[1]
    assert "lost" not in rows[1]
    assert (lines[0], lines[-1]) == ("before", "after")


def test_update_page_writes_figures_of_floods_and_bombs_in_their_tables(page: Path) -> None:
    flood = outcome("spin", **{"flood: asked": 7})
    flood.figures = {"memory before, MiB": 90.0, "memory over that, MiB": 12.0} | {
        f"{share} {when}, ms": 4.5 for share in ("p50", "p99") for when in ("before", "during")
    }
    bombs = outcome("bombs")
    bombs.figures = {"zip: MiB": 3.0, "zip: s": 0.2, "zip: sent, KB": 600.0}
    update_page(page, [flood, bombs])
    text = page.read_text()
    assert "| spins | 90 | 12 | 4.5 before, 4.5 | 4.5 before, 4.5 | asked 7 |" in text
    assert "| zip | 600 | 3 | 0.2 | 0 |" in text
    assert "flood: asked" not in text


def test_update_page_of_a_skipped_scenario_gives_the_reason(page: Path) -> None:
    skipped = outcome("spin", verdict="skipped")
    skipped.reason = "no luck: sold out"
    update_page(page, [skipped])
    assert "no luck: sold out |" in page.read_text()


def test_update_page_without_marks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("nothing")
    with pytest.raises(ValueError, match="verdicts"):
        update_page(path, [outcome("spin")])
    assert path.read_text() == "nothing"


def test_add_of_another_seed_keeps_the_worst_verdict_and_sums_counts() -> None:
    total = outcome("kill", 1, rounds=2)
    total.counts["longest stop, ms"] = 30
    total.figures = {"s": 3.0}
    other = outcome("kill", 2, verdict="broken", rounds=3)
    other.figures = {"s": 1.0}
    other.counts["longest stop, ms"] = 20
    total.add(other)
    total.add(outcome("kill", 3, rounds=1))
    assert (total.verdict, total.seed) == ("broken", 2)
    assert (total.counts["rounds"], total.figures["s"]) == (6, 3.0)
    assert total.counts["longest stop, ms"] == 30
    assert "| luck | kill | broken |" in table([total])
