"""Parquet files and Arrow IPC files (also known as Feather, version 2) and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from galileo.errors import InputError
from galileo.formats.columns import ColumnReader, coordinates_of, typed_variables
from galileo.formats.mapping import Mapping

PARQUET_BATCH_ROWS = 65_536
ARROW_FILE_MAGIC = b"ARROW1"


def open_parquet(path: Path, mapping: Mapping) -> ColumnReader:
    with _readable(path, "Parquet"), pq.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    return ColumnReader(
        coordinates_of(mapping, schema.names),
        typed_variables(schema),
        rows,
        lambda wanted: _scan_parquet(path, wanted),
    )


def _scan_parquet(path: Path, wanted: Sequence[str]) -> Iterator[pa.Table]:
    with _readable(path, "Parquet"), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=list(wanted)):
            yield pa.Table.from_batches([batch]).select(list(wanted))


def open_arrow(path: Path, mapping: Mapping) -> ColumnReader:
    with _readable(path, "Arrow IPC"), pa.OSFile(str(path)) as file:
        schema = (
            pa.ipc.open_file(file).schema if _is_file(path) else pa.ipc.open_stream(file).schema
        )
    return ColumnReader(
        coordinates_of(mapping, schema.names),
        typed_variables(schema),
        None,
        lambda wanted: _scan_arrow(path, wanted),
    )


def _scan_arrow(path: Path, wanted: Sequence[str]) -> Iterator[pa.Table]:
    with _readable(path, "Arrow IPC"), pa.OSFile(str(path)) as file:
        for batch in _batches(path, file):
            yield pa.Table.from_batches([batch]).select(list(wanted))


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


@contextmanager
def _readable(path: Path, format_name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise InputError(f"expected a whole {format_name} file at {path}: {error}") from error
