"""Observations, labels and rows of tables as GeoParquet and GeoJSON, which other tools open.

An observation is a point and a label the rectangle of its cell, in degrees of longitude and
latitude (OGC:CRS84); rows of tables have columns of geometries. No cell lies across the
antimeridian, so no rectangle has to be cut there, as RFC 7946 (3.1.9) demands.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import shapely

from galileo.client.json_lines import json_lines
from galileo.errors import InputError
from galileo.geo import geoarrow, geohash
from galileo.geo.geometry_columns import to_geojson as geojson_of
from galileo.geo.geometry_columns import to_shapes
from galileo.labels import LabelSet
from galileo.optional_imports import is_frame, library

GeoData: TypeAlias = LabelSet | pa.Table
"""Labels, observations with their latitude and longitude, or rows of a table with geometries."""

GEOPARQUET_VERSION = "1.1.0"
GEOMETRY = "geometry"
PIECE_ROWS = 131_072
"""Rows that become text or a row group together."""

_POINT = np.dtype([("order", "u1"), ("kind", "<u4"), ("x", "<f8"), ("y", "<f8")])


class TableStream(Protocol):
    """Pieces that say what columns they have, also where none comes."""

    @property
    def arrow_schema(self) -> pa.Schema | None: ...


class Writer(Protocol):
    """Takes the pieces of a table; they have one schema."""

    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def write_geoparquet(data: GeoData | Iterable[GeoData], path: str | os.PathLike[str]) -> None:
    """Writes GeoParquet 1.1: all columns, and the geometry as WKB in a last one, `geometry`.

    Rows of a table with geometries keep their columns; the first of geometries is the primary one.

    Args:
        data: labels, observations, rows of a table, or pieces of one of these, such as
            `client.read_batches(labels)`. Where these give no piece, the file has all columns and
            no row.
        path: of the file, which has its name once all of it is written.

    Raises:
        InputError: there is nothing to draw in a table, or no piece at all comes of what does not
            say which columns it would have.

    Example:
        >>> galileo.write_geoparquet(client.select("weather"), "weather.parquet")
    """
    _write(data, path, GeoParquetWriter)


def write_geojson(data: GeoData | Iterable[GeoData], path: str | os.PathLike[str]) -> None:
    """Writes one GeoJSON FeatureCollection (RFC 7946); arguments as `write_geoparquet`.

    Positions are in the geometries, all other columns in the properties: times as ISO 8601, and
    what is missing or not finite as null.

    Example:
        >>> galileo.write_geojson(client.select("weather"), "weather.geojson")
    """
    _write(data, path, GeoJsonWriter)


def to_geojson(data: GeoData) -> str:
    """Labels or observations as one GeoJSON FeatureCollection; see `write_geojson`.

    Example:
        >>> galileo.to_geojson(labels)[:27]
        '{"type":"FeatureCollection"'
    """
    sink = BytesIO()
    for writer, table in _pieces(data, sink, GeoJsonWriter):
        writer.write(table)
    return sink.getvalue().decode()


def to_geopandas(data: GeoData) -> Any:
    """Labels or observations as a GeoDataFrame (EPSG:4326): rectangles of cells, or points.

    Rows of a table with geometries are drawn by the first column of these (OGC:CRS84).

    Raises:
        MissingExtra: geopandas is not installed; it comes with `galileo-store[plots]`.

    Example:
        >>> frame = galileo.to_geopandas(client.select("weather"))
        >>> frame.geometry.geom_type.unique().tolist()
        ['Point']
    """
    geopandas = library("geopandas", purpose="a GeoDataFrame")
    table = _table(data)
    if geoarrow.geometry_columns(table.schema):
        return geopandas.GeoDataFrame.from_arrow(table)
    shapes = RowShapes.of(table)
    return geopandas.GeoDataFrame(table.to_pandas(), geometry=shapes.drawn(), crs="EPSG:4326")


class RowShapes:
    """The geometries of a table's rows.

    Attributes:
        kinds: those that there are, such as "Point".
        columns: of the table, that they say all of.
        bounds: west, south, east and north of each; those of a point are its position twice, and
            those of no geometry are NaN.
    """

    def __init__(self, kinds: tuple[str, ...], columns: tuple[str, ...], bounds: Any) -> None:
        self.kinds = kinds
        self.columns = columns
        self.bounds: tuple[Any, ...] = bounds

    @staticmethod
    def of(table: pa.Table) -> RowShapes:
        """The first column of geometries; else points where there are latitudes and longitudes,
        and the rectangles of geohashes.

        Raises:
            InputError: there is nothing of this.
        """
        names = table.column_names
        for name in geoarrow.geometry_columns(table.schema):
            return StoredShapes(table, name)
        if "latitude" in names and "longitude" in names:
            y, x = (table.column(name).to_numpy() for name in ("latitude", "longitude"))
            return RowShapes(("Point",), ("latitude", "longitude"), (x, y, x, y))
        if "geohash" in names:
            texts = table.column("geohash").combine_chunks()
            precision = pc.max(pc.utf8_length(texts)).as_py() or 1
            return RowShapes(("Polygon",), (), geohash.bounds(geohash.from_text(texts), precision))
        raise InputError(
            "expected a column of geometries, the columns latitude and longitude, or geohash, got "
            f"{', '.join(names)}; read them too"
        )

    def drawn(self) -> Any:
        """As shapely geometries; exterior rings run counterclockwise."""
        if self.kinds == ("Point",):
            return shapely.points(self.bounds[0], self.bounds[1])
        west, south, east, north = self.bounds
        return shapely.box(west, south, east, north)

    def wkb(self) -> pa.Array:
        if self.kinds == ("Polygon",):
            return pa.array(shapely.to_wkb(self.drawn(), byte_order=1), pa.binary())
        points = np.empty(len(self.bounds[0]), dtype=_POINT)
        points["order"], points["kind"] = 1, 1
        points["x"], points["y"] = self.bounds[0], self.bounds[1]
        data = pa.py_buffer(points.tobytes())
        fixed = pa.Array.from_buffers(pa.binary(_POINT.itemsize), len(points), [None, data])
        return fixed.cast(pa.binary())

    def geojson(self) -> pa.Array:
        if self.kinds == ("Polygon",):
            return pa.array(shapely.to_geojson(self.drawn()), pa.string())
        x, y = (pa.array(values) for values in self.bounds[:2])
        ends = (x.cast(pa.string()), ",", y.cast(pa.string()))
        points = pc.binary_join_element_wise('{"type":"Point","coordinates":[', *ends, "]}", "")
        if all(np.isfinite(values).all() for values in self.bounds[:2]):
            return points
        return pc.if_else(pc.and_(pc.is_finite(x), pc.is_finite(y)), points, "null")


class StoredShapes(RowShapes):
    """Geometries that are a column of the table, as WKB."""

    def __init__(self, table: pa.Table, name: str) -> None:
        self._stored = table.column(name).combine_chunks()
        self._shapes = to_shapes(self._stored)
        _, rows = np.unique(shapely.get_type_id(self._shapes), return_index=True)
        kinds = {shape.geom_type for shape in self._shapes[rows] if shape is not None}
        super().__init__(tuple(sorted(kinds)), (name,), tuple(shapely.bounds(self._shapes).T))

    def drawn(self) -> Any:
        return self._shapes

    def wkb(self) -> pa.Array:
        return self._stored

    def geojson(self) -> pa.Array:
        return geojson_of(self._stored).fill_null("null")


class _ColumnSummary:
    """What GeoParquet says about a column of geometries, from all of its pieces.

    Args:
        facts: that hold whatever the pieces are.
    """

    def __init__(self, **facts: Any) -> None:
        self._facts = facts
        self._kinds: set[str] = set()
        self._bounds = np.array([np.inf, np.inf, -np.inf, -np.inf])

    def add(self, shapes: RowShapes) -> None:
        self._kinds.update(shapes.kinds)
        bounds = np.array(shapes.bounds)
        bounds = bounds[:, ~np.isnan(bounds[0])]
        if bounds.size:
            low, high = bounds[:2].min(axis=1), bounds[2:].max(axis=1)
            self._bounds[:2] = np.minimum(self._bounds[:2], low)
            self._bounds[2:] = np.maximum(self._bounds[2:], high)

    def metadata(self) -> dict[str, Any]:
        column: dict[str, Any] = {"encoding": "WKB", "geometry_types": sorted(self._kinds)}
        column |= self._facts
        if np.isfinite(self._bounds).all():
            column["bbox"] = self._bounds.tolist()
        return column


class GeoParquetWriter:
    """GeoParquet, piece by piece.

    Args:
        sink: takes the bytes; it is not closed.
        schema: of the pieces.
    """

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        self._stored = geoarrow.geometry_columns(schema)
        self._schema = schema
        self._summaries = {name: _ColumnSummary() for name in self._stored}
        if not self._stored:
            kinds = list(RowShapes.of(schema.empty_table()).kinds)
            drawn = _ColumnSummary(geometry_types=kinds, orientation="counterclockwise")
            self._summaries = {GEOMETRY: drawn}
            self._schema = schema.append(pa.field(GEOMETRY, pa.binary(), nullable=False))
        self._file = pyarrow.parquet.ParquetWriter(sink, self._schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        """Writes a row group."""
        for name in self._stored:
            self._summaries[name].add(StoredShapes(table, name))
        if not self._stored:
            shapes = RowShapes.of(table)
            self._summaries[GEOMETRY].add(shapes)
            table = table.append_column(self._schema.field(GEOMETRY), shapes.wkb())
        self._file.write_table(table.cast(self._schema))

    def close(self) -> None:
        """Writes the end of the file, which says what is in it."""
        columns = {name: summary.metadata() for name, summary in self._summaries.items()}
        geo = {"version": GEOPARQUET_VERSION, "primary_column": next(iter(columns))}
        self._file.add_key_value_metadata({"geo": json.dumps(geo | {"columns": columns})})
        self._file.close()

    def add_key_value_metadata(self, metadata: dict[str, str]) -> None:
        """Adds to the metadata of the file, as pyarrow's writer does."""
        self._file.add_key_value_metadata(metadata)


class GeoJsonWriter:
    """A FeatureCollection, piece by piece; arguments as `GeoParquetWriter`.

    Attributes:
        members: further members of the collection, which are written at its end.
        id_column: the column with the ids of features, which need no escapes in JSON; "" for none.
        constants: members of all properties, as the JSON text between the braces.
    """

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        RowShapes.of(schema.empty_table())
        self.members: dict[str, Any] = {}
        self.id_column = ""
        self.constants = ""
        self._sink = sink
        self._between = b'{"type":"FeatureCollection","features":[\n'

    def write(self, table: pa.Table) -> None:
        """Writes a feature for each row."""
        if not table.num_rows:
            return
        shapes = RowShapes.of(table)
        apart = {*shapes.columns, self.id_column}
        rest = [name for name in table.column_names if name not in apart]
        head: tuple[Any, ...] = ('{"type":"Feature","geometry":',)
        if self.id_column:
            ids = table.column(self.id_column).combine_chunks()
            head = ('{"type":"Feature","id":"', ids, '","geometry":')
        properties: Any = f"{{{self.constants}}}"
        if rest:
            properties = json_lines(table.select(rest), self.constants)
        parts = (*head, shapes.geojson(), ',"properties":', properties, "}", "")
        texts = pc.binary_join_element_wise(*parts)
        self._sink.write(self._between)
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), ",\n")
        self._sink.write(joined[0].as_buffer())
        self._between = b",\n"

    def close(self) -> None:
        """Writes the end of the collection."""
        self._sink.write(b"" if self._between == b",\n" else self._between)
        members = [f",{json.dumps(name)}:{json.dumps(at)}" for name, at in self.members.items()]
        self._sink.write(f"\n]{''.join(members)}}}\n".encode())


def _table(data: GeoData) -> pa.Table:
    table = data.to_arrow() if isinstance(data, LabelSet) else data
    if not isinstance(table, pa.Table):
        raise InputError(
            "expected labels or an Arrow table, as query, read and select give them, got a "
            f"{type(data).__name__}"
        )
    return table


def _pieces(
    data: GeoData | Iterable[GeoData], sink: IO[bytes], kind: type[Writer]
) -> Iterator[tuple[Writer, pa.Table]]:
    """The writer and each piece for it; closes it behind the last."""
    pieces = [data] if isinstance(data, LabelSet | pa.Table) or is_frame(data) else data
    if not isinstance(pieces, Iterable) or isinstance(pieces, str):
        raise InputError(
            "expected labels, an Arrow table or an iterable of them, as query, read and select "
            f"give them, got {pieces!r}"
        )
    writer: Writer | None = None
    for piece in pieces:
        table = _table(piece)
        writer = writer or kind(sink, table.schema)  # type: ignore[call-arg]
        for start in range(0, max(1, table.num_rows), PIECE_ROWS):
            yield writer, table.slice(start, PIECE_ROWS)
    (writer or kind(sink, _schema_without_pieces(data))).close()  # type: ignore[call-arg]


def _schema_without_pieces(data: GeoData | Iterable[GeoData] | TableStream) -> pa.Schema:
    schema = getattr(data, "arrow_schema", None)
    if schema is None:
        raise InputError(
            "expected labels or observations to write, got not even an empty table, which would "
            "say what the columns are; client.schema(name).observation_schema.empty_table() is one"
        )
    return schema


def _write(data: Any, path: str | os.PathLike[str], kind: type[Writer]) -> None:
    whole = Path(path)
    unfinished = whole.with_name(f"{whole.name}.part")
    try:
        with unfinished.open("wb") as sink:
            for writer, table in _pieces(data, sink, kind):
                writer.write(table)
        unfinished.replace(whole)
    except OSError as error:
        raise InputError(f"cannot write {whole}: {error.strerror}", file=str(whole)) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
