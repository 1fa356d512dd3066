"""Parquet files and Arrow IPC files (also known as Feather, version 2) and streams."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from galileo.arrays import plain_type, rebatch
from galileo.errors import InputError
from galileo.formats.columns import (
    check_decoded,
    check_width,
    typed_reader,
)
from galileo.formats.mapping import Mapping as FileMapping
from galileo.formats.memory_file import BODY_UNPACKED_BYTES_MAX, is_memory_file
from galileo.formats.parquet_pages import check_parquet
from galileo.formats.point_columns import with_places
from galileo.formats.reader import Reader, Scan
from galileo.geo.geoarrow import with_systems
from galileo.model.observations import is_text, text_bytes
from galileo.packing.arrow_streams import check_unpacked

PIECE_ROWS = 65_536
PIECE_BYTES = 64 << 20
"""Decoded texts of all columns of a piece, in files with dictionaries."""
PREFIXED_ROWS = 64
"""Rows that are decoded at once of texts that repeat the beginning of the text before."""
ARROW_FILE_MAGIC = b"ARROW1"
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_WHOLE_NUMBER = re.compile(r"-?[1-9][0-9]{0,17}|0")
_DICTIONARY_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
"""Encodings of texts that Arrow reads as dictionaries."""


def open_parquet(path: Path, mapping: FileMapping) -> Reader:
    _check_body(path, check_parquet, "Parquet")
    with _readable(path, "Parquet"), pq.ParquetFile(path) as file:
        check_width(path, len(file.schema_arrow.names))
        schema, systems = file.schema_arrow, _systems(file.schema)
        if systems:
            schema = with_systems(schema.empty_table(), systems).schema
        schema, scan = with_places(
            path, schema, lambda columns: scan_parquet(path, columns), mapping
        )
        partition = {
            name: value for name, value in partition_of(path).items() if name not in schema.names
        }
        if partition:
            schema, scan = _with_partition(schema, scan, partition)
        reader = typed_reader(schema, scan, mapping, rows=file.metadata.num_rows)
        return replace(reader, partition=partition)


def partition_of(path: Path) -> dict[str, int | str | None]:
    """The values that directories have in their names as Hive writes them, `year=2014`."""
    pairs = [part.partition("=") for part in path.parts[:-1]]
    return {name: _partition_value(value) for name, sign, value in pairs if name and sign}


def _partition_value(text: str) -> int | str | None:
    if text == _NULL_PARTITION:
        return None
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else unquote(text)


def _with_partition(
    schema: pa.Schema, scan: Scan, partition: Mapping[str, int | str | None]
) -> tuple[pa.Schema, Scan]:
    """The columns of a file with those of its partition, which have one value each."""
    values = {
        n: pa.scalar(v, pa.int64() if isinstance(v, int) else pa.string())
        for n, v in partition.items()
    }

    def scan_partition(columns: Sequence[str]) -> Iterator[pa.Table]:
        stored = [name for name in columns if name not in values] or schema.names[:1]
        for piece in scan(stored):
            for name in values:
                piece = piece.append_column(name, pa.repeat(values[name], piece.num_rows))
            yield piece.select(list(columns))

    fields = [pa.field(name, value.type) for name, value in values.items()]
    return pa.schema([*schema, *fields], schema.metadata), scan_partition


def scan_parquet(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of some columns in pieces; None: of all columns.

    A few bytes can encode many texts. They stay dictionaries where they are; of those that repeat
    the beginning of the text before, few are decoded at a time.
    """
    with _readable(path, "Parquet"), _open_parquet(path, columns) as (file, encodings):
        names = file.schema_arrow.names if columns is None else columns
        has_prefixes = any(map(_repeats_texts, map(encodings.get, names)))
        rows = PREFIXED_ROWS if has_prefixes else PIECE_ROWS
        batches = file.iter_batches(rows, columns=None if columns is None else list(columns))
        pieces = itertools.chain.from_iterable(_validate(path, one, columns) for one in batches)
        systems = _systems(file.schema)
        for piece in rebatch(pieces, rows_max=PIECE_ROWS) if has_prefixes else pieces:
            yield with_systems(piece, systems) if systems else piece


def _repeats_texts(encodings: set[str] | None) -> bool:
    """Whether a few bytes of an encoding can stand for many texts, which are decoded one by one."""
    given = encodings or set()
    return "DELTA_BYTE_ARRAY" in given or bool(
        given & {"PLAIN_DICTIONARY", "RLE_DICTIONARY"} and given & {"DELTA_LENGTH_BYTE_ARRAY"}
    )


@contextmanager
def _open_parquet(
    path: Path, columns: Sequence[str] | None
) -> Iterator[tuple[pq.ParquetFile, Mapping[str, set[str]]]]:
    """The file, with texts as dictionaries where they are stored so, and the encodings.

    So are geometries of `columns`; tables, which take all columns, have them as they are.
    """
    with pq.ParquetFile(path) as file:
        texts = [
            field.name
            for field in file.schema_arrow
            if is_text(plain_type(field.type))
            or (field.name in (columns or ()) and pa.types.is_binary(field.type))
        ]
        # The footer of a body may lie, and its pages were checked.
        encodings = {} if is_memory_file(path) else _encodings(file.metadata)
    coded = [name for name in texts if not encodings.get(name, set()) - _DICTIONARY_ENCODINGS]
    with pq.ParquetFile(path, read_dictionary=coded) as file:
        yield file, encodings


def _systems(schema: pq.ParquetSchema) -> dict[str, str]:
    """The reference systems that columns of Parquet's types Geometry and Geography name."""
    kinds = {
        schema.column(number).path: json.loads(schema.column(number).logical_type.to_json())
        for number in range(len(schema))
    }
    return {name: str(kind["crs"]) for name, kind in kinds.items() if kind.get("crs")}


def _encodings(metadata: pq.FileMetaData) -> dict[str, set[str]]:
    """The encodings of each column that is not nested."""
    encodings: dict[str, set[str]] = defaultdict(set)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            encodings[column.path_in_schema].update(column.encodings)
    return encodings


def open_arrow(path: Path, mapping: FileMapping) -> Reader:
    _check_body(path, check_unpacked, "Arrow IPC")
    with _readable(path, "Arrow IPC"), pa.OSFile(str(path)) as file:
        schema = (
            pa.ipc.open_file(file).schema if _is_file(path) else pa.ipc.open_stream(file).schema
        )
        check_width(path, len(schema.names))
    schema, scan = with_places(path, schema, lambda columns: scan_arrow(path, columns), mapping)
    return typed_reader(schema, scan, mapping)


def scan_arrow(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of some columns in pieces; None: of all columns."""
    with _readable(path, "Arrow IPC"), pa.OSFile(str(path)) as file:
        for batch in _batches(path, file):
            yield from _validate(path, batch, columns)


def _batches(path: Path, file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    if not _is_file(path):
        yield from pa.ipc.open_stream(file)
        return
    reader = pa.ipc.open_file(file)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _is_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC


def _validate(
    path: Path, batch: pa.RecordBatch, columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    """The columns in pieces, fully validated: Arrow does not validate offsets and texts."""
    table = pa.Table.from_batches([batch])
    table = table if columns is None else table.select(list(columns))
    table.validate(full=True)
    for start in range(0, table.num_rows, PIECE_ROWS):
        piece = table.slice(start, PIECE_ROWS)
        check_decoded(path, piece)
        yield from _split(piece)


def _split(piece: pa.Table) -> Iterator[pa.Table]:
    """The rows in pieces whose texts take bounded memory when all columns are decoded."""
    size = sum(text_bytes(chunk) for column in piece.columns for chunk in column.chunks)
    if size <= PIECE_BYTES or piece.num_rows == 1:
        yield piece
        return
    half = piece.num_rows // 2
    yield from _split(piece.slice(0, half))
    yield from _split(piece.slice(half))


def _check_body(path: Path, check: Callable[..., None], format_name: str) -> None:
    """Refuses data that came over the network if it unpacks to too much."""
    if is_memory_file(path) and path.stat().st_size:
        with _readable(path, format_name), pa.memory_map(str(path)) as mapped:
            check(mapped.read_buffer(), bytes_max=BODY_UNPACKED_BYTES_MAX)


@contextmanager
def _readable(path: Path, format_name: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise InputError(f"{path} needs more memory than there is: {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise InputError(
            f"expected a whole {format_name} file at {path}: {error}",
            expected="whole_file",
            format=format_name,
        ) from error
