"""A killable SPARQL engine: one `worker` process per graph, loaded once, restarted when lost.

oxigraph cannot be interrupted, so the only way to hold a time limit is to end its process.
States: no process; a process with the graph loaded. A query starts the process where there is
none; running out of time or of memory, or `close`, ends it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from galileo.errors import Cancelled, DeadlineExceeded, InputError
from galileo.rdf import guard, terms, worker

LOAD_TIMEOUT_S = 300.0
TIMEOUT_MAX_S = 86_400.0
ANSWER_BYTES_MAX = 512 << 20
MEMORY_BYTES_MAX = 8 << 30
ORPHAN_GRACE_S = 1.0
"""How much longer than its time limit a worker lives whose parent is not there to end it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the worker found: "boolean", "solutions" (TSV) or "triples" (N-Triples)."""

    kind: str
    data: bytes = b""
    value: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one query: seconds, and solutions or triples in its answer."""

    timeout_s: float = 30.0
    rows_max: int = 1_000_000

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= TIMEOUT_MAX_S:
            raise InputError(
                f"expected a timeout_s above 0 and up to {TIMEOUT_MAX_S:g}, got {self.timeout_s!r}"
            )
        if self.rows_max < 1:
            raise InputError(f"expected a rows_max of at least 1, got {self.rows_max!r}")


class Engine:
    """Answers SPARQL queries about one graph; safe to share between threads.

    Args:
        triples: gives the graph as N-Triples, in pieces of whole lines; called at each start.
        memory_bytes_max: address space of the process.
    """

    def __init__(
        self,
        triples: Callable[[], Iterable[bytes]],
        *,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        self._triples = triples
        self._memory_bytes_max = memory_bytes_max
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._closed = False

    def query(self, text: str, limits: Limits) -> Answer:
        """One answer; queries of several threads run one after the other.

        Raises:
            QuerySyntaxError: it is not SPARQL.
            InputError: it may not be asked, or its answer or its work passes a limit.
            DeadlineExceeded: it took longer than `limits.timeout_s`.
            Cancelled: the engine was closed.
        """
        guard.check_query(text)
        if not self._lock.acquire(timeout=limits.timeout_s):
            raise _too_late(limits.timeout_s)
        try:
            return self._ask(text, limits)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends the process; a query that runs raises `Cancelled`."""
        self._closed = True
        if (process := self._process) is not None:
            process.child.kill()
            with self._lock:  # whoever reads from the dead child is done at once
                process.kill()

    def _ask(self, text: str, limits: Limits) -> Answer:
        process = self._started()
        head, data = self._watched(process, limits.timeout_s, lambda: process.ask(text, limits))
        if "error" not in head:
            return Answer(head["kind"], data, head.get("value", False))
        raise _refusal(text, head, limits)

    def _started(self) -> _Process:
        if self._process is None or not self._process.alive:
            self._process = _Process.start(memory_bytes_max=self._memory_bytes_max)
            process = self._process
            self._watched(process, LOAD_TIMEOUT_S, lambda: process.load(self._triples()))
        return self._process

    def _watched(self, process: _Process, timeout_s: float, act: Callable[[], Any]) -> Any:
        """What `act` returns; the process is ended after `timeout_s` and the reason raised."""
        watchdog = threading.Timer(timeout_s, process.expire)
        watchdog.daemon = True
        watchdog.start()
        try:
            if self._closed:
                raise Cancelled("expected an open graph, this one was closed; open it again")
            return act()
        except (EOFError, OSError) as error:
            process.kill()
            raise self._reason(process, timeout_s) from error
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()

    def _reason(self, process: _Process, timeout_s: float) -> Exception:
        if self._closed:
            return Cancelled("the graph was closed while a query ran")
        if process.expired:
            return _too_late(timeout_s)
        return InputError(
            f"the query ended its process ({_end(process.returncode)}), most likely for more "
            f"than {self._memory_bytes_max >> 20:,} MiB of memory; narrow it, or load less"
        )


@dataclass(slots=True, weakref_slot=True)
class _Process:
    """A running worker and its pipes."""

    child: subprocess.Popen[bytes]
    requests: IO[bytes]
    answers: IO[bytes]
    expired: bool = field(default=False)

    @staticmethod
    def start(*, memory_bytes_max: int) -> _Process:
        # -P keeps this package's directory off the path: its module names are common words.
        command = [sys.executable, "-P", str(Path(worker.__file__)), str(memory_bytes_max)]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert child.stdin is not None, "a pipe was asked for"
        assert child.stdout is not None, "a pipe was asked for"
        process = _Process(child, child.stdin, child.stdout)
        weakref.finalize(process, _end_child, child)
        return process

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    @property
    def returncode(self) -> int:
        return self.child.wait()

    def load(self, pieces: Iterable[bytes]) -> None:
        """Hands over the graph, piece by piece."""
        request = json.dumps({"op": "load", "timeout_s": LOAD_TIMEOUT_S}).encode()
        for piece in pieces:
            head, _ = self._exchange(request, piece)
            if "error" in head:
                raise InputError(f"expected a graph that oxigraph loads: {head['message']}")

    def ask(self, text: str, limits: Limits) -> tuple[dict[str, Any], bytes]:
        request = {
            "op": "query",
            "text": text,
            "prefixes": dict(terms.PREFIXES),
            "timeout_s": limits.timeout_s + ORPHAN_GRACE_S,
            "rows_max": limits.rows_max,
            "bytes_max": ANSWER_BYTES_MAX,
        }
        return self._exchange(json.dumps(request).encode())

    def _exchange(self, *frames: bytes) -> tuple[dict[str, Any], bytes]:
        worker.write_frames(self.requests, *frames)
        head: dict[str, Any] = json.loads(worker.read_frame(self.answers))
        return head, worker.read_frame(self.answers)

    def expire(self) -> None:
        self.expired = True
        self.child.kill()

    def kill(self) -> None:
        _end_child(self.child)


def _end_child(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            _close(stream)


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        return  # what was buffered was meant for the process that is gone


def _end(returncode: int) -> str:
    return signal.Signals(-returncode).name if returncode < 0 else f"status {returncode}"


def _too_late(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the query, or loading its graph, took longer than {timeout_s:g} s and was stopped; "
        "narrow it, add LIMIT, or allow more with timeout_s"
    )


def _refusal(text: str, head: dict[str, Any], limits: Limits) -> InputError:
    if head["error"] == "too_large":
        bound = f"{limits.rows_max:,} rows" if head["message"] == "rows" else _megabytes()
        return InputError(
            f"expected an answer of at most {bound}, got more; add LIMIT, count or group, "
            "or allow more with rows_max"
        )
    if head["error"] == "syntax":
        return guard.syntax_error(text, head["message"])
    return InputError(f"expected a query that can be answered: {head['message']}")


def _megabytes() -> str:
    return f"{ANSWER_BYTES_MAX >> 20} MiB"
