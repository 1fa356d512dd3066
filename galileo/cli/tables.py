"""`galileo table`: keyed rows, which are replaced and deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from galileo.cli.cursors import changes_options, cursor_of, unchanged_since_option
from galileo.cli.data import check_format, limit_of, limit_options, output_options
from galileo.cli.datasets import drop_stored
from galileo.cli.lazy import CommandGroup
from galileo.cli.options import EXISTING_FILE, FILE_OR_STDIN, csv_options, readable
from galileo.cli.output import Output, counted
from galileo.cli.session import Session, in_session
from galileo.cli.stored_rows import Shown, report_receipt, show_changes, show_rows
from galileo.client import Client, Receipt
from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.formats import CsvOptions
from galileo.model.table import Table
from galileo.wire import token

_unchanged_since = unchanged_since_option("`table show` or `table changes`")


@click.group(cls=CommandGroup)
def table() -> None:
    """Tables: create, fill, show and drop keyed rows, which are replaced and deleted.

    \b
    Example:
      galileo table create shelters --column id:text --column beds:int --key id
      galileo table upsert shelters shelters.csv
      galileo table show shelters
    """


@table.command()
@click.argument("name")
@click.option(
    "--column",
    "columns",
    multiple=True,
    required=True,
    metavar="NAME:TYPE",
    help="A column; TYPE is float, int, text, bool, time or geometry.",
)
@click.option(
    "--key", "key", multiple=True, required=True, metavar="NAME", help="A column of the key."
)
@in_session
def create(session: Session, *, name: str, columns: tuple[str, ...], key: tuple[str, ...]) -> None:
    """Create the table NAME.

    Rows are found, replaced and deleted by their key, which has one column or several. A table
    never changes its columns.

    \b
    Example:
      galileo table create shelters --column id:text --column beds:int --key id
    """
    created = Table(name, dict(_column(text) for text in columns), list(key))
    with session.client() as client:
        client.create_table(created)
    session.output.value(created.to_dict(), words=f"created table {name}")


def _column(text: str) -> tuple[str, Any]:
    name, colon, kind = text.partition(":")
    if not colon:
        raise InputError(f"expected a column as NAME:TYPE, got {text!r}", parameter="column")
    return name, kind


@table.command("list")
@in_session
def list_tables(session: Session) -> None:
    """List the tables that you may use.

    \b
    Example:
      galileo table list
    """
    with session.client() as client:
        tables = client.tables()
    if session.output.as_json:
        session.output.value([one.to_dict() for one in tables])
        return
    rows = [
        {
            "table": one.name,
            "key": ", ".join(one.key_columns),
            "columns": ", ".join(f"{name}:{kind}" for name, kind in one.columns),
        }
        for one in tables
    ]
    session.output.rows(rows, empty="There is no table that you may use.")


@table.command()
@click.argument("name")
@click.argument("files", nargs=-1, required=True, type=FILE_OR_STDIN)
@_unchanged_since
@csv_options
@in_session
def upsert(
    session: Session,
    *,
    name: str,
    files: tuple[Path, ...],
    unchanged_since: str | None,
    csv: dict[str, Any],
) -> None:
    """Store the rows of FILES in the table NAME, in place of those with the same keys.

    Files are Parquet, Arrow, CSV or JSON lines; - is CSV on standard input. Of rows with the same
    key the last one counts. A row is replaced as a whole: a column that a file lacks becomes null.
    Running the same command again does no harm.

    \b
    Example:
      galileo table upsert shelters shelters.csv
      galileo table upsert shelters beds.csv --unchanged-since "$CURSOR"
    """
    with session.client() as client:
        store = partial(
            client.upsert,
            name,
            csv=CsvOptions(**csv) if csv else None,
            unchanged_since=_condition(client, name, unchanged_since),
        )
        store_files(session.output, files, store, noun="row")


@table.command()
@click.argument("name")
@click.argument("keys", nargs=-1)
@click.option("--file", "path", type=EXISTING_FILE, help="A file with the columns of the key.")
@_unchanged_since
@csv_options
@in_session
def delete(
    session: Session,
    *,
    name: str,
    keys: tuple[str, ...],
    path: Path | None,
    unchanged_since: str | None,
    csv: dict[str, Any],
) -> None:
    """Delete the rows with some KEYS from the table NAME; unknown keys are ignored.

    If the key has several columns, name the keys in a file.

    \b
    Example:
      galileo table delete shelters a17 b4
      galileo table delete shelters --file closed.csv
    """
    if bool(keys) == (path is not None):
        raise InputError("expected KEYS or --file, one of the two", parameter="keys")
    with session.client() as client, session.output.noting_warnings():
        given = path if path is not None else _keys(client, name, keys)
        receipt = client.delete(
            name,
            given,
            csv=CsvOptions(**csv) if csv else None,
            unchanged_since=_condition(client, name, unchanged_since),
        )
    report_receipt(session.output, receipt, f"deleted: {counted(receipt.rows, 'key')}")


@table.command()
@click.argument("name")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only the row with this key.")
@click.option(
    "--at", "at", metavar="CURSOR", help="The rows as they were at a cursor of an earlier answer."
)
@limit_options
@output_options("rows")
@in_session
def show(
    session: Session,
    *,
    name: str,
    keys: tuple[str, ...],
    at: str | None,
    limit: int | None,
    everything: bool,
    output: str | None,
    file_format: str | None,
) -> None:
    """Show the rows of the table NAME, and the cursor up to which they go.

    With --key there is no cursor, since other rows were not looked at.

    \b
    Example:
      galileo table show shelters
      galileo table show shelters --key a17
      galileo table show shelters --output shelters.parquet
    """
    limit = limit_of(limit, everything=everything)
    check_format(output, file_format)
    with session.client() as client:
        known = _known(client, name)
        found = client.table(
            name,
            at=None if at is None else cursor_of(known, at),
            keys=_keys(client, name, keys) if keys else None,
        )
    cursor = "" if keys else token.encode(known.key, found.cursor)
    show_rows(session.output, found, cursor, Shown(limit, everything, output, file_format))


@table.command()
@click.argument("name")
@changes_options
@limit_options
@output_options("rows")
@in_session
def changes(
    session: Session,
    *,
    name: str,
    after: str,
    until: str | None,
    limit: int | None,
    everything: bool,
    output: str | None,
    file_format: str | None,
) -> None:
    """Show the keys of the table NAME whose rows changed after a cursor, each with its last row.

    \b
    Example:
      galileo table changes shelters --after "$CURSOR"
    """
    shown = Shown(limit_of(limit, everything=everything), everything, output, file_format)
    check_format(output, file_format)
    show_changes(session, _known, name, after=after, until=until, shown=shown)


@table.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@in_session
def drop(session: Session, *, name: str, yes: bool) -> None:
    """Drop the table NAME with all of its rows.

    This cannot be undone. Without a terminal to confirm it on, --yes is required.

    \b
    Example:
      galileo table drop shelters
    """
    drop_stored(session, _known, "table", name, is_confirmed=yes)


def _known(client: Client, name: str) -> Table:
    """The definition of a table; errors as `Client.table`."""
    found = {one.name: one for one in client.tables()}
    if name not in found:
        client.table(name)  # It says why.
    return found[name]


def _keys(client: Client, name: str, keys: tuple[str, ...]) -> pa.Table:
    """Keys as rows of the key's column."""
    fields = list(_known(client, name).key_schema)
    if len(fields) > 1:
        raise InputError(
            f"expected the keys in a file, since the key of {name!r} has the columns "
            f"{', '.join(field.name for field in fields)}",
            parameter="keys",
        )
    values: list[Any] = list(keys)
    try:
        if pa.types.is_integer(fields[0].type):
            values = [int(key) for key in keys]
    except ValueError as error:
        raise InputError(f"expected whole numbers as keys: {error}", parameter="keys") from error
    return pa.table({fields[0].name: values})


def _condition(client: Client, name: str, text: str | None) -> Cursor | None:
    return None if text is None else cursor_of(_known(client, name), text)


def store_files(
    output: Output, files: Sequence[Path], store: Callable[..., Receipt], *, noun: str
) -> None:
    """Stores one file after the other, with a bar of its progress."""
    for path in files:
        progress = output.progress(unit=f"{noun}s")
        with output.noting_warnings(), readable(path) as file, progress as bar:
            task = bar.add_task(path.name, total=None)
            receipt = store(file, progress=partial(bar.advance, task))
        words = counted(receipt.rows, noun)
        if receipt.keys is not None and receipt.keys != receipt.rows:
            words = f"{words}, {counted(receipt.keys, 'key')}"
        report_receipt(output, receipt, f"{path.name}: {words} stored")
