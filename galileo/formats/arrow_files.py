"""Parquet files and Arrow IPC files (also known as Feather, version 2) and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from galileo.errors import InputError
from galileo.formats.columns import (
    ColumnReader,
    check_decoded,
    check_width,
    coordinates_of,
    other_columns,
    typed_variables,
)
from galileo.formats.mapping import Mapping
from galileo.formats.type_conversion import is_text

PIECE_ROWS = 65_536
ARROW_FILE_MAGIC = b"ARROW1"


def open_parquet(path: Path, mapping: Mapping) -> ColumnReader:
    with _readable(path, "Parquet"), pq.ParquetFile(path) as file:
        check_width(path, len(file.schema_arrow.names))
        infos, names = typed_variables(file.schema_arrow), file.schema_arrow.names
        others = other_columns(file.schema_arrow)
        rows = file.metadata.num_rows
    return ColumnReader(
        coordinates_of(mapping, names),
        infos,
        rows,
        lambda columns: _scan_parquet(path, columns),
        mapping,
        others,
    )


def _scan_parquet(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    with _readable(path, "Parquet"), _open_parquet(path) as file:
        for batch in file.iter_batches(PIECE_ROWS, columns=list(columns)):
            yield from _validate(path, batch, columns)


@contextmanager
def _open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """The file, with texts as dictionaries: a few bytes can encode many texts."""
    with pq.ParquetFile(path) as file:
        texts = [field.name for field in file.schema_arrow if is_text(field.type)]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        yield file


def open_arrow(path: Path, mapping: Mapping) -> ColumnReader:
    with _readable(path, "Arrow IPC"), pa.OSFile(str(path)) as file:
        schema = (
            pa.ipc.open_file(file).schema if _is_file(path) else pa.ipc.open_stream(file).schema
        )
        check_width(path, len(schema.names))
        infos, names = typed_variables(schema), schema.names
    return ColumnReader(
        coordinates_of(mapping, names),
        infos,
        None,
        lambda columns: _scan_arrow(path, columns),
        mapping,
        other_columns(schema),
    )


def _scan_arrow(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
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


def _validate(path: Path, batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The columns in pieces, fully validated: Arrow does not validate offsets and texts."""
    table = pa.Table.from_batches([batch]).select(list(columns))
    table.validate(full=True)
    for start in range(0, table.num_rows, PIECE_ROWS):
        piece = table.slice(start, PIECE_ROWS)
        check_decoded(path, piece)
        yield piece


@contextmanager
def _readable(path: Path, format_name: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise InputError(f"{path} needs more memory than there is: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise InputError(
            f"expected a whole {format_name} file at {path}: {error}",
            expected="whole_file",
            format=format_name,
        ) from error
