"""Tables that replace each other on a terminal, and follow each other where nobody watches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from galileo.cli.output import Output, visible
from galileo.errors import TransientError


@dataclass(frozen=True, slots=True)
class Part:
    """A table, or words.

    Attributes:
        rows: of one shape.
        title: above the table.
        words: shown below it, and instead of an empty one.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    title: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Screen:
    """What is shown at one time: for people, and as one JSON value."""

    parts: tuple[Part, ...]
    json: Any


class Board:
    """Shows one screen after the other; use it in a `with` block."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._live: Live | None = output.live() if output.is_live else None
        self._context: AbstractContextManager[Any] = self._live or nullcontext()

    def __enter__(self) -> Board:
        self._context.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)

    def show(self, screen: Screen) -> None:
        """Puts a screen in the place of the last one, or behind it."""
        if self._live is not None:
            drawn = [one for part in screen.parts for one in self._drawn(part)]
            self._live.update(Group(*drawn), refresh=True)
        elif self._output.as_json:
            self._output.value(screen.json)
        else:
            for part in screen.parts:
                self._output.rows(part.rows, title=part.title)
                self._output.value(None, words=part.words)

    def _drawn(self, part: Part) -> list[RenderableType]:
        table = self._output.table(part.rows, title=part.title) if part.rows else []
        return [*table, *([Text(visible(part.words))] if part.words else [])]


def follow(
    output: Output, look: Callable[[], Screen], *, every_s: float, times: int | None = None
) -> None:
    """Shows what `look` finds, again and again; `times` times, if given.

    While no node answers, the last screen stays with the reason below it; the first look has to
    succeed.
    """
    with Board(output) as board:
        last: Screen | None = None
        for number in itertools.count(1):
            started = time.monotonic()
            try:
                last = shown = look()
            except TransientError as error:
                if last is None or number == times:
                    raise
                told = {"kind": error.kind, "message": error.message}
                shown = Screen((*last.parts, Part(words=error.command_message)), {"error": told})
            board.show(shown)
            if number == times:
                return
            time.sleep(max(0.0, every_s - (time.monotonic() - started)))
