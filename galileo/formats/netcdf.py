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
from galileo.formats.mapping import Mapping
from galileo.formats.netcdf_grid import Grid, attribute, decode_times, find_grid, with_constants
from galileo.formats.reader import library_errors, table_of
from galileo.formats.variables import VariableInfo, qualified_name
from galileo.model.schema import COORDINATES, FEATURES_MAX, FeatureType
from galileo.model.times import TIME_TYPE
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
FILL_TOLERANCE = 1e-6
"""Relative tolerance of a default fill value after scaling."""

Window = dict[str, slice]


@dataclass(frozen=True, slots=True)
class VariableSlice:
    """A variable at one index of each dimension that is not of the grid."""

    variable: str
    at: tuple[tuple[str, int], ...]


def open_netcdf(
    path: Path, mapping: Mapping, *, slab_values_max: int = SLAB_VALUES_MAX
) -> NetcdfReader:
    """A reader of a NetCDF file.

    Raises:
        InputError: it is damaged, or has no coordinates.
        MissingExtra: xarray or netCDF4 is not installed.
    """
    xarray = library("xarray", purpose="reading NetCDF")
    netcdf = library("netCDF4", purpose="reading NetCDF")
    with library_errors(path, format="NetCDF"), netcdf.Dataset(path) as file:
        groups = [f"group {name}" for name in file.groups]
    try:
        return NetcdfReader(
            lambda: _open(path, xarray),
            mapping,
            default_fills=netcdf.default_fillvals,
            groups=groups,
            slab_values_max=slab_values_max,
        )
    except InputError as error:
        if groups:
            error.message += f". Groups are not read: {', '.join(groups)}"
        raise


def read_dataset(dataset: Any, mapping: Mapping) -> NetcdfReader:
    """A reader of an xarray Dataset, decoded or not.

    Yields what the file of the Dataset yields, except that values that were never written are not
    recognised as missing.
    """
    xarray = library("xarray", purpose="reading a Dataset")
    return NetcdfReader(lambda: _decoded("the Dataset", dataset, xarray), mapping, default_fills={})


OpenDataset = Callable[[], AbstractContextManager[Any]]


class NetcdfReader:
    """A `Reader` of a file or Dataset, in slabs.

    Raises:
        InputError: it has no coordinates.
    """

    def __init__(
        self,
        open: OpenDataset,
        mapping: Mapping,
        *,
        default_fills: dict[str, Any],
        groups: Sequence[str] = (),
        slab_values_max: int = SLAB_VALUES_MAX,
    ) -> None:
        self._open, self._mapping = open, mapping
        self._default_fills, self._slab_values_max = default_fills, slab_values_max
        with open() as dataset:
            dataset, named = with_constants(dataset.set_coords(_related(dataset)), mapping)
            self._grid = grid = find_grid(dataset, named)
            dataset = dataset.set_coords([name for name in grid.names if name in dataset])
            self._coordinates = [
                replace(_info(dataset[name], name, default=False), role=role)
                for role, name in zip(COORDINATES, grid.names, strict=True)
                if name in dataset.variables
            ]
            variables = _list_variables(dataset, grid)
        self._infos = [info for info, _ in variables]
        self._slices = {info.name: variable_slice for info, variable_slice in variables}
        names = {variable_slice.variable for variable_slice in self._slices.values()}
        self.others = [*(str(name) for name in dataset.data_vars if name not in names), *groups]

    @property
    def rows(self) -> int:
        return math.prod(self._grid.shape)

    def variables(self) -> Sequence[VariableInfo]:
        return self._infos

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        return self._coordinates

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        rows_max = max(1, self._slab_values_max // max(1, len(names)))
        with self._open() as dataset:
            dataset, _ = with_constants(dataset, self._mapping)
            coordinates = _Coordinates(dataset, self._grid, default_fills=self._default_fills)
            for window in windows(self._grid, rows_max=rows_max):
                columns = [self._read(dataset, self._slices[name], window=window) for name in names]
                yield table_of(coordinates.columns(window), columns, names=names)

    def _read(self, dataset: Any, variable_slice: VariableSlice, *, window: Window) -> pa.Array:
        variable = dataset[variable_slice.variable]
        part = variable.isel({**dict(variable_slice.at), **_along(variable, window)})
        values = part.values
        invalid = _is_invalid(values, variable, default_fills=self._default_fills)
        values, mask = (
            _to_rows(array, part.dims, grid=self._grid, window=window)
            for array in (values, invalid)
        )
        return pa.array(values, mask=mask, from_pandas=True)


class _Coordinates:
    """Reads the coordinates of windows; caches those without the slowest dimension."""

    def __init__(self, dataset: Any, grid: Grid, *, default_fills: dict[str, Any]) -> None:
        self._dataset = dataset
        self._default_fills = default_fills
        self._grid = grid
        self._cache: dict[str, Any] = {}

    def columns(self, window: Window) -> list[pa.Array]:
        degrees = [
            pa.array(self._values(name, window).astype(np.float64), from_pandas=True)
            for name in (self._grid.latitude, self._grid.longitude)
        ]
        if self._grid.constant_us is not None:
            return [
                *degrees,
                pa.repeat(pa.scalar(self._grid.constant_us, TIME_TYPE), len(degrees[0])),
            ]
        variable = self._dataset[self._grid.time]
        return [*degrees, decode_times(self._values(self._grid.time, window), variable)]

    def _values(self, name: str, window: Window) -> Any:
        variable = self._dataset[name]
        whole = variable.ndim <= 1 or self._grid.dims[0] not in variable.dims
        if whole and name not in self._cache:
            self._cache[name] = variable.values
        along = _along(variable, window)
        if whole:
            values = self._cache[name][tuple(along.get(dim, slice(None)) for dim in variable.dims)]
        else:
            values = variable.isel(along).values
        if variable.dtype.kind in MEASURED_KINDS:
            missing = _is_unwritten(values, variable, self._default_fills)
            values = np.where(missing, np.nan, values) if missing.any() else values
        return _to_rows(values, variable.dims, grid=self._grid, window=window)


# --- windows ---------------------------------------------------------------------------------


def windows(grid: Grid, *, rows_max: int) -> Iterator[Window]:
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


def _along(variable: Any, window: Window) -> Window:
    return {dim: part for dim, part in window.items() if dim in variable.dims}


def _to_rows(values: Any, dims: Sequence[str], *, grid: Grid, window: Window) -> Any:
    """Broadcasts values of some of the grid's dimensions to one value for each row."""
    order = [dims.index(dim) for dim in grid.dims if dim in dims]
    sizes = [
        len(range(*window[dim].indices(size)))
        for dim, size in zip(grid.dims, grid.shape, strict=True)
    ]
    here = [size if dim in dims else 1 for dim, size in zip(grid.dims, sizes, strict=True)]
    return np.broadcast_to(np.transpose(values, order).reshape(here), sizes).ravel()


# --- values ----------------------------------------------------------------------------------


def _is_invalid(values: Any, variable: Any, *, default_fills: dict[str, Any]) -> Any:
    """A mask of default fill values and of values outside of the valid range."""
    low, high = _valid_range(variable)
    return _is_unwritten(values, variable, default_fills) | (values < low) | (values > high)


def _is_unwritten(values: Any, variable: Any, default_fills: dict[str, Any]) -> Any:
    """A mask of the library's default fill values, if the file defines no fill value."""
    raw = _stored_type(variable)
    fill = default_fills.get(f"{raw.kind}{raw.itemsize}") if raw.itemsize > 1 else None
    marks = {"_FillValue", "missing_value"} & (set(variable.encoding) | set(variable.attrs))
    if _is_exact(variable) and marks:
        numbers = [number for mark in marks for number in _bounds(variable.attrs.get(mark))]
        exact = [int(number) for number in numbers if float(number).is_integer()]
        limits = np.iinfo(raw)
        return np.isin(values, np.array([n for n in exact if limits.min <= n <= limits.max], raw))
    if fill is None or marks:
        return np.zeros(values.shape, dtype=np.bool_)
    stored = _unsigned(np.asarray(fill).astype(raw), variable)
    if not _is_packed(variable):
        return values == stored
    scale, offset = _packing(variable)
    unpacked = float(stored) * scale + offset
    return np.abs(values - unpacked) <= (
        abs(scale) / 2 if raw.kind in "iu" else FILL_TOLERANCE * abs(unpacked)
    )


def _is_exact(variable: Any) -> bool:
    """Whether floats would round its integers, so that xarray must not mask them."""
    is_wide = variable.dtype.kind in "iu" and variable.dtype.itemsize == 8
    return is_wide and not {"scale_factor", "add_offset", "_Unsigned"} & set(variable.attrs)


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


def _list_variables(dataset: Any, grid: Grid) -> list[tuple[VariableInfo, VariableSlice]]:
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
    return VariableInfo(
        name,
        units=attribute(variable, "units"),
        dims=tuple(f"{dim}:{size}" for dim, size in variable.sizes.items()),
        description=attribute(variable, "long_name") or attribute(variable, "description"),
        type=kinds.get(variable.dtype.kind, "float"),
        default=default,
    )


def _variable_slices(dataset: Any, variable: Any, *, grid: Grid) -> list[tuple[str, VariableSlice]]:
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
def _open(path: Path, xarray: Any) -> Iterator[Any]:
    """Opens a file; values are unpacked on demand and not cached."""
    with (
        library_errors(path, format="NetCDF"),
        xarray.open_dataset(path, engine="netcdf4", decode_cf=False, cache=False) as dataset,
        _decoded(path, dataset, xarray) as decoded,
    ):
        _check_claims(path, dataset)
        yield decoded


@contextmanager
def _decoded(name: object, dataset: Any, xarray: Any) -> Iterator[Any]:
    """Decodes masks and scales; times stay numbers, and integers of 64 bits stay exact."""
    with library_errors(name, format="NetCDF"):
        yield xarray.decode_cf(
            dataset,
            mask_and_scale={
                name: not _is_exact(variable) for name, variable in dataset.variables.items()
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
