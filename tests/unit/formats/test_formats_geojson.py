from __future__ import annotations

import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from galileo.errors import InputError
from galileo.formats import Mapping, open_source
from galileo.formats.geojson import _check_nesting


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


def test_properties_are_columns_and_numbers_as_times_are_milliseconds(path: Path) -> None:
    write(path, point([1, 2, 30], time=1500, mag=4), point([5.5, 6], time=0, mag=2.5, note="x"))
    table = read(path)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert table.to_pylist() == [
        {"latitude": 2.0, "longitude": 1.0, "time": epoch + dt.timedelta(seconds=1.5)}
        | {"mag": 4.0, "note": None, "elevation": 30.0},
        {"latitude": 6.0, "longitude": 5.5, "time": epoch}
        | {"mag": 2.5, "note": "x", "elevation": None},
    ]


def test_texts_as_times(path: Path) -> None:
    write(path, point([1, 2], time="2020-01-01T00:00:00Z", mag=4))
    assert read(path).column("time").to_pylist() == [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]


def test_texts_that_look_like_times_stay_as_they_are(path: Path) -> None:
    day, moment = "2020-01-01", "2020-01-01T00:00:00Z"
    write(path, point([1, 2], time=moment, since=moment, day=day, mag=4))
    table = read(path)
    assert table.select(["since", "day"]).to_pylist() == [{"since": moment, "day": day}]
    assert table.column("time").to_pylist() == [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]


def test_features_without_a_place_are_skipped(path: Path) -> None:
    write(path, point(None, time=0, mag=1), point([1, 2], time=0, mag=2))
    source = open_source(path)
    assert pa.concat_tables(source.batches()).column("mag").to_pylist() == [2]
    assert source.skipped == 1


def test_gzip(path: Path) -> None:
    write(path, point([1, 2], time=0, mag=4))
    packed = path.with_suffix(".geojson.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed).equals(read(path))


def test_another_time_can_be_mapped(path: Path) -> None:
    write(path, point([1, 2], time=0, updated=60, mag=4))
    table = read(path, "time=epoch_s(updated)", "mag=mag")
    assert table.column("time").to_pylist() == [dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC)]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"type": "Feature"}, "FeatureCollection"),
        ({"features": [1, 2]}, "features with properties"),
        ({"features": [{"properties": {"a": 1}}]}, "with a geometry"),
        (
            {"features": [{"geometry": {"type": "LineString", "coordinates": [[1, 2]]}}]},
            "expected points",
        ),
        ({"features": [{"geometry": {"type": "Point", "coordinates": [1]}}]}, "longitude and"),
        ({"features": []}, "expected"),
    ],
)
def test_what_is_no_collection_of_points_is_refused(
    path: Path, document: dict[str, Any], message: str
) -> None:
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        open_source(path)


def test_mixed_types_and_broken_text_are_refused(path: Path) -> None:
    write(path, point([1, 2], time=0, mag=4), point([1, 2], time=0, mag="strong"))
    with pytest.raises(InputError, match="one type each"):
        open_source(path)
    path.write_text('{"features": [')
    with pytest.raises(InputError, match="one type each"):
        open_source(path)


def test_bytes_that_are_no_utf8_are_refused(path: Path) -> None:
    write(path, point([1, 2], time=0, note="KDEN"))
    path.write_bytes(path.read_bytes().replace(b"KDEN", b"K\xffEN"))
    with pytest.raises(InputError, match="expected a GeoJSON collection"):
        read(path)


@pytest.mark.parametrize("position", [None, [], ["a", "b"], [[1, 2], [3, 4]], [None, None], 5])
def test_positions_that_are_none_are_refused(path: Path, position: Any) -> None:
    write(path, point(position, time=0) | {"geometry": {"type": "Point", "coordinates": position}})
    with pytest.raises(InputError, match="expected"):
        read(path)


@pytest.mark.parametrize("kind", [None, [2, 2], {"a": 1}, 5])
def test_types_of_geometries_that_are_no_texts_are_refused(path: Path, kind: Any) -> None:
    write(path, point([1, 2], time=0) | {"geometry": {"type": kind, "coordinates": [1, 2]}})
    with pytest.raises(InputError, match="expected points"):
        read(path)


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_deep_nesting_is_refused_before_it_is_parsed(path: Path, brackets: str) -> None:
    opening, closing = ("[", "]") if brackets == "[]" else ('{"a":', "}")
    path.write_text('{"features":' + opening * 200_000 + "1" + closing * 200_000 + "}")
    with pytest.raises(InputError, match="at most 64 nested arrays"):
        open_source(path)


def test_brackets_in_texts_are_no_nesting(path: Path) -> None:
    note = '[{"\\' * 100
    write(path, point([1, 2], time=0, mag=4, note=note), point([1, 2], time=0, mag=4, note="\\"))
    _check_nesting(path, path.read_bytes(), scan_bytes=7)
    assert read(path).column("note").to_pylist() == [note, "\\"]


@pytest.mark.parametrize("number", ["9" * 2000, "-1e999", "1e400"])
def test_numbers_beyond_floats_are_refused(path: Path, number: str) -> None:
    write(path, point([1, 2], time=0, mag=1.5), point([1, 2], time=0, mag=2.5))
    path.write_text(path.read_text().replace("2.5", number))
    with pytest.raises(InputError, match=r"GeoJSON|64-bit floats"):
        open_source(path)
