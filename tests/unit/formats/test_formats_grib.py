"""GRIB files that ecCodes itself writes: every kind of message, read as ecCodes reads it."""

from __future__ import annotations

import datetime as dt
import importlib.util
import itertools
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.formats import GridOptions, open_source, suggest_schema
from galileo.formats import Mapping as FeatureMapping
from galileo.formats.grib_split import message_offsets, read_fields
from galileo.optional_imports import library

if importlib.util.find_spec("eccodes") is None:
    pytest.skip("ecCodes is not installed", allow_module_level=True)
eccodes = library("eccodes", purpose="this test")

NI, NJ = 4, 3
Keys = Mapping[str, Any]


def grid_keys(*, ni: int = NI, nj: int = NJ, west: float = 10.0) -> dict[str, Any]:
    return {
        "Ni": ni,
        "Nj": nj,
        "latitudeOfFirstGridPointInDegrees": 50.0,
        "latitudeOfLastGridPointInDegrees": 50.0 - (nj - 1),
        "longitudeOfFirstGridPointInDegrees": west,
        "longitudeOfLastGridPointInDegrees": west + ni - 1,
        "iDirectionIncrementInDegrees": 1.0,
        "jDirectionIncrementInDegrees": 1.0,
    }


def message(values: Any, *, edition: int = 2, **keys: Any) -> bytes:
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_sfc_grib{edition}")
    try:
        for key, value in {**grid_keys(), "dataDate": 20200229, "dataTime": 600, **keys}.items():
            eccodes.codes_set(handle, key, value)
        array = np.asarray(values, dtype=np.float64)
        if np.isnan(array).any():
            eccodes.codes_set(handle, "bitmapPresent", 1)
            eccodes.codes_set(handle, "missingValue", 9999.0)
        eccodes.codes_set(handle, "bitsPerValue", 16)
        eccodes.codes_set_array(handle, "values", np.nan_to_num(array, nan=9999.0))
        return bytes(eccodes.codes_get_message(handle))
    finally:
        eccodes.codes_release(handle)


def ramp(start: float, *, points: int = NI * NJ) -> np.ndarray[Any, Any]:
    return start + np.arange(points, dtype=np.float64)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(*messages: bytes, between: bytes = b"") -> Path:
        path = tmp_path / "file.grib"
        path.write_bytes(between.join(messages))
        return path

    return written


def read(path: Path, *texts: str) -> pa.Table:
    return pa.concat_tables(open_source(path, mapping=FeatureMapping.parse(texts)).batches())


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type, misc]


# --- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("edition", [1, 2])
def test_grib_values_have_coordinates_of_the_grid(write: Callable[..., Path], edition: int) -> None:
    table = read(write(message(ramp(270), edition=edition, shortName="2t")))
    assert table.column_names == ["latitude", "longitude", "time", "t2m"]
    rows, columns = np.mgrid[0:NJ, 0:NI]
    np.testing.assert_allclose(table.column("latitude"), 50.0 - rows.ravel())
    np.testing.assert_allclose(table.column("longitude"), 10.0 + columns.ravel())
    np.testing.assert_allclose(table.column("t2m"), ramp(270), atol=1e-3)
    assert set(table.column("time").to_pylist()) == {utc(2020, 2, 29, 6)}


@pytest.mark.parametrize("edition", [1, 2])
def test_grib_time_is_reference_plus_step(write: Callable[..., Path], edition: int) -> None:
    path = write(
        message(ramp(1), edition=edition, shortName="2t", step=0),
        message(ramp(2), edition=edition, shortName="2t", step=18),
        message(ramp(3), edition=edition, shortName="2t", step=30),
    )
    table = read(path)
    assert list(dict.fromkeys(table.column("time").to_pylist())) == [
        utc(2020, 2, 29, 6),
        utc(2020, 3, 1, 0),
        utc(2020, 3, 1, 12),
    ]
    assert open_source(path).rows == table.num_rows == 3 * NI * NJ


def test_grib_missing_values_are_null_and_empty_points_skipped(write: Callable[..., Path]) -> None:
    first, second = ramp(1), ramp(101)
    first[[0, 1, 5]] = np.nan
    second[[1, 5, 7]] = np.nan
    path = write(message(first, shortName="2t"), message(second, shortName="2d"))
    source = open_source(path)
    table = pa.concat_tables(source.batches())
    assert source.skipped == 2
    kept = ~(np.isnan(first) & np.isnan(second))
    np.testing.assert_allclose(table.column("t2m"), first[kept], atol=1e-2)
    np.testing.assert_allclose(table.column("d2m"), second[kept], atol=1e-2)
    assert table.column("t2m").null_count == 1


def test_grib_value_like_missing_value_is_kept(write: Callable[..., Path]) -> None:
    values = np.full(NI * NJ, 9999.0)
    assert read(write(message(values, shortName="2t"))).column("t2m").to_pylist() == list(values)


def test_grib_unit_and_description_are_of_parameter(write: Callable[..., Path]) -> None:
    source = open_source(write(message(ramp(1), shortName="2t")))
    [feature] = suggest_schema(source, "x").features
    assert (feature.unit, feature.standard_name) == ("K", "air_temperature")
    assert feature.description == "2 metre temperature"
    info = source.variables()[0]
    assert (info.about.description, info.dims) == ("2 metre temperature", ("step:1", "point:12"))


# --- levels, steps, members, grids -----------------------------------------------------------


def on_level(value: float, level: int, **keys: Any) -> bytes:
    return message(ramp(value), shortName="t", typeOfLevel="isobaricInhPa", level=level, **keys)


def test_grib_levels_are_variables(write: Callable[..., Path]) -> None:
    path = write(on_level(1, 500), on_level(101, 850))
    table = read(path, "upper=t@isobaricInhPa:500", "lower=t@isobaricInhPa:850")
    np.testing.assert_allclose(table.column("upper"), ramp(1), atol=1e-2)
    np.testing.assert_allclose(table.column("lower"), ramp(101), atol=1e-2)
    with raises(InputError, expected="one_variable", variable="t"):
        read(path, "t=t")
    assert read(path).column_names[3:] == ["t_isobaricinhpa_500", "t_isobaricinhpa_850"]


def on_surface(value: float, kind: int, *bounds: tuple[int, int]) -> bytes:
    """On a level, or in a layer between two, each given as a scale factor and a scaled value."""
    keys: dict[str, Any] = {"discipline": 0, "parameterCategory": 0, "parameterNumber": 0}
    for surface, (factor, scaled) in zip(("First", "Second"), bounds, strict=False):
        keys |= {
            f"typeOf{surface}FixedSurface": kind,
            f"scaleFactorOf{surface}FixedSurface": factor,
            f"scaledValueOf{surface}FixedSurface": scaled,
        }
    return message(ramp(value), **keys)


def test_grib_fractional_levels_have_distinct_names(write: Callable[..., Path]) -> None:
    soil, height = 106, 103
    depths = [(2, 0), (2, 10), (2, 40), (2, 100)]
    layers = [on_surface(i, soil, *pair) for i, pair in enumerate(itertools.pairwise(depths))]
    path = write(*layers, on_surface(3, height, (1, 15)), on_surface(4, height, (0, 10)))
    names = [variable.name.split("t@")[1] for variable in open_source(path).variables()]
    assert names == [
        *(f"depthBelowLandLayer:{layer}" for layer in ("0-0.1", "0.1-0.4", "0.4-1")),
        *(f"heightAboveGround:{level}" for level in ("1.5", "10")),
    ]
    alone = open_source(write(layers[1])).variables()
    assert [variable.name for variable in alone] == [f"t@{names[1]}"]


def accumulated(value: float, *, start: int, end: int) -> bytes:
    keys = {"productDefinitionTemplateNumber": 8, "shortName": "tp", "stepType": "accum"}
    return message(ramp(value), **keys, stepRange=f"{start}-{end}")


def test_grib_accumulations_with_one_end_have_distinct_names(write: Callable[..., Path]) -> None:
    path = write(accumulated(1, start=0, end=6), accumulated(101, start=3, end=6))
    names = [info.name for info in open_source(path).variables()]
    assert names == ["tp@surface@accum@over:6", "tp@surface@accum@over:3"]
    table = read(path, "three=tp@over:3", "six=tp@over:6")
    np.testing.assert_allclose(table.column("three"), ramp(101), atol=1e-2)
    np.testing.assert_allclose(table.column("six"), ramp(1), atol=1e-2)
    assert set(table.column("time").to_pylist()) == {utc(2020, 2, 29, 12)}


def test_grib_accumulations_with_two_ends_share_name(write: Callable[..., Path]) -> None:
    path = write(accumulated(1, start=0, end=6), accumulated(101, start=0, end=12))
    assert [info.name for info in open_source(path).variables()] == ["tp@surface"]


def test_grib_equal_fields_are_numbered(write: Callable[..., Path]) -> None:
    path = write(message(ramp(1), shortName="2t"), message(ramp(101), shortName="2t"))
    table = read(path)
    names = ["t2m_heightaboveground_2", "t2m_heightaboveground_2_number_2"]
    assert table.column_names[3:] == names
    np.testing.assert_allclose(table.column(names[1]), ramp(101), atol=1e-2)


def test_grib_ensemble_members_are_rows_with_number(write: Callable[..., Path]) -> None:
    keys = {"productDefinitionTemplateNumber": 1, "shortName": "2t"}
    path = write(*[message(ramp(100 * m), **keys, perturbationNumber=m) for m in (2, 1)])
    table = read(path)
    assert table.column_names[3:] == ["t2m", "member"]
    assert table.column("member").to_pylist() == [1] * 12 + [2] * 12
    np.testing.assert_allclose(table.column("t2m").to_numpy()[::12], [100, 200], atol=1e-2)


def test_grib_points_of_members_without_values_are_skipped(write: Callable[..., Path]) -> None:
    keys = {"productDefinitionTemplateNumber": 1, "shortName": "2t"}
    values = ramp(1)
    values[3] = np.nan
    path = write(*[message(values, **keys, perturbationNumber=m) for m in (1, 2)])
    assert read(path).num_rows == 22


def test_grib_two_runs_for_one_time_are_both_read(write: Callable[..., Path]) -> None:
    path = write(
        message(ramp(1), shortName="2t", dataTime=0, step=12),
        message(ramp(101), shortName="2t", dataTime=1200, step=0),
    )
    table = read(path)
    assert set(table.column("time").to_pylist()) == {utc(2020, 2, 29, 12)}
    np.testing.assert_allclose(table.column("t2m"), [*ramp(1), *ramp(101)], atol=1e-2)


def test_grib_runs_are_told_apart_by_their_reference_times(write: Callable[..., Path]) -> None:
    path = write(
        message(ramp(1), shortName="2t", dataTime=0, step=12),
        message(ramp(101), shortName="2t", dataTime=1200, step=0),
    )
    grid = GridOptions(reference_time=True)
    table = pa.concat_tables(open_source(path, mapping=FeatureMapping(grid=grid)).batches())
    midnight = int(utc(2020, 2, 29).timestamp())
    assert table["reference_time"].to_pylist() == [midnight] * 12 + [midnight + 43_200] * 12
    assert table["lead_time"].to_pylist() == [12.0] * 12 + [0.0] * 12


def test_grib_largest_grid_is_default_and_others_can_be_mapped(write: Callable[..., Path]) -> None:
    small = grid_keys(ni=2, nj=2, west=100.0)
    path = write(
        message(ramp(1, points=4), shortName="2d", **small), message(ramp(101), shortName="2t")
    )
    assert read(path).column_names[3:] == ["t2m"]
    both = read(path, "t=2t", "d=2d")
    assert both.num_rows == 16
    assert sorted(both.column("d").drop_null().to_pylist()) == pytest.approx([1, 2, 3, 4])
    assert both.column("t").null_count == 4


def test_grib_unknown_parameter_is_named_by_numbers(write: Callable[..., Path]) -> None:
    keys = {"discipline": 0, "parameterCategory": 191, "parameterNumber": 222}
    assert read(write(message(ramp(5), **keys))).column_names[3:] == ["param_0_191_222"]


def test_grib_constant_time_replaces_time_of_file(write: Callable[..., Path]) -> None:
    table = read(write(message(ramp(1), shortName="2t")), "t=2t", "time=@2001-02-03T04:05Z")
    assert set(table.column("time").to_pylist()) == {utc(2001, 2, 3, 4, 5)}


def test_grib_unmapped_variable_makes_no_rows(write: Callable[..., Path]) -> None:
    """The step of the other variable makes no rows."""
    path = write(message(ramp(1), shortName="2t"), message(ramp(2), shortName="2d", step=6))
    table = read(path, "t=2t")
    assert set(table.column("time").to_pylist()) == {utc(2020, 2, 29, 6)}


# --- projected grids, however they are scanned -----------------------------------------------


@pytest.mark.parametrize("flags", list(itertools.product((0, 1), repeat=4)))
def test_grib_projected_grid_any_scan_order_equals_eccodes(
    tmp_path: Path, flags: tuple[int, ...]
) -> None:
    handle = eccodes.codes_grib_new_from_samples("polar_stereographic_pl_grib2")
    scanning = zip(
        ("iScansNegatively", "jScansPositively", "jPointsAreConsecutive"), flags[:3], strict=True
    )
    for key, flag in [*scanning, ("alternativeRowScanning", flags[3])]:
        eccodes.codes_set(handle, key, flag)
    eccodes.codes_set(handle, "bitsPerValue", 16)
    points = eccodes.codes_get(handle, "numberOfPoints")
    eccodes.codes_set_array(handle, "values", ramp(0, points=points))
    expected = eccodes.codes_get_array(handle, "latLonValues").reshape(-1, 3)
    path = tmp_path / "polar.grib"
    path.write_bytes(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)
    table = read(path)
    found = np.stack([table.column(i).to_numpy() for i in (0, 1, 3)], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


# --- messages --------------------------------------------------------------------------------


def joined(*messages: bytes, shared_bitmap: bool = False) -> bytes:
    """Single-field messages as one: sections 4 to 7 of all behind 1 and 3 of the first."""
    parts = [message[16:-4] for message in messages]
    start = parts[0].index(struct.pack(">IB", *_header(parts[0], 4)))
    body = parts[0]
    for part in parts[1:]:
        repeated = part[start:]
        if shared_bitmap:
            at = repeated.index(struct.pack(">IB", *_header(repeated, 6)))
            length = _header(repeated, 6)[0]
            repeated = repeated[:at] + struct.pack(">IBB", 6, 6, 254) + repeated[at + length :]
        body += repeated
    return messages[0][:8] + struct.pack(">Q", len(body) + 20) + body + b"7777"


def _header(body: bytes, wanted: int) -> tuple[int, int]:
    position = 0
    while True:
        length, number = struct.unpack(">IB", body[position : position + 5])
        if number == wanted:
            return length, number
        position += length


@pytest.mark.parametrize("fields", [2, 3])
def test_grib_message_of_several_fields_is_read(write: Callable[..., Path], fields: int) -> None:
    names = ["10u", "10v", "2t"][:fields]
    whole = joined(*[message(ramp(100 * i), shortName=n) for i, n in enumerate(names)])
    path = write(message(ramp(7), shortName="sp"), whole, message(ramp(8), shortName="2d"))
    table = read(path)
    for number, alias in enumerate(["u10", "v10", "t2m"][:fields]):
        np.testing.assert_allclose(table.column(alias), ramp(100 * number), atol=1e-2)
    np.testing.assert_allclose(table.column("d2m"), ramp(8), atol=1e-2)


def test_grib_fields_with_shared_bitmap_are_read(write: Callable[..., Path]) -> None:
    u, v = ramp(1), ramp(101)
    u[[2, 3]] = v[[2, 3]] = np.nan
    whole = joined(message(u, shortName="10u"), message(v, shortName="10v"), shared_bitmap=True)
    table = read(write(whole), "speed=hypot(u10, v10)")
    np.testing.assert_allclose(table.column("speed"), np.hypot(u, v)[~np.isnan(u)], atol=1e-2)


def test_grib_split_fields_equal_eccodes(write: Callable[..., Path]) -> None:
    path = write(joined(message(ramp(1), shortName="10u"), message(ramp(9), shortName="10v")))
    with path.open("rb") as file:
        ours = read_fields(file, next(message_offsets(file)))
    eccodes.codes_grib_multi_support_on()
    try:
        with path.open("rb") as file:
            theirs = []
            while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
                theirs.append(bytes(eccodes.codes_get_message(handle)))
                eccodes.codes_release(handle)
    finally:
        eccodes.codes_grib_multi_support_off()
    assert ours == theirs


def test_grib_bytes_between_messages_are_skipped(write: Callable[..., Path]) -> None:
    noise = b"\r\r\n042 KWBC GRI" + b"\0" * 70_000
    path = write(
        b"", message(ramp(1), shortName="2t"), message(ramp(2), shortName="2d"), between=noise
    )
    assert open_source(path, format="grib").rows == 12
    assert read_names(path) == ["t2m", "d2m"]


def read_names(path: Path) -> list[str]:
    source = open_source(path, format="grib")
    return list(source.features)


@pytest.mark.parametrize("sections", [(), (32,), (40,), (32, 40)])
def test_grib_long_messages_of_edition_1_end_where_section_4_says(
    write: Callable[..., Path], sections: tuple[int, ...]
) -> None:
    """Sections 2 and 3, of 32 and 40 bytes here, are optional."""
    flags = sum({32: 0x80, 40: 0x40}[size] for size in sections)
    head = (28).to_bytes(3) + bytes(4) + bytes([flags]) + bytes(20)
    head += b"".join(size.to_bytes(3) + bytes(size - 3) for size in sections)
    for size in (500, 597, 620):
        total = 8 + len(head) + 3 + size + 4
        units = -(-(total - 4) // 120)
        start = b"GRIB" + (0x800000 | units).to_bytes(3) + b"\1"
        long = start + head + (units * 120 + 4 - total).to_bytes(3) + bytes(size) + b"7777"
        with write(long, long).open("rb") as file:
            places = [(place.offset, place.length) for place in message_offsets(file)]
        assert places == [(0, total), (total, total)]


@pytest.mark.slow
def test_grib_edition_1_beyond_8_mebibytes_is_read(write: Callable[..., Path]) -> None:
    ni, nj = 3000, 1600
    large = message(
        np.arange(ni * nj) % 1000, edition=1, shortName="2t", **grid_keys(ni=ni, nj=nj) | GLOBAL
    )
    assert int.from_bytes(large[4:7]) & 0x800000
    path = write(large, message(ramp(1), edition=1, shortName="2t"))
    with path.open("rb") as file:
        assert [place.offset for place in message_offsets(file)] == [0, len(large)]
        assert next(message_offsets(file)).length == len(large)
    batch = next(open_source(path).batches(5000))
    np.testing.assert_allclose(batch.column("t2m"), np.arange(5000) % 1000, atol=0.02)


GLOBAL = {
    "latitudeOfFirstGridPointInDegrees": 80.0,
    "latitudeOfLastGridPointInDegrees": 0.05,
    "longitudeOfFirstGridPointInDegrees": 0.0,
    "longitudeOfLastGridPointInDegrees": 299.9,
    "iDirectionIncrementInDegrees": 0.1,
    "jDirectionIncrementInDegrees": 0.05,
}


@pytest.mark.parametrize("lost", [1, 4, 30])
def test_grib_truncated_file_raises_with_offset(write: Callable[..., Path], lost: int) -> None:
    first, second = message(ramp(1), shortName="2t"), message(ramp(2), shortName="2d")
    path = write(first, second[:-lost])
    with raises(InputError, expected="whole_message", offset=203):
        open_source(path)


def test_grib_damaged_section_raises(write: Callable[..., Path]) -> None:
    damaged = bytearray(message(ramp(1), shortName="2t"))
    damaged[16:20] = struct.pack(">I", 10_000)
    with raises(InputError, expected="section_length"):
        open_source(write(bytes(damaged)))


def test_grib_no_messages_raises(tmp_path: Path) -> None:
    path = tmp_path / "empty.grib2"
    path.write_bytes(b"nothing here")
    with raises(InputError, expected="messages"):
        open_source(path)


def test_grib_mapped_coordinate_raises(write: Callable[..., Path]) -> None:
    path = write(message(ramp(1), shortName="2t"))
    with raises(InputError, expected="no_coordinates"):
        open_source(path, mapping=FeatureMapping.parse(["latitude=lat"]))


def test_grib_read_writes_no_file(write: Callable[..., Path]) -> None:
    path = write(message(ramp(1), shortName="2t"))
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert read(path).num_rows == 12
        assert list(path.parent.iterdir()) == [path]
    finally:
        path.parent.chmod(0o755)


def test_grib_field_used_twice_is_decoded_once(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        joined(message(ramp(1), shortName="10u"), message(ramp(9), shortName="10v")),
        message(ramp(2), shortName="2t"),
    )
    source = open_source(
        path, mapping=FeatureMapping.parse(["speed=hypot(10u, 10v)", "u=10u", "k=10u"])
    )
    decoded: list[str] = []
    original = eccodes.codes_get_array

    def counting(handle: Any, key: str, *rest: Any) -> Any:
        if key in ("values", "latLonValues"):
            decoded.append(eccodes.codes_get(handle, "shortName"))
        return original(handle, key, *rest)

    monkeypatch.setattr(eccodes, "codes_get_array", counting)
    assert sum(batch.num_rows for batch in source.batches()) == 12
    assert decoded == ["10u", "10v"]


STATISTICS = {"productDefinitionTemplateNumber": 8, "typeOfStatisticalProcessing": 1}
INTERVAL_END = {
    f"{part}OfEndOfOverallTimeInterval": value
    for part, value in zip(
        ("year", "month", "day", "hour", "minute", "second"), (2020, 3, 1, 7, 0, 36), strict=True
    )
}


@pytest.mark.parametrize(
    ("keys", "moment"),
    [
        ({"second": 45}, utc(2020, 2, 29, 6, 0, 45)),
        ({"indicatorOfUnitOfTimeRange": 13, "forecastTime": 3605}, utc(2020, 2, 29, 7, 0, 5)),
        (
            {"second": 45, "indicatorOfUnitOfTimeRange": 13, "forecastTime": 30},
            utc(2020, 2, 29, 6, 1, 15),
        ),
        (
            {"second": 45, "indicatorOfUnitOfTimeRange": 0, "forecastTime": 90},
            utc(2020, 2, 29, 7, 30, 45),
        ),
        ({"indicatorOfUnitOfTimeRange": 3, "forecastTime": 2}, utc(2020, 4, 29, 6)),
        (
            {"indicatorOfUnitOfTimeRange": 3, "forecastTime": 2, "second": 1},
            utc(2020, 4, 29, 6, 0, 1),
        ),
        ({"indicatorOfUnitOfTimeRange": 4, "forecastTime": 1}, utc(2021, 2, 28, 6)),
        ({"indicatorOfUnitOfTimeRange": 5, "forecastTime": 2}, utc(2040, 2, 29, 6)),
        ({"indicatorOfUnitOfTimeRange": 6, "forecastTime": 1}, utc(2050, 2, 28, 6)),
        ({"indicatorOfUnitOfTimeRange": 7, "forecastTime": 1}, utc(2120, 2, 29, 6)),
        ({"dataTime": 630, "forecastTime": -3}, utc(2020, 2, 29, 3, 30)),
        ({"edition": 1, "indicatorOfUnitOfTimeRange": 0, "P1": 90}, utc(2020, 2, 29, 7, 30)),
        ({"edition": 1, "indicatorOfUnitOfTimeRange": 13, "P1": 3}, utc(2020, 2, 29, 6, 45)),
        (STATISTICS | INTERVAL_END, utc(2020, 3, 1, 7, 0, 36)),
        (
            STATISTICS | INTERVAL_END | {"secondOfEndOfOverallTimeInterval": 255},  # missing
            utc(2020, 3, 1, 7),
        ),
        ({"edition": 1, "indicatorOfUnitOfTimeRange": 3, "P1": 2}, utc(2020, 4, 29, 6)),
        (
            {"edition": 1, "indicatorOfUnitOfTimeRange": 3, "timeRangeIndicator": 3, "P2": 1},
            utc(2020, 3, 29, 6),
        ),
    ],
)
def test_grib_valid_time_has_seconds_and_months_of_the_calendar(
    write: Callable[..., Path], keys: Keys, moment: dt.datetime
) -> None:
    """ecCodes' own valid time drops seconds and counts 30 days for a month."""
    assert set(read(write(message(ramp(1), **keys)))["time"].to_pylist()) == {moment}


def test_grib_fields_seconds_apart_are_rows_of_one_variable(write: Callable[..., Path]) -> None:
    path = write(*(message(ramp(1), shortName="2t", second=second) for second in (1, 36)))
    table = read(path)
    assert table.column_names[3:] == ["t2m"]
    assert list(dict.fromkeys(time.second for time in table["time"].to_pylist())) == [1, 36]


def test_grib_without_valid_time_needs_constant_time(write: Callable[..., Path]) -> None:
    path = write(message(ramp(1), productDefinitionTemplateNumber=31))
    with raises(InputError, expected="valid_time", offset=0):
        read(path)
    times = read(path, "time=@2010-09-08T21:00Z")["time"].to_pylist()
    assert times == [utc(2010, 9, 8, 21)] * (NI * NJ)


@pytest.mark.parametrize("kind", ["sh", "cross_section", "ncep_32769"])
def test_grib_field_without_known_places_is_refused(write: Callable[..., Path], kind: str) -> None:
    sample = "sh_sfc_grib2" if kind == "sh" else "regular_ll_sfc_grib2"
    handle = eccodes.codes_grib_new_from_samples(sample)
    eccodes.codes_set(handle, "gridType", kind)
    data = bytes(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)
    with raises(InputError, expected="places"):
        read(write(data))
    if kind == "sh":
        path = write(data, message(ramp(1), shortName="2t"))
        assert read(path).num_rows == NI * NJ
        assert open_source(path).left_out() == ["t (grid type sh)"]


def test_grib_invalid_date_raises(write: Callable[..., Path]) -> None:
    data = message(ramp(1), shortName="2t")
    assert data[28:32] == bytes([0x07, 0xE4, 2, 29])  # section 1: year, month, day
    path = write(data[:30] + bytes([77]) + data[31:])
    with raises(InputError, expected="time"):
        read(path)


def test_grib_too_many_points_raises(write: Callable[..., Path]) -> None:
    grid = b"\x03\x00%b"  # section 3: its number, the source of the grid, the number of points
    points, many = (number.to_bytes(4) for number in (NI * NJ, 200_000_000))
    data = message(ramp(1), shortName="2t").replace(grid % points, grid % many, 1)
    with raises(InputError, expected="points", bound=100000000, offset=0):
        read(write(data))


def test_grib_truncated_long_message_of_edition_1_raises(write: Callable[..., Path]) -> None:
    with raises(InputError, expected="whole_message", offset=0):
        read(write(b"GRIB\xff\xff\x00\x01\x1b\x02\xff\xff\xff"))


def test_grib_more_values_than_points_raises(write: Callable[..., Path]) -> None:
    """Of 144 bytes: their packing says that there are 2^64 - 3."""
    data = bytes.fromhex(
        "4752494200009001000034806280ff80a70100000703170c00010000000000001500000000000000"
        "000000000000000001010204013030303100000000002000ff000004000300ea6000000080009c40"
        "00753027102710000000000000000108431380e010001800000015d1742ba2e941745d5745d16d17"
        "4682e8ba98ba2fae8ba3c45d17da2e8cf000000037373737"
    )
    with raises(InputError, expected="values", bound=100000000):
        read(write(data))
