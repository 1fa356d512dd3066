"""Files of the rows of tables: Parquet, Arrow IPC, CSV and JSON lines."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pjson

from galileo.errors import GalileoWarning, InputError
from galileo.formats.arrow_files import scan_arrow, scan_parquet
from galileo.formats.csv import ROW_BYTES_MAX, open_delimited
from galileo.formats.csv_options import CsvOptions
from galileo.formats.expressions import FileColumns, Name
from galileo.formats.mapping import Mapping
from galileo.formats.type_conversion import feature_type, times

Opener = Callable[[Path, pa.Schema, CsvOptions], Iterator[pa.Table]]
_CSV = CsvOptions()


def open_rows(
    path: Path, columns: pa.Schema, options: CsvOptions | None = None
) -> Iterator[pa.Table]:
    """The rows of a file, a piece at a time, by the end of its name.

    Args:
        path: of the file; .parquet, .arrow, .feather, .csv, .tsv, .txt, .ndjson or .jsonl, and CSV
            perhaps compressed, .csv.gz.
        columns: the types that columns of these names have in texts.
        options: how a CSV file is written.

    Raises:
        InputError: the file is of no such format, cannot be read, or is damaged.
    """
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    opener = OPENERS.get(suffix.lower())
    if opener is None or (opener is not open_csv_rows and (suffix != path.suffix or options)):
        raise InputError(
            f"expected a file ending in {', '.join(OPENERS)}, got {path.name!r}", parameter="file"
        )
    try:
        yield from opener(path, columns, options or _CSV)
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read: {error}", parameter="file") from error


def open_csv_rows(path: Path, columns: pa.Schema, options: CsvOptions = _CSV) -> Iterator[pa.Table]:
    """The rows of a CSV file; columns that are not in `columns` stay texts.

    Raises:
        InputError: a row does not fit; the details have its `row` and `line`.
    """
    reader = open_delimited(path, Mapping(csv=options))

    def typed(rows: FileColumns) -> pa.Table:
        return pa.table({name: _column(rows, name, columns) for name in reader.names})

    yield from reader.evaluate(reader.names, typed)
    for words in reader.bad_rows.notes if reader.bad_rows is not None else ():
        warnings.warn(GalileoWarning(words), stacklevel=1)


def _column(rows: FileColumns, name: str, columns: pa.Schema) -> pa.Array:
    """Texts as the type of a column; geometries stay WKT, which is parsed later."""
    kind = columns.field(name).type if name in columns.names else pa.string()
    if pa.types.is_timestamp(kind):
        return times([rows.arrays[name]], name, csv=rows.csv)
    return rows.evaluate(Name(name), feature_type(kind) or "text")


def _json_lines(path: Path, columns: pa.Schema, _: CsvOptions) -> Iterator[pa.Table]:
    geometries = [column.name for column in columns if pa.types.is_binary(column.type)]
    read = pjson.ReadOptions(block_size=ROW_BYTES_MAX)
    # Times, which may have no zone, and geometries, which may be WKT, are parsed later.
    texts = [
        one.with_type(pa.string())
        if pa.types.is_timestamp(one.type) or pa.types.is_binary(one.type)
        else one
        for one in columns
    ]
    parse = pjson.ParseOptions(explicit_schema=pa.schema(texts))
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


OPENERS: dict[str, Opener] = {
    ".parquet": lambda path, *_: scan_parquet(path),
    ".arrow": lambda path, *_: scan_arrow(path),
    ".feather": lambda path, *_: scan_arrow(path),
    ".csv": open_csv_rows,
    ".tsv": open_csv_rows,
    ".txt": open_csv_rows,
    ".ndjson": _json_lines,
    ".jsonl": _json_lines,
}
