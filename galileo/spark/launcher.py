"""The client of the evaluator of a host: finds it, starts it, replaces it, keeps it, calls it.

Must not import PySpark: it runs inside nodes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

import psutil

from galileo.clock import Clock, SystemClock
from galileo.cycle import Answers, CycleRequest
from galileo.errors import DeadlineExceeded, GalileoError, Unavailable
from galileo.spark.options import EvaluatorOptions
from galileo.spark.runtime_dir import RuntimeDir
from galileo.wire.caller import Connection
from galileo.wire.channel import open_channel
from galileo.wire.services import EVALUATOR_SERVICE
from galileo.wire.tls_credentials import without_token
from galileo.wire.typed_service import Answer, TypedCall, TypedService

# Ten seconds on a quiet machine, four times that on a busy one.
START_TIMEOUT_S = 120.0
PING_TIMEOUT_S = 2.0
PINGS_PER_LEASE = 4
LOOK_S = 5.0
"""Longest pause between two looks at whether an evaluator is needed, and answers."""
FRESH_S = 1.0
"""An evaluator that has answered within this time is not asked again whether it does."""
STARTS_SLOWLY_S = 20.0
"""A start that takes longer is a problem; about twice that of a quiet machine."""
HUNG_S = 15.0
"""An evaluator that has not answered for this time is killed and replaced."""
RETRY_S = 1.0
"""After a failed start none is made for this time, which doubles with each failure in succession.
"""
RETRY_MAX_S = 10.0
_POLL_S = 0.1
_LOG_TAIL_BYTES = 2_000
_DOUBLINGS_MAX = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Jobs of an evaluator since its start.

    Attributes:
        evaluations: that looked for something.
        empty_jobs: that only kept Spark awake.
    """

    evaluations: int
    empty_jobs: int


class Evaluator(Protocol):
    """The evaluator of a host, as the nodes of the host call it."""

    async def evaluate(self, requests: Sequence[CycleRequest]) -> Answers:
        """Runs a job for requests of one or several datasets."""

    async def ping(self) -> JobCounts:
        """Renews the lease of the evaluator."""


EVALUATOR = TypedService(EVALUATOR_SERVICE, Evaluator)
_EVALUATE, _PING = EVALUATOR.call(Evaluator.evaluate), EVALUATOR.call(Evaluator.ping)


class EvaluatorClient:
    """Calls the evaluator of `options.runtime_dir`, and starts it if there is none.

    Belongs to one event loop. `close` leaves the evaluator running: other nodes may use it, and
    without calls its lease expires.
    """

    def __init__(self, options: EvaluatorOptions, *, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._runtime = RuntimeDir(options.runtime_dir)
        self._lock = asyncio.Lock()
        self._connection: _Connection | None = None
        self._answered_at = float("-inf")
        self._silent_since: float | None = None
        self._missing_since: float | None = None
        self._is_needed = False
        self._wanted = asyncio.Event()
        self._failure = ""
        self._child: _Child | None = None
        self._start_failure = ""
        self._start_failures = 0
        self._retry_at = float("-inf")

    async def __aenter__(self) -> EvaluatorClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def pid(self) -> int | None:
        """The process of the evaluator, or of one that becomes it."""
        holder = self._runtime.holder()
        return holder.pid if holder else None

    @property
    def problem(self) -> str:
        """Why nothing is evaluated at present; "" if it is, or nothing needs to be."""
        since = self._missing_since
        missing_s = 0.0 if since is None else self._clock.monotonic() - since
        if self._failure or not self._is_needed or missing_s < STARTS_SLOWLY_S:
            return self._failure
        return (
            f"the evaluator has been starting for {missing_s:.0f} s; it wrote last: "
            f"{self._last_line()}"
        )

    def warm(self) -> None:
        """Has `keep` start the evaluator, before the first cycle needs it."""
        self._wanted.set()

    async def keep(self, is_needed: Callable[[], bool]) -> None:
        """Starts the evaluator, and renews its lease, while `is_needed`; runs until cancelled."""
        pause_s = min(LOOK_S, self._options.idle_timeout_s / PINGS_PER_LEASE)
        while True:
            self._is_needed, is_wanted = is_needed(), self._wanted.is_set()
            self._wanted.clear()
            try:
                if self._is_needed or is_wanted:
                    await self.ensure()
                self._failure = ""
            except GalileoError as error:
                self._failure = error.message
                log.warning("no evaluator: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), pause_s)

    async def ensure(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until a warm evaluator answers; starts one if there is none.

        Raises:
            Unavailable: it cannot be started, or is not warm in time.
        """
        async with self._lock:
            try:
                await self._await_answer(timeout_s)
            except OSError as error:  # A full disk, or too many processes.
                raise Unavailable(
                    f"the evaluator cannot be found or started: {error}",
                    after_s=RETRY_S,
                ) from error

    async def evaluate(self, requests: Sequence[CycleRequest], *, timeout_s: float) -> Answers:
        """The results of one cycle; repeats the call if the evaluator died.

        Raises:
            TransientError: no evaluator, too many requests, or not in time; nothing is lost.
        """
        try:
            answers = await self._evaluate(requests, timeout_s)
        except GalileoError as error:
            self._failure = error.message
            raise
        self._failure = ""
        return answers

    async def _evaluate(self, requests: Sequence[CycleRequest], timeout_s: float) -> Answers:
        deadline = self._clock.monotonic() + timeout_s
        while True:
            await self.ensure(timeout_s=deadline - self._clock.monotonic())
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded(f"the evaluator was not ready within {timeout_s:.0f} s")
            try:
                return await self._call(_EVALUATE, requests, timeout_s=left_s)
            except Unavailable:
                self._answered_at = float("-inf")
                await asyncio.sleep(_POLL_S)

    async def ping(self) -> JobCounts:
        """The job counters of the evaluator. Raises Unavailable if none answers."""
        await self.ensure()
        return await self._call(_PING, timeout_s=PING_TIMEOUT_S)

    async def close(self) -> None:
        await self._disconnect()
        if self._child is not None:
            self._child.log.close()
            self._child = None

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.calls.channel.close()
            os.close(self._connection.directory)
            self._connection = None

    # --- find ------------------------------------------------------------------------------

    async def _await_answer(self, timeout_s: float) -> None:
        deadline = self._clock.monotonic() + timeout_s
        while not await self._answers():
            if self._missing_since is None:
                self._missing_since = self._clock.monotonic()
            self._check_child()
            self._start_if_none()
            if self._clock.monotonic() > deadline:
                raise Unavailable(
                    f"the evaluator is not warm after {timeout_s:.0f} s; try again "
                    f"(its log: {self._runtime.log}); it wrote last: {self._last_line()}",
                    after_s=_POLL_S,
                )
            await asyncio.sleep(_POLL_S)

    async def _answers(self) -> bool:
        if self._clock.monotonic() - self._answered_at < FRESH_S:
            return True
        published = self._runtime.published()
        if published is None:
            return False
        if self._connection is None or published != self._connection.published:
            await self._disconnect()
            self._connection = _connect(self._runtime, published)
            self._silent_since = None
        try:
            await self._call(_PING, timeout_s=PING_TIMEOUT_S)
        except GalileoError:
            self._replace_if_hung()
            return False
        return True

    async def _call(
        self, call: TypedCall[..., Answer], *arguments: Any, timeout_s: float
    ) -> Answer:
        assert self._connection is not None
        request = call.encode(*arguments)
        reply = await self._connection.calls.exchange(call.path, request, timeout_s=timeout_s)
        if self._child is not None and not self._child.has_answered:
            self._child.has_answered = self._child.process.pid == self.pid
        self._answered_at, self._silent_since = self._clock.monotonic(), None
        self._missing_since = None
        self._start_failures = 0
        return call.decode_answer(reply)

    def _replace_if_hung(self) -> None:
        """Kills an evaluator that has not answered for `HUNG_S`; the next check starts another."""
        now = self._clock.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now - self._silent_since <= HUNG_S:
            return
        process = self._runtime.holder()
        if process is not None:
            log.warning("the evaluator (process %s) does not answer and is killed", process.pid)
            with suppress(psutil.NoSuchProcess):
                process.kill()

    # --- start ----------------------------------------------------------------------------

    def _start_if_none(self) -> None:
        if self._child is not None or (lock := self._runtime.try_lock()) is None:
            return
        try:
            self._runtime.withdraw()
            self._child = _start(self._options, self._runtime, lock)
        finally:
            os.close(lock)

    def _check_child(self) -> None:
        """Raises Unavailable if the process that we started ended before it was warm, and for
        some time after, so that not every cycle starts one in vain.
        """
        child = self._child
        if child is not None and child.process.returncode is not None:
            self._child = None
            status, tail = child.process.returncode, _tail(child.log)
            child.log.close()
            if status != 0 and not child.has_answered:
                self._retry_at = self._clock.monotonic() + self._pause_s()
                self._start_failures += 1
                self._start_failure = (
                    f"the evaluator did not start (exit code {status}); "
                    f"the end of {self._runtime.log}:\n{tail}"
                )
        left_s = self._retry_at - self._clock.monotonic()
        if left_s > 0:
            raise Unavailable(self._start_failure, after_s=left_s)

    def _pause_s(self) -> float:
        doubled = RETRY_S * 2.0 ** min(self._start_failures, _DOUBLINGS_MAX)
        return min(doubled, RETRY_MAX_S)

    def _last_line(self) -> str:
        """The last line of the log of the evaluator that was started last."""
        with suppress(OSError), self._runtime.log.open("rb") as file:
            return _tail(file).strip().rpartition("\n")[2] or "nothing"
        return "nothing"


@dataclass(frozen=True, slots=True)
class _Connection:
    """A connection to an evaluator.

    Attributes:
        published: identifies its socket.
        directory: a descriptor of the directory of the socket.
        calls: to the socket.
    """

    published: tuple[int, int]
    directory: int
    calls: Connection


@dataclass(slots=True)
class _Child:
    """An evaluator that this process started.

    Attributes:
        process: of it.
        log: its output, which stays readable when another process starts an evaluator.
        has_answered: whether it was warm.
    """

    process: subprocess.Popen[bytes]
    log: IO[bytes]
    has_answered: bool = False


def _connect(runtime: RuntimeDir, published: tuple[int, int]) -> _Connection:
    directory = runtime.open()
    address = runtime.address(directory)
    calls = Connection(open_channel(address), address, asked="the evaluator")
    return _Connection(published, directory, calls)


def _start(options: EvaluatorOptions, runtime: RuntimeDir, lock: int) -> _Child:
    """Starts the process, without a `preexec_fn`: that would fork, which gRPC does not survive."""
    runtime.log.unlink(missing_ok=True)
    output = os.fdopen(os.open(runtime.log, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "rb")
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "galileo.spark.evaluator", str(lock)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(lock,),
            start_new_session=True,
            env={**without_token(os.environ), "GRPC_ENABLE_FORK_SUPPORT": "0"},
        )
    except BaseException:
        output.close()
        raise
    # Reaps the process if it ends first.
    threading.Thread(target=child.wait, name="evaluator-reaper", daemon=True).start()
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin:
        runtime.record_holder(lock, child.pid)
        child.stdin.write(options.to_json().encode())
    return _Child(child, output)


def _tail(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - _LOG_TAIL_BYTES)
    return os.pread(file.fileno(), size - start, start).decode(errors="replace")
