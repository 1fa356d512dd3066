"""A few rounds of the quick scenarios of scripts/chaos; docs/dev/faults.md describes all."""

from __future__ import annotations

import pytest
from faults.running import RunOptions, run
from faults.table import SCENARIOS

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        pytest.param("kill", 1, marks=pytest.mark.slow),
        pytest.param("sync-error", 1, marks=pytest.mark.slow),
        ("torn-tail", 1),
        pytest.param("bit-flips", 18, marks=pytest.mark.slow),
        pytest.param("power-cut", 1, marks=pytest.mark.slow),
        pytest.param("retry-storm", 1, marks=pytest.mark.slow),
        pytest.param("two-producers", 1, marks=pytest.mark.slow),
    ],
)
def test_a_few_rounds_hold(name: str, rounds: int) -> None:
    outcome = run(BY_NAME[name], RunOptions(rounds=rounds), lambda _: None)
    if outcome.verdict == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.complaints == ()
    assert outcome.verdict == "held"
    assert outcome.counts["rounds"] == rounds
    if "audits" in outcome.counts:
        assert outcome.counts["acknowledged"] > 0
        assert outcome.counts["lost"] == outcome.counts["repeated"] == 0


def test_every_scenario_has_a_name_of_its_own_and_says_what_it_does() -> None:
    assert len(BY_NAME) == len(SCENARIOS)
    for scenario in SCENARIOS:
        assert scenario.rounds > 0
        assert len(scenario.does) > 20
