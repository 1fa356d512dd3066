"""How fast every stored byte is checked, beside a plain read of the same files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import stores
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.storage.verify import verify

OF_A_READ = 0.6
"""The goal, where the files come from the disk."""


def measure(bench: Bench) -> Iterator[Figure]:
    for rows, commits in bench.sizes.verify:
        for merged in (False, True):
            place = bench.directory / f"verify-{rows}-{merged}"
            bench.say(f"writing {commits:,} commits of {rows:,}{', merged' if merged else ''}")
            stores.filled(place, rows=rows, commits=commits, merged=merged)
            kind = "merged segments" if merged else "segments"
            what = f"{kind} of {commits:,} commits of {rows:,}, {stores.size(place) / 1e6:,.0f} MB"
            for cold in (True, False):
                yield _compared(bench, place, cold=cold, commits=commits, what=what)
            shutil.rmtree(place)


def _compared(bench: Bench, place: Path, *, cold: bool, commits: int, what: str) -> Figure:
    def check() -> None:
        report = verify(place)
        if not report.ok or report.commits != commits:
            raise AssertionError(f"expected {commits} sound commits, got {report}")

    before = (lambda: stores.forget(place)) if cold else _nothing
    read, checked = _in_turn(
        lambda: stores.read_plainly(place), check, before=before, runs=bench.sizes.runs
    )
    size = stores.size(place)
    where = "from the disk" if cold else "from memory"
    peer = Peer("a plain read of the same files", read.per_second(size))
    goals = (Goal("at least", OF_A_READ, of_peer=True),) if cold else ()
    name = f"verify {where}: {what}"
    return Figure(name, "bytes/s", checked.per_second(size), (peer,), goals)


def _nothing() -> None:
    """What is to be done before a run that finds its files in memory."""


def _in_turn(
    *subjects: Callable[[], object], before: Callable[[], None], runs: int
) -> tuple[Spread, ...]:
    """Seconds of each subject over `runs` rounds and one that does not count."""
    taken: list[list[float]] = [[] for _ in subjects]
    for _ in range(runs + 1):
        for subject, times in zip(subjects, taken, strict=True):
            before()
            started = time.perf_counter()
            subject()
            times.append(time.perf_counter() - started)
    return tuple(Spread.of(times[1:]) for times in taken)
