"""Runs scenarios one behind the other, each in a directory of its own."""

from __future__ import annotations

import os
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fault_injection.requirements import first_missing

from faults.registry import Outcome, Scenario, Trial, Verdict


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How scenarios are run.

    Attributes:
        rounds: of each; None for each one's own number.
        seed: of everything random.
        minutes: how long all of them are repeated with further seeds; 0: once. Scenarios that are
            lasting, where no others are chosen, share the time instead, one world for each.
        directory: on the disk that is to be used; None for that of the temporary files.
    """

    rounds: int | None = None
    seed: int = 1
    minutes: float = 0.0
    directory: Path | None = None


def run_all(
    scenarios: Sequence[Scenario], options: RunOptions, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """Outcomes as they come; what is broken ends nothing but its own scenario."""
    ends_at = time.monotonic() + 60 * options.minutes
    seed = options.seed
    if options.minutes and all(one.is_lasting for one in scenarios):
        lasts_s = 60 * options.minutes / len(scenarios)
        yield from (run(one, options, say, lasts_s=lasts_s) for one in scenarios)
        return
    while True:
        for scenario in scenarios:
            outcome = run(scenario, replace(options, seed=seed), say)
            yield outcome
            if options.minutes and time.monotonic() > ends_at:
                return
        if not options.minutes or all(first_missing(one.needs) for one in scenarios):
            return
        seed += 1


def run(
    scenario: Scenario,
    options: RunOptions,
    say: Callable[[str], None],
    *,
    lasts_s: float = 0.0,
) -> Outcome:
    """One scenario once. What it leaves by an exception is a complaint like any other.

    Args:
        scenario: to run.
        options: how.
        say: shows progress.
        lasts_s: for how long, where it is a lasting one; 0: for its rounds.
    """
    missing = first_missing(scenario.needs)
    if missing is not None:
        skipped: Verdict = "skipped"
        known = (scenario.name, scenario.does, skipped, options.seed, 0.0)
        return Outcome(*known, reason=missing, row=scenario.row)
    say(f"-- {scenario.name}: {scenario.does}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="galileo-chaos-", dir=options.directory, ignore_cleanup_errors=True
    ) as place:
        rounds = options.rounds or scenario.rounds
        drawn = random.Random(options.seed)
        trial = Trial(Path(place), rounds, drawn, say, lasts_s=lasts_s)
        try:
            scenario.run(trial)
        except Exception as error:
            trial.complaints.append("".join(traceback.format_exception(error)))
    return Outcome(
        name=scenario.name,
        does=scenario.does,
        verdict="broken" if trial.complaints else "held",
        seed=options.seed,
        took_s=time.monotonic() - started,
        counts=dict(trial.counts),
        complaints=tuple(trial.complaints),
        figures=trial.figures,
        load=round(os.getloadavg()[1]),
        row=scenario.row,
    )
