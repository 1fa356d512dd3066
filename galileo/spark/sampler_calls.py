"""Background calls of uploaded samplers, for which a job waits briefly.

A job serves all queries of its host, and an uploaded sampler can need seconds for its first start,
or never return. So each call runs in a thread. A call that is not done in time is left for a later
job: the query keeps its cursor, requests the same again, and gets the result of the earlier call,
which states up to which cursor it holds.

All calls that one process answers share a thread, since the process handles them one at a time.
The threads and calls of one archive are limited, however slow its code is.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from galileo.cursor import Cursor
from galileo.errors import GalileoError, Overloaded
from galileo.labels import LabelSet
from galileo.samplers import SamplerSpec, failed

WAIT_S = 0.25
"""How long a task waits for all of its calls together."""
THREADS = 8
CALLS_MAX = 128
ARCHIVE_SHARE = 0.5
"""Of the threads, and of the calls that are not done, for one archive."""

Key: TypeAlias = tuple[str | bytes, ...]
"""Sampler, query and cursors, which determine the result of a call."""


class Call:
    """One call; its result holds up to the cursor `reached`.

    Attributes:
        reached: of the labels that are the sampler's input.
        archive: digest of the code.
        process: equal for calls that the same process answers.
        done: set once there is a result.
        delivered: whether a query has the result.
    """

    def __init__(
        self,
        sample: Callable[[], LabelSet],
        *,
        spec: SamplerSpec,
        owner: str = "",
        reached: Cursor,
    ) -> None:
        self.reached = reached
        self.archive = spec.archive
        self.process = (spec.archive, json.dumps(dict(spec.options), sort_keys=True), owner)
        self.done = threading.Event()
        self.delivered = False
        self._sample: Callable[[], LabelSet] | None = sample
        self._spec = spec
        self._labels: LabelSet | None = None
        self._error: GalileoError | None = None

    def run(self) -> None:
        assert self._sample is not None, "it runs once"
        try:
            self._labels = self._sample()
        except GalileoError as error:
            self._error = error
        except BaseException as error:
            self._error = failed(error, self._spec, labels=0)
        finally:
            self._sample = None  # Frees the input; the result can stay for long.
            self.done.set()

    def result(self) -> LabelSet:
        """The labels that the sampler kept. Raises the error of the call."""
        assert self.done.is_set(), "it runs"
        if self._labels is None:
            assert self._error is not None, "it has a result or an error"
            raise self._error
        return self._labels


class BackgroundCalls:
    """The calls of one worker. The threads never end: the processes that they start need them.

    Attributes:
        calls_max: calls that wait, run, or have a result. Results are evicted: first those that
            were delivered, the oldest first.
    """

    def __init__(self, *, threads: int = THREADS, calls_max: int = CALLS_MAX) -> None:
        self.calls_max = calls_max
        self._calls: OrderedDict[Key, Call] = OrderedDict()
        self._archive_max = max(1, int(ARCHIVE_SHARE * threads))
        self._changed = threading.Condition()
        self._waiting: list[Call] = []
        self._running: Counter[object] = Counter()
        for _ in range(threads):
            threading.Thread(target=self._serve, daemon=True).start()

    def start(self, key: Key, make: Callable[[], Call]) -> Call:
        """The existing call of this key, or a new one.

        Raises:
            Overloaded: too many calls wait or run.
        """
        call = self._calls.get(key)
        if call is None:
            call = make()
            self._reserve(call.archive)
            self._calls[key] = call
            with self._changed:
                self._waiting.append(call)
                self._changed.notify()
        return call

    def wait(self, calls: Iterable[Call], *, timeout_s: float = WAIT_S) -> None:
        """Returns when all calls are done, or after the timeout."""
        deadline = time.monotonic() + timeout_s
        for call in calls:
            call.done.wait(max(0.0, deadline - time.monotonic()))

    def deliver(self, key: Key, call: Call) -> LabelSet:
        """The result of a call that is done, even if it was evicted; removes a call that failed."""
        call.delivered = True
        try:
            return call.result()
        except GalileoError:
            if self._calls.get(key) is call:
                del self._calls[key]
            raise

    def _reserve(self, archive: str) -> None:
        """Makes room for a call; keeps results that are not delivered as long as possible, since
        their queries may have long update intervals.
        """
        calls = self._calls
        active = sum(not call.done.is_set() for call in calls.values() if call.archive == archive)
        if active >= max(1, int(ARCHIVE_SHARE * self.calls_max)):
            raise Overloaded(
                f"{active} calls of this uploaded sampler run; it is called later", calls=active
            )
        if len(calls) < self.calls_max:
            return
        done = [key for key, call in calls.items() if call.done.is_set()]
        if not done:
            raise Overloaded(
                f"{self.calls_max} uploaded samplers run; this one is called later",
                bound=self.calls_max,
            )
        del calls[next((key for key in done if calls[key].delivered), done[0])]

    def _serve(self) -> None:
        while True:
            call = self._next_call()
            call.run()
            with self._changed:
                self._running.subtract((call.process, call.archive))
                self._running += Counter()  # Removes zeros.
                self._changed.notify_all()

    def _next_call(self) -> Call:
        """Removes the first waiting call that may run."""
        with self._changed:
            while (call := next(filter(self._may_run, self._waiting), None)) is None:
                self._changed.wait()
            self._waiting.remove(call)
            self._running.update((call.process, call.archive))
            return call

    def _may_run(self, call: Call) -> bool:
        running = self._running
        return not running[call.process] and running[call.archive] < self._archive_max
