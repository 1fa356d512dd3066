"""The worker's process as its owner sees it: start, load, ask, interrupt, end."""

from __future__ import annotations

import contextlib
import json
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
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from galileo.errors import InputError
from galileo.rdf import lazy_imports

if TYPE_CHECKING:
    from galileo.rdf import worker
else:
    worker = lazy_imports.WORKER

INTERRUPT_GRACE_S = 5.0
"""How long the keeper has to end its answerer before both are ended."""
READ_BYTES = 1 << 20
_STATUS = struct.Struct(">q")
"""The last that a mark says before the secret."""

Reply = tuple[dict[str, Any], bytes]


class QueryProcessEnded(Exception):
    """The process that answered is gone; the graph is still there.

    Attributes:
        status: its exit status, negative for a signal.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"ended with {status}")
        self.status = status


class GraphProcessEnded(Exception):
    """The process that holds the graph is gone, and the graph with it.

    Attributes:
        status: its exit status, negative for a signal.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"ended with {status}")
        self.status = status


class Process:
    """A keeper with the graph, and its answerer; one thread uses it at a time.

    `interrupt` and `end` may be called by any thread at any time.

    Attributes:
        geometry: whether the answerer has the functions of `galileo.rdf.geometry`.
        expired: whether the last query was interrupted for its patience.
    """

    def __init__(self, child: subprocess.Popen[bytes], *, secret: bytes) -> None:
        assert child.stdin is not None, "a pipe was asked for"
        assert child.stdout is not None, "a pipe was asked for"
        self.child = child
        self.geometry = False
        self._requests, self._answers = child.stdin.fileno(), child.stdout.fileno()
        self._secret = secret
        self._buffer = bytearray()
        self._left: int | None = None
        self._lock = threading.Lock()
        self._busy = ""
        self._wanted = False
        self._interrupted = False
        self._exchanges = 0
        self._has_answerer = False
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
        """Interrupts before this moment were for earlier work."""
        with self._lock:
            self._wanted = False

    def load(self, pieces: Iterable[bytes], *, timeout_s: float) -> None:
        """Adds triples to the graph, piece by piece.

        Raises:
            InputError: they are no N-Triples. Some of them may be loaded.
            GraphProcessEnded: the process ended.
        """
        self._dismiss()
        request = json.dumps({"op": "load", "timeout_s": timeout_s}).encode()
        for piece in pieces:
            head, _ = self._exchange("load", request, piece)
            if "error" in head:
                raise InputError(f"expected a graph that oxigraph loads: {head['message']}")

    def ask(
        self, request: dict[str, Any], *, geometry: bool = False, patience_s: float | None = None
    ) -> Reply:
        """The answer to a query.

        Args:
            request: what the worker is told.
            geometry: whether the functions of `galileo.rdf.geometry` are needed.
            patience_s: when to interrupt it; None: somebody else does.

        Raises:
            QueryProcessEnded: it was interrupted, or died of the query; ask again.
            GraphProcessEnded: the whole process ended.
        """
        self.expired = False
        self._until = None if patience_s is None else time.monotonic() + patience_s
        try:
            self._fork(geometry=geometry)
            if self._wanted:
                raise QueryProcessEnded(-signal.SIGKILL)  # as it would, were it asked yet
            return self._exchange("query", json.dumps({"op": "query", **request}).encode())
        finally:
            self._until = None

    def _fork(self, *, geometry: bool) -> None:
        """Has an answerer, with the functions that are needed."""
        if self._left is not None:  # it ended after its last answer was written
            self._has_answerer, self._left = False, None
        if geometry and not self.geometry:
            self._dismiss()
        if not self._has_answerer:
            self.geometry = geometry
            asked = {"op": "answer", "geometry": geometry}
            self._exchange("answer", json.dumps(asked).encode())
            self._has_answerer = True

    def interrupt(self) -> None:
        """Ends the answerer if it is busy; the one who waits for it gets `QueryProcessEnded`.

        What is not asked yet is not asked any more. A load can only be ended with the keeper.
        """
        with self._lock:
            self._wanted = True
            if self._busy in ("load", "keep"):
                self.end()
            elif self._busy == "query":
                self._signal()
            elif self._busy:
                self._watch()

    def end(self) -> None:
        """Ends both processes; whoever waits for them gets `GraphProcessEnded`."""
        _kill_group(self.child)

    def close(self) -> None:
        """Ends both and frees the pipes; only for the thread that uses them."""
        self._end()

    def _signal(self) -> None:
        """Has the keeper end its answerer, once; ends both where it does not."""
        if self._interrupted:
            return
        self._interrupted = True
        self.child.send_signal(signal.SIGUSR1)
        self._watch()

    def _watch(self) -> None:
        """Ends both where what goes on now still does so after a while."""
        stuck = threading.Timer(INTERRUPT_GRACE_S, self._end_if_at, [self._exchanges])
        stuck.daemon = True
        stuck.start()

    def _end_if_at(self, exchange: int) -> None:
        with self._lock:
            if self._busy and self._exchanges == exchange:
                self.end()

    def _dismiss(self) -> None:
        """Makes way to the keeper."""
        if self._has_answerer:
            with contextlib.suppress(QueryProcessEnded):
                self._exchange("keep", b'{"op": "keep"}')
            self._has_answerer = False

    # --- frames ------------------------------------------------------------------------------

    def _exchange(self, what: str, *frames: bytes) -> Reply:
        with self._lock:
            self._busy = "writing"
            self._exchanges += 1
        try:
            worker.write_frames(self._requests, *frames)
            self._written(what)
            head: dict[str, Any] = json.loads(self._frame())
            reply = head, self._frame()
            self._settle()
            return reply
        except QueryProcessEnded:
            self._has_answerer = False
            raise
        except OSError as error:  # a broken pipe: nobody reads it any more
            raise self._ended() from error
        finally:
            with self._lock:
                self._busy, self._interrupted = "", False

    def _written(self, what: str) -> None:
        """An answerer that is ended before it has read its request would leave it half read."""
        with self._lock:
            self._busy = what
            if self._wanted and what == "query":
                self._signal()
            elif self._wanted and what != "answer":
                self.end()

    def _ended(self) -> GraphProcessEnded:
        """Once its pipes are closed; what is left of it, and of its answerer, is ended."""
        self.end()
        return GraphProcessEnded(self.child.wait())

    def _settle(self) -> None:
        """After an interrupt that came as the answer did, waits for the mark that follows it."""
        with self._lock:
            if not self._interrupted:
                self._busy = ""
                return
        self._take(sys.maxsize)

    def _frame(self) -> bytes:
        (size,) = worker.LENGTH.unpack(self._take(worker.LENGTH.size))
        return self._take(sys.maxsize if size == worker.ENDED else size)

    def _take(self, size: int) -> bytes:
        """The next bytes; where the answerer ended before it wrote so many, `QueryProcessEnded`.

        The mark is the last that comes, wherever in a frame, and is written at once.
        """
        while len(self._buffer) < size:
            if self._left is not None:
                status, self._left = self._left, None
                self._buffer.clear()
                raise QueryProcessEnded(status)
            self._wait()
            data = os.read(self._answers, READ_BYTES)
            if not data:
                raise self._ended()
            self._buffer += data
            if self._buffer.endswith(self._secret):
                self._left = _status(self._buffer, len(self._secret))
                del self._buffer[-worker.MARK.size - len(self._secret) :]
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _wait(self) -> None:
        """Until something can be read, or the patience is over, which is the end of the query.

        A watchdog thread for each query would cost more than most queries do.
        """
        if self._until is None or self._interrupted:
            return
        left_ms = max(0.0, self._until - time.monotonic()) * 1_000
        if not self._readable.poll(left_ms):
            self.expired, self._until = True, None
            self.interrupt()


def _status(mark: bytes | bytearray, secret_bytes: int) -> int:
    """How an answerer ended, of bytes that a mark, or the rest of it, is the end of."""
    (status,) = _STATUS.unpack(mark[-_STATUS.size - secret_bytes : -secret_bytes])
    return int(status)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Keeper and answerer are a session of their own, which outlives either of them."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nobody is left of it
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
        return  # what was buffered was meant for the process that is gone
