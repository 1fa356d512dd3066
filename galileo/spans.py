"""Spans: what is done for a request, from when to when, in all processes that have a part in it.

A span has a parent, which may be in another process; the ids of both travel as W3C trace context,
the text `traceparent`, in the metadata of calls. Nothing is recorded until somebody hands in a
recorder (`galileo.tracing` has one), and until then a span costs a look at one name.
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
    """One that has begun.

    Attributes:
        traceparent: by which others name it as their parent.
    """

    @property
    def traceparent(self) -> str: ...

    def note(self, name: str, fact: Fact) -> None:
        """Adds what became known while it went on."""
        ...

    def end(self, *, error: str = "", ended_ns: int | None = None) -> None:
        """Ends it.

        Args:
            error: why it came to nothing.
            ended_ns: since 1970; now where it is None.
        """
        ...


class Recorder(Protocol):
    """Records spans; `galileo.tracing`. Whatever becomes of them, it neither raises nor waits."""

    def begin(
        self, name: str, *, parent: str, kind: Kind, begun_ns: int | None, facts: dict[str, Fact]
    ) -> Span: ...


class _Recorders:
    """The one of this process, if there is any."""

    __slots__ = ("one",)

    def __init__(self) -> None:
        self.one: Recorder | None = None


_RECORDERS = _Recorders()


def record_with(recorder: Recorder | None) -> None:
    """From here on this process records; None: not any more."""
    _RECORDERS.one = recorder


def is_on() -> bool:
    return _RECORDERS.one is not None


def current() -> str:
    """The `traceparent` of the span that this task is in; empty where it is in none."""
    return _current.get()


def sound(text: str | None) -> str:
    """A `traceparent` as it came from elsewhere; empty where it is none."""
    return text if text and _SOUND.fullmatch(text) else ""


def trace_id() -> str:
    """Of the trace that this task is in; empty where it is in none."""
    return _current.get()[3:35]


@contextmanager
def inside(traceparent: str) -> Iterator[None]:
    """Within, spans have this parent."""
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _leave(token)


def span(
    name: str, *, kind: Kind = "inside", waited_s: float = 0.0, **facts: Fact
) -> AbstractContextManager[Span]:
    """A span for what is done within; its child where that is in one, else the first of a trace.

    It begins `waited_s` before now.
    """
    if _RECORDERS.one is None:
        return _NOTHING
    return _Recorded(_RECORDERS.one, name, kind, facts, waited_s)


def child(name: str, *, kind: Kind = "inside", **facts: Fact) -> AbstractContextManager[Span]:
    """The same, but only where what is done is in a span already."""
    if _RECORDERS.one is None or not _current.get():
        return _NOTHING
    return _Recorded(_RECORDERS.one, name, kind, facts)


def begun(name: str, *, kind: Kind = "inside", **facts: Fact) -> Span | None:
    """A child that is ended by hand, and in which nothing is; None where `child` does nothing."""
    if _RECORDERS.one is None or not _current.get():
        return None
    return _RECORDERS.one.begin(
        name, parent=_current.get(), kind=kind, begun_ns=None, facts=dict(facts)
    )


def record(name: str, *, parent: str, took_s: float, error: str = "", **facts: Fact) -> None:
    """Records what is over by now.

    Args:
        name: of the span.
        parent: its `traceparent`; empty for the first of a trace.
        took_s: how long it took until now.
        error: why it came to nothing.
        facts: about it.
    """
    if _RECORDERS.one is None:
        return
    now_ns = time.time_ns()
    made = _RECORDERS.one.begin(
        name, parent=parent, kind="inside", begun_ns=now_ns - int(1e9 * took_s), facts=dict(facts)
    )
    made.end(error=error, ended_ns=now_ns)


class _Nothing:
    """In place of a span where nothing is recorded."""

    __slots__ = ()
    traceparent = ""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to end."""

    def note(self, name: str, fact: Fact) -> None:
        """Nobody asks."""

    def end(self, *, error: str = "", ended_ns: int | None = None) -> None:
        """It never began."""


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
    # What closes a generator may be another task than the one that began it.
    with contextlib.suppress(ValueError):
        _current.reset(token)
