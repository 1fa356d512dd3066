"""Figures: timing in turns, how far the runs lie apart, and what a figure is compared with."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

_UP = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
# How many decimals make three digits, from which size on; what rounds up to a size belongs to it.
_DECIMALS = tuple((decimals, 0.9995 * 10.0 ** (2 - decimals)) for decimals in range(5))
DECIMALS_MAX = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of several runs, at least one; what they say is their median and extremes."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("expected at least one run, got none")

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(tuple(float(value) for value in values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def runs(self) -> int:
        return len(self.values)

    def per_second(self, count: float) -> Spread:
        """Where the values are seconds in which `count` things were done: things a second."""
        return Spread(tuple(count / seconds for seconds in self.values))


@dataclass(frozen=True, slots=True)
class Peer:
    """What a figure is compared with: a floor, or another way to the same end; in its unit."""

    name: str
    spread: Spread


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure is meant to reach: so much in its unit, or so many times its first peer."""

    sense: Literal["at most", "at least"]
    limit: float
    of_peer: bool = False

    def met(self, value: float) -> bool:
        return value <= self.limit if self.sense == "at most" else value >= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report.

    Attributes:
        name: what was measured, in words.
        unit: "s", "B", "paths/s", "B/path" and the like.
        spread: of the runs.
        peers: measured in the same run, run by run in turn where they take time.
        goals: what it is meant to reach; nothing fails where it does not.
    """

    name: str
    unit: str
    spread: Spread
    peers: tuple[Peer, ...] = ()
    goals: tuple[Goal, ...] = ()

    def ratio(self, peer: Peer) -> float:
        """This median over the peer's."""
        return self.spread.median / peer.spread.median

    def reached(self, goal: Goal) -> float:
        """What a goal is compared with."""
        return self.ratio(self.peers[0]) if goal.of_peer else self.spread.median


def quantity(value: float, unit: str) -> str:
    """A value with three digits and the unit that suits its size: 0.00123 s is "1.23 ms"."""
    if unit == "s":
        size, name = next((t for t in _TIMES if abs(value) >= t[0]), _TIMES[-1])
        return f"{digits(value / size)} {name}"
    if unit == "B" or unit.endswith("/s"):
        size, prefix = next((p for p in _UP if abs(value) >= p[0]), _UP[-1])
        separator = "" if unit == "B" or not prefix else " "
        return f"{digits(value / size)} {prefix}{separator}{unit}"
    return f"{digits(value)} {unit}"


def digits(value: float) -> str:
    """Three digits or all before the point, never an exponent."""
    size = abs(value)
    if size == 0:
        return "0"
    decimals = next((d for d, least in _DECIMALS if size >= least), DECIMALS_MAX)
    return f"{value:,.{decimals}f}"


Subject: TypeAlias = Callable[[], Any]


CALLS_MAX = 1_000


def in_turn(
    *subjects: Subject,
    runs: int,
    warm_up: bool = True,
    run_s: float = 0.0,
    before: Subject | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Spread]:
    """Seconds of one call of each subject over `runs` rounds; a round runs all of them.

    Args:
        subjects: called without arguments; what they return is freed outside the time taken.
        runs: counted rounds.
        warm_up: whether a round that does not count comes first.
        run_s: how long a run takes at least, by calling a quick subject several times; a run's
            value is then the mean of its calls.
        before: called before each call of a subject, outside the time taken.
        clock: `time.process_time` for the time that all threads of this process work.
    """
    taken: list[list[float]] = [[] for _ in subjects]
    calls = [1] * len(subjects)
    if warm_up:
        calls = [calls_for(run_s, seconds(subject, before, clock=clock)) for subject in subjects]
    for _ in range(runs):
        for subject, count, times in zip(subjects, calls, taken, strict=True):
            taken_s = [seconds(subject, before, clock=clock) for _ in range(count)]
            times.append(sum(taken_s) / count)
    return [Spread.of(times) for times in taken]


def calls_for(run_s: float, call_s: float) -> int:
    """How many calls of `call_s` seconds make a run of `run_s`; at least one."""
    return max(1, min(CALLS_MAX, math.ceil(run_s / max(call_s, 1e-9))))


def seconds(
    subject: Subject,
    before: Subject | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """How long one call takes, without what comes before it."""
    if before is not None:
        before()
    started = clock()
    result = subject()
    elapsed = clock() - started
    del result
    return elapsed
