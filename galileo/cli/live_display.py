"""Frames of tables: redrawn on a terminal, printed one after the other in a pipe."""

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

from galileo.cli.output import Output
from galileo.errors import TransientError
from galileo.redaction import visible


@dataclass(frozen=True, slots=True)
class Panel:
    """A table with a title, or text.

    Attributes:
        rows: of one shape.
        title: above the table.
        words: shown below it, and instead of an empty one.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    title: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is shown at one time: panels for people, and one JSON value."""

    panels: tuple[Panel, ...]
    json: Any


class LiveDisplay:
    """Shows one frame after the other; use it in a `with` block."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._live: Live | None = output.live() if output.is_live else None
        self._context: AbstractContextManager[Any] = self._live or nullcontext()

    def __enter__(self) -> LiveDisplay:
        self._context.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)

    def show(self, frame: Frame) -> None:
        """Puts a frame in the place of the last one, or behind it."""
        if self._live is not None:
            rendered = [line for panel in frame.panels for line in self._render(panel)]
            self._live.update(Group(*rendered), refresh=True)
        elif self._output.as_json:
            self._output.value(frame.json)
        else:
            for panel in frame.panels:
                self._output.rows(panel.rows, title=panel.title)
                self._output.value(None, words=panel.words)

    def _render(self, panel: Panel) -> list[RenderableType]:
        table = self._output.table(panel.rows, title=panel.title) if panel.rows else []
        return [*table, *([Text(visible(panel.words))] if panel.words else [])]


def refresh_loop(
    output: Output, poll: Callable[[], Frame], *, every_s: float, times: int | None = None
) -> None:
    """Shows what `poll` finds, again and again; `times` times, if given.

    While no node answers, the last frame stays with the reason below it; the first poll has to
    succeed.
    """
    with LiveDisplay(output) as display:
        last: Frame | None = None
        for number in itertools.count(1):
            started = time.monotonic()
            try:
                last = shown = poll()
            except TransientError as error:
                if last is None or number == times:
                    raise
                details = {"kind": error.kind, "message": error.message}
                shown = Frame(
                    (*last.panels, Panel(words=error.command_message)), {"error": details}
                )
            display.show(shown)
            if number == times:
                return
            time.sleep(max(0.0, every_s - (time.monotonic() - started)))
