"""Log and metrics of the calls that a node answers: their kind, request and status."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from galileo import spans
from galileo.errors import Forbidden, NotPermitted, QuotaExceeded, Throttled, Unauthenticated
from galileo.rpc.policy import HEARTBEATS
from galileo.wire.channel import short_name
from galileo.wire.context_propagation import begin_request
from galileo.wire.status import METADATA_KEY
from galileo.wire.v1 import common_pb2

OWN_SERVICES = "/galileo."
REFUSALS = frozenset(
    kind.kind for kind in (NotPermitted, Unauthenticated, Forbidden, QuotaExceeded, Throttled)
)
"""Kinds of errors that deny permission or exceed a quota."""
_HEARTBEATS = frozenset(map(short_name, HEARTBEATS))
"""Not logged: each node sends several per second."""
_NEWS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A finished call.

    Attributes:
        name: "Service/Method".
        request: the decoded request; for a stream, its iterator; None if it was not read.
        peer: the caller's address.
        code: the status, if the handler set one.
        error: the error that ended the handler, if any.
        reply: the reply of a unary call.
    """

    name: str
    request: Any
    peer: str
    code: Any
    error: common_pb2.Error | None


class CallTracker:
    """Counts calls from their arrival until their handler has ended, whatever ended it.

    Args:
        on_end: called with each finished call.

    Attributes:
        refused: how many calls were refused, by kind of the error.
    """

    def __init__(self, *, on_end: Callable[[CallRecord], None] | None = None) -> None:
        self._counts: Counter[str] = Counter()
        self._on_end = on_end
        self.refused: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        """Calls under way by service and method, such as "Query/Run"; none that are 0."""
        return dict(+self._counts)

    def record(self, name: str, call: Any) -> _Call:
        """A block in which a call is served.

        Args:
            name: "Service/Method".
            call: has its `context`, and its `request` once that was read.
        """
        return _Call(self, name, call)

    def begin(self, name: str, context: Any) -> str:
        """Counts a call; it serves the request that the caller names, or a new one, and returns
        the span that it belongs to.
        """
        self._counts[name] += 1
        return begin_request(dict(context.invocation_metadata() or ()))

    def end(self, ended: CallRecord, *, took_s: float, failure: str) -> None:
        self._counts[ended.name] -= 1
        error = ended.error
        if error is not None and error.kind in REFUSALS:
            self.refused[error.kind] += 1
        if self._on_end is not None:
            self._on_end(ended)
        _log_call(ended, took_s=took_s, failure=failure)


@contextlib.contextmanager
def _spanned(name: str, parent: str) -> Iterator[None]:
    with spans.inside(parent), spans.span(name, kind="server"):
        yield


def _traced(name: str, parent: str) -> contextlib.AbstractContextManager[None]:
    """A span of the call; heartbeats begin no traces."""
    if not spans.is_on() or (name in _HEARTBEATS and not parent):
        return _NO_SPAN
    return _spanned(name, parent)


_NO_SPAN = contextlib.nullcontext()


class _Call:
    """One call, from its arrival to the end of its handler."""

    __slots__ = ("_begun", "_call", "_calls", "_context", "_name", "_peer", "_span")

    def __init__(self, calls: CallTracker, name: str, call: Any) -> None:
        self._calls = calls
        self._name = name
        self._call = call
        self._context = call.context

    def __enter__(self) -> _Call:
        # Asked when the call is over, gRPC may look for it where nothing is any more, and crash.
        self._peer = self._context.peer()
        parent = self._calls.begin(self._name, self._context)
        self._begun = time.perf_counter()
        self._span = _traced(self._name, parent)
        self._span.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        context, took_s = self._context, time.perf_counter() - self._begun
        refusal = None if kind is None else _refusal(context)
        ended = CallRecord(self._name, self._call.request, self._peer, context.code(), refusal)
        self._calls.end(ended, took_s=took_s, failure="" if kind is None else kind.__name__)
        self._span.__exit__(kind, *error)


def _refusal(context: Any) -> common_pb2.Error | None:
    """The error with which a handler has ended a call; None where it has ended in another way."""
    for key, value in context.trailing_metadata() or ():
        if key == METADATA_KEY:
            return common_pb2.Error.FromString(value)
    return None


def _log_call(ended: CallRecord, *, took_s: float, failure: str) -> None:
    level = _level(ended.code, failure)
    if ended.name in _HEARTBEATS or not log.isEnabledFor(level):
        return
    outcome = "OK" if not failure else getattr(ended.code, "name", "") or failure
    took_ms = round(1e3 * took_s, 3)
    facts = {"method": ended.name, "outcome": outcome, "took_ms": took_ms}
    facts |= {"peer": ended.peer, "ccq": str(getattr(ended.request, "ccq_id", ""))}
    log.log(level, "%s: %s in %.1f ms", ended.name, outcome, took_ms, extra=facts)


def _level(code: Any, failure: str) -> int:
    """What the caller got wrong is news; what ends well, or is to be tried again, is not."""
    is_news = failure and code in _NEWS
    return logging.INFO if is_news else logging.DEBUG
