"""NetCDF files by the CF conventions, and WRF output, through xarray and netCDF4.

The dimensions of latitude, longitude and time span the rows; time varies slowest. A variable with
other dimensions (levels, members) becomes several variables, `t@level:850`. The file is read in
slabs of bounded size along the rows, each variable once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import InputError
from galileo.formats.mapping import Mapping
from galileo.formats.netcdf_grid import Grid, decode_times, find_grid, with_constants
from galileo.formats.reader import table_of
from galileo.formats.variables import VariableInfo, qualified_name
from galileo.model.schema import COORDINATES, FEATURES_MAX, FeatureType
from galileo.model.times import TIME_TYPE
from galileo.optional_imports import library

CLASSIC_MAGIC = b"CDF"
SLAB_VALUES_MAX = 1 << 22
LEVELS_MAX = 4096
MEASURED_KINDS = "iuf"
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
    fills = library("netCDF4", purpose="reading NetCDF").default_fillvals
    return _reader(
        lambda: _open(path, xarray),
        mapping,
        default_fills=fills,
        slab_values_max=slab_values_max,
    )


def read_dataset(dataset: Any, mapping: Mapping) -> NetcdfReader:
    """A reader of an xarray Dataset, decoded or not.

    Yields what the file of the Dataset yields, except that values that were never written are not
    recognised as missing.
    """
    return _reader(lambda: nullcontext(dataset), mapping, default_fills={})


OpenDataset = Callable[[], AbstractContextManager[Any]]


def _reader(
    open: OpenDataset,
    mapping: Mapping,
    *,
    default_fills: dict[str, Any],
    slab_values_max: int = SLAB_VALUES_MAX,
) -> NetcdfReader:
    with open() as dataset:
        dataset, named = with_constants(dataset, mapping)
        grid = find_grid(dataset, named)
        coordinates = [
            replace(_info(dataset[name], name, default=False), role=role)
            for role, name in zip(
                COORDINATES, (grid.latitude, grid.longitude, grid.time), strict=True
            )
            if name in dataset.variables
        ]
        variables = _list_variables(dataset, grid)
    return NetcdfReader(
        open,
        grid,
        mapping=mapping,
        variables=variables,
        coordinates=coordinates,
        default_fills=default_fills,
        slab_values_max=slab_values_max,
    )


class NetcdfReader:
    """A `Reader` of a file or Dataset, in slabs."""

    def __init__(
        self,
        open: OpenDataset,
        grid: Grid,
        *,
        mapping: Mapping,
        variables: Sequence[tuple[VariableInfo, VariableSlice]],
        coordinates: Sequence[VariableInfo],
        default_fills: dict[str, Any],
        slab_values_max: int,
    ) -> None:
        self._slab_values_max = slab_values_max
        self._open = open
        self._grid = grid
        self._mapping = mapping
        self._infos = [info for info, _ in variables]
        self._slices = {info.name: variable_slice for info, variable_slice in variables}
        self._coordinates = coordinates
        self._default_fills = default_fills

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
                columns = [
                    pa.array(
                        self._read(dataset, self._slices[name], window=window), from_pandas=True
                    )
                    for name in names
                ]
                yield table_of(coordinates.columns(window), columns, names=names)

    def _read(self, dataset: Any, variable_slice: VariableSlice, *, window: Window) -> Any:
        variable = dataset[variable_slice.variable]
        part = variable.isel({**dict(variable_slice.at), **_along(variable, window)})
        values = _mask_invalid(part.values, variable, default_fills=self._default_fills)
        return _to_rows(values, part.dims, grid=self._grid, window=window)


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
            values = _mask(_is_unwritten(values, variable, self._default_fills), values)
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


def _mask_invalid(values: Any, variable: Any, *, default_fills: dict[str, Any]) -> Any:
    """Values with NaN for default fill values and outside of the valid range."""
    low, high = _valid_range(variable)
    is_unwritten = _is_unwritten(values, variable, default_fills)
    return _mask(is_unwritten | (values < low) | (values > high), values)


def _mask(missing: Any, values: Any) -> Any:
    """Values with NaN where they are missing; the same array if none is."""
    return np.where(missing, np.nan, values) if missing.any() else values


def _is_unwritten(values: Any, variable: Any, default_fills: dict[str, Any]) -> Any:
    """A mask of the library's default fill values, if the file defines no fill value."""
    raw = variable.encoding.get("dtype", values.dtype)
    fill = default_fills.get(f"{raw.kind}{raw.itemsize}") if raw.itemsize > 1 else None
    if fill is None or {"_FillValue", "missing_value"} & set(variable.encoding):
        return np.zeros(values.shape, dtype=np.bool_)
    stored = _unsigned(np.asarray(fill).astype(raw), variable)
    if not _is_packed(variable):
        return values == stored
    scale, offset = _packing(variable)
    unpacked = float(stored) * scale + offset
    return np.abs(values - unpacked) <= (
        abs(scale) / 2 if raw.kind in "iu" else FILL_TOLERANCE * abs(unpacked)
    )


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
    raw = variable.encoding.get("dtype", variable.dtype)
    is_unpacked = raw.kind in "iu" and any(bound.dtype.kind == "f" for bound in bounds)
    if is_unpacked or not _is_packed(variable):
        return _number(least, variable), _number(most, variable)
    scale, offset = _packing(variable)
    ends = (_number(least, variable), _number(most, variable))
    low, high = sorted(end * scale + offset for end in ends)
    slack = abs(scale) / 2
    return low - slack, high + slack


def _bounds(attribute: Any, count: int) -> list[Any]:
    """The numbers of an attribute; empty if it is absent or has another count."""
    try:
        numbers = np.atleast_1d(np.asarray(attribute))
        numbers = numbers.astype(np.float64) if numbers.dtype.kind in "USO" else numbers
    except (TypeError, ValueError):
        return []
    return list(numbers) if len(numbers) == count and not np.isnan(numbers).any() else []


def _number(bound: Any, variable: Any) -> float:
    return float(_unsigned(np.asarray(bound), variable))


def _unsigned(stored: Any, variable: Any) -> Any:
    """An integer of a variable that stores unsigned integers in a signed type."""
    raw = variable.encoding.get("dtype", variable.dtype)
    if variable.encoding.get("_Unsigned") != "true" or stored.dtype.kind != "i":
        return stored
    return stored.astype(np.int64) % (1 << (8 * raw.itemsize))


# --- variables --------------------------------------------------------------------


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
    attrs = variable.attrs
    whole = variable.dtype.kind in "iu"
    kind: FeatureType = "int" if whole else "float"
    return VariableInfo(
        name,
        units=str(attrs.get("units", "")),
        dims=tuple(f"{dim}:{size}" for dim, size in variable.sizes.items()),
        description=str(attrs.get("long_name") or attrs.get("description") or ""),
        type=kind,
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
    """Opens a file; values are unpacked on demand and not cached, times stay numbers."""
    with (
        _readable(path),
        xarray.open_dataset(
            path,
            engine="netcdf4",
            decode_times=False,
            decode_timedelta=False,
            decode_coords="all",
            cache=False,
        ) as dataset,
    ):
        _check_claims(path, dataset)
        yield dataset


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


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise InputError(
            f"expected a whole NetCDF file at {path}: {error}",
            expected="whole_file",
            format="NetCDF",
        ) from error
