"""The owner's side of a worker: starts it, loads triples, sends queries, interrupts and ends it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from galileo.errors import GalileoError, InputError, InternalError
from galileo.rdf import lazy_imports

if TYPE_CHECKING:
    from galileo.rdf.sparql_process import worker
else:
    worker = lazy_imports.WORKER

READ_BYTES = 1 << 20
INTERRUPT_GRACE_S = 5.0
"""Seconds that a graph process has to kill its query process before both are killed."""
_STATUS = struct.Struct(">q")
"""The exit status in a mark, before the secret."""

Reply = tuple[dict[str, Any], bytes]

log = logging.getLogger(__name__)


def failure(head: Mapping[str, Any]) -> GalileoError:
    """The error of a reply; the text of an internal one is for the log alone."""
    if head["error"] == "memory":
        return InputError(
            "the graph, or the query, takes more memory than its process may have; narrow the "
            "query, or load less",
            expected="memory",
        )
    log.error("a SPARQL process failed with an internal error:\n%s", head["message"])
    return InternalError("SPARQL failed with an internal error; the log of this process has it")


class QueryProcessEnded(Exception):
    """The query process ended; the graph is still loaded.

    Attributes:
        status: exit status, negative for a signal.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"ended with {status}")
        self.status = status


class GraphProcessEnded(Exception):
    """The graph process ended, and the graph is lost.

    Attributes:
        status: exit status, negative for a signal.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"ended with {status}")
        self.status = status


class Process:
    """A graph process and its query process; one thread uses it at a time.

    Any thread may call `interrupt` and `end` at any time.

    Args:
        child: the graph process.
        secret: ends each of its marks.

    Attributes:
        geometry: whether the query process has the functions of `galileo.rdf.geometry`.
        expired: whether the last query was interrupted by its timeout.
    """

    def __init__(self, child: subprocess.Popen[bytes], *, secret: bytes) -> None:
        assert child.stdin is not None, "stdin and stdout are pipes"
        assert child.stdout is not None, "stdin and stdout are pipes"
        self.child = child
        self.geometry = False
        self._requests, self._answers = child.stdin.fileno(), child.stdout.fileno()
        self._secret = secret
        self._buffer = bytearray()
        self._exit_status: int | None = None
        self._lock = threading.Lock()
        self._busy = ""
        self._is_interrupt_requested = False
        self._interrupted = False
        self._exchanges = 0
        self._has_query_process = False
        self._until: float | None = None
        self.expired = False
        self._readable = select.poll()
        self._readable.register(self._answers, select.POLLIN)
        self._end = weakref.finalize(self, _end_child, child)

    @classmethod
    def start(cls, *, memory_bytes_max: int) -> Process:
        secret = secrets.token_bytes(worker.SECRET_BYTES)
        # -P keeps this package's directory off the path: its module names are common words.
        command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
        child = subprocess.Popen(
            [*command, str(memory_bytes_max), secret.hex()],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(child, secret=secret)

    @property
    def alive(self) -> bool:
        return self._end.alive and self.child.poll() is None

    def begin(self) -> None:
        """Resets earlier interrupts."""
        with self._lock:
            self._is_interrupt_requested = False

    def load(self, pieces: Iterable[bytes], *, timeout_s: float) -> None:
        """Adds triples to the graph, piece by piece.

        Raises:
            InputError: they need too much memory; some of them may be loaded.
            InternalError: oxigraph refuses them; some of them may be loaded.
            GraphProcessEnded: the process ended.
        """
        self._dismiss()
        request = json.dumps({"op": "load", "timeout_s": timeout_s}).encode()
        for piece in pieces:
            head, _ = self._exchange("load", request, piece)
            if "error" in head:
                raise failure(head)

    def query(
        self, request: dict[str, Any], *, geometry: bool = False, timeout_s: float | None = None
    ) -> Reply:
        """The reply to a query.

        Args:
            request: for the worker.
            geometry: whether the query needs the functions of `galileo.rdf.geometry`.
            timeout_s: after which the query is interrupted; None: the caller interrupts it.

        Raises:
            QueryProcessEnded: it was interrupted, or ended by the query.
            GraphProcessEnded: both processes ended.
        """
        self.expired = False
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._ensure_query_process(geometry=geometry)
            if self._is_interrupt_requested:
                raise QueryProcessEnded(-signal.SIGKILL)  # as an interrupted process ends
            return self._exchange("query", json.dumps({"op": "query", **request}).encode())
        finally:
            self._until = None

    def _ensure_query_process(self, *, geometry: bool) -> None:
        """Starts a query process unless there is one with the required functions."""
        if self._exit_status is not None:  # it ended after its last reply
            self._has_query_process, self._exit_status = False, None
        if geometry and not self.geometry:
            self._dismiss()
        if not self._has_query_process:
            self.geometry = geometry
            request = {"op": "answer", "geometry": geometry}
            self._exchange("answer", json.dumps(request).encode())
            self._has_query_process = True

    def interrupt(self) -> None:
        """Kills the query process if it is busy; its caller gets `QueryProcessEnded`.

        A query that was not sent yet is not sent. A load ends with the graph process only.
        """
        with self._lock:
            self._is_interrupt_requested = True
            if self._busy in ("load", "keep"):
                self.end()
            elif self._busy == "query":
                self._signal()
            elif self._busy:
                self._watch()

    def end(self) -> None:
        """Kills both processes; a waiting caller gets `GraphProcessEnded`."""
        _kill_group(self.child)

    def close(self) -> None:
        """Kills both and closes the pipes; for the thread that uses them."""
        self._end()

    def _signal(self) -> None:
        """Signals the graph process to kill its query process, once; kills both if it does not."""
        if self._interrupted:
            return
        self._interrupted = True
        self.child.send_signal(signal.SIGUSR1)
        self._watch()

    def _watch(self) -> None:
        """Kills both if the current exchange lasts longer than `INTERRUPT_GRACE_S`."""
        watchdog = threading.Timer(INTERRUPT_GRACE_S, self._end_if_at, [self._exchanges])
        watchdog.daemon = True
        watchdog.start()

    def _end_if_at(self, exchange: int) -> None:
        with self._lock:
            if self._busy and self._exchanges == exchange:
                self.end()

    def _dismiss(self) -> None:
        """Ends the query process, so that the graph process reads the next request."""
        if self._has_query_process:
            with contextlib.suppress(QueryProcessEnded):
                self._exchange("keep", b'{"op": "keep"}')
            self._has_query_process = False

    # --- frames ------------------------------------------------------------------------------

    def _exchange(self, what: str, *frames: bytes) -> Reply:
        with self._lock:
            self._busy = "writing"
            self._exchanges += 1
        try:
            worker.write_frames(self._requests, *frames)
            self._after_write(what)
            head: dict[str, Any] = json.loads(self._frame())
            reply = head, self._frame()
            self._complete()
            return reply
        except QueryProcessEnded:
            self._has_query_process = False
            raise
        except OSError as error:  # a broken pipe: the process ended
            raise self._ended() from error
        finally:
            with self._lock:
                self._busy, self._interrupted = "", False

    def _after_write(self, what: str) -> None:
        """Sends an interrupt that came during the write, after which no request is half read."""
        with self._lock:
            self._busy = what
            if self._is_interrupt_requested and what == "query":
                self._signal()
            elif self._is_interrupt_requested and what != "answer":
                self.end()

    def _ended(self) -> GraphProcessEnded:
        """The error for closed pipes; kills both processes."""
        self.end()
        return GraphProcessEnded(self.child.wait())

    def _complete(self) -> None:
        """Ends an exchange; waits for the mark of an interrupt that came with the reply."""
        with self._lock:
            if not self._interrupted:
                self._busy = ""
                return
        self._read_bytes(sys.maxsize)

    def _frame(self) -> bytes:
        (size,) = worker.LENGTH.unpack(self._read_bytes(worker.LENGTH.size))
        return self._read_bytes(sys.maxsize if size == worker.ENDED else size)

    def _read_bytes(self, size: int) -> bytes:
        """The next bytes. Raises QueryProcessEnded if the query process ended before.

        A mark can come anywhere within a frame; it is written at once and followed by nothing.
        """
        while len(self._buffer) < size:
            if self._exit_status is not None:
                status, self._exit_status = self._exit_status, None
                self._buffer.clear()
                raise QueryProcessEnded(status)
            self._wait()
            data = os.read(self._answers, READ_BYTES)
            if not data:
                raise self._ended()
            self._buffer += data
            if self._buffer.endswith(self._secret):
                self._exit_status = _status(self._buffer, len(self._secret))
                del self._buffer[-worker.MARK.size - len(self._secret) :]
        result = bytes(self._buffer[:size])
        del self._buffer[:size]
        return result

    def _wait(self) -> None:
        """Waits for data; interrupts the query at its timeout.

        A watchdog thread for each query would cost more than most queries.
        """
        if self._until is None or self._interrupted:
            return
        left_ms = max(0.0, self._until - time.monotonic()) * 1_000
        if not self._readable.poll(left_ms):
            self.expired, self._until = True, None
            self.interrupt()


def _status(mark: bytes | bytearray, secret_bytes: int) -> int:
    """The exit status in a mark, from bytes that end with the mark."""
    (status,) = _STATUS.unpack(mark[-_STATUS.size - secret_bytes : -secret_bytes])
    return int(status)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kills both processes, which are a session of their own."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # both have ended
        return


def _end_child(child: subprocess.Popen[bytes]) -> None:
    _kill_group(child)
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            _close(stream)


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        return  # the buffered data was for the process that ended
