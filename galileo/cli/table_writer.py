"""Writes tables piece by piece to a file or to standard output."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from galileo.client.geo_files import GeoJsonWriter, GeoParquetWriter
from galileo.client.json_lines import json_lines
from galileo.errors import InputError
from galileo.labels import MISSING_KEY

STDOUT = "-"
SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".geoparquet": "geoparquet",
    ".geojson": "geojson",
}
FORMATS = ("parquet", "arrow", "csv", "ndjson", "geoparquet", "geojson")
LINES = ("csv", "ndjson")
"""Formats that can be read from a pipe while they are written."""
GROUP_ROWS = 131_072


class Writer(Protocol):
    """Writes tables of one schema."""

    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class PartialWriter(Writer, Protocol):
    """A writer whose file can record the missing partitions of a partial answer."""

    def note_missing(self, missing: Sequence[int]) -> None:
        """Writes the missing partitions to the metadata of the file, if its format has metadata."""


def format_of(output: str, given: str | None) -> str:
    """The format `given`, or else that of the file name's suffix; on standard output JSON lines.

    Raises:
        InputError: the suffix is unknown, or the format cannot be written to standard output.
    """
    if output == STDOUT:
        if given not in (None, *LINES):
            raise InputError(
                f"expected {' or '.join(LINES)} for standard output, got {given}",
                parameter="format",
            )
        return given or "ndjson"
    known = given or SUFFIXES.get(Path(output).suffix.lower())
    if known is None:
        raise InputError(
            f"expected a file ending in {', '.join(SUFFIXES)}, got {Path(output).name!r}; "
            "else name the format",
            parameter="output",
        )
    return known


@contextlib.contextmanager
def writing(
    output: str, schema: pa.Schema, *, format: str, group_rows: int = GROUP_ROWS
) -> Iterator[PartialWriter]:
    """A writer of tables of one schema; the file gets its name when all of it is written.

    Args:
        output: a file, or "-".
        schema: of the tables.
        format: one of `FORMATS`.
        group_rows: rows of one write, and of one row group of a Parquet file.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with _sink(output) as sink:
            writer = _Grouped(_WRITERS[format](sink, schema), schema, rows_max=group_rows)
            try:
                yield writer
            except BaseException:
                # Else a Parquet writer writes its end when it is collected, to a closed file.
                with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                    writer.abandon()
                raise
            writer.close()
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(
            f"cannot write {output}: {error.strerror or error}", file=str(output)
        ) from error


def write_table(table: pa.Table, path: Path) -> None:
    """Writes one table in the format of the file name's suffix; errors as `writing`."""
    with writing(str(path), table.schema, format=format_of(str(path), None)) as writer:
        writer.write(table)


@contextlib.contextmanager
def _sink(output: str) -> Iterator[IO[bytes]]:
    if output == STDOUT:
        stream = sys.stdout.buffer
        yield stream
        stream.flush()
        return
    path = Path(output)
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


class _Grouped:
    """Collects tables, and writes them in groups of `rows_max` rows."""

    def __init__(self, writer: Writer, schema: pa.Schema, *, rows_max: int) -> None:
        self._rows_max = rows_max
        self._writer = writer
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= self._rows_max:
            self._flush()

    def note_missing(self, missing: Sequence[int]) -> None:
        if not missing:
            return
        self._flush()
        metadata = {MISSING_KEY: json.dumps(list(missing))}
        if isinstance(self._writer, pyarrow.parquet.ParquetWriter | GeoParquetWriter):
            self._writer.add_key_value_metadata(metadata)
        elif isinstance(self._writer, pa.ipc.RecordBatchFileWriter):
            nothing = pa.RecordBatch.from_pylist([], schema=self._schema)
            self._writer.write_batch(nothing, custom_metadata=metadata)

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Closes a Parquet file without the collected rows; other formats write nothing."""
        if isinstance(self._writer, pyarrow.parquet.ParquetWriter | GeoParquetWriter):
            self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write(pa.concat_tables(self._waiting).cast(self._schema))
        self._waiting, self._rows = [], 0


class _JsonLines:
    """Writes one JSON object a line for each row; times as ISO 8601, missing values as null."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        self._sink = sink

    def write(self, table: pa.Table) -> None:
        lines = json_lines(table)
        text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")
        self._sink.write(text[0].as_buffer())
        self._sink.write(b"\n")

    def close(self) -> None:
        pass


def _arrow(sink: IO[bytes], schema: pa.Schema) -> Writer:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    writer: Writer = pa.ipc.new_file(sink, schema, options=options)
    return writer


_WRITERS: dict[str, Callable[[IO[bytes], pa.Schema], Writer]] = {
    "parquet": pyarrow.parquet.ParquetWriter,
    "arrow": _arrow,
    "csv": pyarrow.csv.CSVWriter,
    "ndjson": _JsonLines,
    "geoparquet": GeoParquetWriter,
    "geojson": GeoJsonWriter,
}
