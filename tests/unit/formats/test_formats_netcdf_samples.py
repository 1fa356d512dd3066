"""Stations, trajectories and profiles in all forms of the CF conventions, chapter 9.

The same made-up observations are written in each form. What is read is compared with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from sensor_files import write_glider

from galileo.errors import InputError, UnknownProperty
from galileo.formats import GridOptions, Mapping, Source, netcdf, open_source, suggest_schema
from galileo.formats.netcdf import open_netcdf

netCDF4 = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
xarray = pytest.importorskip("xarray", reason="xarray is not installed")

FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "point": (("lat", "lon", "time", "temp"),),
    "timeSeries": (("lat", "lon", "name"), ("time", "temp")),
    "trajectory": (("name",), ("lat", "lon", "time", "temp")),
    "profile": (("lat", "lon", "time", "name"), ("depth", "temp")),
    "timeSeriesProfile": (("lat", "lon", "name"), ("time",), ("depth", "temp")),
    "trajectoryProfile": (("name",), ("lat", "lon", "time"), ("depth", "temp")),
}
"""What instances have, then what their profiles have, then what each sample has."""
DIMS = ("station", "profile", "obs")
ATTRIBUTES: dict[str, dict[str, str]] = {
    "lat": {"units": "degrees_north", "standard_name": "latitude"},
    "lon": {"units": "degrees_east", "standard_name": "longitude"},
    "time": {"units": "hours since 2020-01-01", "standard_name": "time"},
    "depth": {"units": "m", "positive": "down", "standard_name": "depth", "long_name": "depth"},
    "name": {"cf_role": "timeseries_id"},
    "temp": {"units": "degC", "coordinates": "time lat lon depth name"},
}
COLUMNS = ("lat", "lon", "time", "depth", "name", "temp")

Row = tuple[Any, ...]


@dataclass
class Node:
    """An instance, profile or sample: its values, and what belongs to it."""

    values: dict[str, Any]
    children: list[Node] = field(default_factory=list)


def made_up(kind: str, random: np.random.Generator, *, equal: int = 0) -> list[Node]:
    """Some instances; with `equal` children each, which have equal times and depths."""
    names = (f"buoy {number}" for number in itertools.count())

    def nodes(depth: int) -> list[Node]:
        count = equal or int(random.integers(2, 6))
        return [
            Node(
                {name: value(name, position) for name in FORMS[kind][depth]},
                nodes(depth + 1) if depth + 1 < len(FORMS[kind]) else [],
            )
            for position in range(count)
        ]

    def value(name: str, position: int) -> Any:
        if name == "name":
            return next(names)
        if equal and name in ("time", "depth"):
            return float(position)
        if name == "temp" and random.random() < 0.2:
            return np.nan
        return float(random.integers(0, 80))

    return nodes(0)


def rows_of(nodes: Sequence[Node], above: dict[str, Any] | None = None) -> Iterator[Row]:
    """The observations, as a dumb reader makes them; without those that have no value."""
    for node in nodes:
        known = (above or {}) | node.values
        if node.children:
            yield from rows_of(node.children, known)
        elif not np.isnan(known["temp"]):
            yield tuple(known.get(name) for name in COLUMNS)


def put(file: Any, name: str, dims: Sequence[str], values: Any, **attrs: str) -> None:
    array = np.asarray(values)
    if array.dtype.kind == "U":  # As characters: strings of NetCDF-4 are in other tests.
        array = np.char.encode(array, "utf-8").astype("S16")
        array = np.atleast_1d(array).view("S1").reshape((*array.shape, 16))
        if "length" not in file.dimensions:
            file.createDimension("length", 16)
        dims = (*dims, "length")
    variable = file.createVariable(name, array.dtype, tuple(dims))
    variable.setncatts(ATTRIBUTES.get(name, {}) | attrs)
    variable[...] = array


def write_padded(file: Any, kind: str, nodes: Sequence[Node]) -> None:
    """Incomplete multidimensional arrays."""
    levels = FORMS[kind]
    sizes = [0] * len(levels)

    def measure(nodes: Sequence[Node], depth: int) -> None:
        if depth < len(levels):
            sizes[depth] = max(sizes[depth], len(nodes))
            for node in nodes:
                measure(node.children, depth + 1)

    measure(nodes, 0)
    dims = [*DIMS[: len(levels) - 1], "obs"]
    for dim, size in zip(dims, sizes, strict=True):
        file.createDimension(dim, size)
    arrays: dict[str, Any] = {
        name: np.full(sizes[: depth + 1], "" if name == "name" else np.nan).astype(
            "U16" if name == "name" else float
        )
        for depth, names in enumerate(levels)
        for name in names
    }

    def fill(nodes: Sequence[Node], at: tuple[int, ...]) -> None:
        for position, node in enumerate(nodes):
            for name, value in node.values.items():
                arrays[name][(*at, position)] = value
            fill(node.children, (*at, position))

    fill(nodes, ())
    for name, array in arrays.items():
        put(file, name, dims[: array.ndim], array)


def write_orthogonal(file: Any, kind: str, nodes: Sequence[Node]) -> None:
    """Multidimensional arrays whose times and depths are the same for all instances."""
    levels = FORMS[kind]
    dims = [*DIMS[: len(levels) - 1], "obs"]
    flat = list(nodes)
    sizes = []
    for depth, (dim, names) in enumerate(zip(dims, levels, strict=True)):
        sizes.append(len(nodes) if depth == 0 else len(flat))
        file.createDimension(dim, sizes[-1])
        for name in names:
            if name in ("time", "depth") and depth > 0:
                put(file, name, (dim,), [node.values[name] for node in flat])
        flat = flat[0].children
    at_depth = [*nodes]
    for depth, names in enumerate(levels):
        for name in names:
            if not (name in ("time", "depth") and depth > 0):
                values = np.array([node.values[name] for node in at_depth])
                put(file, name, dims[: depth + 1], values.reshape(sizes[: depth + 1]))
        at_depth = [child for node in at_depth for child in node.children]


def write_ragged(
    file: Any, kind: str, nodes: Sequence[Node], *, by_index: Sequence[bool], random: Any
) -> None:
    """Ragged arrays, indexed or contiguous; the samples of indexed ones are in any order."""
    levels = FORMS[kind]
    dims = [*DIMS[: len(levels) - 1], "obs"]
    file.createDimension(dims[0], len(nodes))
    for depth, names in enumerate(levels):
        for name in names:
            put(file, name, (dims[depth],), [node.values[name] for node in nodes])
        if depth + 1 == len(levels):
            return
        pairs = [(place, child) for place, node in enumerate(nodes) for child in node.children]
        if by_index[depth]:
            pairs = [pairs[place] for place in random.permutation(len(pairs))]
        file.createDimension(dims[depth + 1], len(pairs))
        if by_index[depth]:
            index = np.array([place for place, _ in pairs], np.int32)
            put(file, f"index_{depth}", (dims[depth + 1],), index, instance_dimension=dims[depth])
        else:
            counts = np.array([len(node.children) for node in nodes], np.int16)
            put(file, f"count_{depth}", (dims[depth],), counts, sample_dimension=dims[depth + 1])
        nodes = [child for _, child in pairs]


def write_single(file: Any, kind: str, node: Node) -> None:
    """One instance, whose values are scalars."""
    dims = DIMS[-len(FORMS[kind]) + 1 :] if len(FORMS[kind]) > 1 else ()
    for name, value in node.values.items():
        put(file, name, (), value)
    for dim, names in zip(dims, FORMS[kind][1:], strict=True):
        if dim == "obs":
            file.createDimension(dim, len(node.children))
            for name in names:
                put(file, name, (dim,), [child.values[name] for child in node.children])


def read(path: Path, *texts: str, grid: GridOptions | None = None) -> tuple[Source, pa.Table]:
    source = open_source(path, mapping=Mapping.of(texts, grid=grid))
    return source, pa.concat_tables(source.batches())


def rows_in(table: pa.Table) -> list[Row]:
    hours = [time.timestamp() / 3600 - 438288 for time in table["time"].to_pylist()]
    columns = {"lat": table["latitude"].to_pylist(), "lon": table["longitude"].to_pylist()}
    columns |= {"time": [float(hour) for hour in hours]}
    for name in ("depth", "name", "temp"):
        has_it = name in table.column_names
        columns[name] = table[name].to_pylist() if has_it else [None] * table.num_rows
    return sorted(zip(*(columns[name] for name in COLUMNS), strict=True), key=str)


def check(path: Path, nodes: Sequence[Node]) -> None:
    source, table = read(path)
    assert rows_in(table) == sorted(rows_of(nodes), key=str)
    assert source.left_out() == []


def forms(kind: str) -> list[str]:
    deep = len(FORMS[kind])
    ragged = (
        ["".join(each) for each in itertools.product("ci", repeat=deep - 1)] if deep > 1 else []
    )
    return ["padded", *(["orthogonal"] if deep > 1 and kind != "trajectory" else []), *ragged]


@pytest.mark.parametrize("group", ["", "DATA/buoys"])
@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in FORMS for form in forms(kind)])
def test_samples_of_each_form_are_the_rows_that_were_written(
    tmp_path: Path, kind: str, form: str, group: str
) -> None:
    random = np.random.default_rng(len(kind) * 10 + len(form))
    for number in range(3):
        path = tmp_path / f"{number}.nc"
        nodes = made_up(kind, random, equal=3 if form == "orthogonal" else 0)
        with netCDF4.Dataset(path, "w") as file:
            file.featureType = kind
            target = file.createGroup(group) if group else file
            if form == "padded":
                write_padded(target, kind, nodes)
            elif form == "orthogonal":
                write_orthogonal(target, kind, nodes)
            else:
                write_ragged(
                    target, kind, nodes, by_index=[each == "i" for each in form], random=random
                )
        check(path, nodes)


@pytest.mark.parametrize("kind", ["point", "timeSeries", "trajectory", "profile"])
def test_samples_of_a_single_instance_are_rows(tmp_path: Path, kind: str) -> None:
    node = made_up(kind, np.random.default_rng(5))[0]
    with netCDF4.Dataset(tmp_path / "file.nc", "w") as file:
        file.featureType = kind
        write_single(file, kind, node)
    check(tmp_path / "file.nc", [node])


def test_samples_are_known_by_the_role_of_their_names(tmp_path: Path) -> None:
    nodes = made_up("profile", np.random.default_rng(6))
    with netCDF4.Dataset(tmp_path / "file.nc", "w") as file:
        write_padded(file, "profile", nodes)
    check(tmp_path / "file.nc", nodes)


def test_samples_in_slabs_of_any_size_are_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    nodes = made_up("timeSeriesProfile", random)
    with netCDF4.Dataset(tmp_path / "file.nc", "w") as file:
        file.featureType = "timeSeriesProfile"
        write_ragged(file, "timeSeriesProfile", nodes, by_index=[True, False], random=random)
    tables = []
    for values_max in (1, 7, 1 << 20):
        reader = open_netcdf(tmp_path / "file.nc", Mapping(), slab_values_max=values_max)
        pieces = list(reader.scan(["name", "depth", "temp", "lat"]))
        assert max(piece.num_rows for piece in pieces) <= values_max
        tables.append(str(pa.concat_tables(pieces).to_pylist()))  # A NaN is not equal to itself.
    assert tables[0] == tables[1] == tables[2]


def test_vertical_and_names_are_described(tmp_path: Path) -> None:
    nodes = made_up("profile", np.random.default_rng(3))
    with netCDF4.Dataset(tmp_path / "file.nc", "w") as file:
        file.featureType = "profile"
        write_padded(file, "profile", nodes)
    schema = suggest_schema(open_source(tmp_path / "file.nc"), "ocean")
    depth, name = schema.feature("depth"), schema.feature("name")
    assert depth is not None
    assert name is not None
    assert (depth.unit, depth.standard_name, depth.description) == ("m", "depth", "depth")
    assert name.type == "text"


def test_samples_with_places_and_times_of_their_own_have_those(tmp_path: Path) -> None:
    write_glider(tmp_path / "glider.nc")
    _, table = read(tmp_path / "glider.nc")
    with xarray.open_dataset(tmp_path / "glider.nc", decode_times=False) as dataset:
        for name, column in {"lat": "latitude", "lon": "longitude", "depth": "depth"}.items():
            assert table[column].to_pylist() == dataset[name].values.tolist()
        times = [time.timestamp() for time in table["time"].to_pylist()]
        assert times == dataset["time"].values.tolist()


# --- ragged arrays that are damaged ------------------------------------------------------------


def write_stations(path: Path, link: str, dims: tuple[str, ...], values: Any, **attrs: str) -> None:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("station", 2)
        file.createDimension("obs", 4)
        put(file, "lat", ("station",), [10.0, 20.0])
        put(file, "lon", ("station",), [1.0, 2.0])
        put(file, "time", ("obs",), np.arange(4.0))
        put(file, "temp", ("obs",), np.arange(4.0))
        put(file, link, dims, values, **attrs)


@pytest.mark.parametrize(
    ("counts", "attrs"),
    [
        ([2, 3], {}),
        ([2, 1], {}),
        ([5, -1], {}),
        ([2**30, 2**30], {}),
        ([2.0, 2.0], {}),
        ([2, 2], {"sample_dimension": "nothing"}),
        ([2, 2], {"sample_dimension": "station"}),
    ],
)
def test_ragged_counts_that_contradict_the_samples_are_refused(
    tmp_path: Path, counts: list[Any], attrs: dict[str, str]
) -> None:
    attrs = {"sample_dimension": "obs"} | attrs
    write_stations(tmp_path / "file.nc", "row_size", ("station",), np.array(counts), **attrs)
    with raises(InputError, expected="ragged_array", variable="row_size"):
        open_source(tmp_path / "file.nc")


@pytest.mark.parametrize("indices", [[0, 1, 2, 0], [0, -1, 1, 0], [1, 2, 1, 2]])
def test_ragged_indices_beyond_the_stations_are_refused(tmp_path: Path, indices: list[int]) -> None:
    attrs = {"instance_dimension": "station"}
    write_stations(tmp_path / "file.nc", "of", ("obs",), np.array(indices, np.int32), **attrs)
    with raises(InputError, expected="ragged_array", variable="of"):
        open_source(tmp_path / "file.nc")


def test_ragged_samples_without_a_station_are_no_rows(tmp_path: Path) -> None:
    fill = np.array(netCDF4.default_fillvals["i4"], np.int32)
    indices = np.array([1, fill, 0, 1], np.int32)
    write_stations(tmp_path / "file.nc", "of", ("obs",), indices, instance_dimension="station")
    _, table = read(tmp_path / "file.nc")
    assert table["temp"].to_pylist() == [0.0, 2.0, 3.0]
    assert table["latitude"].to_pylist() == [20.0, 10.0, 20.0]


def test_ragged_arrays_that_share_their_stations_are_refused(tmp_path: Path) -> None:
    counts, attrs = np.array([2, 2], np.int32), {"sample_dimension": "obs"}
    write_stations(tmp_path / "file.nc", "one", ("station",), counts, **attrs)
    with netCDF4.Dataset(tmp_path / "file.nc", "a") as file:
        put(file, "two", ("station",), counts, **attrs)
    with raises(InputError, expected="ragged_array"):
        open_source(tmp_path / "file.nc")


# --- Argo -------------------------------------------------------------------------------------


def write_argo(path: Path, *, is_cf: bool) -> Any:
    """A profile file as Argo writes it; returns the pressures and the flags of temperatures."""
    random = np.random.default_rng(1)
    pressures = np.where(
        np.arange(6) < [[6], [4], [5]], np.arange(6) * 10.0 + [[1], [2], [3]], np.nan
    )
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.Conventions = "Argo-3.1 CF-1.6" if is_cf else "something"
        for dim, size in {"N_PROF": 3, "N_LEVELS": 6, "N_PARAM": 2, "STRING8": 8}.items():
            file.createDimension(dim, size)
        file.createDimension("N_HISTORY", None)

        def put_argo(name: str, dims: tuple[str, ...], values: Any, **attrs: Any) -> None:
            fill = b" " if np.asarray(values).dtype.kind == "S" else 99999.0
            kind = np.asarray(values).dtype
            variable = file.createVariable(name, kind, dims, fill_value=fill)
            variable.setncatts(attrs)
            is_known = np.asarray(values) == np.asarray(values)
            variable[:] = np.where(is_known, values, fill) if kind.kind == "f" else values

        put_argo("LATITUDE", ("N_PROF",), [10.0, 11.0, 12.0], units="degree_north", axis="Y")
        put_argo("LONGITUDE", ("N_PROF",), [-40.0, -41.0, -42.0], units="degree_east", axis="X")
        put_argo(
            "JULD",
            ("N_PROF",),
            [25567.0, 25568.0, 25569.0],
            units="days since 1950-01-01 00:00:00 UTC",
        )
        put_argo(
            "JULD_LOCATION",
            ("N_PROF",),
            [1.0, 2.0, 3.0],
            units="days since 1950-01-01 00:00:00 UTC",
        )
        texts = np.array([list(b"6901472 ")] * 3, np.uint8).view("S1").reshape(3, 8)
        put_argo(
            "PLATFORM_NUMBER", ("N_PROF", "STRING8"), texts, long_name="Float unique identifier"
        )
        put_argo("DIRECTION", ("N_PROF",), np.array([b"A", b"D", b"A"]))
        known = ~np.isnan(pressures)
        put_argo(
            "PRES",
            ("N_PROF", "N_LEVELS"),
            pressures.astype("f4"),
            units="decibar",
            axis="Z",
            standard_name="sea_water_pressure",
        )
        for name in ("TEMP", "PSAL"):
            values = np.where(known, random.integers(2, 30, (3, 6)), np.nan)
            put_argo(name, ("N_PROF", "N_LEVELS"), values.astype("f4"))
        flags = np.where(known, b"1", b" ")
        flags[0, 2], flags[1, 0] = b"4", b"9"
        put_argo("TEMP_QC", ("N_PROF", "N_LEVELS"), flags, conventions="Argo reference table 2")
    return pressures, flags


@pytest.mark.parametrize("is_cf", [True, False])
def test_argo_profiles_are_rows_with_flags(tmp_path: Path, is_cf: bool) -> None:
    path = tmp_path / "argo.nc"
    pressures, flags = write_argo(path, is_cf=is_cf)
    source, table = read(path, grid=None if is_cf else GridOptions(rows=["N_LEVELS"]))
    known = ~np.isnan(pressures)
    assert table["pres"].to_pylist() == pressures[known].tolist()
    assert table["temp_qc"].to_pylist() == [int(flag) for flag in flags[known]]
    assert table["latitude"].to_pylist() == np.repeat([10.0, 11.0, 12.0], known.sum(1)).tolist()
    with xarray.open_dataset(path, decode_times=False) as dataset:
        assert table["psal"].to_pylist() == dataset["PSAL"].values[known].tolist()
    schema = suggest_schema(source, "argo")
    flag = schema.feature("temp_qc")
    assert flag is not None
    assert flag.flags[1] == "good_data"
    assert set(table["platform_number"].to_pylist()) == {"6901472"}
    assert table["direction"].to_pylist()[5:7] == ["A", "D"]
    assert source.left_out() == ["JULD_LOCATION"]


# --- rows that are asked for ---------------------------------------------------------------------


def write_grid(path: Path, *, members: bool = False, named: bool = True) -> Any:
    values = np.arange(24.0).reshape(2, 3, 2, 2)
    values[0, 1] = np.nan
    with netCDF4.Dataset(path, "w") as file:
        for dim, size in {"time": 2, "level": 3, "lat": 2, "lon": 2}.items():
            file.createDimension(dim, size)
        put(file, "time", ("time",), [0.0, 6.0])
        put(file, "lat", ("lat",), [10.0, 20.0])
        put(file, "lon", ("lon",), [1.0, 2.0])
        if named:
            attrs = {"standard_name": "realization"} if members else {"units": "hPa"}
            put(file, "level", ("level",), np.array([850, 700, 500], np.int32), **attrs)
        put(file, "t", ("time", "level", "lat", "lon"), values)
        put(file, "ground", ("time", "lat", "lon"), np.zeros((2, 2, 2)))
    return values


@pytest.mark.parametrize(("members", "named"), [(False, True), (True, True), (False, False)])
def test_levels_and_members_of_a_grid_are_rows(tmp_path: Path, members: bool, named: bool) -> None:
    values = write_grid(tmp_path / "file.nc", members=members, named=named)
    grid = None if members else GridOptions(rows=["level"])
    source, table = read(tmp_path / "file.nc", grid=grid)
    known = ~np.isnan(values)
    assert table["t"].to_pylist() == values[known].tolist()
    levels = np.array([850, 700, 500] if named else [0, 1, 2])
    wanted = np.broadcast_to(levels[None, :, None, None], values.shape)[known]
    assert table["level"].to_pylist() == wanted.tolist()
    assert source.left_out() == ["ground"]


def test_level_variable_of_two_dimensions_names_no_variables(tmp_path: Path) -> None:
    """Without a featureType, depths of each profile are no coordinate of the levels."""
    with netCDF4.Dataset(tmp_path / "file.nc", "w") as file:
        file.createDimension("profile", 2)
        file.createDimension("depth", 3)
        for name in ("lat", "lon", "time"):
            put(file, name, ("profile",), [1.0, 2.0])
        put(file, "depth", ("profile", "depth"), np.arange(6.0).reshape(2, 3))
        put(file, "temp", ("profile", "depth"), np.arange(6.0).reshape(2, 3))
    _, table = read(tmp_path / "file.nc")
    assert table["temp_depth_2"].to_pylist() == [2.0, 5.0]
    _, table = read(tmp_path / "file.nc", grid=GridOptions(rows=["depth"]))
    assert table["depth"].to_pylist() == table["temp"].to_pylist() == list(range(6))


def test_row_dimension_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write_grid(tmp_path / "file.nc")
    with raises(UnknownProperty, dimension="levels", nearest="level"):
        read(tmp_path / "file.nc", grid=GridOptions(rows=["levels"]))


def test_rows_of_a_file_that_is_no_netcdf_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file.csv").write_text("lat,lon,time,t\n1,2,2020-01-01,3\n")
    with raises(InputError, expected="grid"):
        read(tmp_path / "file.csv", grid=GridOptions(rows=["level"]))


def test_level_alone_is_a_feature_if_it_is_mapped(tmp_path: Path) -> None:
    write_grid(tmp_path / "file.nc")
    _, table = read(tmp_path / "file.nc", "p=level", grid=GridOptions(rows=["level"]))
    assert table.num_rows == 24


# --- groups -----------------------------------------------------------------------------------


def write_groups(path: Path, *names: str) -> None:
    with netCDF4.Dataset(path, "w") as file:
        for number, name in enumerate(names):
            group = file.createGroup(name)
            for dim in ("time", "lat", "lon"):
                group.createDimension(dim, 2)
                put(group, dim, (dim,), [0.0, 1.0])
            put(group, "t", ("time", "lat", "lon"), np.full((2, 2, 2), float(number)))
        file.createGroup("METADATA")


def test_group_with_places_is_read(tmp_path: Path) -> None:
    write_groups(tmp_path / "file.nc", "PRODUCT")
    source, table = read(tmp_path / "file.nc")
    assert table.num_rows == 8
    assert source.left_out() == ["group METADATA"]


def test_group_has_to_be_named_if_several_have_places(tmp_path: Path) -> None:
    write_groups(tmp_path / "file.nc", "a", "b")
    with raises(InputError, expected="group", candidates=["a", "b"]):
        read(tmp_path / "file.nc")
    _, table = read(tmp_path / "file.nc", grid=GridOptions(group="/b"))
    assert set(table["t"].to_pylist()) == {1.0}
    with raises(UnknownProperty, group="B", nearest="b"):
        read(tmp_path / "file.nc", grid=GridOptions(group="B"))


def test_group_has_to_be_named_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_groups(tmp_path / "file.nc", "PRODUCT")
    monkeypatch.setattr(netcdf, "GROUPS_MAX", 2)
    assert read(tmp_path / "file.nc")[1].num_rows == 8
    monkeypatch.setattr(netcdf, "GROUPS_MAX", 1)
    with raises(InputError, expected="group", candidates=["PRODUCT", "METADATA"]):
        read(tmp_path / "file.nc")


def test_group_with_a_dimension_of_its_own_has_no_coordinates_of_its_parent(tmp_path: Path) -> None:
    write_grid(tmp_path / "file.nc")
    with netCDF4.Dataset(tmp_path / "file.nc", "a") as file:
        group = file.createGroup("sub")
        group.createDimension("lat", 2)
        put(group, "u", ("time", "lat", "lon"), np.zeros((2, 2, 2)))
    with raises(InputError, expected="coordinate", variable="latitude"):
        read(tmp_path / "file.nc", grid=GridOptions(group="sub"))


# --- forecasts --------------------------------------------------------------------------------


RUN = {"standard_name": "forecast_reference_time"}


def write_runs(path: Path, *, form: str) -> Any:
    """Two runs, six hours apart, with four leads of six hours; returns the values (run, lead)."""
    values = np.arange(8.0).reshape(2, 4)
    with netCDF4.Dataset(path, "w") as file:
        for dim, size in {"run": 2, "step": 4}.items():
            file.createDimension(dim, size)
        put(file, "lat", (), 10.0)
        put(file, "lon", (), 20.0)
        runs, leads = np.array([0.0, 6.0]), np.array([0.0, 0.25, 0.5, 0.75])
        put(file, "run", ("run",), runs, units="hours since 2020-01-01", **RUN)
        if form == "period":
            put(file, "step", ("step",), leads, units="days", standard_name="forecast_period")
        else:
            put(file, "time", ("run", "step"), runs[:, None] + leads * 24)
        put(file, "t", ("run", "step"), values)
    return values


@pytest.mark.parametrize("form", ["period", "valid"])
def test_runs_of_a_forecast_are_told_apart(tmp_path: Path, form: str) -> None:
    values = write_runs(tmp_path / "file.nc", form=form)
    source, table = read(tmp_path / "file.nc", grid=GridOptions(reference_time=True))
    start = 1_577_836_800
    assert table["reference_time"].to_pylist() == [start] * 4 + [start + 21_600] * 4
    assert table["lead_time"].to_pylist() == [0.0, 6.0, 12.0, 18.0] * 2
    hours = [time.timestamp() / 3600 - start / 3600 for time in table["time"].to_pylist()]
    assert hours == [0, 6, 12, 18, 6, 12, 18, 24]
    assert table["t"].to_pylist() == values.ravel().tolist()
    feature = suggest_schema(source, "runs").feature("lead_time")
    assert feature is not None
    assert (feature.unit, feature.standard_name) == ("h", "forecast_period")


def test_one_run_and_its_members_are_rows(tmp_path: Path) -> None:
    write_grid(tmp_path / "file.nc", members=True)
    with netCDF4.Dataset(tmp_path / "file.nc", "a") as file:
        put(file, "reference_time", (), 12, units="hours since 2019-12-31", **RUN)
    _, table = read(tmp_path / "file.nc", grid=GridOptions(reference_time=True))
    assert set(table["reference_time"].to_pylist()) == {1_577_836_800 - 43_200}
    assert set(table["level"].to_pylist()) == {850, 700, 500}
    leads = [12.0 if time.hour == 0 else 18.0 for time in table["time"].to_pylist()]
    assert table["lead_time"].to_pylist() == leads


def test_reference_time_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write_grid(tmp_path / "file.nc")
    run = GridOptions(reference_time=True)
    with raises(InputError, expected="coordinate", variable="reference_time"):
        read(tmp_path / "file.nc", grid=run)
    with netCDF4.Dataset(tmp_path / "file.nc", "a") as file:
        group = file.createGroup("runs")
        put(group, "run", (), 0, units="hours since 2020-01-01", **RUN)
    _, table = read(tmp_path / "file.nc", grid=run)  # Of the group that has all of them.
    assert set(table["lead_time"].to_pylist()) == {0.0, 6.0}
    with raises(UnknownProperty, variable="tim", nearest="time"):
        read(tmp_path / "file.nc", "time=tim", grid=GridOptions(reference_time=True, group="runs"))
