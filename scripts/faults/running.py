"""Runs scenarios one behind the other, each in a directory of its own."""

from __future__ import annotations

import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from faults.registry import Outcome, Scenario, Trial
from galileo.testing.faults.needs import first_missing


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How scenarios are run.

    Attributes:
        rounds: of each; None for each one's own number.
        seed: of everything random.
        minutes: how long all of them are repeated with further seeds; 0: once.
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
    while True:
        for scenario in scenarios:
            outcome = run(scenario, replace(options, seed=seed), say)
            yield outcome
            if options.minutes and time.monotonic() > ends_at:
                return
        if not options.minutes or all(first_missing(one.needs) for one in scenarios):
            return
        seed += 1


def run(scenario: Scenario, options: RunOptions, say: Callable[[str], None]) -> Outcome:
    """One scenario once. What it leaves by an exception is a complaint like any other."""
    missing = first_missing(scenario.needs)
    if missing is not None:
        return Outcome(scenario.name, scenario.does, "skipped", options.seed, 0.0, reason=missing)
    say(f"-- {scenario.name}: {scenario.does}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="galileo-chaos-", dir=options.directory, ignore_cleanup_errors=True
    ) as place:
        rounds = options.rounds or scenario.rounds
        trial = Trial(Path(place), rounds, random.Random(options.seed), say)
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
    )
