"""Rows of tables and keyed datasets, as commands show them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from galileo.cli.cursors import cursor_of
from galileo.cli.data import Target, write_tables
from galileo.cli.output import Output, counted
from galileo.cli.session import Session
from galileo.client import Client, Receipt, TableRows
from galileo.client.table_formats import rows_with_geojson, with_wkt
from galileo.geo.geoarrow import geometry_columns
from galileo.model.schema import Schema, StoredSchema
from galileo.wire import token

ROWS_SHOWN = 100
"""Rows on the screen without --limit."""
WKT_CHARS_SHOWN = 100
"""Characters of a geometry on the screen."""
WKT_DECIMALS_SHOWN = 6
"""Of degrees: a tenth of a metre."""


def report_receipt(output: Output, receipt: Receipt, words: str, **more: Any) -> None:
    """Prints what a call stored, for people as `words`."""
    facts = {name: getattr(receipt, name) for name in ("rows", "keys", "batches", "producer")}
    output.value(facts | more, words=words)


@dataclass(frozen=True, slots=True)
class Shown:
    """How many rows are shown, or written to which file."""

    limit: int | None
    everything: bool
    path: str | None
    format: str | None


def show_changes(
    session: Session,
    find: Callable[[Client, str], StoredSchema],
    name: str,
    *,
    after: str,
    until: str | None,
    shown: Shown,
) -> None:
    """Shows the keys whose rows changed between two cursors, each with its last row.

    Args:
        session: of the command.
        find: reads the definition of a name, or raises an error.
        name: of a table or keyed dataset.
        after: a cursor.
        until: a later one; None: all that is committed.
        shown: of the rows.
    """
    with session.client() as client:
        known = find(client, name)
        last = None if until is None else cursor_of(known, until)
        changed = client.changes(name, cursor_of(known, after), until=last)
    unit = "rows" if isinstance(known, Schema) else "table rows"
    cursor = token.encode(known.key, changed.cursor)
    show_rows(session.output, changed, cursor, shown, unit=unit)


def show_rows(
    output: Output, answer: TableRows, cursor: str, shown: Shown, *, unit: str = "table rows"
) -> None:
    """Shows rows, and the cursor up to which they go.

    Args:
        output: of the command.
        answer: the rows.
        cursor: its text; "" for an answer about some keys.
        shown: how many rows, or in which file.
        unit: of `write_tables`.
    """
    if shown.path is not None:
        rows, target = answer.rows.slice(0, shown.limit), Target(shown.path, shown.format)
        write_tables(output, [rows], rows.schema, target=target, unit=unit, missing=tuple)
        if cursor:
            output.note(f"cursor: {cursor}")
        return
    limit = shown.limit
    if limit is None and not shown.everything and not output.as_json:
        limit = ROWS_SHOWN
    rows = answer.rows.slice(0, limit)
    has_more = rows.num_rows < len(answer)
    if output.as_json:
        facts = {"rows": rows_with_geojson(rows), "more": has_more}
        output.value(facts | ({"cursor": cursor} if cursor else {}))
        return
    output.rows(_shortened(rows))
    words = counted(rows.num_rows, "row")
    if has_more:
        words = f"{counted(len(answer), 'row')}; {rows.num_rows:,} shown, --all shows all"
    output.value(None, words=f"{words}\ncursor: {cursor}" if cursor else words)


def _shortened(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as values of Python; of geometries the first characters of their WKT."""
    short: list[dict[str, Any]] = with_wkt(rows, decimals=WKT_DECIMALS_SHOWN).to_pylist()
    for name in geometry_columns(rows.schema):
        for row in short:
            row[name] = row[name] and textwrap.shorten(row[name], WKT_CHARS_SHOWN, placeholder=" …")
    return short
