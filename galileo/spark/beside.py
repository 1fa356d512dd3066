"""Calls of sent samplers run beside the job, which waits for them a moment and no longer.

A job serves every query of its host, and a sampler that somebody sent may need seconds for its
first start, or never end. So its call runs in a thread. What is not done in a moment is left for
a later tick: the query stays where it is, asks again, and finds the answer of the earlier call,
which says by itself how far it goes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from galileo.cursor import Cursor
from galileo.errors import GalileoError, Overloaded
from galileo.labels import LabelSet
from galileo.samplers import SamplerSpec, failed

PATIENCE_S = 0.25
"""For all calls of one task together."""
THREADS = 8
CALLS_MAX = 64
"""Calls that wait, run, or whose answers wait; the oldest answers are forgotten first."""

Key: TypeAlias = tuple[str | bytes, ...]
"""Of the sampler, the query, and where it stands: what decides about an answer."""


class Call:
    """One call; its answer counts for everything up to `reached`."""

    def __init__(
        self, sample: Callable[[], LabelSet], *, spec: SamplerSpec, reached: Cursor
    ) -> None:
        self.reached = reached
        self.over = threading.Event()
        self._sample = sample
        self._spec = spec
        self._labels: LabelSet | None = None
        self._error: GalileoError | None = None

    def run(self) -> None:
        try:
            self._labels = self._sample()
        except GalileoError as error:
            self._error = error
        except Exception as error:
            self._error = failed(error, self._spec, labels=0)
        finally:
            self.over.set()

    def answer(self) -> LabelSet:
        """What is kept; raises what became of it instead."""
        assert self.over.is_set(), "it runs"
        if self._labels is None:
            assert self._error is not None, "it has an answer or an error"
            raise self._error
        return self._labels


class Beside:
    """The calls of one worker. Its threads live on, as the processes that they start need it."""

    def __init__(self, *, threads: int = THREADS) -> None:
        self._calls: OrderedDict[Key, Call] = OrderedDict()
        self._waiting: queue.SimpleQueue[Call] = queue.SimpleQueue()
        for _ in range(threads):
            threading.Thread(target=self._serve, daemon=True).start()

    def begin(self, key: Key, make: Callable[[], Call]) -> Call:
        """The call of this key: the one that runs or is over, or one that begins now.

        Raises:
            Overloaded: as many wait or run as may.
        """
        call = self._calls.get(key)
        if call is None:
            self._make_room()
            call = self._calls[key] = make()
            self._waiting.put(call)
        return call

    def settle(self, calls: Iterable[Call], *, patience_s: float = PATIENCE_S) -> None:
        """Returns when all are over, or after a moment."""
        until = time.monotonic() + patience_s
        for call in calls:
            call.over.wait(max(0.0, until - time.monotonic()))

    def take(self, key: Key, call: Call) -> LabelSet:
        """The answer of a call that is over; one that failed is forgotten with that.

        Calls that began since may have put it out of its place already.
        """
        try:
            return call.answer()
        except GalileoError:
            if self._calls.get(key) is call:
                del self._calls[key]
            raise

    def _make_room(self) -> None:
        if len(self._calls) < CALLS_MAX:
            return
        for key, call in self._calls.items():
            if call.over.is_set():
                del self._calls[key]
                return
        raise Overloaded(f"{CALLS_MAX} sent samplers run already; it is this one's turn later")

    def _serve(self) -> None:
        while True:
            self._waiting.get().run()
