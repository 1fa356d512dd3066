"""Cancellation of queries that run or wait for their turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """Stops the queries that it was given to, from any thread; they raise `Cancelled`.

    It stays cancelled: give each query, or each group of queries that stop together, its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acts: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """Again is harmless."""
        with self._lock:
            self._cancelled = True
            for act in self._acts:
                act()

    @contextmanager
    def calling(self, act: Callable[[], None]) -> Iterator[None]:
        """Has `act` called when it is cancelled within the block, or was before."""
        with self._lock:
            self._acts.append(act)
            if self._cancelled:
                act()
        try:
            yield
        finally:
            with self._lock:
                self._acts.remove(act)
