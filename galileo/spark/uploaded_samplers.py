"""Uploaded samplers in a Python worker: their code by digest, and their calls in the background.

*Code.* A worker can run on another machine than any node. It fetches an archive from the node whose
labels it samples, and checks it there again while the archive is in the cache: archives that were
revoked, or not used for `IDLE_S`, are dropped, and their processes end.

*Calls.* A job serves all queries of its host, and an uploaded sampler can need seconds for its
first start, or never return. So each call runs in a thread, and the job waits for it briefly. A
call that is not done in time is left for a later job: the query keeps its cursor, requests the same
again, and gets the result of the earlier call, which states up to which cursor it holds. All calls
that one process answers share a thread, since the process handles them one at a time. The threads
and calls of one archive are limited, however slow its code is.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import GalileoError, InputError, Overloaded, SamplerRevoked
from galileo.labels import LabelSet
from galileo.sampler_package import SamplerArchive
from galileo.sampler_runtime import SamplerRuntime
from galileo.samplers import Sampler, SamplerSpec, failed

IDLE_S = 120.0
WAIT_S = 0.25
"""How long a task waits for all of its calls together."""
THREADS = 8
CALLS_MAX = 128
ARCHIVE_SHARE = 0.5
"""Of the threads, and of the calls that are not done, for one archive."""

Get = Callable[[str, str, bool], bytes | pa.Buffer]
"""Asks the node at an address for the archive of a digest; for none, if the last is true."""
Key: TypeAlias = tuple[str | bytes, ...]
"""Sampler, query and cursors, which determine the result of a call."""


@dataclass(slots=True)
class _CachedArchive:
    archive: SamplerArchive
    address: str
    used_at: float


class SamplerCache:
    """The archives of one worker; thread-safe. A thread of its own drops archives.

    Args:
        runtime: runs the samplers.
        get: calls the node at an address.
        monotonic: clock, in seconds.
        check_interval_s: of checks; the processes of a revoked sampler end within it.
    """

    def __init__(
        self,
        runtime: SamplerRuntime,
        *,
        get: Get,
        monotonic: Callable[[], float] = time.monotonic,
        check_interval_s: float = 2.0,
    ) -> None:
        self._check_interval_s = check_interval_s
        self._runtime = runtime
        self._get = get
        self._monotonic = monotonic
        self._cached: dict[str, _CachedArchive] = {}
        self._lock = threading.Lock()
        self._checker: threading.Thread | None = None

    def load(self, spec: SamplerSpec, *, address: str, owner: str) -> Sampler:
        """The sampler, which runs in a process of its own.

        Args:
            spec: has the digest of the archive.
            address: of a node.
            owner: dataset whose labels the sampler gets.

        Raises:
            TransientError: the node cannot be reached.
            UnknownSampler, SamplerRevoked: the archive does not exist, or was revoked.
            SandboxUnavailable, InputError, SamplerFailed, Overloaded: as `SamplerRuntime.load`.
        """
        archive = self._archive(spec.archive, address)
        return self._runtime.load(archive, spec, owner=owner)

    def drop_unused(self) -> bool:
        """Drops archives that were revoked or not used for `IDLE_S`; whether any is left."""
        for digest, cached in list(self._cached.items()):
            if self._monotonic() - cached.used_at > IDLE_S:
                drop = self._runtime.evict
            elif self._is_revoked(digest, cached.address):
                drop = self._runtime.revoke
            else:
                continue
            with self._lock:
                self._cached.pop(digest, None)
            drop(digest)
        with self._lock:
            if not self._cached:
                self._checker = None
            return bool(self._cached)

    def _archive(self, digest: str, address: str) -> SamplerArchive:
        cached = self._cached.get(digest)
        if cached is None:
            archive = SamplerArchive.from_bytes(bytes(self._get(address, digest, False)))
            if archive.digest != digest:
                raise InputError(f"expected the archive {digest}, got {archive.digest}")
            cached = _CachedArchive(archive, address, self._monotonic())
        cached.address, cached.used_at = address, self._monotonic()
        with self._lock:
            self._cached[digest] = cached
            if self._checker is None:
                self._checker = threading.Thread(target=self._check_regularly, daemon=True)
                self._checker.start()
        return cached.archive

    def _is_revoked(self, digest: str, address: str) -> bool:
        try:
            self._get(address, digest, True)
        except SamplerRevoked:
            return True
        except GalileoError:
            return False  # The node cannot be reached, or does not know the archive.
        return False

    def _check_regularly(self) -> None:
        while True:
            time.sleep(self._check_interval_s)
            if not self.drop_unused():
                return


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
