"""How results look: tables and words for people, JSON for programs, errors for both.

Stored texts may hold terminal escape sequences. All that is printed passes `visible` or `to_json`,
which escape control characters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import functools
import json
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from galileo.cli import EXIT_INTERRUPTED, EXIT_PIPE
from galileo.cli.options import given
from galileo.cursor import Cursor
from galileo.errors import (
    GalileoError,
    GalileoWarning,
    HistoryChanged,
    IncompleteAnswer,
    InputError,
    InternalError,
    TerminalError,
    TransientError,
    listed,
)
from galileo.redaction import redacted, visible

EXIT_INPUT = 2
EXIT_TRANSIENT = 3
EXIT_TERMINAL = 4
EXIT_INCOMPLETE = 5
EXIT_INTERNAL = 70
WIDE = 4096
"""Columns of a table in a pipe and with --wide, so that ids stay in one piece."""
CELL_CHARS_MAX = 32
"""A longer cell is folded before a column is left out."""
WORD_CHARS_MAX = 36
"""A longer word is broken; the id of a continuous query is not."""
NAMES_LEFT_OUT_MAX = 8
"""Columns that the note below a table names."""
_GAP = 2
_DELETE_AND_C1 = re.compile(r"[\x7f-\x9f]")

P = ParamSpec("P")
T = TypeVar("T")


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with status 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Output:
    """Where a command's results go.

    Args:
        as_json: one JSON value per result instead of tables.
        wide: show every column of a table, also where the terminal is narrower.
        columns: of an output that is no terminal.
    """

    def __init__(self, *, as_json: bool, wide: bool = False, columns: int = WIDE) -> None:
        self.as_json = as_json
        self._is_partial = False
        self.is_wide = wide
        width = None if sys.stdout.isatty() and not wide else columns
        # With a width alone, Rich takes a simple terminal for one of 80 columns.
        height = None if width is None else shutil.get_terminal_size().lines
        self._console = _Terminal(highlight=False, soft_wrap=True, width=width, height=height)

    @property
    def is_live(self) -> bool:
        """Whether tables can be redrawn: standard output is a terminal, and the format is text."""
        return not self.as_json and self._console.is_terminal

    def live(self) -> Live:
        """A place on the terminal whose content is replaced."""
        return Live(console=self._console, auto_refresh=False)

    def value(self, value: Any, *, words: str = "") -> None:
        """One result; `words` is what a person reads instead of it."""
        if self.as_json:
            click.echo(to_json(value))
        elif words:
            self._console.print(self.fold(visible(words)), markup=False)

    def lines(self, lines: Sequence[str]) -> None:
        """Many results at once, one on each line: JSON texts, or words for people."""
        text = "\n".join(lines)
        if self.as_json:
            click.echo(_safe_json(text))
        elif lines:
            click.echo(self.fold(visible(text)) if self.is_live else visible(text))

    def note(self, words: str) -> None:
        """Something about a result, for people and programs alike, on standard error."""
        _print_line(words)

    def going_on(self, items: Iterator[T]) -> Iterator[T]:
        """The items of an iterator; notes that commits were lost, once, and goes on behind them."""
        while True:
            try:
                yield next(items)
            except StopIteration:
                return
            except HistoryChanged as error:
                self.note(f"galileo: {error.message} [{error.kind}]")

    def gap(self) -> None:
        """An empty line between two tables, for people."""
        if not self.as_json:
            self._console.print()

    def fold(self, words: str, *, first: str = "", indent: str = "") -> str:
        """Long lines broken between words, where the terminal would break them within one."""
        return fold(words, width=self._console.width, first=first, indent=indent)

    def rows(self, rows: Sequence[Mapping[str, Any]], *, title: str = "", empty: str = "") -> None:
        """Many results of one shape."""
        if self.as_json:
            click.echo(to_json(list(rows)))
        elif rows:
            for part in self.table(rows, title=title):
                self._console.print(part)
        elif empty:
            self._console.print(visible(empty), markup=False)

    def table(self, rows: Sequence[Mapping[str, Any]], *, title: str = "") -> list[RenderableType]:
        """The rows as a table no wider than the terminal; below it the names of columns left out.

        Columns come by importance: those at the end are left out first.
        """
        return table_of(rows, title, width=self._console.width)

    def warn_partial(self, missing: Sequence[int]) -> None:
        """Says on standard error what an answer lacks, also beside JSON; nothing if it is whole."""
        if missing:
            self._is_partial = True
            partitions = ", ".join(map(str, missing))
            what = (
                f"partition {partitions} is missing, because its node is unreachable"
                if len(missing) == 1
                else f"partitions {partitions} are missing, because their nodes are unreachable"
            )
            self.note(f"galileo: partial answer: {what} (see galileo status)")

    def end_file(self) -> None:
        """Ends the command if the file that it wrote has a partial answer."""
        if self._is_partial:
            click.get_current_context().exit(EXIT_INCOMPLETE)

    @contextlib.contextmanager
    def noting_warnings(self) -> Iterator[None]:
        """Prints the warnings of Galileo as lines on standard error."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GalileoWarning)
            yield
        for warning in caught:
            assert isinstance(warning.message, GalileoWarning)
            self.note(f"galileo: {warning.message.command_message}")

    @contextlib.contextmanager
    def counting(self, what: str, *, unit: str = "") -> Iterator[Callable[[int], None]]:
        """A bar that goes when the work is done; call what it yields with how many have come.

        Without a unit it shows the elapsed time alone.
        """
        with self.progress(unit=unit) as bar:
            task = bar.add_task(what, total=None)
            yield lambda come: bar.advance(task, come)

    def progress(self, *, unit: str) -> Progress:
        """A bar on standard error, removed at the end; silent without a terminal and with JSON."""
        return Progress(
            SpinnerColumn(),
            _Description("", markup=False),
            BarColumn(),
            *([TextColumn(f"{{task.completed:,.0f}} {unit}")] if unit else []),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=self.as_json or not sys.stderr.isatty(),
        )


class _Description(TextColumn):
    def render(self, task: Task) -> Text:
        return Text(visible(task.description))


def to_json(value: Any) -> str:
    """One line of JSON that is safe to print to a terminal."""
    text = json.dumps(value, default=_plain, ensure_ascii=False)
    return _safe_json(text)


def _safe_json(text: str) -> str:
    return _DELETE_AND_C1.sub(lambda control: f"\\u{ord(control[0]):04x}", text)


def handle_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Ends a command that fails with its message, its kind and a fitting exit status."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except GalileoError as error:
            fail(error)
        except BrokenPipeError:
            # What Python still has to write at its end would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.get_current_context().exit(EXIT_PIPE)
        except OSError as error:
            if error.filename is None:
                raise
            fail(InputError(f"cannot use {error.filename}: {error.strerror}"))
        except KeyboardInterrupt:
            click.get_current_context().exit(EXIT_INTERRUPTED)

    return guarded


def fail(error: GalileoError) -> NoReturn:
    """Prints the error and ends the command with a fitting exit status."""
    context = click.get_current_context()
    print_error(error, as_json="json" in given(context))
    context.exit(exit_status(error))


def exit_status(error: GalileoError) -> int:
    """2 fix the input, 3 try again, 4 it is over, 5 incomplete, 70 a bug, 1 anything else."""
    statuses = {
        IncompleteAnswer: EXIT_INCOMPLETE,
        InputError: EXIT_INPUT,
        TransientError: EXIT_TRANSIENT,
        TerminalError: EXIT_TERMINAL,
        InternalError: EXIT_INTERNAL,
    }
    return next((status for cls, status in statuses.items() if isinstance(error, cls)), 1)


def print_error(error: GalileoError, *, as_json: bool) -> None:
    if as_json:
        fields = {"kind": error.kind, "message": error.command_message, "details": error.details}
        click.echo(redacted(to_json({"error": fields})), err=True)
    else:
        if trace := error.details.get("traceback"):
            click.echo(visible(redacted(str(trace))).rstrip("\n"), err=True)
        _print_line(f"galileo: {redacted(error.command_message)} [{error.kind}]")


def _print_line(words: str) -> None:
    text = visible(words)
    if sys.stderr.isatty():
        text = fold(text, width=shutil.get_terminal_size().columns)
    click.echo(text, err=True)


def fold(text: str, *, width: int, first: str = "", indent: str = "") -> str:
    """Breaks long lines between words; indented ones stay whole, since they quote queries or code.

    Args:
        text: any number of lines.
        width: columns of the terminal.
        first: what each line begins with.
        indent: what the further parts of a line begin with.
    """
    wrapper = textwrap.TextWrapper(
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(
        f"{first}{line}"
        if line.startswith(" ") or cell_len(first + line) <= width
        else wrapper.fill(line)
        for line in text.split("\n")
    )


def table_of(
    rows: Sequence[Mapping[str, Any]], title: str, *, width: int = WIDE
) -> list[RenderableType]:
    """Numbers stand on the right, all else on the left; no text is taken for markup.

    A column that does not fit is left out as a whole, and named below.
    """
    names = list(rows[0])
    cells = [[visible(_cell(row[name])) for row in rows] for name in names]
    widths = _fit(list(map(_widths, map(_shown, names), cells)), width)
    table = Table(
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name, size in zip(names, widths, strict=False):
        value = next((row[name] for row in rows if row[name] is not None), None)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        justify: Any = "right" if is_number else "left"
        table.add_column(Text(_shown(name)), justify=justify, overflow="fold", width=size)
    for line in zip(*cells[: len(widths)], strict=True):
        table.add_row(*map(Text, line))
    parts: list[RenderableType] = [Text(_shown(title), "table.title")] if title else []
    parts.append(table)
    if len(widths) == len(names):
        return parts
    left_out = [_shown(name) for name in names[len(widths) :]]
    note = f"Not shown: {listed(left_out, most=NAMES_LEFT_OUT_MAX)}. Add --wide to see all columns."
    return [*parts, Text(textwrap.fill(note, width), "dim")]


def _widths(name: str, column: Sequence[str]) -> tuple[int, int]:
    """The least width of a column, at which long cells are folded, and the width without folds."""
    longest = max(cell_len(line) for cell in column for line in cell.split("\n"))
    word = max((cell_len(word) for cell in column for word in cell.split()), default=0)
    folded = max(min(longest, CELL_CHARS_MAX), min(word, WORD_CHARS_MAX))
    least = max(folded, *map(cell_len, name.split()), 1)
    return least, max(longest, cell_len(name), 1)


def _fit(columns: Sequence[tuple[int, int]], width: int) -> list[int]:
    """The widths of the first columns, as many as fit; what is left goes to the first in need."""
    widths: list[int] = []
    left = width + _GAP
    for least, _ in columns:
        if widths and left < least + _GAP:
            break
        widths.append(least)
        left -= least + _GAP
    for number, (least, preferred) in enumerate(columns[: len(widths)]):
        more = max(0, min(left, preferred - least))
        widths[number] += more
        left -= more
    return widths


def _shown(text: str) -> str:
    """A name on one line of a table."""
    return visible(text, keep="")


def counted(count: int, noun: str) -> str:
    """A number of things for people, such as "1 row" or "2 queries"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeo" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def size_of_bytes(count: float) -> str:
    """Bytes for people, such as "340.2 MB"."""
    for unit, width in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= width:
            return f"{count / width:,.1f} {unit}"
    return f"{count:,.0f} B"


def time_left(seconds: float) -> str:
    """Seconds for people, in the largest two units, such as "2d3h" or "45s"."""
    left, parts = round(seconds), list[str]()
    for unit, width in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= width or (unit == "s" and not parts):
            parts.append(f"{left // width}{unit}")
            left %= width
    return "".join(parts[:2])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={_cell(part)}" for name, part in value.items())
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Cursor):
        return {str(partition): sequence for partition, sequence in value.items()}
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
