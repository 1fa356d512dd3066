"""The client of the evaluator of a host: finds it, starts it, replaces it, calls it.

Must not import PySpark: it runs inside nodes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

import grpc
import grpc.aio
import psutil

from galileo.clock import Clock, SystemClock
from galileo.cycle import CycleRequest
from galileo.errors import DeadlineExceeded, GalileoError, TransientError, Unavailable
from galileo.spark.calls import EVALUATOR, Evaluator, JobAnswer, JobCounts
from galileo.spark.options import EvaluatorOptions
from galileo.spark.runtime_dir import RuntimeDir
from galileo.wire.channel import open_channel
from galileo.wire.status import error_of_rpc
from galileo.wire.tls_credentials import without_token
from galileo.wire.typed_service import Answer, TypedCall

# Ten seconds on a quiet machine, four times that on a busy one.
START_TIMEOUT_S = 120.0
PING_TIMEOUT_S = 2.0
PINGS_PER_LEASE = 4
FRESH_S = 1.0
_POLL_S = 0.1
_EVALUATE, _PING = EVALUATOR.call(Evaluator.evaluate), EVALUATOR.call(Evaluator.ping)
_LOG_TAIL_BYTES = 2_000
_DOUBLINGS_MAX = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """When an evaluator is replaced.

    Attributes:
        hung_s: seconds without an answer after which its process is killed.
        retry_s: seconds after a failed start for which none is started; doubles with each failed
            start in succession.
        retry_max_s: upper bound of that.
    """

    hung_s: float = 15.0
    retry_s: float = 1.0
    retry_max_s: float = 10.0


class EvaluatorClient:
    """Calls the evaluator of `options.runtime_dir`, and starts it if there is none.

    Belongs to one event loop. `close` leaves the evaluator running: other nodes may use it, and
    without calls its lease expires.
    """

    def __init__(
        self,
        options: EvaluatorOptions,
        *,
        clock: Clock | None = None,
        launching: LaunchOptions | None = None,
    ) -> None:
        self._options = options
        self._launching = launching or LaunchOptions()
        self._clock = clock or SystemClock()
        self._runtime = RuntimeDir(options.runtime_dir)
        self._lock = asyncio.Lock()
        self._connection: _Connection | None = None
        self._answered_at = float("-inf")
        self._silent_since: float | None = None
        self._missing_since: float | None = None
        self._child: _Child | None = None
        self._failure = ""
        self._failures = 0
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
    def missing_s(self) -> float:
        """Seconds since an evaluator was needed and none answered; 0 if one does."""
        since = self._missing_since
        return 0.0 if since is None else self._clock.monotonic() - since

    @property
    def last_line(self) -> str:
        """The last line of the log of the evaluator that was started last."""
        with suppress(OSError), self._runtime.log.open("rb") as file:
            return _tail(file).strip().rpartition("\n")[2] or "nothing"
        return "nothing"

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
                    after_s=self._launching.retry_s,
                ) from error

    async def evaluate(self, requests: Sequence[CycleRequest], *, timeout_s: float) -> JobAnswer:
        """The results of one cycle; repeats the call if the evaluator died.

        Raises:
            TransientError: no evaluator, too many requests, or not in time; nothing is lost.
        """
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

    async def run(self) -> None:
        """Starts the evaluator and renews its lease, until cancelled."""
        pause_s = self._options.idle_timeout_s / PINGS_PER_LEASE
        while True:
            try:
                self._answered_at = float("-inf")
                await self.ensure()
            except TransientError as error:
                log.warning("no evaluator: %s", error.message)
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        await self._disconnect()
        if self._child is not None:
            self._child.log.close()
            self._child = None

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.channel.close()
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
                    f"(its log: {self._runtime.log}); it wrote last: {self.last_line}",
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
        request, send = call.encode(*arguments), self._connection.channel.encoded(call.path)
        try:
            reply = await send(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked="the evaluator") from error
        if self._child is not None and not self._child.has_answered:
            self._child.has_answered = self._child.process.pid == self.pid
        self._answered_at, self._silent_since = self._clock.monotonic(), None
        self._missing_since = None
        self._failures = 0
        return call.decode_answer(reply)

    def _replace_if_hung(self) -> None:
        """Kills an evaluator that has not answered for `hung_s`; the next check starts another."""
        now = self._clock.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now - self._silent_since <= self._launching.hung_s:
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
                self._failures += 1
                self._failure = (
                    f"the evaluator did not start (exit code {status}); "
                    f"the end of {self._runtime.log}:\n{tail}"
                )
        left_s = self._retry_at - self._clock.monotonic()
        if left_s > 0:
            raise Unavailable(self._failure, after_s=left_s)

    def _pause_s(self) -> float:
        doubled = self._launching.retry_s * 2.0 ** min(self._failures, _DOUBLINGS_MAX)
        return min(doubled, self._launching.retry_max_s)


@dataclass(frozen=True, slots=True)
class _Connection:
    """A connection to an evaluator.

    Attributes:
        published: identifies its socket.
        directory: a descriptor of the directory of the socket.
        channel: of gRPC.
    """

    published: tuple[int, int]
    directory: int
    channel: Any


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
    return _Connection(published, directory, open_channel(runtime.address(directory)))


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
