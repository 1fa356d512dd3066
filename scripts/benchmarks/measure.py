"""Timing: what is compared is run in turn, so that a busy moment of the machine meets all of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from benchmarks.figures import Spread

Subject: TypeAlias = Callable[[], Any]


CALLS_MAX = 1_000


def in_turn(
    *subjects: Subject, runs: int, warm_up: bool = True, run_s: float = 0.0
) -> list[Spread]:
    """Seconds of one call of each subject over `runs` rounds; a round runs all of them.

    Args:
        subjects: called without arguments; what they return is freed outside the time taken.
        runs: counted rounds.
        warm_up: whether a round that does not count comes first.
        run_s: how long a run takes at least, by calling a quick subject several times; a run's
            value is then the mean of its calls.
    """
    taken: list[list[float]] = [[] for _ in subjects]
    calls = [1] * len(subjects)
    if warm_up:
        calls = [calls_for(run_s, seconds(subject)) for subject in subjects]
    for _ in range(runs):
        for subject, count, times in zip(subjects, calls, taken, strict=True):
            times.append(sum(seconds(subject) for _ in range(count)) / count)
    return [Spread.of(times) for times in taken]


def calls_for(run_s: float, call_s: float) -> int:
    """How many calls of `call_s` seconds make a run of `run_s`; at least one."""
    return max(1, min(CALLS_MAX, math.ceil(run_s / max(call_s, 1e-9))))


def seconds(subject: Subject) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    result = subject()
    elapsed = time.perf_counter() - started
    del result
    return elapsed
