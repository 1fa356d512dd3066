"""Many short runs: of the target that had the least CPU time for its weight, until time is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzzing import records
from fuzzing.running import Outcome, fuzz
from fuzzing.targets import Target

SLICE_S = 150
"""Of one run. What it found to reach new code the next run of the target begins with."""


class Campaign:
    """Shares CPU time between targets; each of `workers` threads runs one target at a time."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        inputs: Path,
        minutes: float,
        seed: int,
        told: Callable[[Outcome], None],
    ) -> None:
        self._targets = {target.name: target for target in targets}
        self._ends_at = time.monotonic() + minutes * 60
        self._seed = seed
        self._told = told
        self._is_over = False
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._inputs = inputs
        self.outcomes: list[Outcome] = []

    def run(self, *, workers: int) -> list[Outcome]:
        """Every run that was made.

        Raises:
            SystemExit: the fuzzer itself does not run.
            KeyboardInterrupt: it was cancelled; no run was begun after that.
        """
        with ThreadPoolExecutor(workers) as pool:
            try:
                for work in [pool.submit(self._work) for _ in range(workers)]:
                    work.result()
            finally:
                self._is_over = True
        return self.outcomes

    def _work(self) -> None:
        while time.monotonic() < self._ends_at and not self._is_over:
            with self._lock:
                target = self._next()
                if target is None:
                    return
                self._busy.add(target.name)
                self._seed += 1
                seed = self._seed
            inputs = self._inputs / target.name
            try:
                outcome = fuzz(target, seconds=SLICE_S, seed=seed, inputs=inputs)
            except BaseException:
                self._is_over = True
                raise
            with self._lock:
                self._busy.discard(target.name)
                self.outcomes.append(outcome)
                records.add(outcome)
            self._told(outcome)

    def _next(self) -> Target | None:
        had = records.load()
        free = [target for name, target in self._targets.items() if name not in self._busy]

        def share(target: Target) -> float:
            return had.get(target.name, records.Record()).cpu_s / target.weight

        return min(free, key=share, default=None)
