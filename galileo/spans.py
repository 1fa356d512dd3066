"""Spans: the duration and parent of each operation of a request, across processes.

The ids of a span and its trace travel as W3C trace context (`traceparent`) in the metadata of
calls. Without a recorder (`galileo.tracing` provides one) a span costs one attribute access.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import Final, Literal, Protocol, TypeAlias

METADATA_KEY: Final = "traceparent"
_SOUND = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_current: ContextVar[str] = ContextVar("galileo_traceparent", default="")

Fact: TypeAlias = "str | int | float | bool"
Kind: TypeAlias = Literal["inside", "client", "server"]


class Span(Protocol):
    """A started span.

    Attributes:
        traceparent: its id as W3C trace context, for child spans.
    """

    @property
    def traceparent(self) -> str: ...

    def note(self, name: str, fact: Fact) -> None:
        """Adds an attribute."""
        ...

    def end(self, *, error: str = "", ended_ns: int | None = None) -> None:
        """Ends the span.

        Args:
            error: the reason of a failure.
            ended_ns: nanoseconds since 1970; now by default.
        """
        ...


class Recorder(Protocol):
    """Records spans (`galileo.tracing`); neither raises nor blocks."""

    def begin(
        self, name: str, *, parent: str, kind: Kind, begun_ns: int | None, facts: dict[str, Fact]
    ) -> Span: ...


class _Recorders:
    """The recorder of this process, if any."""

    __slots__ = ("one",)

    def __init__(self) -> None:
        self.one: Recorder | None = None


_RECORDERS = _Recorders()


def record_with(recorder: Recorder | None) -> None:
    """Sets the recorder of this process; None stops recording."""
    _RECORDERS.one = recorder


def is_on() -> bool:
    return _RECORDERS.one is not None


def current() -> str:
    """The `traceparent` of the current span; empty if there is none."""
    return _current.get()


def sound(text: str | None) -> str:
    """Validates a received `traceparent`; empty if it is invalid."""
    return text if text and _SOUND.fullmatch(text) else ""


def trace_id() -> str:
    """The id of the current trace; empty if there is none."""
    return _current.get()[3:35]


@contextmanager
def inside(traceparent: str) -> Iterator[None]:
    """Sets the parent of spans in the block."""
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _leave(token)


def span(
    name: str, *, kind: Kind = "inside", waited_s: float = 0.0, **facts: Fact
) -> AbstractContextManager[Span]:
    """Records the block as a child of the current span, or as the root of a new trace.

    The span begins `waited_s` before now.
    """
    if _RECORDERS.one is None:
        return _NOTHING
    return _Recorded(_RECORDERS.one, name, kind, facts, waited_s)


def child(name: str, *, kind: Kind = "inside", **facts: Fact) -> AbstractContextManager[Span]:
    """Like `span`, but only within a span."""
    if _RECORDERS.one is None or not _current.get():
        return _NOTHING
    return _Recorded(_RECORDERS.one, name, kind, facts)


def begun(name: str, *, kind: Kind = "inside", **facts: Fact) -> Span | None:
    """Starts a child span to `end` explicitly; None without a recorder or current span."""
    if _RECORDERS.one is None or not _current.get():
        return None
    return _RECORDERS.one.begin(
        name, parent=_current.get(), kind=kind, begun_ns=None, facts=dict(facts)
    )


def record(name: str, *, parent: str, took_s: float, error: str = "", **facts: Fact) -> None:
    """Records a span that ends now.

    Args:
        name: of the span.
        parent: `traceparent` of its parent; empty for the root of a trace.
        took_s: its duration.
        error: the reason of a failure.
        facts: its attributes.
    """
    if _RECORDERS.one is None:
        return
    now_ns = time.time_ns()
    span = _RECORDERS.one.begin(
        name, parent=parent, kind="inside", begun_ns=now_ns - int(1e9 * took_s), facts=dict(facts)
    )
    span.end(error=error, ended_ns=now_ns)


class _Nothing:
    """A span that is not recorded."""

    __slots__ = ()
    traceparent = ""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *error: object) -> None:
        """Does nothing."""

    def note(self, name: str, fact: Fact) -> None:
        """Does nothing."""

    def end(self, *, error: str = "", ended_ns: int | None = None) -> None:
        """Does nothing."""


_NOTHING = _Nothing()


class _Recorded:
    __slots__ = ("_facts", "_kind", "_name", "_recorder", "_span", "_token", "_waited_s")

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        kind: Kind,
        facts: dict[str, Fact],
        waited_s: float = 0.0,
    ) -> None:
        self._recorder = recorder
        self._name = name
        self._kind = kind
        self._facts = facts
        self._waited_s = waited_s

    def __enter__(self) -> Span:
        parent = _current.get()
        begun_ns = time.time_ns() - int(1e9 * self._waited_s) if self._waited_s else None
        self._span = self._recorder.begin(
            self._name, parent=parent, kind=self._kind, begun_ns=begun_ns, facts=self._facts
        )
        self._token = _current.set(self._span.traceparent)
        return self._span

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        _leave(self._token)
        self._span.end(error=kind.__name__ if kind is not None else "")


def _leave(token: Token[str]) -> None:
    # A generator may be closed by another task than the one that started it.
    with contextlib.suppress(ValueError):
        _current.reset(token)
