"""A SPARQL engine whose queries can be interrupted: one worker for each graph.

oxigraph cannot be interrupted, so a time limit requires that the evaluating process is killed. The
first query starts the worker and loads the graph. A timeout, a lack of memory or a cancellation
ends the query process and keeps the graph process; `close` ends both.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from galileo.errors import (
    Cancelled,
    DeadlineExceeded,
    GalileoError,
    InputError,
    UnsupportedQuery,
)
from galileo.rdf import query_validation, terms
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.sparql_process.process import (
    GraphProcessEnded,
    Process,
    QueryProcessEnded,
    Reply,
    failure,
)

TIMEOUT_MAX_S = 86_400.0
ANSWER_BYTES_MAX = 512 << 20
MEMORY_BYTES_MAX = 8 << 30
"""Address space of each process of a worker."""
LOAD_TIMEOUT_S = 300.0
"""Seconds for a graph to be loaded."""
ORPHAN_GRACE_S = 1.0
"""Added to the time limit of the worker's own timer, which ends a query if its owner does not."""
PIPE_CHARS = 8_192
"""A query with fewer characters fits a pipe in any encoding."""
TURN_POLL_S = 0.02
"""How often a waiting query checks whether it was cancelled."""

# Geometry functions are loaded only for queries that can call one.
_GEOMETRY = re.compile(rf"geosparql/|:(?:{'|'.join(terms.GEOMETRY_FUNCTIONS)})\b")

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The answer of the worker: "boolean", "solutions" (TSV) or "triples" (N-Triples)."""

    kind: str
    data: bytes = b""
    value: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    """A query, its limits, and what may cancel it."""

    text: str
    timeout_s: float
    rows_max: int
    cancellations: list[Cancellation]

    def __post_init__(self) -> None:
        is_number = isinstance(self.timeout_s, int | float)
        if not is_number or not 0 < self.timeout_s <= TIMEOUT_MAX_S:
            raise InputError(
                f"expected a timeout_s above 0 and up to {TIMEOUT_MAX_S:g}, got {self.timeout_s!r}",
                option="timeout_s",
                bound=TIMEOUT_MAX_S,
            )
        if self.rows_max < 1:
            raise InputError(
                f"expected a rows_max of at least 1, got {self.rows_max!r}", option="rows_max"
            )


class Engine:
    """Answers SPARQL queries about one graph; thread-safe.

    Args:
        triples: returns the graph as N-Triples, in pieces of whole lines; called at each start.
        memory_bytes_max: address space of each process of the worker.
    """

    def __init__(
        self, triples: Callable[[], Iterable[bytes]], *, memory_bytes_max: int = MEMORY_BYTES_MAX
    ) -> None:
        self._triples = triples
        self._memory_bytes_max = memory_bytes_max
        self._lock = threading.Lock()
        self._closing = Cancellation()
        self._process: Process | None = None

    def query(
        self,
        text: str,
        *,
        timeout_s: float = 30.0,
        rows_max: int = 1_000_000,
        cancels: Sequence[Cancellation] = (),
    ) -> WorkerAnswer:
        """Answers a query; queries of several threads run one after the other.

        Args:
            text: of the query.
            timeout_s: seconds for it, up to `TIMEOUT_MAX_S`.
            rows_max: solutions or triples in its answer.
            cancels: each of them can cancel it.

        Raises:
            QuerySyntaxError: it is not SPARQL.
            InputError: it is not allowed, or it exceeds a limit on its answer or memory.
            InternalError: it failed, and the log says why.
            DeadlineExceeded: it took longer than `timeout_s`.
            Cancelled: one of `cancels` was cancelled, or the engine closed.
        """
        request = _Request(text, timeout_s, rows_max, [self._closing, *cancels])
        query_validation.check_query(text)
        self._acquire_turn(timeout_s, request.cancellations)
        try:
            return self._answer(request)
        finally:
            self._lock.release()

    def load(self) -> None:
        """Loads the graph now, rather than at the first query."""
        with self._lock:
            self._ensure_process([self._closing])

    def grow(self, pieces: Iterable[bytes]) -> None:
        """Adds triples between two queries; `triples` must return them from now on.

        Does nothing if the graph is not loaded. If the process ended, another one loads the whole
        graph. If that fails, the next query loads it.
        """
        cancellations = [self._closing]
        with self._lock:
            process = self._process
            if process is None or not process.alive:
                return
            try:
                self._load(process, pieces, cancellations)
            except GraphProcessEnded:
                # It was killed, or the new triples exceed its memory: then this fails, too.
                self._ensure_process(cancellations)

    def unload(self) -> None:
        """Ends the worker between two queries; the next query loads what `triples` returns then."""
        with self._lock:
            if self._process is not None:
                self._process.end()
                self._process.close()

    def close(self) -> None:
        """Ends the worker; a query that runs raises `Cancelled`."""
        self._closing.cancel()
        if (process := self._process) is not None:
            process.end()
            with self._lock:  # a thread that reads from the dead process returns at once
                process.close()

    # --- one query ---------------------------------------------------------------------------

    def _acquire_turn(self, timeout_s: float, cancellations: list[Cancellation]) -> None:
        """Acquires the lock."""
        until = time.monotonic() + timeout_s
        _check(cancellations)
        if self._lock.acquire(blocking=False):
            return
        while not self._lock.acquire(timeout=min(TURN_POLL_S, timeout_s)):
            _check(cancellations)
            if time.monotonic() > until:
                raise _deadline_exceeded(timeout_s)

    def _answer(self, request: _Request) -> WorkerAnswer:
        geometry = _GEOMETRY.search(request.text) is not None
        head, data = self._query_with_retry(request, geometry=geometry)
        if not geometry and head.get("error") == "unknown" and terms.GEOF in head["message"]:
            head, data = self._query_with_retry(request, geometry=True)
        if "error" not in head:
            return WorkerAnswer(head["kind"], data, head.get("value", False))
        raise _refusal(request, head)

    def _query_with_retry(self, request: _Request, *, geometry: bool) -> Reply:
        try:
            return self._query_process(request, geometry=geometry)
        except GraphProcessEnded:
            pass  # not the fault of this query, which does not run in the graph process
        try:
            return self._query_process(request, geometry=geometry)
        except GraphProcessEnded as ended:
            raise self._out_of_memory(ended.status) from ended

    def _query_process(self, request: _Request, *, geometry: bool) -> Reply:
        process = self._ensure_process(request.cancellations)
        message = {
            "text": request.text,
            "prefixes": dict(terms.PREFIXES),
            "timeout_s": request.timeout_s + ORPHAN_GRACE_S,
            "rows_max": request.rows_max,
            "bytes_max": ANSWER_BYTES_MAX,
        }
        # Only a long request can fill the pipe and block the write.
        timeout_s = request.timeout_s if len(request.text) < PIPE_CHARS else None
        call = _GuardedCall(
            process, request.cancellations, request.timeout_s, watched=timeout_s is None
        )
        return self._run_guarded(
            call, lambda: process.query(message, geometry=geometry, timeout_s=timeout_s)
        )

    def _ensure_process(self, cancellations: list[Cancellation]) -> Process:
        _check(cancellations)
        if self._process is None or not self._process.alive:
            if self._process is not None:
                self._process.close()
            process = self._process = Process.start(memory_bytes_max=self._memory_bytes_max)
            try:
                self._load(process, self._triples(), cancellations)
            except GraphProcessEnded as ended:
                raise self._out_of_memory(ended.status) from ended
        return self._process

    def _load(
        self, process: Process, pieces: Iterable[bytes], cancellations: list[Cancellation]
    ) -> None:
        call = _GuardedCall(process, cancellations, LOAD_TIMEOUT_S)
        self._run_guarded(call, lambda: process.load(pieces, timeout_s=LOAD_TIMEOUT_S))

    def _run_guarded(self, call: _GuardedCall, action: Callable[[], Done]) -> Done:
        """Runs an action and translates the end of its process.

        Raises:
            GraphProcessEnded: neither a timeout nor a cancellation ended it.
        """
        try:
            return call.run(action)
        except QueryProcessEnded as ended:
            _check(call.cancellations)
            # SIGALRM is its own timer, if this process could not interrupt it in time.
            if call.expired or ended.status == -signal.SIGALRM:
                raise _deadline_exceeded(call.timeout_s) from ended
            raise self._out_of_memory(ended.status) from ended
        except GraphProcessEnded as ended:
            call.process.close()
            _check(call.cancellations)
            if call.expired:
                raise _deadline_exceeded(call.timeout_s) from ended
            raise
        except BaseException:
            call.process.close()
            raise

    def _out_of_memory(self, status: int) -> InputError:
        return InputError(
            f"the query ended its process ({_end(status)}), most likely for more than "
            f"{self._memory_bytes_max >> 20:,} MiB of memory; narrow it, or load less",
            expected="memory",
            bound=self._memory_bytes_max,
        )


class _GuardedCall:
    """A call of a process that is interrupted at its timeout or by a cancellation."""

    def __init__(
        self,
        process: Process,
        cancellations: list[Cancellation],
        timeout_s: float,
        *,
        watched: bool = True,
    ) -> None:
        self.process = process
        self.cancellations = cancellations
        self.timeout_s = timeout_s
        self._deadline = Cancellation()
        self._watched = watched

    @property
    def expired(self) -> bool:
        return self._deadline.cancelled or (not self._watched and self.process.expired)

    def run(self, action: Callable[[], Done]) -> Done:
        self.process.begin()
        with ExitStack() as stack:
            for cancellation in self.cancellations:
                stack.enter_context(cancellation.calling(self.process.interrupt))
            if self._watched:
                self._watch(stack)
            _check(self.cancellations)
            return action()

    def _watch(self, stack: ExitStack) -> None:
        stack.enter_context(self._deadline.calling(self.process.interrupt))
        watchdog = threading.Timer(self.timeout_s, self._deadline.cancel)
        watchdog.daemon = True
        watchdog.start()
        stack.callback(watchdog.cancel)


def _check(cancellations: list[Cancellation]) -> None:
    """Raises `Cancelled` if one of them is cancelled; the first is that of a closed graph."""
    if cancellations[0].cancelled:
        raise Cancelled("the graph is closed; open it again")
    if any(cancellation.cancelled for cancellation in cancellations):
        raise Cancelled("the query was cancelled")


def _end(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def _deadline_exceeded(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the query, or loading its graph, took longer than {timeout_s:g} s and was stopped; "
        "narrow it, add LIMIT, or allow more with timeout_s",
        bound=timeout_s,
    )


def _refusal(request: _Request, head: dict[str, Any]) -> GalileoError:
    if head["error"] == "too_large":
        bound = f"{request.rows_max:,} rows" if head["message"] == "rows" else _megabytes()
        return InputError(
            f"expected an answer of at most {bound}, got more; add LIMIT, count or group, "
            "or allow more with rows_max",
            expected="rows" if head["message"] == "rows" else "bytes",
        )
    if head["error"] == "syntax":
        return query_validation.syntax_error(request.text, head["message"])
    if head["error"] == "unknown":
        return UnsupportedQuery(
            f"expected functions of SPARQL 1.1, XPath and GeoSPARQL: {head['message']}; "
            "docs/rdf.md lists those of GeoSPARQL",
            expected="function",
        )
    return failure(head)


def _megabytes() -> str:
    return f"{ANSWER_BYTES_MAX >> 20} MiB"
