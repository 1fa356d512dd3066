"""Formats of files of observations, labels and rows of tables, and a writer of each."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Callable, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from galileo.client.geo_files import GeoJsonWriter, GeoParquetWriter, Writer
from galileo.client.json_lines import json_lines
from galileo.geo import geoarrow, geometry_columns
from galileo.geo.geometry_columns import WKT_DECIMALS
from galileo.labels import MISSING_KEY
from galileo.model.feature_metadata import from_field

GROUP_ROWS = 131_072
_UNITS = {"latitude": "degrees_north", "longitude": "degrees_east", "time": "UTC"}
"""Units of coordinates in a line of units, as ERDDAP writes them."""


class GroupedWriter:
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


class _Csv:
    """Writes CSV; geometries as WKT."""

    def __init__(self, sink: IO[bytes], schema: pa.Schema, *, units: bool = False) -> None:
        columns = with_wkt(schema.empty_table()).schema
        self._writer = pyarrow.csv.CSVWriter(sink, columns)
        if units:
            csv.writer(line := io.StringIO(), lineterminator="\n").writerow(
                _UNITS.get(field.name) or from_field(field).unit for field in schema
            )
            sink.write(line.getvalue().encode())

    def write(self, table: pa.Table) -> None:
        self._writer.write(with_wkt(table))

    def close(self) -> None:
        self._writer.close()


def with_wkt(table: pa.Table, *, decimals: int = WKT_DECIMALS) -> pa.Table:
    """The table, whose geometries are WKT."""
    for name in geoarrow.geometry_columns(table.schema):
        texts = geometry_columns.to_wkt(table.column(name), decimals=decimals)
        table = table.set_column(table.schema.get_field_index(name), name, texts)
    return table


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as values of Python; 32-bit floats are as short as in CSV, such as 4.3."""
    for number, field in enumerate(table.schema):
        if field.type == pa.float32():
            short = table.column(number).cast(pa.string()).cast(pa.float64())
            table = table.set_column(number, field.name, short)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def rows_with_geojson(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as values of Python, whose geometries are GeoJSON objects."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for name in geoarrow.geometry_columns(table.schema):
        texts = geometry_columns.to_geojson(table.column(name)).to_pylist()
        for row, text in zip(rows, texts, strict=True):
            row[name] = None if text is None else json.loads(text)
    return rows


def _parquet(sink: IO[bytes], schema: pa.Schema) -> Writer:
    if geoarrow.geometry_columns(schema):
        return GeoParquetWriter(sink, schema)
    writer: Writer = pyarrow.parquet.ParquetWriter(sink, schema)
    return writer


def _arrow(sink: IO[bytes], schema: pa.Schema) -> Writer:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    writer: Writer = pa.ipc.new_file(sink, schema, options=options)
    return writer


WRITERS: dict[str, Callable[[IO[bytes], pa.Schema], Writer]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _Csv,
    "csv-units": functools.partial(_Csv, units=True),
    "ndjson": _JsonLines,
    "geoparquet": GeoParquetWriter,
    "geojson": GeoJsonWriter,
}
