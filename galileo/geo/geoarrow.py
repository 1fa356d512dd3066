"""What the metadata of Arrow fields and GeoParquet files say about columns of geometries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from galileo.errors import InputError

NAME = b"ARROW:extension:name"
METADATA = b"ARROW:extension:metadata"
WKB = b"geoarrow.wkb"
FIELD_METADATA = {
    NAME: WKB,
    METADATA: b'{"crs":"OGC:CRS84","crs_type":"authority_code"}',
}
"""Of a field with geometries as WKB, in degrees of longitude and latitude."""

_WGS84 = re.compile(r"WGS.?(?:19)?84|World Geodetic System 1984|CRS84|(?:EPSG|SRID):4326")
_ACCEPTED = (WKB, b"geoarrow.wkt", b"ogc.wkb", b"ogc.wkt")
_DEGREES = ("OGC:CRS84", "EPSG:4326", "SRID:4326")
_OTHER_DEGREES = re.compile(
    r"(?i)\W(?:grads?|gon|radians?)\W"
    r"|(?:primem|prime_meridian)\W+(?:name\W+)?(?!greenwich)\w"
)
"""Units and prime meridians in PROJJSON and WKT with which the degrees are others."""


def with_metadata(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The table whose fields of these names have `FIELD_METADATA`; nothing is copied."""
    return _with(table, dict.fromkeys(names, FIELD_METADATA))


def with_systems(table: pa.Table, systems: Mapping[str, str]) -> pa.Table:
    """The table whose fields say the coordinate reference system of their geometries (WKB)."""
    about = {name: json.dumps({"crs": crs}).encode() for name, crs in systems.items()}
    return _with(table, {name: {NAME: WKB, METADATA: text} for name, text in about.items()})


def _with(table: pa.Table, metadata: Mapping[str, Mapping[bytes, bytes]]) -> pa.Table:
    fields = [
        field.with_metadata(dict(metadata[field.name])) if field.name in metadata else field
        for field in table.schema
    ]
    return pa.table(table.columns, schema=pa.schema(fields, table.schema.metadata))


def geometry_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The columns whose fields have the metadata of WKB."""
    return tuple(
        field.name
        for field in schema
        if pa.types.is_binary(field.type) and (field.metadata or {}).get(NAME) == WKB
    )


def check_column(schema: pa.Schema, name: str) -> None:
    """Checks that what is said about a column of geometries fits WKB or WKT in degrees.

    Raises:
        InputError: it has another encoding or coordinate reference system.
    """
    extension, _ = _extension(schema.field(name))
    if extension is not None and extension not in _ACCEPTED:
        raise InputError(
            f"expected WKB or WKT, got {extension.decode(errors='replace')}; with GeoPandas write "
            ".to_arrow(geometry_encoding='WKB')",
            expected="wkb",
        )
    encoding = _geoparquet(schema, name).get("encoding")
    if encoding not in (None, "WKB", "WKT"):
        raise InputError(
            f"expected WKB, got GeoParquet in the encoding {encoding!r:.100}; with GeoPandas write "
            ".to_parquet(path, geometry_encoding='WKB')",
            expected="wkb",
        )
    for crs in _systems(schema, name):
        if not _is_in_degrees(crs):
            raise _other_system("longitudes and latitudes in degrees", crs)


def place_column(schema: pa.Schema) -> str:
    """The column that says where the rows are: the primary one of GeoParquet, else the only one of
    geometries as WKB or of points; "" if there is none, or several.
    """
    geo = (schema.metadata or {}).get(b"geo")
    if geo is not None:
        return str(_json(geo).get("primary_column", "geometry"))
    names = [field.name for field in schema if _extension(field)[0] in (WKB, b"geoarrow.point")]
    return names[0] if len(names) == 1 else ""


def check_wgs84(schema: pa.Schema, name: str) -> None:
    """Raises InputError if a column of points has another coordinate reference system than WGS 84.

    Where GeoParquet names none, it is OGC:CRS84; a null says that it is unknown.
    """
    if _geoparquet(schema, name).get("crs", "") is None:
        raise InputError(
            "expected a coordinate reference system, got a file that says it is unknown; with "
            "GeoPandas write .set_crs(4326) where the points are longitudes and latitudes",
            expected="crs",
        )
    for crs in _systems(schema, name):
        if not _is_in_degrees(crs) or (crs is not None and not _WGS84.search(json.dumps(crs))):
            raise _other_system("longitudes and latitudes of WGS 84 (OGC:CRS84, EPSG:4326)", crs)


def _geoparquet(schema: pa.Schema, name: str) -> dict[str, Any]:
    """What the metadata of GeoParquet say about a column."""
    geo = _json((schema.metadata or {}).get(b"geo"))
    return _dict(_dict(geo.get("columns")).get(name))


def _systems(schema: pa.Schema, name: str) -> tuple[Any, Any]:
    """The coordinate reference systems that the field and the file say a column has."""
    _, metadata = _extension(schema.field(name))
    return _json(metadata).get("crs"), _geoparquet(schema, name).get("crs")


def _other_system(expected: str, crs: Any) -> InputError:
    return InputError(
        f"expected {expected}, got the coordinate reference system "
        f"{_dict(crs).get('name', crs)!r:.100}; with GeoPandas write .to_crs(4326)",
        expected="crs",
    )


def _extension(field: pa.Field) -> tuple[bytes | None, bytes | None]:
    """The name and the metadata of an extension type, whether it is registered or not."""
    if isinstance(field.type, pa.BaseExtensionType):
        serialize = getattr(field.type, "__arrow_ext_serialize__", bytes)  # Not of Arrow's own.
        return field.type.extension_name.encode(), serialize()
    metadata = field.metadata or {}
    return metadata.get(NAME), metadata.get(METADATA)


def _json(text: bytes | str | None) -> dict[str, Any]:
    try:
        return _dict(json.loads(text or b"{}"))
    except (ValueError, RecursionError):
        return {}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_in_degrees(crs: Any) -> bool:
    """Whether a CRS has longitudes and latitudes, or is not said.

    It comes as PROJJSON, in an object or a text, as WKT, or as a name.
    """
    if crs is None:
        return True
    if isinstance(crs, str) and crs.lstrip().startswith("{"):
        crs = _json(crs)
    if _OTHER_DEGREES.search(json.dumps(crs)):
        return False
    if isinstance(crs, dict):
        return crs.get("type") == "GeographicCRS"
    return str(crs).upper() in _DEGREES or str(crs).upper().startswith(("GEOGCRS", "GEOGCS"))
