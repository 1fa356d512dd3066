from __future__ import annotations

import codecs
import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InputError, InvalidObservations
from galileo.formats import Mapping, open_source
from galileo.formats.json_scan import check_json


def point(position: list[float] | None, **properties: Any) -> dict[str, Any]:
    geometry = None if position is None else {"type": "Point", "coordinates": position}
    return {"type": "Feature", "properties": properties, "geometry": geometry}


def write(path: Path, *features: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}, indent=1))
    return path


def read(path: Path, *texts: str) -> pa.Table:
    return pa.concat_tables(open_source(path, mapping=Mapping.parse(texts)).batches())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "points.geojson"


def test_geojson_properties_are_columns_and_times_milliseconds(path: Path) -> None:
    write(path, point([1, 2, 30], time=1500, mag=4), point([5.5, 6], time=0, mag=2.5, note="x"))
    table = read(path)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert table.to_pylist() == [
        {"latitude": 2.0, "longitude": 1.0, "time": epoch + dt.timedelta(seconds=1.5)}
        | {"mag": 4.0, "note": None, "elevation": 30.0},
        {"latitude": 6.0, "longitude": 5.5, "time": epoch}
        | {"mag": 2.5, "note": "x", "elevation": None},
    ]


def test_geojson_id_of_a_feature_is_a_column_unless_a_property_has_the_name(path: Path) -> None:
    write(path, point([1, 2], time=0, mag=4) | {"id": "us1"})
    assert read(path).column("id").to_pylist() == ["us1"]
    write(path, point([1, 2], time=0, id="own") | {"id": "us1"})
    assert read(path).column("id").to_pylist() == ["own"]


def test_geojson_time_text_is_parsed(path: Path) -> None:
    write(path, point([1, 2], time="2020-01-01T00:00:00Z", mag=4))
    assert read(path).column("time").to_pylist() == [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]


def test_geojson_other_time_texts_stay_texts(path: Path) -> None:
    day, moment = "2020-01-01", "2020-01-01T00:00:00Z"
    write(path, point([1, 2], time=moment, since=moment, day=day, mag=4))
    table = read(path)
    assert table.select(["since", "day"]).to_pylist() == [{"since": moment, "day": day}]
    assert table.column("time").to_pylist() == [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]


def test_geojson_feature_without_geometry_is_skipped(path: Path) -> None:
    write(path, point(None, time=0, mag=1), point([1, 2], time=0, mag=2))
    source = open_source(path)
    assert pa.concat_tables(source.batches()).column("mag").to_pylist() == [2]
    assert source.skipped == 1


def test_geojson_gzip_is_read(path: Path) -> None:
    write(path, point([1, 2], time=0, mag=4))
    packed = path.with_suffix(".geojson.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed).equals(read(path))


def test_geojson_mapped_time_is_used(path: Path) -> None:
    write(path, point([1, 2], time=0, updated=60, mag=4))
    table = read(path, "time=epoch_s(updated)", "mag=mag")
    assert table.column("time").to_pylist() == [dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC)]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"type": "Feature"}, "feature_collection"),
        ({"features": [1, 2]}, "properties"),
        ({"features": [{"properties": {"a": 1}}]}, "geometry"),
        ({"features": [{"geometry": {"type": "LineString", "coordinates": [[1, 2]]}}]}, "points"),
        ({"features": [{"geometry": {"type": "Point", "coordinates": [1]}}]}, "coordinates"),
        ({"features": None}, "feature_collection"),
        ({"features": [None]}, "properties"),
    ],
)
def test_geojson_other_document_raises(path: Path, document: dict[str, Any], expected: str) -> None:
    path.write_text(json.dumps(document))
    with raises(InputError, expected=expected):
        open_source(path)


def test_geojson_mixed_types_or_broken_text_raises(path: Path) -> None:
    write(path, point([1, 2], time=0, mag=4), point([1, 2], time=0, mag="strong"))
    with raises(InputError, expected="properties_of_one_type"):
        open_source(path)
    path.write_text('{"features": [')
    with raises(InputError, expected="properties_of_one_type"):
        open_source(path)


def test_geojson_invalid_utf8_raises(path: Path) -> None:
    write(path, point([1, 2], time=0, note="KDEN"))
    path.write_bytes(path.read_bytes().replace(b"KDEN", b"K\xffEN"))
    with raises(InputError, expected="properties_of_one_type"):
        read(path)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        *[(position, "coordinates") for position in (None, [], ["a", "b"], [[1, 2], [3, 4]], 5)],
        ([None, None], "places"),
    ],
)
def test_geojson_invalid_position_raises(path: Path, position: Any, expected: str) -> None:
    write(path, point(position, time=0) | {"geometry": {"type": "Point", "coordinates": position}})
    with raises(InputError, expected=expected):
        read(path)


@pytest.mark.parametrize("kind", [None, [2, 2], {"a": 1}, 5])
def test_geojson_invalid_geometry_type_raises(path: Path, kind: Any) -> None:
    write(path, point([1, 2], time=0) | {"geometry": {"type": kind, "coordinates": [1, 2]}})
    with raises(InputError, expected="geometry_type"):
        read(path)


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_geojson_deep_nesting_raises_before_parsing(path: Path, brackets: str) -> None:
    opening, closing = ("[", "]") if brackets == "[]" else ('{"a":', "}")
    path.write_text('{"features":' + opening * 200_000 + "1" + closing * 200_000 + "}")
    with raises(InputError, expected="nesting", bound=64):
        open_source(path)


@pytest.mark.parametrize(
    "text", ["null", " null", "1", '"a"', "true", "{}null", '{"a": 1} 2', "}{", '"{', "{}]"]
)
@pytest.mark.parametrize("scan_bytes", [60, 1_000])
def test_geojson_other_values_than_objects_raise_before_parsing(
    path: Path, text: str, scan_bytes: int
) -> None:
    with raises(InputError, expected="objects"):  # Arrow's parser ends the process for some.
        check_json(path, pa.py_buffer(text.encode()), scan_bytes=scan_bytes)


def test_geojson_with_a_byte_order_mark_is_read(path: Path) -> None:
    write(path, point([1, 2], time=0, mag=4))
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read(path).num_rows == 1


def test_geojson_brackets_in_texts_are_no_nesting(path: Path) -> None:
    note = '[{"\\' * 100
    write(path, point([1, 2], time=0, mag=4, note=note), point([1, 2], time=0, mag=4, note="\\"))
    check_json(path, pa.py_buffer(path.read_bytes()), scan_bytes=60)
    assert read(path).column("note").to_pylist() == [note, "\\"]


@pytest.mark.parametrize(
    ("number", "kind", "details"),
    [
        ("9" * 2000, InvalidObservations, {"row": 1, "column": "mag"}),
        ("-1e999", InputError, {"expected": "properties_of_one_type"}),
        ("1e400", InputError, {"expected": "properties_of_one_type"}),
    ],
)
def test_geojson_number_beyond_float_raises(
    path: Path, number: str, kind: type[InputError], details: dict[str, Any]
) -> None:
    write(path, point([1, 2], time=0, mag=1.5), point([1, 2], time=0, mag=2.5))
    path.write_text(path.read_text().replace("2.5", number))
    with raises(kind, **details):
        open_source(path)


@pytest.mark.parametrize("time", [1_393_632_000_123.5, 1_393_632_000_123, 1e12])
def test_geojson_number_as_time_may_have_a_fraction(path: Path, time: float) -> None:
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time * 1000)
    write(path, point([8.0, 50.0], time=time, v=1.5))
    assert read(path).column("time").to_pylist() == [moment]
    write(path, point([8.0, 50.0], time=time, v=1.5), point([8.0, 50.0], time=1e300, v=1.5))
    with raises(InvalidObservations, column="time", row=1):
        read(path)


def named(text: str) -> dict[str, Any]:
    return {"type": "name", "properties": {"name": text}}


CRS84 = "urn:ogc:def:crs:OGC:1.3:CRS84"
MEMBERS: list[tuple[dict[str, Any], bool]] = [
    ({"crs": None}, True),
    ({"crs": named(CRS84)}, True),
    ({"crs": named("OGC:CRS84")}, True),
    ({"crs": named("urn:ogc:def:crs:EPSG::4326")}, True),
    ({"crs": named("EPSG:4326")}, True),
    ({"crs": named("urn:ogc:def:crs:EPSG::3857")}, False),
    ({"crs": named("EPSG:43260")}, False),
    ({"crs": {"type": "EPSG", "properties": {"code": 3857}}}, False),
    ({"crs": {"type": "link", "properties": {"href": "http://example.com/4326"}}}, False),
    ({"coordRefSys": "http://www.opengis.net/def/crs/OGC/1.3/CRS84"}, True),
    ({"coordRefSys": "[OGC:CRS84]"}, True),
    ({"coordRefSys": "http://www.opengis.net/def/crs/EPSG/0/4326"}, False),
    ({"coordRefSys": ["[OGC:CRS84]", "[EPSG:5773]"]}, False),
    ({"coordRefSys": {"type": "Reference", "href": "[EPSG:3857]"}}, False),
]


@pytest.mark.parametrize(("members", "is_taken"), MEMBERS)
@pytest.mark.parametrize("place", ["collection", "feature", "geometry", "single feature"])
def test_geojson_in_another_reference_system_raises(
    path: Path, members: dict[str, Any], is_taken: bool, place: str
) -> None:
    first, second = point([8.0, 50.0], time=0, v=1.5), point([8.0, 50.0], time=0, v=1.5)
    collection = {"type": "FeatureCollection", "features": [first, second]}
    target = {"collection": collection, "geometry": second["geometry"]}.get(place, second)
    target |= members
    path.write_text(json.dumps(second if place == "single feature" else collection))
    if is_taken:
        assert read(path).column("latitude").to_pylist()[0] == 50.0
    else:
        with raises(InputError, expected="crs"):
            read(path)
