"""How results look: tables and words for people, JSON for programs, errors for both."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec

import click
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from galileo.cli import EXIT_INTERRUPTED
from galileo.cursor import Cursor
from galileo.errors import Bug, GalileoError, Gone, IncompleteAnswer, InputError, TryAgain
from galileo.redaction import redacted

EXIT_INPUT = 2
EXIT_TRY_AGAIN = 3
EXIT_GONE = 4
EXIT_INCOMPLETE = 5
EXIT_BUG = 70
PIPED_WIDTH = 4096
"""Where nobody watches, tables are as wide as they must be, so that ids stay in one piece."""

P = ParamSpec("P")


class Output:
    """Where a command's results go.

    Args:
        as_json: one JSON value per result instead of tables.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        width = None if sys.stdout.isatty() else PIPED_WIDTH
        self._console = Console(highlight=False, soft_wrap=True, width=width)

    @property
    def is_live(self) -> bool:
        """Whether somebody watches, so that tables may replace each other."""
        return not self.as_json and self._console.is_terminal

    def live(self) -> Live:
        """A place on the terminal whose content is replaced."""
        return Live(console=self._console, auto_refresh=False)

    def value(self, value: Any, *, words: str = "") -> None:
        """One result; `words` is what a person reads instead of it."""
        if self.as_json:
            click.echo(to_json(value))
        elif words:
            self._console.print(words, markup=False)

    def rows(self, rows: Sequence[Mapping[str, Any]], *, title: str = "", empty: str = "") -> None:
        """Many results of one shape."""
        if self.as_json:
            click.echo(to_json(list(rows)))
        elif rows:
            self._console.print(table_of(rows, title))
        elif empty:
            self._console.print(empty, markup=False)

    def warn_partial(self, missing: Sequence[int]) -> None:
        """Says on standard error what an answer lacks, also beside JSON; nothing if it is whole."""
        if missing:
            partitions = ", ".join(map(str, missing))
            click.echo(
                f"galileo: partial answer: partitions {partitions} are missing, because their "
                "nodes are away (see galileo status)",
                err=True,
            )

    @contextlib.contextmanager
    def counting(self, what: str, *, unit: str) -> Iterator[Callable[[int], None]]:
        """A bar that goes when the work is done; call what it yields with how many have come."""
        with self.progress(unit=unit, passing=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda come: bar.advance(task, come)

    def progress(self, *, unit: str, passing: bool = False) -> Progress:
        """A progress bar on standard error; silent where nobody would see it.

        A `passing` one is gone at the end, since the result says what it said.
        """
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn(f"{{task.completed:,.0f}} {unit}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=passing,
            disable=self.as_json or not sys.stderr.isatty(),
        )


def to_json(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False)


def failing_well(command: Callable[P, None]) -> Callable[P, None]:
    """Ends a command that fails with its message, its kind and a fitting exit status."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except GalileoError as error:
            _fail(error)
        except OSError as error:
            if error.filename is None:
                raise
            _fail(InputError(f"expected to be able to use {error.filename}: {error.strerror}"))
        except KeyboardInterrupt:
            click.get_current_context().exit(EXIT_INTERRUPTED)

    return guarded


def _fail(error: GalileoError) -> NoReturn:
    context = click.get_current_context()
    _tell(error, as_json=bool(context.find_root().params.get("as_json")))
    context.exit(exit_status(error))


def exit_status(error: GalileoError) -> int:
    """2 fix the input, 3 try again, 4 it is over, 5 incomplete, 70 a bug, 1 anything else."""
    statuses = {
        IncompleteAnswer: EXIT_INCOMPLETE,
        InputError: EXIT_INPUT,
        TryAgain: EXIT_TRY_AGAIN,
        Gone: EXIT_GONE,
        Bug: EXIT_BUG,
    }
    return next((status for cls, status in statuses.items() if isinstance(error, cls)), 1)


def _tell(error: GalileoError, *, as_json: bool) -> None:
    if as_json:
        told = {"kind": error.kind, "message": error.command_message, "details": error.details}
        click.echo(redacted(to_json({"error": told})), err=True)
    else:
        if trace := error.details.get("traceback"):
            click.echo(redacted(str(trace)).rstrip("\n"), err=True)
        click.echo(f"galileo: {redacted(error.command_message)} [{error.kind}]", err=True)


def table_of(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Numbers stand on the right, all else on the left; no text is taken for markup."""
    table = Table(title=Text(title, "table.title") if title else None, header_style="bold")
    for name, value in rows[0].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={_cell(one)}" for name, one in value.items())
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
