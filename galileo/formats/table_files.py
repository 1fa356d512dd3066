"""Files of the rows of tables: Parquet, Arrow IPC, CSV and JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.json as pjson

from galileo.errors import InputError
from galileo.formats.arrow_files import scan_arrow, scan_parquet

ROW_BYTES_MAX = 16 << 20
"""Bytes of a row of CSV or JSON lines; a geometry can take some of them."""

Opener = Callable[[Path, pa.Schema], Iterator[pa.Table]]


def open_rows(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file, a piece at a time, by the end of its name.

    Args:
        path: of the file; .parquet, .arrow, .feather, .csv, .tsv, .ndjson or .jsonl.
        columns: the types that columns of these names have in texts.

    Raises:
        InputError: the file is of no such format, cannot be read, or is damaged.
    """
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        raise InputError(
            f"expected a file ending in {', '.join(OPENERS)}, got {path.name!r}", parameter="file"
        )
    try:
        yield from opener(path, columns)
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read: {error}", parameter="file") from error


def _parquet(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    return scan_parquet(path)


def _arrow(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    return scan_arrow(path)


def _delimited(delimiter: str) -> Opener:
    def open_file(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
        convert = pcsv.ConvertOptions(column_types=_in_texts(columns), strings_can_be_null=True)
        parse = pcsv.ParseOptions(delimiter=delimiter)
        read = pcsv.ReadOptions(block_size=ROW_BYTES_MAX)
        with pcsv.open_csv(path, read, parse, convert) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])

    return open_file


def _json_lines(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    geometries = [column.name for column in columns if pa.types.is_binary(column.type)]
    read = pjson.ReadOptions(block_size=ROW_BYTES_MAX)
    parse = pjson.ParseOptions(explicit_schema=_in_texts(columns))
    try:
        table = pjson.read_json(path, read, parse)
    except pa.ArrowInvalid:
        if not geometries:
            raise
        table = pjson.read_json(_geojson_as_texts(path, geometries), read, parse)
    yield table


def _geojson_as_texts(path: Path, names: Collection[str]) -> pa.BufferReader:
    """The lines of a file, in which objects of these columns are texts; Arrow reads no mixture."""
    lines = []
    with path.open(encoding="utf-8") as file:
        for line in filter(str.strip, file):
            row = json.loads(line)
            if isinstance(row, dict):
                objects = [name for name in names if isinstance(row.get(name), dict)]
                row |= {name: json.dumps(row[name]) for name in objects}
            lines.append(json.dumps(row))
    return pa.BufferReader("\n".join(lines).encode())


def _in_texts(columns: pa.Schema) -> pa.Schema:
    """The types as texts have them: times, which may have no zone, and WKT are parsed later."""
    return pa.schema(
        pa.field(one.name, pa.string() if _is_parsed_later(one.type) else one.type)
        for one in columns
    )


def _is_parsed_later(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_binary(kind))


OPENERS: dict[str, Opener] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".ndjson": _json_lines,
    ".jsonl": _json_lines,
}
