"""Outcomes for people: one table, and what broke below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from faults.registry import Outcome

HOWS = ("kill", "pause")
"""What counts of processes begin with."""


def summed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """One outcome per scenario: the worst verdict, with counts and times added up."""
    names = list(dict.fromkeys(outcome.name for outcome in outcomes))
    return [_sum([one for one in outcomes if one.name == name]) for name in names]


def _sum(same: Sequence[Outcome]) -> Outcome:
    worst = next((one for one in same if one.verdict == "broken"), same[0])
    counts: Counter[str] = Counter()
    for one in same:
        counts.update(one.counts)
    return Outcome(
        name=worst.name,
        does=worst.does,
        verdict=worst.verdict,
        seed=worst.seed,
        took_s=sum(one.took_s for one in same),
        reason=worst.reason,
        counts={name: counts[name] for one in same for name in one.counts},
        complaints=tuple(complaint for one in same for complaint in one.complaints),
        figures=_largest([one.figures for one in same]),
        row=worst.row,
        load=max(one.load for one in same),
    )


def _largest(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in figures for name in one)
    return {name: max(one[name] for one in figures if name in one) for name in names}


def table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| fault | scenario | verdict | time | counts and figures |", "|---|---|---|---:|---|"]
    lines += [_row(outcome) for outcome in outcomes]
    for outcome in outcomes:
        lines += _victims(outcome)
    for outcome in outcomes:
        for complaint in outcome.complaints:
            lines += ["", f"{outcome.name} is broken (--seed {outcome.seed}): {complaint}"]
    return "\n".join(lines)


def _victims(outcome: Outcome) -> list[str]:
    """How often each kind of process was killed and stopped, where that was done."""
    done = [name.partition(" ") for name in outcome.counts]
    names = list(dict.fromkeys(victim for how, _, victim in done if how in HOWS))
    if not names:
        return []
    counts = [[outcome.counts.get(f"{how} {name}", 0) for how in HOWS] for name in names]
    rows = [
        f"| {name} | {killed} | {paused} |"
        for name, (killed, paused) in zip(names, counts, strict=True)
    ]
    head = ["| process | killed | stopped and continued |", "|---|---:|---:|"]
    return ["", f"{outcome.name}, {outcome.took_s:.0f} s:", "", *head, *rows]


def _row(outcome: Outcome) -> str:
    told = outcome.reason or facts(outcome)
    shown = (outcome.row, outcome.name, outcome.verdict, f"{outcome.took_s:.1f} s", told)
    return f"| {' | '.join(shown)} |"


def facts(outcome: Outcome) -> str:
    """Counts and figures in a line."""
    told = [f"{name} {count:,}" for name, count in outcome.counts.items()]
    return ", ".join([*told, *(f"{name} {value:g}" for name, value in outcome.figures.items())])
