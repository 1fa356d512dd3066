"""Writes tables piece by piece to a file or to standard output."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa

from galileo.client.geo_files import Writer
from galileo.client.table_formats import GROUP_ROWS, WRITERS, GroupedWriter
from galileo.errors import InputError

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
FORMATS = tuple(WRITERS)
LINES = ("csv", "csv-units", "ndjson")
"""Formats that can be read from a pipe while they are written."""


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
            writer = GroupedWriter(WRITERS[format](sink, schema), schema, rows_max=group_rows)
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
