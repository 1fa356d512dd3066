"""Observations and labels as GeoParquet and GeoJSON, which other tools open as they are.

An observation is a point and a label the rectangle of its cell, in degrees of longitude and
latitude (OGC:CRS84). No cell lies across the antimeridian, so no rectangle has to be cut there, as
RFC 7946 (3.1.9) demands.
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
from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.optional_imports import is_frame, library

GeoData: TypeAlias = LabelSet | pa.Table
"""Labels, or observations with their latitude and longitude."""

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

    Args:
        data: labels, observations, or pieces of either, such as `client.read_batches(labels)`.
            Where these give no piece, the file has all columns and no row.
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

    Raises:
        MissingExtra: geopandas is not installed; it comes with `galileo-store[plots]`.

    Example:
        >>> frame = galileo.to_geopandas(client.select("weather"))
        >>> frame.geometry.geom_type.unique().tolist()
        ['Point']
    """
    geopandas = library("geopandas", purpose="a GeoDataFrame")
    table = _table(data)
    shapes = Shapes.of(table)
    return geopandas.GeoDataFrame(table.to_pandas(), geometry=shapes.drawn(), crs="EPSG:4326")


class Shapes:
    """The geometries of a table's rows.

    Attributes:
        kind: "Point" or "Polygon".
        columns: of the table, that they say all of.
        bounds: west, south, east and north of each; those of a point are its position twice.
    """

    def __init__(self, kind: str, columns: tuple[str, ...], bounds: Any) -> None:
        self.kind = kind
        self.columns = columns
        self.bounds: tuple[Any, ...] = bounds

    @staticmethod
    def of(table: pa.Table) -> Shapes:
        """Points where there are latitudes and longitudes, else the rectangles of geohashes.

        Raises:
            InputError: there is neither.
        """
        names = table.column_names
        if "latitude" in names and "longitude" in names:
            y, x = (table.column(name).to_numpy() for name in ("latitude", "longitude"))
            return Shapes("Point", ("latitude", "longitude"), (x, y, x, y))
        if "geohash" in names:
            texts = table.column("geohash").combine_chunks()
            precision = pc.max(pc.utf8_length(texts)).as_py() or 1
            return Shapes("Polygon", (), geohash.bounds(geohash.from_text(texts), precision))
        raise InputError(
            f"expected the columns latitude and longitude, or geohash, got {', '.join(names)}; "
            "read them too"
        )

    def drawn(self) -> Any:
        """As shapely geometries; exterior rings run counterclockwise."""
        if self.kind == "Point":
            return shapely.points(self.bounds[0], self.bounds[1])
        west, south, east, north = self.bounds
        return shapely.box(west, south, east, north)

    def wkb(self) -> pa.Array:
        if self.kind == "Polygon":
            return pa.array(shapely.to_wkb(self.drawn(), byte_order=1), pa.binary())
        points = np.empty(len(self.bounds[0]), dtype=_POINT)
        points["order"], points["kind"] = 1, 1
        points["x"], points["y"] = self.bounds[0], self.bounds[1]
        data = pa.py_buffer(points.tobytes())
        fixed = pa.Array.from_buffers(pa.binary(_POINT.itemsize), len(points), [None, data])
        return fixed.cast(pa.binary())

    def geojson(self) -> pa.Array:
        if self.kind == "Polygon":
            return pa.array(shapely.to_geojson(self.drawn()), pa.string())
        x, y = (pa.array(values) for values in self.bounds[:2])
        ends = (x.cast(pa.string()), ",", y.cast(pa.string()))
        points = pc.binary_join_element_wise('{"type":"Point","coordinates":[', *ends, "]}", "")
        if all(np.isfinite(values).all() for values in self.bounds[:2]):
            return points
        return pc.if_else(pc.and_(pc.is_finite(x), pc.is_finite(y)), points, "null")


class GeoParquetWriter:
    """GeoParquet, piece by piece.

    Args:
        sink: takes the bytes; it is not closed.
        schema: of the pieces.
    """

    def __init__(self, sink: IO[bytes], schema: pa.Schema) -> None:
        self._kind = Shapes.of(schema.empty_table()).kind
        self._schema = schema.append(pa.field(GEOMETRY, pa.binary(), nullable=False))
        self._file = pyarrow.parquet.ParquetWriter(sink, self._schema, compression="zstd")
        self._bounds = np.array([np.inf, np.inf, -np.inf, -np.inf])

    def write(self, table: pa.Table) -> None:
        """Writes a row group."""
        shapes = Shapes.of(table)
        drawn = table.append_column(self._schema.field(GEOMETRY), shapes.wkb())
        self._file.write_table(drawn.cast(self._schema))
        if table.num_rows:
            low = [
                min(old, new.min()) for old, new in zip(self._bounds, shapes.bounds, strict=True)
            ]
            high = [
                max(old, new.max()) for old, new in zip(self._bounds, shapes.bounds, strict=True)
            ]
            self._bounds = np.array([*low[:2], *high[2:]])

    def close(self) -> None:
        """Writes the end of the file, which says what is in it."""
        column: dict[str, Any] = {"encoding": "WKB", "geometry_types": [self._kind]}
        column["orientation"] = "counterclockwise"
        if np.isfinite(self._bounds).all():
            column["bbox"] = self._bounds.tolist()
        geo = {"version": GEOPARQUET_VERSION, "primary_column": GEOMETRY}
        metadata = json.dumps(geo | {"columns": {GEOMETRY: column}})
        self._file.add_key_value_metadata({"geo": metadata})
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
        Shapes.of(schema.empty_table())
        self.members: dict[str, Any] = {}
        self.id_column = ""
        self.constants = ""
        self._sink = sink
        self._between = b'{"type":"FeatureCollection","features":[\n'

    def write(self, table: pa.Table) -> None:
        """Writes a feature for each row."""
        if not table.num_rows:
            return
        shapes = Shapes.of(table)
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
