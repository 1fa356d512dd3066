"""Outcomes for people: one table, and what broke below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from faults.registry import Outcome


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
    )


def table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| scenario | verdict | time | counts |", "|---|---|---:|---|"]
    lines += [_row(outcome) for outcome in outcomes]
    for outcome in outcomes:
        for complaint in outcome.complaints:
            lines += ["", f"{outcome.name} is broken (--seed {outcome.seed}): {complaint}"]
    return "\n".join(lines)


def _row(outcome: Outcome) -> str:
    counts = ", ".join(f"{name} {count:,}" for name, count in outcome.counts.items())
    told = outcome.reason or counts
    return f"| {outcome.name} | {outcome.verdict} | {outcome.took_s:.1f} s | {told} |"
