"""Bodies with subscriptions: JSON, JSON lines and CSV as tables for `AsyncClient.subscribe`.

JSON is parsed by Python, since its geometries are objects of different shapes, of which Arrow makes
no column; they become texts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pyarrow as pa

from galileo.errors import InputError, InvalidObservations
from galileo.formats.table_files import open_csv_rows
from galileo.gateway.problems import RequestRefused
from galileo.model.channel import ID
from galileo.model.table import Table, check_names

FORMATS = {
    "application/json": "json",
    "application/x-ndjson": "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "text/csv": "csv",
}
"""Formats of bodies, by media type; HTML forms can send none of them."""
JSON_BYTES_MAX = 4 << 20
"""Of a body in JSON, and of a line of JSON lines: what is parsed at once."""
SHOWN_MAX = 8
"""Columns that an error about unknown ones names."""
PIECE_BYTES = 1 << 18
"""Of lines of JSON that are parsed at once."""
VALUES_MAX = 1 << 18
"""Arrays, objects and members of what is parsed at once; each takes some hundred bytes."""


def tables_of(path: Path, format: str, table: Table) -> Iterator[pa.Table]:
    """The subscriptions of a body; each step parses a part of it.

    Args:
        path: of the body.
        format: of `FORMATS`.
        table: of the subscriptions; no other columns are made of JSON.

    Raises:
        InputError: it is malformed; `details` have its `row` or `column` where they are known.
        Refused: a document in JSON is too large.
    """
    if format == "csv":
        yield from open_csv_rows(path, table.arrow_schema)
        return
    with path.open("rb") as file:
        if format == "json":
            yield _table(_document(file.read(JSON_BYTES_MAX + 1)), table, first_row=0)
            return
        row = 0
        while lines := file.readlines(PIECE_BYTES):
            values = _values(list(filter(bytes.strip, lines)), first_row=row)
            yield _table(values, table, first_row=row)
            row += len(values)


def _document(text: bytes) -> list[Any]:
    """The values of a JSON document: one object, or an array."""
    _check_json_size(text)
    value = _parsed(text)
    return value if isinstance(value, list) else [value]


def _values(lines: list[bytes], *, first_row: int) -> list[Any]:
    """The values of lines of JSON, parsed at once."""
    _check_json_size(max(lines, key=len, default=b""))
    try:
        return list(_parsed(b"[%s]" % b",".join(lines)))
    except InputError:
        for row, line in enumerate(lines, start=first_row):
            try:
                _parsed(line)
            except InputError as error:
                words = f"{error.message}, in row {row}"
                raise InvalidObservations(words, expected="json", row=row) from error
        raise


def _check_json_size(text: bytes) -> None:
    if len(text) > JSON_BYTES_MAX:
        raise RequestRefused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"expected a document or a line in JSON of at most {JSON_BYTES_MAX:,} bytes, got more; "
            "send JSON lines or CSV",
        )


def _parsed(text: bytes) -> Any:
    if sum(map(text.count, (b"[", b"{", b":"))) > VALUES_MAX:
        raise RequestRefused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"expected at most {VALUES_MAX:,} arrays, objects and members in a document or a line "
            "in JSON, got more; send JSON lines, and geometries in WKT",
        )
    try:
        return json.loads(text, object_hook=_with_geometry_text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON: {error}", expected="json") from error


def _with_geometry_text(value: dict[str, Any]) -> Any:
    """A JSON object; one that is a geometry of GeoJSON as its text, which `subscribe` takes."""
    is_geometry = "type" in value and ("coordinates" in value or "geometries" in value)
    return json.dumps(value) if is_geometry and ID not in value else value


def _table(values: list[Any], table: Table, *, first_row: int) -> pa.Table:
    """JSON objects as rows; members that an object lacks are null.

    Each has names of the table alone: otherwise a column for each name, with a value for each
    object, could take far more memory than the text.
    """
    known = {name for name, _ in table.columns}
    for row, value in enumerate(values, start=first_row):
        if not isinstance(value, dict):
            raise InvalidObservations(
                f"expected a JSON object in row {row}, got {value!r:.100}", expected="json", row=row
            )
        if not value.keys() <= known:
            check_names(table, [*table.key_columns, *(value.keys() - known)][:SHOWN_MAX])
    names = dict.fromkeys(itertools.chain.from_iterable(values))
    return pa.table({name: _column(name, [value.get(name) for value in values]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise InvalidObservations(
            f"expected values of one type in column {name!r}: {error}",
            expected="column_type",
            column=name,
        ) from error
