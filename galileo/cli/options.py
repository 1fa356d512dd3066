"""Options that may stand before or after every command: how to reach the cluster, how to print."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from galileo.errors import InputError, NotPermitted

F = TypeVar("F", bound=Callable[..., Any])

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
"""The type of a file that a command reads."""
FILE_OR_STDIN = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
STDIN = Path("-")
SEPARATORS = {"tab": "\t", "\\t": "\t", "space": " "}
"""Separators of CSV files that have a name."""

_GIVEN = "galileo.options"


def given(context: click.Context) -> dict[str, Any]:
    """The shared options that were given so far, by name; one for all commands of a line."""
    options: dict[str, Any] = context.meta.setdefault(_GIVEN, {})
    return options


class SharedOption(click.Option):
    """An option that each command takes and that only the root's help lists."""

    def __init__(self, *names: str, **words: Any) -> None:
        super().__init__(list(names), expose_value=False, callback=_remember, **words)

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(context) if context.parent is None else None


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """An option after the command wins over the same one before it."""
    if value:
        given(context)[str(parameter.name)] = value


def shared_options() -> list[click.Option]:
    """New objects, since each belongs to one command."""
    return [
        SharedOption(
            "--node",
            "nodes",
            multiple=True,
            metavar="HOST[:PORT]",
            help="A node of the cluster; repeat it for others to try.  [default: 127.0.0.1:7701]",
        ),
        SharedOption(
            "--profile",
            metavar="NAME",
            help="Profile of ~/.config/galileo/config.toml; else GALILEO_PROFILE, else default.",
        ),
        SharedOption(
            "--timeout",
            metavar="DURATION",
            help="Retry unreachable nodes for up to this long, such as 10s or 2m.  [default: 15s]",
        ),
        SharedOption(
            "--token-file", metavar="FILE", help="File of the token that proves who calls."
        ),
        SharedOption(
            "--tls",
            metavar="DIRECTORY",
            help="Certificate, key and authority, as galileo cert issue writes them.",
        ),
        SharedOption(
            "--insecure",
            is_flag=True,
            help="Allow sending the token over an unencrypted connection.",
        ),
        SharedOption("--json", is_flag=True, help="Print JSON instead of tables and text."),
        SharedOption(
            "--wide", is_flag=True, help="Show every column of a table, however wide it gets."
        ),
    ]


def add_shared_options(command: click.Command) -> None:
    """Adds what a command and those below it have no option of their own for."""
    taken = {name for parameter in command.params for name in parameter.opts}
    command.params += [option for option in shared_options() if not taken.intersection(option.opts)]
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_shared_options(below)


def json_option(command: F) -> F:
    """`--json` in a command's own help."""
    decorated: F = click.option(
        "--json", is_flag=True, expose_value=False, callback=_remember, help="Print JSON."
    )(command)
    return decorated


# --- files -----------------------------------------------------------------------------------

_CSV_OPTIONS = (
    ("separator", "TEXT", "Separator of CSV files: a character, tab, or space for white space."),
    ("quote", "CHARACTER", 'Quotation mark of CSV files.  [default: "]'),
    ("encoding", "NAME", "Encoding of CSV files, such as latin-1.  [default: UTF-8]"),
    ("decimal", "CHARACTER", "Decimal separator of CSV files, . or ,  [default: .]"),
    ("skip", "LINES", "Lines of CSV files before the header."),
    ("names", "NAME,...", "Names of the columns, of CSV files without a header."),
    ("time-format", "FORMAT", "Format of times in CSV files, as of strptime.  [default: ISO 8601]"),
    ("time-zone", "ZONE", "Zone of times without one in CSV files.  [default: UTC]"),
    ("bad-rows", "FILE", "Keep bad rows of CSV files aside in FILE, in place of an error."),
)


def csv_options(command: F) -> F:
    """The options of CSV files; the command gets those that were given as `csv`, a dict."""

    @functools.wraps(command)
    def with_csv(*args: Any, **options: Any) -> Any:
        names = [name.replace("-", "_") for name, _, _ in _CSV_OPTIONS]
        csv = {name: options.pop(name) for name in (*names, "units")}
        csv = {name: value for name, value in csv.items() if value}
        if "separator" in csv:
            csv["separator"] = SEPARATORS.get(csv["separator"], csv["separator"])
        if "names" in csv:
            csv["names"] = [name.strip() for name in csv["names"].split(",")]
        return command(*args, csv=csv, **options)

    units = "The line after the header of CSV files has units."
    decorated: Any = click.option("--units", is_flag=True, help=units)(with_csv)
    for name, metavar, words in reversed(_CSV_OPTIONS):
        kind = click.IntRange(0) if name == "skip" else str
        decorated = click.option(f"--{name}", metavar=metavar, type=kind, help=words)(decorated)
    return cast(F, decorated)


@contextlib.contextmanager
def readable(path: Path, *, suffix: str = ".csv") -> Iterator[Path]:
    """A file or directory that can be read more than once, for the block: of a pipe a copy.

    Args:
        path: of a file or a pipe; `STDIN`.
        suffix: of a copy, which names its format.

    Raises:
        InputError: as the block does; its message names the file.
    """
    with contextlib.ExitStack() as stack:
        copy = path
        if not path.is_file() and not path.is_dir():
            pipe = sys.stdin.buffer if path == STDIN else stack.enter_context(path.open("rb"))
            file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=suffix))
            shutil.copyfileobj(pipe, file)
            file.flush()
            copy = Path(file.name)
        try:
            yield copy
        except NotPermitted:  # An error about the caller, not about the file.
            raise
        except InputError as error:
            name = "standard input" if path == STDIN else str(path)
            words = error.message.replace(str(copy), name)
            words = words if name in words else f"{name}: {words}"
            raise type(error)(words, **error.details) from error
