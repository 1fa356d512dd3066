"""Cancellation of queries that run or wait for their turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """Cancels the queries that have it, from any thread; they raise `Cancelled`.

    A cancellation cannot be reset: use one for each query, or for queries that end together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """Cancels; further calls have no effect."""
        with self._lock:
            self._cancelled = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Calls `callback` if this is cancelled within the block or was before."""
        with self._lock:
            self._callbacks.append(callback)
            if self._cancelled:
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)
