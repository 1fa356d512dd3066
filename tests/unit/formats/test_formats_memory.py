"""The same observations, given in every way, are the same rows."""

from __future__ import annotations

import datetime as dt
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galileo.errors import InputError, InvalidObservations
from galileo.formats import Mapping, Source, open_source
from galileo.formats.memory import is_grid, is_table, named_tables, open_grid, open_table
from galileo.model.observations import normalise
from galileo.model.schema import Feature, Schema

SCHEMA = Schema("s", [Feature("t"), Feature("n", type="int")])
MOMENT = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def needs(module: str) -> Any:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")


def frame(rows: list[tuple[float, float, int, float, int]]) -> pd.DataFrame:
    columns = ["lat", "lon", "time", "t", "n"]
    data = pd.DataFrame(rows, columns=columns)
    return data.assign(time=pd.to_datetime(data["time"], unit="s", utc=True))


def as_geopandas(data: pd.DataFrame) -> Any:
    geopandas = pytest.importorskip("geopandas")
    points = geopandas.points_from_xy(data["lon"], data["lat"])
    return geopandas.GeoDataFrame(data.drop(columns=["lat", "lon"]), geometry=points, crs=4326)


def as_polars(data: pd.DataFrame) -> Any:
    return pytest.importorskip("polars").from_arrow(pa.Table.from_pandas(data))


def as_duckdb(data: pd.DataFrame) -> Any:
    return pytest.importorskip("duckdb").from_arrow(pa.Table.from_pandas(data))


def as_stream(data: pd.DataFrame) -> Any:
    table = pa.Table.from_pandas(data)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=2))


TABLES: dict[str, tuple[str, Callable[[pd.DataFrame], Any]]] = {
    "pandas": ("pandas", lambda data: data),
    "arrow": ("pyarrow", pa.Table.from_pandas),
    "batch": ("pyarrow", pa.RecordBatch.from_pandas),
    "stream": ("pyarrow", as_stream),
    "dict of arrays": ("numpy", lambda data: {name: data[name].array for name in data}),
    "dict of lists": ("numpy", lambda data: data.to_dict("list")),
    "geopandas": ("geopandas", as_geopandas),
    "polars": ("polars", as_polars),
    "polars lazily": ("polars", lambda data: as_polars(data).lazy()),
    "duckdb": ("duckdb", as_duckdb),
}
KINDS = [
    pytest.param(make, marks=needs(module), id=name) for name, (module, make) in TABLES.items()
]


def plain(data: Any) -> pa.Table:
    assert is_table(data)
    return pa.concat_tables(normalise(SCHEMA, piece) for piece in named_tables(data))


def mapped(data: Any, *texts: str, missing: Any = None) -> pa.Table:
    mapping = Mapping.of(texts, missing)
    open_it = open_grid if is_grid(data) else open_table
    source = Source(None, open_it(data, mapping), format="", mapping=mapping, schema=SCHEMA)
    return pa.concat_tables(normalise(SCHEMA, batch) for batch in source.batches())


ROWS = st.lists(
    st.tuples(
        st.floats(-90, 90),
        st.floats(-180, 180),
        st.integers(0, 2**31),
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(-(2**53), 2**53),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("make", KINDS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_table_of_any_library_random_rows_equals_file(
    tmp_path: Path, make: Callable[[pd.DataFrame], Any], rows: list[Any]
) -> None:
    data = frame(rows)
    path = tmp_path / "rows.csv"
    data.to_csv(path, index=False)
    of_file = pa.concat_tables(open_source(path, schema=SCHEMA).batches())
    expected = normalise(SCHEMA, of_file)
    assert plain(make(data)).equals(expected)
    assert mapped(make(data), "t=t").equals(expected)


@needs("xarray")
def test_xarray_grid_equals_its_table() -> None:
    xarray = pytest.importorskip("xarray")
    grid = xarray.Dataset(
        {
            "t": (("lat", "time", "lon"), np.arange(12.0).reshape(2, 2, 3)),
            "n": (("time", "lat", "lon"), np.arange(12).reshape(2, 2, 3)),
        },
        {
            "lat": [10.0, 20.0],
            "lon": [0.0, 90.0, 270.0],
            "time": pd.to_datetime(["2020-01-01", "2020-01-02"]),
        },
    )
    expected = plain(grid.to_dataframe(dim_order=["time", "lat", "lon"]).reset_index())
    assert mapped(grid).equals(expected)
    assert mapped(grid.isel(lat=1, lon=2)).equals(expected.take([5, 11]))
    assert mapped(grid["t"], "t=t").column("t").equals(expected.column("t"))
    with raises(InvalidObservations, expected="name"):
        mapped(grid["t"].rename(None))


@needs("xarray")
def test_xarray_undecoded_dataset_is_unpacked() -> None:
    xarray = pytest.importorskip("xarray")
    packing = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16(-1)}
    places = {"lat": [1.0], "lon": [2.0, 3.0, 4.0], "time": [np.datetime64("2020-01-01")]}
    stored = np.array([[[2, -1, 4]]], dtype=np.int16)
    packed = xarray.Dataset({"t": (("time", "lat", "lon"), stored, packing)}, places)
    assert mapped(packed, "t=t")["t"].to_pylist() == [11.0, 12.0]
    packed["t"].attrs["scale_factor"] = [1.0, 2.0]
    with raises(InputError, expected="whole_file", format="NetCDF"):
        mapped(packed, "t=t")


@needs("xarray")
def test_xarray_curvilinear_grid_and_stations_are_read() -> None:
    xarray = pytest.importorskip("xarray")
    place = {"latitude": (("y", "x"), [[1.0, 2.0]]), "longitude": (("y", "x"), [[3.0, 4.0]])}
    grid = xarray.Dataset(
        {"t": (("y", "x"), [[5.0, np.nan]])}, place | {"time": MOMENT.isoformat()}
    )
    rows = mapped(grid.assign_coords(time=np.datetime64("2020-01-01")), "t=t")
    assert rows.to_pylist() == [
        {"latitude": 1.0, "longitude": 3.0, "time": MOMENT, "t": 5.0, "n": None}
    ]
    stations = xarray.Dataset(
        {"t": (("station", "time"), [[1.0], [2.0]])},
        {
            "lat": ("station", [1.0, 2.0]),
            "lon": ("station", [3.0, 4.0]),
            "time": xarray.date_range("2020-01-01", periods=1, calendar="noleap", use_cftime=True),
        },
    )
    rows = mapped(stations, "t=t")
    assert rows.column("longitude").to_pylist() == [3.0, 4.0]
    assert rows.column("time").to_pylist() == [MOMENT, MOMENT]


@needs("xarray")
@needs("netCDF4")
def test_xarray_dataset_equals_its_file(sample_data: Path) -> None:
    xarray = pytest.importorskip("xarray")
    path = sample_data / "wrf_g212_20050807T00Z_f000-f024.nc"
    names = [one.name for one in open_source(path).variables()][:2]
    mapping = Mapping.of([f"v{number}={name}" for number, name in enumerate(names)])
    expected = pa.concat_tables(open_source(path, mapping=mapping).batches())
    with xarray.open_dataset(path, decode_coords="all") as dataset:
        reader = open_grid(dataset, mapping)
        source = Source(None, reader, format="", mapping=mapping, schema=None)
        assert pa.concat_tables(source.batches()).equals(expected)


@needs("geopandas")
def test_geodataframe_projected_points_become_degrees() -> None:
    data = as_geopandas(frame([(40.0, -105.0, 0, 1.0, 2), (-10.0, 20.0, 5, 3.0, 4)]))
    rows = plain(data.to_crs(3857))
    np.testing.assert_allclose(rows.column("latitude"), [40.0, -10.0], atol=1e-9)
    np.testing.assert_allclose(rows.column("longitude"), [-105.0, 20.0], atol=1e-9)


@needs("geopandas")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data.set_crs(None, allow_override=True), "crs"),
        (lambda data: data.set_geometry(data.buffer(1.0)), "points"),
        (lambda data: data.assign(lat=7.0), "same_points"),
    ],
)
@pytest.mark.filterwarnings("ignore:Geometry is in a geographic CRS")
def test_geodataframe_ambiguous_geometries_raises(
    change: Callable[[Any], Any], expected: str
) -> None:
    with raises(InvalidObservations, expected=expected):
        plain(change(as_geopandas(frame([(40.0, -105.0, 0, 1.0, 2)]))))


@needs("geopandas")
def test_geodataframe_columns_equal_to_points_are_dropped() -> None:
    data = as_geopandas(frame([(40.0, -105.0, 0, 1.0, 2)]))
    assert plain(data.assign(lat=40.0, lon=-105.0)).equals(plain(data))


def test_dict_single_value_is_that_of_every_row() -> None:
    data = {"lat": 39.1, "lon": -105.5, "timestamp": [MOMENT, MOMENT], "t": [1, 2], "n": 3}
    rows = plain(data).to_pylist()
    assert [(row["latitude"], row["t"], row["n"]) for row in rows] == [
        (39.1, 1.0, 3),
        (39.1, 2.0, 3),
    ]


def test_arrow_table_decimals_become_floats() -> None:
    table = pa.table({"t": pa.array([1.5]).cast(pa.decimal128(3, 1)), "n": [2]})
    place = {"lat": [1.0], "lon": [2.0], "time": [MOMENT]}
    for name, values in place.items():
        table = table.append_column(name, pa.array(values))
    assert plain(table).column("t").to_pylist() == [1.5]


def test_mapped_table_rows_without_value_are_skipped() -> None:
    data = frame([(1.0, 2.0, 0, -9999.0, -9999), (1.0, 2.0, 0, -9999.0, 5)]).assign(other="x")
    rows = mapped(data.set_index("time"), "t=t * 2", missing=-9999)
    assert rows.select(["t", "n"]).to_pylist() == [{"t": None, "n": 5}]
    with raises(
        InvalidObservations,
        expected="columns_of_dataset",
        missing_columns=[],
        unknown_columns=["other"],
    ):
        plain(data)


def test_table_ambiguous_coordinate_raises() -> None:
    data = frame([(1.0, 2.0, 0, 1.0, 2)]).assign(lng=3.0)
    with raises(InputError, expected="one_column", column="longitude"):
        plain(data)


def test_record_batch_reader_is_read_lazily() -> None:
    taken: list[int] = []
    table = pa.Table.from_pandas(frame([(1.0, 2.0, 0, 1.0, 2)]))

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            taken.append(number)
            yield from table.to_batches()

    pieces = named_tables(pa.RecordBatchReader.from_batches(table.schema, batches()))
    next(iter(pieces))
    assert len(taken) == 1
