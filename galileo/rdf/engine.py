"""A SPARQL engine that can be stopped: one worker per graph, loaded once, grown in place.

oxigraph cannot be interrupted, so the only way to hold a time limit is to end the process that
evaluates. States: no worker; a worker with the graph loaded. A query starts the worker where
there is none. Running out of time or of memory, or being cancelled, ends the process that
answers and leaves the one that holds the graph; `close` ends both.
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

from galileo.errors import Cancelled, DeadlineExceeded, InputError, UnsupportedQuery
from galileo.rdf import query_validation, terms
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.process import GraphProcessEnded, Process, QueryProcessEnded, Reply

LOAD_TIMEOUT_S = 300.0
TIMEOUT_MAX_S = 86_400.0
ANSWER_BYTES_MAX = 512 << 20
MEMORY_BYTES_MAX = 8 << 30
ORPHAN_GRACE_S = 1.0
"""How much longer than its time limit a query lives whose asker is not there to end it."""
PIPE_CHARS = 8_192
"""A query of so many characters fits a pipe in any spelling."""
TURN_POLL_S = 0.02
"""How often a query that waits for its turn looks whether it was cancelled."""

# Functions that are loaded, with what they need, only when a query may call one of them.
_GEOMETRY = re.compile(rf"geosparql/|:(?:{'|'.join(terms.GEOMETRY_FUNCTIONS)})\b")

Done = TypeVar("Done")


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
        is_number = isinstance(self.timeout_s, int | float)
        if not is_number or not 0 < self.timeout_s <= TIMEOUT_MAX_S:
            raise InputError(
                f"expected a timeout_s above 0 and up to {TIMEOUT_MAX_S:g}, got {self.timeout_s!r}"
            )
        if self.rows_max < 1:
            raise InputError(f"expected a rows_max of at least 1, got {self.rows_max!r}")


class Engine:
    """Answers SPARQL queries about one graph; safe to share between threads.

    Args:
        triples: gives the graph as N-Triples, in pieces of whole lines; called at each start.
        memory_bytes_max: address space of each of the worker's processes.
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
        self._closing = Cancellation()
        self._process: Process | None = None

    def query(self, text: str, limits: Limits, *, cancels: Sequence[Cancellation] = ()) -> Answer:
        """One answer; queries of several threads run one after the other.

        Raises:
            QuerySyntaxError: it is not SPARQL.
            InputError: it may not be asked, or its answer or its work passes a limit.
            DeadlineExceeded: it took longer than `limits.timeout_s`.
            Cancelled: one of `cancels` was cancelled, or the engine closed.
        """
        query_validation.check_query(text)
        stops = [self._closing, *cancels]
        self._take_turn(limits.timeout_s, stops)
        try:
            return self._ask(text, limits, stops)
        finally:
            self._lock.release()

    def load(self) -> None:
        """Loads the graph now, rather than at the first query."""
        with self._lock:
            self._started([self._closing])

    def grow(self, pieces: Iterable[bytes]) -> None:
        """Adds triples, which `triples` must give from now on as well, between two queries.

        Where nothing is loaded, nothing needs to be added. Where the process that has it is lost
        meanwhile, another one loads everything. Where that fails, what is loaded is dropped, and
        the next query loads everything.
        """
        stops = [self._closing]
        with self._lock:
            process = self._process
            if process is None or not process.alive:
                return
            try:
                self._load(process, pieces, stops)
            except GraphProcessEnded:
                # Killed after the look at it, or too small for what is new, which shows again.
                self._started(stops)

    def close(self) -> None:
        """Ends the worker; a query that runs raises `Cancelled`."""
        self._closing.cancel()
        if (process := self._process) is not None:
            process.end()
            with self._lock:  # whoever reads from the dead process is done at once
                process.close()

    # --- one query ---------------------------------------------------------------------------

    def _take_turn(self, timeout_s: float, stops: list[Cancellation]) -> None:
        """Returns holding the lock."""
        until = time.monotonic() + timeout_s
        _check(stops)
        if self._lock.acquire(blocking=False):
            return
        while not self._lock.acquire(timeout=min(TURN_POLL_S, timeout_s)):
            _check(stops)
            if time.monotonic() > until:
                raise _too_late(timeout_s)

    def _ask(self, text: str, limits: Limits, stops: list[Cancellation]) -> Answer:
        geometry = _GEOMETRY.search(text) is not None
        head, data = self._reply(text, limits, stops, geometry=geometry)
        if not geometry and head.get("error") == "unknown" and terms.GEOF in head["message"]:
            head, data = self._reply(text, limits, stops, geometry=True)
        if "error" not in head:
            return Answer(head["kind"], data, head.get("value", False))
        raise _refusal(text, head, limits)

    def _reply(
        self, text: str, limits: Limits, stops: list[Cancellation], *, geometry: bool
    ) -> Reply:
        try:
            return self._replied(text, limits, stops, geometry=geometry)
        except GraphProcessEnded:
            pass  # not of this query, which does not run in it: asked of another keeper
        try:
            return self._replied(text, limits, stops, geometry=geometry)
        except GraphProcessEnded as ended:
            raise self._too_much(ended.status) from ended

    def _replied(
        self, text: str, limits: Limits, stops: list[Cancellation], *, geometry: bool
    ) -> Reply:
        process = self._started(stops)
        request = {
            "text": text,
            "prefixes": dict(terms.PREFIXES),
            "timeout_s": limits.timeout_s + ORPHAN_GRACE_S,
            "rows_max": limits.rows_max,
            "bytes_max": ANSWER_BYTES_MAX,
        }
        # Only a long request can fill the pipe and get stuck in being written.
        patience_s = limits.timeout_s if len(text) < PIPE_CHARS else None
        asking = _GuardedCall(process, stops, limits.timeout_s, watched=patience_s is None)
        return self._guarded(
            asking, lambda: process.ask(request, geometry=geometry, patience_s=patience_s)
        )

    def _started(self, stops: list[Cancellation]) -> Process:
        _check(stops)
        if self._process is None or not self._process.alive:
            if self._process is not None:
                self._process.close()
            process = self._process = Process.start(memory_bytes_max=self._memory_bytes_max)
            try:
                self._load(process, self._triples(), stops)
            except GraphProcessEnded as ended:
                raise self._too_much(ended.status) from ended
        return self._process

    def _load(self, process: Process, pieces: Iterable[bytes], stops: list[Cancellation]) -> None:
        loading = _GuardedCall(process, stops, LOAD_TIMEOUT_S)
        self._guarded(loading, lambda: process.load(pieces, timeout_s=LOAD_TIMEOUT_S))

    def _guarded(self, work: _GuardedCall, act: Callable[[], Done]) -> Done:
        """What `act` returns, or why it could not end; `GraphProcessEnded` where nobody here ended
        it.
        """
        try:
            return work.run(act)
        except QueryProcessEnded as ended:
            _check(work.stops)
            # By its own alarm, where this process was kept from interrupting it in time.
            if work.expired or ended.status == -signal.SIGALRM:
                raise _too_late(work.timeout_s) from ended
            raise self._too_much(ended.status) from ended
        except GraphProcessEnded as ended:
            work.process.close()
            _check(work.stops)
            if work.expired:
                raise _too_late(work.timeout_s) from ended
            raise
        except BaseException:
            work.process.close()
            raise

    def _too_much(self, status: int) -> InputError:
        return InputError(
            f"the query ended its process ({_end(status)}), most likely for more than "
            f"{self._memory_bytes_max >> 20:,} MiB of memory; narrow it, or load less"
        )


class _GuardedCall:
    """Work of a process that is interrupted when its time is up, or when it is cancelled."""

    def __init__(
        self,
        process: Process,
        stops: list[Cancellation],
        timeout_s: float,
        *,
        watched: bool = True,
    ) -> None:
        self.process = process
        self.stops = stops
        self.timeout_s = timeout_s
        self._deadline = Cancellation()
        self._watched = watched

    @property
    def expired(self) -> bool:
        return self._deadline.cancelled or (not self._watched and self.process.expired)

    def run(self, act: Callable[[], Done]) -> Done:
        self.process.begin()
        with ExitStack() as stack:
            for stop in self.stops:
                stack.enter_context(stop.calling(self.process.interrupt))
            if self._watched:
                self._watch(stack)
            _check(self.stops)
            return act()

    def _watch(self, stack: ExitStack) -> None:
        stack.enter_context(self._deadline.calling(self.process.interrupt))
        watchdog = threading.Timer(self.timeout_s, self._deadline.cancel)
        watchdog.daemon = True
        watchdog.start()
        stack.callback(watchdog.cancel)


def _check(stops: list[Cancellation]) -> None:
    """Raises `Cancelled` where one of them is; the first one closes the graph."""
    if stops[0].cancelled:
        raise Cancelled("expected an open graph, this one was closed; open it again")
    if any(stop.cancelled for stop in stops):
        raise Cancelled("the query was cancelled")


def _end(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


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
        return query_validation.syntax_error(text, head["message"])
    if head["error"] == "unknown":
        return UnsupportedQuery(
            f"expected functions of SPARQL 1.1, XPath and GeoSPARQL: {head['message']}; "
            "docs/rdf.md lists those of GeoSPARQL"
        )
    return InputError(f"expected a query that can be answered: {head['message']}")


def _megabytes() -> str:
    return f"{ANSWER_BYTES_MAX >> 20} MiB"
