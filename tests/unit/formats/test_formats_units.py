"""What files say of their variables: units that are converted, flags, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expected_errors import raises

from galileo.errors import GalileoWarning, IncompatibleUnits
from galileo.formats import Mapping, open_source, suggest_schema
from galileo.formats.csv_options import CsvOptions
from galileo.model.feature_metadata import described, from_attributes
from galileo.model.observations import normalise
from galileo.model.schema import Feature, Schema

KELVIN = Schema("air", [Feature("t", unit="K")])


def table(values: list[Any], **feature: Any) -> pa.Table:
    columns = {
        "latitude": [1.0] * len(values),
        "longitude": [2.0] * len(values),
        "time": pa.array(range(len(values)), pa.timestamp("us", "UTC")),
    }
    return described(pa.table({**columns, "t": values}), [Feature("t", **feature)])


def write(path: Path, values: list[Any], **feature: Any) -> Path:
    pq.write_table(table(values, **feature), path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "air.parquet"


def test_values_are_converted_to_the_unit_of_the_feature(path: Path) -> None:
    source = open_source(write(path, [32.0, None, 212.0, 50.0], unit="degF"), schema=KELVIN)
    read = pa.concat_tables(source.batches()).column("t").to_pylist()
    assert read == pytest.approx([273.15, 373.15, 283.15])
    assert not source.warnings()
    [feature] = suggest_schema(open_source(path), "air").features
    assert feature.unit == "degF"


def test_tables_in_memory_are_converted_too() -> None:
    rows = normalise(KELVIN, table([32.0, None, 212.0], unit="degF"))
    assert rows.column("t").to_pylist() == pytest.approx([273.15, None, 373.15])
    with raises(IncompatibleUnits, unit="K", got="m"):
        normalise(KELVIN, table([32.0], unit="m"))


def test_units_of_a_csv_line_are_converted(tmp_path: Path) -> None:
    path = tmp_path / "air.csv"
    path.write_text("lat,lon,time,t\ndegrees,degrees,UTC,degF\n1,2,2020-01-01,50\n")
    mapping = Mapping.of(None, csv=CsvOptions(units=True))
    source = open_source(path, mapping=mapping, schema=KELVIN)
    assert next(source.batches()).column("t").to_pylist() == pytest.approx([283.15])


def test_whole_numbers_stay_whole_or_are_refused(path: Path) -> None:
    metres = Schema("depths", [Feature("t", unit="m", type="int")])
    source = open_source(write(path, [1, 2], unit="km", type="int"), schema=metres)
    assert next(source.batches()).column("t").to_pylist() == [1000, 2000]


def test_units_that_cannot_be_converted_are_refused(path: Path) -> None:
    source = open_source(write(path, [1.0], unit="m"), schema=KELVIN)
    with raises(IncompatibleUnits, unit="K", got="m", feature="t"):
        list(source.batches())


def test_result_of_arithmetic_has_no_unit_and_is_not_converted(path: Path) -> None:
    mapping = Mapping.parse(["t=t * 1"])
    source = open_source(write(path, [1.0], unit="m"), schema=KELVIN, mapping=mapping)
    assert next(source.batches()).column("t").to_pylist() == [1.0]


def test_unknown_unit_of_a_file_is_left_out_with_a_warning(path: Path) -> None:
    source = open_source(write(path, [1.0], unit="psu"))
    with pytest.warns(GalileoWarning, match="t: left out of its description: the unit 'psu'"):
        [feature] = suggest_schema(source, "sea").features
    assert feature.unit == ""
    assert source.warnings() == []
    known = open_source(path, schema=KELVIN)
    assert next(known.batches()).column("t").to_pylist() == [1.0]
    [warning] = known.warnings()
    assert "the unit 'psu' of t is unknown, so the values were taken as 'K'" in str(warning)


@pytest.fixture
def netcdf(tmp_path: Path) -> Path:
    path = tmp_path / "sea.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("obs", 3)
        for name, units in (("lat", "degrees_north"), ("lon", "degrees_east")):
            file.createVariable(name, "f8", ("obs",))[:] = np.arange(3.0)
            file[name].units = units
        file.createVariable("time", "f8", ("obs",))[:] = np.arange(3.0)
        file["time"].units = "hours since 2020-01-01"
        for name in ("lat", "lon", "time"):
            file[name].standard_name = {"lat": "latitude", "lon": "longitude"}.get(name, name)
        file.createVariable("t", "f8", ("obs",))[:] = [280.0, 281.0, 282.0]
        file["t"].setncatts({"units": "K", "standard_name": "sea_water_temperature"})
        file["t"].long_name = "temperature\n  of the sea"
        for name in ("qc", "bits"):
            file.createVariable(name, "i1", ("obs",))[:] = [1, 4, 1]
        meanings = {"flag_meanings": "good bad"}
        file["qc"].setncatts({"flag_values": np.array([1, 4], "i1"), **meanings})
        file["bits"].setncatts({"flag_masks": np.array([1, 4], "i1"), **meanings})
    return path


def test_attributes_of_cf_describe_features(netcdf: Path) -> None:
    source = open_source(netcdf)
    with pytest.warns(GalileoWarning, match="bits: left out .*: flag_masks without flag_values"):
        schema = suggest_schema(source, "sea")
    temperature, qc, bits = (schema.feature(name) for name in ("t", "qc", "bits"))
    assert temperature is not None
    assert temperature.standard_name == "sea_water_temperature"
    assert temperature.description == "temperature of the sea"
    assert qc is not None
    assert qc.flags == {1: "good", 4: "bad"}
    assert bits is not None
    assert bits.flags == {}


@pytest.mark.parametrize(
    ("attributes", "left_out"),
    [
        ({"flag_values": [1, 2], "flag_meanings": "good"}, "1 flag_meanings for 2 flag_values"),
        ({"flag_values": [1, 1], "flag_meanings": "good bad"}, "two are equal"),
        ({"flag_values": [1, 2], "flag_meanings": "good good"}, "have one meaning"),
        ({"flag_values": [1.5], "flag_meanings": "good"}, "without flag_values"),
        ({"flag_values": "x", "flag_meanings": "good"}, "without flag_values"),
        ({"flag_values": np.array([1 << 63], "u8"), "flag_meanings": "good"}, "without"),
        ({"flag_values": str(1 << 70), "flag_meanings": "good"}, "without flag_values"),
        ({"flag_values": [1], "flag_meanings": "goöd"}, "characters"),
    ],
)
def test_flags_that_contradict_each_other_are_left_out(
    attributes: dict[str, Any], left_out: str
) -> None:
    about = from_attributes({"units": "K", **attributes})
    assert (about.unit, about.flags) == ("K", ())
    assert left_out in about.left_out
