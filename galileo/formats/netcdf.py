"""NetCDF files by the CF conventions, and WRF output, through xarray and netCDF4.

The dimensions of latitude, longitude and time span the rows; time varies slowest. A variable with
other dimensions (levels, members) becomes several variables, `t@level:850`. The file is read in
slabs of bounded size along the rows, each variable once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import InputError
from galileo.formats.expressions import Name
from galileo.formats.mapping import Mapping
from galileo.formats.netcdf_grid import (
    SINCE,
    CoordinateGrid,
    attribute,
    decode_times,
    find_grid,
    with_constants,
)
from galileo.formats.reader import NOWHERE, Coordinates, Reader, library_errors
from galileo.formats.variables import VariableInfo, qualified_name
from galileo.model.feature_metadata import LONG_NAME, from_attributes
from galileo.model.schema import FEATURES_MAX, FeatureType
from galileo.optional_imports import library

CLASSIC_MAGIC = b"CDF"
SLAB_VALUES_MAX = 1 << 22
LEVELS_MAX = 4096
MEASURED_KINDS = "iufb"
RELATED = (
    *("coordinates", "bounds", "climatology", "geometry", "node_coordinates", "node_count"),
    *("part_node_count", "interior_ring", "grid_mapping", "cell_measures", "formula_terms"),
)
"""Attributes that name variables which belong to others (CF), so that they are no measurements."""
FILLS = ("_FillValue", "missing_value")

Window = dict[str, slice]


@dataclass(frozen=True, slots=True)
class VariableSlice:
    """A variable at one index of each dimension that is not of the grid."""

    variable: str
    at: tuple[tuple[str, int], ...]


def open_netcdf(path: Path, mapping: Mapping, *, slab_values_max: int = SLAB_VALUES_MAX) -> Reader:
    """A reader of a NetCDF file.

    Raises:
        InputError: it is damaged, or its coordinates span no grid.
        MissingExtra: xarray or netCDF4 is not installed.
    """
    xarray = library("xarray", purpose="reading NetCDF")
    netcdf = library("netCDF4", purpose="reading NetCDF")
    with library_errors(path, format="NetCDF"), netcdf.Dataset(path) as file:
        groups = [f"group {name}" for name in file.groups]
    return _reader(
        lambda: _open(path, xarray, netcdf.default_fillvals),
        mapping,
        groups=groups,
        slab_values_max=slab_values_max,
    )


def read_dataset(dataset: Any, mapping: Mapping) -> Reader:
    """A reader of an xarray Dataset, decoded or not.

    Yields what the file of the Dataset yields, except that values that were never written are not
    recognised as missing.
    """
    xarray = library("xarray", purpose="reading a Dataset")
    reader = _reader(lambda: _decoded("the Dataset", dataset, xarray), mapping)
    if reader.coordinates.error is not None:
        raise reader.coordinates.error
    return reader


def _reader(
    open: Callable[[], AbstractContextManager[Any]],
    mapping: Mapping,
    *,
    groups: Sequence[str] = (),
    slab_values_max: int = SLAB_VALUES_MAX,
) -> Reader:
    """A reader of a file or Dataset, in slabs; without a coordinate it has its variables alone.

    Raises:
        InputError: its coordinates span no grid.
    """
    with open() as dataset:
        dataset, named = with_constants(dataset.set_coords(_related(dataset)), mapping)
        try:
            grid = find_grid(dataset, named)
        except InputError as error:
            if groups:
                error.message += f". Groups are not read: {', '.join(groups)}"
            if error.details.get("expected") != "coordinate":
                raise
            infos = [_info(dataset[str(n)], str(n), default=False) for n in dataset.variables]
            return Reader(replace(NOWHERE, error=error), infos, None, lambda _: (), groups)
        names = [name for name in grid.names if name in dataset.variables]
        dataset = dataset.set_coords(names)
        variables = [
            *((_info(dataset[n], n, default=False), VariableSlice(n, ())) for n in names),
            *_list_variables(dataset, grid),
        ]
    slices = {info.name: variable_slice for info, variable_slice in variables}
    measured = {variable_slice.variable for variable_slice in slices.values()}

    def scan(wanted: Sequence[str]) -> Iterator[pa.Table]:
        rows_max = max(1, slab_values_max // max(1, len({*wanted} - {*names})))
        with open() as dataset:
            dataset, _ = with_constants(dataset, mapping)
            for name in names:
                variable = dataset.variables[name]
                if variable.ndim <= 1 or grid.dims[0] not in variable.dims:
                    variable.load()  # Each window needs it.
            for window in windows(grid, rows_max=rows_max):
                columns = [_column(dataset, slices[n], grid=grid, window=window) for n in wanted]
                yield pa.table(columns, names=list(wanted))

    return Reader(
        Coordinates(Name(grid.latitude), Name(grid.longitude), grid.time, grid.constant_us),
        [info for info, _ in variables],
        math.prod(grid.shape),
        scan,
        [*(str(name) for name in dataset.data_vars if name not in measured), *groups],
    )


def _column(
    dataset: Any, variable_slice: VariableSlice, *, grid: CoordinateGrid, window: Window
) -> pa.Array:
    """The values of a variable, or of a coordinate, in the rows of a window."""
    name = variable_slice.variable
    variable = dataset[name]
    along = {dim: part for dim, part in window.items() if dim in variable.dims}
    part = variable.variable.isel({**dict(variable_slice.at), **along}).load()
    sizes = {
        dim: len(range(*window[dim].indices(size)))
        for dim, size in zip(grid.dims, grid.shape, strict=True)
    }
    values = part.set_dims(sizes).values.ravel()
    if variable.dtype.kind not in MEASURED_KINDS:
        return decode_times(values, variable)
    invalid = _is_filled(values, variable)
    if name not in grid.names:
        low, high = _valid_range(variable)
        invalid |= (values < low) | (values > high)
    if name == grid.time:
        return decode_times(
            np.where(invalid, np.nan, values) if invalid.any() else values, variable
        )
    return pa.array(values, mask=invalid, from_pandas=True)


# --- windows ---------------------------------------------------------------------------------


def windows(grid: CoordinateGrid, *, rows_max: int) -> Iterator[Window]:
    """Splits the rows into consecutive windows of at most `rows_max` rows."""
    axis = 0
    while axis < len(grid.shape) - 1 and math.prod(grid.shape[axis + 1 :]) > rows_max:
        axis += 1
    if not grid.shape:
        yield {}
        return
    step = max(1, rows_max // max(1, math.prod(grid.shape[axis + 1 :])))
    outer = itertools.product(*[range(size) for size in grid.shape[:axis]])
    for position in outer:
        fixed = {dim: slice(i, i + 1) for dim, i in zip(grid.dims, position, strict=False)}
        for start in range(0, grid.shape[axis], step):
            rest = {dim: slice(None) for dim in grid.dims[axis + 1 :]}
            yield fixed | {grid.dims[axis]: slice(start, start + step)} | rest


# --- values ----------------------------------------------------------------------------------


def _is_filled(values: Any, variable: Any) -> Any:
    """A mask of the fill values in a variable whose values are as they are stored."""
    fills = [number for mark in FILLS for number in _bounds(variable.attrs.get(mark))]
    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        whole = [int(number) for number in fills if float(number).is_integer()]
        fills = [number for number in whole if limits.min <= number <= limits.max]
    return np.isin(values, np.array(fills, values.dtype))


def _is_as_stored(variable: Any) -> bool:
    """Whether xarray must not mask it: it makes floats of integers, and parses units of times."""
    is_time = SINCE in attribute(variable, "units").lower()
    is_packed = {"scale_factor", "add_offset", "_Unsigned"} & set(variable.attrs)
    return (variable.dtype.kind in "iu" or is_time) and not is_packed


def _is_packed(variable: Any) -> bool:
    return bool({"scale_factor", "add_offset"} & set(variable.encoding))


def _packing(variable: Any) -> tuple[float, float]:
    encoding = variable.encoding
    return float(encoding.get("scale_factor", 1.0)), float(encoding.get("add_offset", 0.0))


def _valid_range(variable: Any) -> tuple[float, float]:
    """Bounds in the units of the decoded values.

    The bounds of a packed variable are packed (CF, 2.5.1), except float bounds of packed integers,
    which are unpacked (NetCDF User Guide, "Attribute Conventions").
    """
    attrs = variable.attrs
    lowest, highest = _bounds(attrs.get("valid_range"), 2) or (-np.inf, np.inf)
    (least,) = _bounds(attrs.get("valid_min"), 1) or (lowest,)
    (most,) = _bounds(attrs.get("valid_max"), 1) or (highest,)
    bounds = [np.asarray(bound) for bound in (least, most) if bound not in (-np.inf, np.inf)]
    raw = _stored_type(variable)
    is_unpacked = raw.kind in "iu" and any(bound.dtype.kind == "f" for bound in bounds)
    ends = (_number(least, variable), _number(most, variable))
    if ends[0] > ends[1]:  # Models begin with an empty range, and some never fill it in.
        return -np.inf, np.inf
    if is_unpacked or not _is_packed(variable):
        return ends
    scale, offset = _packing(variable)
    low, high = sorted(end * scale + offset for end in ends)
    slack = abs(scale) / 2
    return low - slack, high + slack


def _bounds(attribute: Any, count: int | None = None) -> list[Any]:
    """The numbers of an attribute; empty if it is absent or has another count."""
    try:
        numbers = np.atleast_1d(np.asarray(attribute))
        numbers = numbers.astype(np.float64) if numbers.dtype.kind in "USO" else numbers
    except (TypeError, ValueError):
        return []
    return list(numbers) if count in (None, len(numbers)) and not np.isnan(numbers).any() else []


def _number(bound: Any, variable: Any) -> float:
    return float(_unsigned(np.asarray(bound), variable))


def _unsigned(stored: Any, variable: Any) -> Any:
    """An integer of a variable that stores unsigned integers in a signed type."""
    if str(variable.encoding.get("_Unsigned")) != "true" or stored.dtype.kind != "i":
        return stored
    return stored.astype(np.int64) % (1 << (8 * _stored_type(variable).itemsize))


def _stored_type(variable: Any) -> Any:
    return np.dtype(variable.encoding.get("dtype", variable.dtype))


# --- variables --------------------------------------------------------------------


def _related(dataset: Any) -> set[Any]:
    """The variables that attributes of others name."""
    related = set[str]()
    for variable in dataset.variables.values():
        for name in RELATED:
            words = attribute(variable, name).replace(" :", ":").split()
            is_key = name == "grid_mapping"  # In `crs: x y` and in `area: cell_area`.
            related |= {word.rstrip(":") for word in words if is_key or not word.endswith(":")}
    return related & set(dataset.variables)


def _list_variables(dataset: Any, grid: CoordinateGrid) -> list[tuple[VariableInfo, VariableSlice]]:
    """Every measured variable on the grid, once for each place along its other dimensions."""
    measured = [
        (variable, slices)
        for variable in (dataset[name] for name in dataset.data_vars)
        if variable.dtype.kind in MEASURED_KINDS and set(grid.place_dims) <= set(variable.dims)
        if 0 < len(slices := _variable_slices(dataset, variable, grid=grid)) <= LEVELS_MAX
    ]
    levels_too = sum(len(slices) for _, slices in measured) <= FEATURES_MAX
    infos: list[tuple[VariableInfo, VariableSlice]] = []
    for variable, slices in measured:
        whole = set(grid.dims) <= set(variable.dims)
        default = whole and (levels_too or len(slices) == 1)
        infos += [
            (_info(variable, name, default=default), variable_slice)
            for name, variable_slice in slices
        ]
    return infos


def _info(variable: Any, name: str, *, default: bool) -> VariableInfo:
    kinds: dict[str, FeatureType] = {"i": "int", "u": "int", "b": "bool"}
    stored = variable.dtype if _is_packed(variable) else _stored_type(variable)
    floats: FeatureType = "float32" if variable.dtype == np.float32 else "float"
    return VariableInfo(
        name,
        from_attributes({LONG_NAME: attribute(variable, "description")} | variable.attrs),
        dims=tuple(f"{dim}:{size}" for dim, size in variable.sizes.items()),
        type=kinds.get(stored.kind, floats),
        default=default,
    )


def _variable_slices(
    dataset: Any, variable: Any, *, grid: CoordinateGrid
) -> list[tuple[str, VariableSlice]]:
    extra = [dim for dim in variable.dims if dim not in grid.dims]
    if math.prod(variable.sizes[dim] for dim in extra) > LEVELS_MAX:
        return []
    positions = itertools.product(*[range(variable.sizes[dim]) for dim in extra])
    texts = {dim: _level_texts(dataset, dim, size=variable.sizes[dim]) for dim in extra}
    return [
        (
            qualified_name(
                variable.name,
                tuple(
                    (dim, texts[dim][i])
                    for dim, i in zip(extra, position, strict=True)
                    if variable.sizes[dim] > 1
                ),
            ),
            VariableSlice(variable.name, tuple(zip(extra, position, strict=True))),
        )
        for position in positions
    ]


def _level_texts(dataset: Any, dim: str, *, size: int) -> list[str]:
    """The values of a dimension's coordinate if they are distinct, else its indices."""
    numbers = [str(number) for number in range(size)]
    if dim not in dataset.variables or dataset[dim].dtype.kind not in MEASURED_KINDS:
        return numbers
    texts = [f"{float(value):.10g}" for value in dataset[dim].values]
    return texts if len(set(texts)) == size else numbers


# --- the file --------------------------------------------------------------------------------


@contextmanager
def _open(path: Path, xarray: Any, default_fills: dict[str, Any]) -> Iterator[Any]:
    """Opens a file; values are unpacked on demand and not cached.

    A variable without a fill value gets that of the library, which marks what was never written.
    """
    with (
        library_errors(path, format="NetCDF"),
        xarray.open_dataset(path, engine="netcdf4", decode_cf=False, cache=False) as dataset,
    ):
        _check_claims(path, dataset)
        for variable in dataset.variables.values():
            raw = variable.dtype
            fill = default_fills.get(f"{raw.kind}{raw.itemsize}") if raw.itemsize > 1 else None
            if fill is not None and not set(FILLS) & set(variable.attrs):
                variable.attrs["_FillValue"] = np.asarray(fill).astype(raw)[()]
        with _decoded(path, dataset, xarray) as decoded:
            yield decoded


@contextmanager
def _decoded(name: object, dataset: Any, xarray: Any) -> Iterator[Any]:
    """Decodes masks and scales; times stay numbers, and integers stay integers."""
    with library_errors(name, format="NetCDF"):
        yield xarray.decode_cf(
            dataset,
            mask_and_scale={
                name: not _is_as_stored(variable) for name, variable in dataset.variables.items()
            },
            decode_times=False,
            decode_timedelta=False,
            decode_coords=False,
        )


def _check_claims(path: Path, dataset: Any) -> None:
    """Raises InputError if a classic file, which is not compressed, has fewer bytes than values."""
    with path.open("rb") as file:
        is_classic = file.read(len(CLASSIC_MAGIC)) == CLASSIC_MAGIC
    values, size = (
        sum(variable.size for variable in dataset.variables.values()),
        path.stat().st_size,
    )
    if is_classic and values > size:
        raise InputError(
            f"expected a whole NetCDF file at {path}: it claims {values:,} values and has "
            f"{size:,} bytes"
        )
