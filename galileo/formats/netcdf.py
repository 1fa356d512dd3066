"""NetCDF files by the CF conventions, and WRF output, through xarray and netCDF4.

The dimensions of latitude, longitude and time together span the rows; time varies slowest. A
variable's other dimensions (levels, members) make it several variables, `t@level:850`. The
file is read in slabs of bounded size along the rows, each variable once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import InputError
from galileo.formats.mapping import Mapping
from galileo.formats.netcdf_grid import Grid, find_grid, moments
from galileo.formats.optional import library
from galileo.formats.reader import table_of
from galileo.formats.selection import VariableInfo, qualified
from galileo.model.schema import FEATURES_MAX, FeatureType
from galileo.model.times import TIME_TYPE

CLASSIC_MAGIC = b"CDF"
SLAB_VALUES_MAX = 1 << 22
LEVELS_MAX = 4096
MEASURED_KINDS = "iuf"

Window = dict[str, slice]


@dataclass(frozen=True, slots=True)
class Cut:
    """A variable of the file at one place along the dimensions that are no part of the grid."""

    variable: str
    at: tuple[tuple[str, int], ...]


def open_netcdf(path: Path, mapping: Mapping) -> NetcdfReader:
    """A reader of a NetCDF file.

    Raises:
        InputError: it is damaged, or does not say where or when its values are.
        ConfigError: xarray or netCDF4 is not installed.
    """
    xarray = library("xarray", purpose="reading NetCDF")
    netcdf4 = library("netCDF4", purpose="reading NetCDF")
    with _readable(path, xarray), _open(path, xarray) as dataset:
        grid = find_grid(dataset, mapping)
        offered = _offered(dataset, grid)
    return NetcdfReader(path, grid, offered=offered, libraries=(xarray, netcdf4))


class NetcdfReader:
    """A `Reader` over the slabs of one file."""

    def __init__(
        self,
        path: Path,
        grid: Grid,
        *,
        offered: Sequence[tuple[VariableInfo, Cut]],
        libraries: tuple[Any, Any],
    ) -> None:
        self._path = path
        self._grid = grid
        self._infos = [info for info, _ in offered]
        self._cuts = {info.name: cut for info, cut in offered}
        self._xarray, self._netcdf4 = libraries

    @property
    def rows(self) -> int:
        return math.prod(self._grid.shape)

    def variables(self) -> Sequence[VariableInfo]:
        return self._infos

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        rows_max = max(1, SLAB_VALUES_MAX // max(1, len(names)))
        with _readable(self._path, self._xarray), _open(self._path, self._xarray) as dataset:
            place = _Place(dataset, self._grid)
            for window in windows(self._grid, rows_max=rows_max):
                columns = [
                    pa.array(self._read(dataset, self._cuts[name], window=window), from_pandas=True)
                    for name in names
                ]
                yield table_of(place.columns(window), columns, names=names)

    def _read(self, dataset: Any, cut: Cut, *, window: Window) -> Any:
        variable = dataset[cut.variable]
        part = variable.isel({**dict(cut.at), **_along(variable, window)})
        values = _measured(part.values, variable, default_fills=self._netcdf4.default_fillvals)
        return _spread(values, part.dims, grid=self._grid, window=window)


class _Place:
    """The coordinates of a window; those that the slowest dimension does not change are kept."""

    def __init__(self, dataset: Any, grid: Grid) -> None:
        self._dataset = dataset
        self._grid = grid
        self._kept: dict[str, Any] = {}

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
        return [*degrees, moments(self._values(self._grid.time, window), variable)]

    def _values(self, name: str, window: Window) -> Any:
        variable = self._dataset[name]
        whole = variable.ndim <= 1 or self._grid.dims[0] not in variable.dims
        if whole and name not in self._kept:
            self._kept[name] = variable.values
        along = _along(variable, window)
        if whole:
            values = self._kept[name][tuple(along.get(dim, slice(None)) for dim in variable.dims)]
        else:
            values = variable.isel(along).values
        return _spread(values, variable.dims, grid=self._grid, window=window)


# --- windows ---------------------------------------------------------------------------------


def windows(grid: Grid, *, rows_max: int) -> Iterator[Window]:
    """Consecutive parts of the rows, each of at most `rows_max`, in the order of the rows."""
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


def _spread(values: Any, dims: Sequence[str], *, grid: Grid, window: Window) -> Any:
    """Values of some of the grid's dimensions, in any order, as one value per row."""
    order = [dims.index(dim) for dim in grid.dims if dim in dims]
    sizes = [
        len(range(*window[dim].indices(size)))
        for dim, size in zip(grid.dims, grid.shape, strict=True)
    ]
    here = [size if dim in dims else 1 for dim, size in zip(grid.dims, sizes, strict=True)]
    return np.broadcast_to(np.transpose(values, order).reshape(here), sizes).ravel()


# --- values ----------------------------------------------------------------------------------


def _measured(values: Any, variable: Any, *, default_fills: dict[str, Any]) -> Any:
    """Values with NaN also for what xarray leaves: default fill values and the valid range."""
    raw = variable.encoding.get("dtype", values.dtype)
    missing = np.zeros(values.shape, dtype=np.bool_)
    if not {"_FillValue", "missing_value", "scale_factor"} & set(variable.encoding):
        fill = default_fills.get(f"{raw.kind}{raw.itemsize}") if raw.itemsize > 1 else None
        missing |= False if fill is None else values == np.asarray(fill).astype(raw)
    low, high = _valid_range(variable)
    missing |= (values < low) | (values > high)
    return np.where(missing, np.nan, values) if missing.any() else values


def _valid_range(variable: Any) -> tuple[float, float]:
    """Bounds in the units of the decoded values; the file gives them as packed (CF, 2.5.1)."""
    pair = variable.attrs.get("valid_range", (-np.inf, np.inf))
    low = float(variable.attrs.get("valid_min", pair[0]))
    high = float(variable.attrs.get("valid_max", pair[1]))
    scale = float(variable.encoding.get("scale_factor", 1.0))
    offset = float(variable.encoding.get("add_offset", 0.0))
    bounds = sorted((low * scale + offset, high * scale + offset))
    slack = abs(scale) / 2 if "scale_factor" in variable.encoding else 0.0
    return bounds[0] - slack, bounds[1] + slack


# --- what the file offers --------------------------------------------------------------------


def _offered(dataset: Any, grid: Grid) -> list[tuple[VariableInfo, Cut]]:
    """Every measured variable on the grid, once for each place along its other dimensions."""
    found = [
        (variable, cuts)
        for variable in (dataset[name] for name in dataset.data_vars)
        if variable.dtype.kind in MEASURED_KINDS and set(grid.place_dims) <= set(variable.dims)
        if 0 < len(cuts := _cuts(dataset, variable, grid=grid)) <= LEVELS_MAX
    ]
    levels_too = sum(len(cuts) for _, cuts in found) <= FEATURES_MAX
    infos: list[tuple[VariableInfo, Cut]] = []
    for variable, cuts in found:
        whole = set(grid.dims) <= set(variable.dims)
        default = whole and (levels_too or len(cuts) == 1)
        infos += [(_info(variable, name, default=default), cut) for name, cut in cuts]
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


def _cuts(dataset: Any, variable: Any, *, grid: Grid) -> list[tuple[str, Cut]]:
    extra = [dim for dim in variable.dims if dim not in grid.dims]
    if math.prod(variable.sizes[dim] for dim in extra) > LEVELS_MAX:
        return []
    positions = itertools.product(*[range(variable.sizes[dim]) for dim in extra])
    texts = {dim: _level_texts(dataset, dim, size=variable.sizes[dim]) for dim in extra}
    return [
        (
            qualified(
                variable.name,
                tuple(
                    (dim, texts[dim][i])
                    for dim, i in zip(extra, position, strict=True)
                    if variable.sizes[dim] > 1
                ),
            ),
            Cut(variable.name, tuple(zip(extra, position, strict=True))),
        )
        for position in positions
    ]


def _level_texts(dataset: Any, dim: str, *, size: int) -> list[str]:
    """The coordinate's values where they tell the places apart, else their numbers."""
    numbers = [str(number) for number in range(size)]
    if dim not in dataset.variables or dataset[dim].dtype.kind not in MEASURED_KINDS:
        return numbers
    texts = [f"{float(value):.10g}" for value in dataset[dim].values]
    return texts if len(set(texts)) == size else numbers


# --- the file --------------------------------------------------------------------------------


@contextmanager
def _open(path: Path, xarray: Any) -> Iterator[Any]:
    """The file with values unpacked on demand and never kept; times stay numbers."""
    with xarray.open_dataset(
        path,
        engine="netcdf4",
        decode_times=False,
        decode_timedelta=False,
        decode_coords="all",
        cache=False,
    ) as dataset:
        _check_claims(path, dataset)
        yield dataset


def _check_claims(path: Path, dataset: Any) -> None:
    """The classic formats compress nothing: what is not in the file would be read as zeros."""
    with path.open("rb") as file:
        is_classic = file.read(len(CLASSIC_MAGIC)) == CLASSIC_MAGIC
    values, size = sum(one.size for one in dataset.variables.values()), path.stat().st_size
    if is_classic and values > size:
        raise InputError(
            f"expected a whole NetCDF file at {path}: it claims {values:,} values and has "
            f"{size:,} bytes"
        )


@contextmanager
def _readable(path: Path, xarray: Any) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise InputError(f"expected a whole NetCDF file at {path}: {error}") from error
