"""Timing: what is compared is run in turn, so that a busy moment of the machine meets all of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from benchmarks.figures import Spread

Subject: TypeAlias = Callable[[], Any]


def in_turn(*subjects: Subject, runs: int, warm_up: bool = True) -> list[Spread]:
    """Seconds of each subject over `runs` rounds; a round runs each of them once.

    Args:
        subjects: called without arguments; what they return is freed outside the time taken.
        runs: counted rounds.
        warm_up: whether a round that does not count comes first.
    """
    taken: list[list[float]] = [[] for _ in subjects]
    for number in range(-1 if warm_up else 0, runs):
        for subject, times in zip(subjects, taken, strict=True):
            elapsed = seconds(subject)
            if number >= 0:
                times.append(elapsed)
    return [Spread.of(times) for times in taken]


def seconds(subject: Subject) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    result = subject()
    elapsed = time.perf_counter() - started
    del result
    return elapsed
