"""Calls of sent samplers run beside the job, which waits for them a moment and no longer.

A job serves every query of its host, and a sampler that somebody sent may need seconds for its
first start, or never end. So its call runs in a thread. What is not done in a moment is left for
a later tick: the query stays where it is, asks again, and finds the answer of the earlier call,
which says by itself how far it goes.

Calls that one process answers take one thread between them, for it answers one after the other;
and no archive has more than its share of threads and of places, however slow its code is.
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

PATIENCE_S = 0.25
"""For all calls of one task together."""
THREADS = 8
CALLS_MAX = 128
"""Calls that wait, run, or whose answers wait. Answers are forgotten, first those that were taken,
the oldest first."""
SHARE = 0.5
"""Of threads, and of places for calls that are not over, for one archive."""

Key: TypeAlias = tuple[str | bytes, ...]
"""Of the sampler, the query, and where it stands: what decides about an answer."""


class Call:
    """One call; its answer counts for everything up to `reached`.

    Attributes:
        reached: of the labels that the sampler is shown.
        archive: whose code is called.
        process: what calls have in common that the same process answers.
        over: set once there is an answer.
        taken: whether somebody has the answer.
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
        self.over = threading.Event()
        self.taken = False
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
            self._sample = None  # With the labels that it was shown; the answer may stay for long.
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
        self._archive_max = max(1, int(SHARE * threads))
        self._changed = threading.Condition()
        self._waiting: list[Call] = []
        self._running: Counter[object] = Counter()
        for _ in range(threads):
            threading.Thread(target=self._serve, daemon=True).start()

    def begin(self, key: Key, make: Callable[[], Call]) -> Call:
        """The call of this key: the one that runs or is over, or one that begins now.

        Raises:
            Overloaded: as many wait or run as may.
        """
        call = self._calls.get(key)
        if call is None:
            call = make()
            self._make_room(call.archive)
            self._calls[key] = call
            with self._changed:
                self._waiting.append(call)
                self._changed.notify()
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
        call.taken = True
        try:
            return call.answer()
        except GalileoError:
            if self._calls.get(key) is call:
                del self._calls[key]
            raise

    def _make_room(self, archive: str) -> None:
        """One that nobody has taken yet is what a query waits for that asks seldom."""
        calls = self._calls
        at_work = sum(not call.over.is_set() for call in calls.values() if call.archive == archive)
        if at_work >= max(1, int(SHARE * CALLS_MAX)):
            raise Overloaded(
                f"{at_work} calls of this sent sampler run; it is this one's turn later"
            )
        if len(calls) < CALLS_MAX:
            return
        over = [key for key, call in calls.items() if call.over.is_set()]
        if not over:
            raise Overloaded(f"{CALLS_MAX} sent samplers run already; it is this one's turn later")
        del calls[next((key for key in over if calls[key].taken), over[0])]

    def _serve(self) -> None:
        while True:
            call = self._turn()
            call.run()
            with self._changed:
                self._running.subtract((call.process, call.archive))
                self._running += Counter()  # Forgets what does not run.
                self._changed.notify_all()

    def _turn(self) -> Call:
        """The first call that waits, and may run; taken out."""
        with self._changed:
            while (call := next(filter(self._may_run, self._waiting), None)) is None:
                self._changed.wait()
            self._waiting.remove(call)
            self._running.update((call.process, call.archive))
            return call

    def _may_run(self, call: Call) -> bool:
        running = self._running
        return not running[call.process] and running[call.archive] < self._archive_max
