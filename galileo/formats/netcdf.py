"""NetCDF files by the CF conventions, and WRF output, through xarray and netCDF4.

The dimensions of latitude, longitude and time span the rows, with the levels of profiles and the
members of ensembles (`galileo.formats.netcdf_samples`); time varies slowest. A variable with other
dimensions becomes several variables, `t@level:850`. The file is read in slabs of bounded size along
the rows, each variable once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from collections.abc import Mapping as AbstractMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.formats.expressions import Name
from galileo.formats.mapping import Mapping
from galileo.formats.netcdf_grid import (
    SINCE,
    CoordinateGrid,
    decode_times,
    find_grid,
    with_constants,
    with_run,
    with_valid_time,
)
from galileo.formats.netcdf_samples import (
    QUALITY_FLAGS,
    attribute,
    is_quality,
    with_instances_repeated,
    with_positions,
)
from galileo.formats.reader import NOWHERE, Coordinates, Reader, library_errors
from galileo.formats.variables import (
    CANDIDATES_SHOWN_MAX,
    VariableInfo,
    format_names,
    qualified_name,
    unknown_name,
)
from galileo.model.feature_metadata import LONG_NAME, from_attributes
from galileo.model.schema import FEATURES_MAX, FeatureType
from galileo.optional_imports import library

CLASSIC_MAGIC = b"CDF"
SLAB_VALUES_MAX = 1 << 22
LEVELS_MAX = 4096
GROUPS_MAX = 64
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
        groups = _groups(file)
    fills = netcdf.default_fillvals
    return open_groups(
        groups,
        lambda within: _open(path, xarray, fills, within=within),
        mapping,
        slab_values_max=slab_values_max,
    )


def open_groups(
    groups: dict[str, list[str]],
    open: Callable[[dict[str, list[str]]], AbstractContextManager[Any]],
    mapping: Mapping,
    *,
    slab_values_max: int,
) -> Reader:
    """A reader of one group of a file, by `GridOptions.group`.

    Args:
        groups: their dimensions by path, "" for the root, parents before children.
        open: opens some of them as one decoded dataset.
        mapping: of the file.
        slab_values_max: of the values that are read at once.

    Raises:
        InputError: its coordinates span no grid.
    """

    def reader(group: str) -> Reader:
        related = [other for other in groups if other != group and not _is_within(group, other)]
        return _reader(
            lambda: open(_scopes(group, groups)),
            mapping,
            groups=[f"group {other}" for other in related if other],
            slab_values_max=slab_values_max,
        )

    return _of_group(reader, mapping.grid.group.strip("/"), groups=list(groups))


def read_dataset(dataset: Any, mapping: Mapping) -> Reader:
    """A reader of an xarray Dataset, decoded or not.

    Yields what the file of the Dataset yields, except that values that were never written are not
    recognised as missing.
    """
    xarray = library("xarray", purpose="reading a Dataset")
    reader = _reader(lambda: decoded("the Dataset", dataset, xarray), mapping)
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
        try:
            dataset, named, repeated = _prepared(dataset, mapping)
            grid = find_grid(dataset, named)
        except InputError as error:
            if error.details.get("expected") != "coordinate":
                raise
            infos = [_info(dataset[str(n)], str(n), default=False) for n in dataset.variables]
            return Reader(replace(NOWHERE, error=error), infos, None, lambda _: (), groups)
        names = [name for name in grid.names if name in dataset.variables]
        dataset = dataset.set_coords(names)
        variables = [
            *((_info(dataset[n], n, default=False), VariableSlice(n, ())) for n in names),
            *_list_variables(dataset, grid, repeated=repeated),
        ]
    slices = {info.name: variable_slice for info, variable_slice in variables}
    measured = {variable_slice.variable for variable_slice in slices.values()}

    def scan(wanted: Sequence[str]) -> Iterator[pa.Table]:
        rows_max = max(1, slab_values_max // max(1, len({*wanted} - {*names})))
        with open() as dataset:
            dataset, *_ = _prepared(dataset, mapping)
            for name in names:
                variable = dataset.variables[name]
                if variable.ndim <= 1 or grid.dims[0] not in variable.dims:
                    variable.load()  # Each window needs it.
            chunks: dict[str, int] = {}
            for variable in (dataset[slices[name].variable] for name in wanted):
                chunks |= zip(variable.dims, variable.encoding.get("chunks") or (), strict=False)
            for window in windows(grid, rows_max=rows_max, chunks=chunks):
                columns = [_column(dataset, slices[n], grid=grid, window=window) for n in wanted]
                yield pa.table(columns, names=list(wanted))

    return Reader(
        Coordinates(Name(grid.latitude), Name(grid.longitude), grid.time, grid.constant_us),
        [info for info, _ in variables],
        math.prod(grid.shape),
        scan,
        [*(str(name) for name in dataset.data_vars if name not in measured), *groups],
    )


def _prepared(dataset: Any, mapping: Mapping) -> tuple[Any, Mapping, frozenset[str]]:
    """The dataset of rows, its mapping, and the variables of instances of ragged arrays."""
    dataset, repeated = with_instances_repeated(dataset)
    dataset = with_positions(dataset.set_coords(_related(dataset, RELATED)), mapping.grid.rows)
    dataset = with_valid_time(dataset)
    if mapping.grid.reference_time:
        dataset = with_run(dataset, mapping)
    return *with_constants(dataset, mapping), repeated


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
    if name != grid.time and _is_text(variable):
        texts = _codes(part) if is_quality(variable) else _texts(part)
        places = part.copy(data=np.arange(part.size).reshape(part.shape))
        return texts.take(pa.array(places.set_dims(sizes).values.ravel()))
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


def windows(
    grid: CoordinateGrid, *, rows_max: int, chunks: AbstractMapping[str, int] | None = None
) -> Iterator[Window]:
    """Splits the rows into consecutive windows of at most `rows_max` rows.

    Args:
        grid: of the rows.
        rows_max: of a window.
        chunks: sizes of chunks by dimension, which are cut only if one has more than `rows_max`
            rows. Without chunks, a window is as long as possible along the fastest dimensions.
    """
    if not grid.shape:
        yield {}
        return
    chunk = [
        max(1, min((chunks or {}).get(d, 1), s)) for d, s in zip(grid.dims, grid.shape, strict=True)
    ]
    steps = list(chunk)
    for axis in range(len(steps)):
        steps[axis] = max(1, min(steps[axis], rows_max // math.prod(steps[axis + 1 :])))
    for axis in reversed(range(len(steps))):
        room = rows_max * steps[axis] // math.prod(steps)
        whole = room // chunk[axis] * chunk[axis]
        steps[axis] = (
            max(1, grid.shape[axis]) if room >= grid.shape[axis] else max(steps[axis], whole)
        )
    ranges = [range(0, size, step) for size, step in zip(grid.shape, steps, strict=True)]
    for starts in itertools.product(*ranges):
        yield {d: slice(i, i + n) for d, i, n in zip(grid.dims, starts, steps, strict=True)}


# --- values ----------------------------------------------------------------------------------


def _is_text(variable: Any) -> bool:
    if variable.dtype.kind != "O":
        return bool(variable.dtype.kind in "SUT")
    kind = (variable.dtype.metadata or {}).get("element_type")  # Of a file.
    return kind is str or (kind is None and isinstance(next(iter(variable.values.flat), None), str))


def _texts(part: Any) -> pa.Array:
    """Texts without the blanks that pad them; empty ones and fill values are null."""
    fills = [part.attrs[mark] for mark in FILLS if mark in part.attrs]
    texts, missing = (_trimmed(values) for values in (part.values.ravel(), np.asarray(fills, str)))
    return pc.if_else(pc.is_in(texts, pa.chunked_array([missing, pa.array([""])])), None, texts)


def _trimmed(values: Any) -> pa.Array:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    elif values.dtype.kind == "T":
        values = values.astype(object)
    return pc.utf8_trim(pa.array(values, pa.string(), from_pandas=True), " \0\n\r\t")


def _codes(part: Any) -> pa.Array:
    """The digits of one character as numbers; others are null."""
    codes = part.values.ravel().astype("S1").view(np.uint8).astype(np.int64) - ord("0")
    return pa.array(codes, mask=(codes < 0) | (codes > 9))


def _is_filled(values: Any, variable: Any) -> Any:
    """A mask of the fill values in a variable whose values are as they are stored."""
    fills = [number for mark in FILLS for number in _bounds(variable.attrs.get(mark))]
    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        whole = [int(number) for number in fills if float(number).is_integer()]
        fills = [number for number in whole if limits.min <= number <= limits.max]
    return np.isin(values, np.array(fills, values.dtype))


def _is_as_stored(variable: Any) -> bool:
    """Whether xarray must not mask it: it makes floats of integers and objects of texts, and parses
    units of times.
    """
    is_time = SINCE in attribute(variable, "units").lower()
    is_packed = {"scale_factor", "add_offset", "_Unsigned"} & set(variable.attrs)
    return (variable.dtype.kind in "iuSOT" or is_time) and not is_packed


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


def _related(dataset: Any, attributes: Sequence[str]) -> set[Any]:
    """The variables that some attributes of others name."""
    related = set[str]()
    for variable in dataset.variables.values():
        for name in attributes:
            words = attribute(variable, name).replace(" :", ":").split()
            is_key = name == "grid_mapping"  # In `crs: x y` and in `area: cell_area`.
            related |= {word.rstrip(":") for word in words if is_key or not word.endswith(":")}
    return related & set(dataset.variables)


def _list_variables(
    dataset: Any, grid: CoordinateGrid, *, repeated: Collection[str]
) -> list[tuple[VariableInfo, VariableSlice]]:
    """Every variable of the rows, once for each place along its other dimensions.

    On a grid these are the measured ones with all dimensions of places, and the coordinates of its
    levels; of stations, trajectories and profiles also what belongs to each of them, such as names.
    """
    hidden = _related(dataset, RELATED[1:]) | {*grid.names}
    offered = [
        variable
        for name, variable in ((str(n), dataset[n]) for n in dataset.variables)
        if name in dataset.data_vars
        or name in grid.levels
        or (grid.is_sampled and name not in hidden)
        if name not in grid.names
        if variable.dtype.kind in MEASURED_KINDS or (grid.is_sampled and _is_text(variable))
        if grid.is_sampled or name in grid.levels or {*grid.place_dims} <= {*variable.dims}
    ]
    sliced = [(each, _variable_slices(dataset, each, grid=grid)) for each in offered]
    measured = [(each, slices) for each, slices in sliced if 0 < len(slices) <= LEVELS_MAX]
    levels_too = sum(len(slices) for _, slices in measured) <= FEATURES_MAX
    ancillary = _related(dataset, ["ancillary_variables"])
    infos: list[tuple[VariableInfo, VariableSlice]] = []
    for variable, slices in measured:
        is_whole = {*grid.dims} <= {*variable.dims}
        is_level = variable.name in grid.levels
        is_instance = grid.is_sampled and (
            bool({*grid.dims} & {*variable.dims}) or "cf_role" in variable.attrs
        )
        is_time = grid.is_sampled and not is_level and SINCE in attribute(variable, "units").lower()
        is_taken = (is_whole and levels_too) or (
            len(slices) == 1 and (is_whole or is_level or is_instance)
        )
        is_auxiliary = bool(grid.levels or grid.is_sampled) and (
            not is_whole
            or is_level
            or variable.name in repeated
            or variable.name in ancillary
            or is_quality(variable)
        )
        info = _info(variable, "", default=is_taken and not is_time)
        info = replace(info, auxiliary=is_auxiliary)
        infos += [(replace(info, name=name), variable_slice) for name, variable_slice in slices]
    return infos


def _info(variable: Any, name: str, *, default: bool) -> VariableInfo:
    kinds: dict[str, FeatureType] = {"i": "int", "u": "int", "b": "bool"}
    stored = variable.dtype if _is_packed(variable) else _stored_type(variable)
    floats: FeatureType = "float32" if variable.dtype == np.float32 else "float"
    about = from_attributes({LONG_NAME: attribute(variable, "description")} | variable.attrs)
    type: FeatureType = "text" if _is_text(variable) else kinds.get(stored.kind, floats)
    if is_quality(variable):
        about, type = replace(about, flags=tuple(QUALITY_FLAGS.items())), "int"
    dims = tuple(f"{dim}:{size}" for dim, size in variable.sizes.items())
    return VariableInfo(name, about, dims=dims, type=type, default=default)


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
    if dim not in dataset.variables or dataset[dim].dims != (dim,):
        return numbers
    if dataset[dim].dtype.kind not in MEASURED_KINDS:
        return numbers
    texts = [f"{float(value):.10g}" for value in dataset[dim].values]
    return texts if len(set(texts)) == size else numbers


# --- the file --------------------------------------------------------------------------------


def _groups(file: Any, path: str = "") -> dict[str, list[str]]:
    """By path the dimensions of the groups of a file, "" for its root, parents before children."""
    groups = {path: list(file.dimensions)}
    for name, group in file.groups.items():
        groups |= _groups(group, f"{path}/{name}".strip("/"))
    return groups


def _is_within(group: str, other: str) -> bool:
    """Whether a group is below another."""
    return not other or group.startswith(f"{other}/")


def _scopes(group: str, groups: dict[str, list[str]]) -> dict[str, list[str]]:
    """The groups whose variables and dimensions a group sees, from the root to itself."""
    return {path: dims for path, dims in groups.items() if path == group or _is_within(group, path)}


def _of_group(open: Callable[[str], Reader], wanted: str, *, groups: Sequence[str]) -> Reader:
    """The reader of the group that is wanted, else of the one group that has places and times.

    Raises:
        UnknownProperty: there is no such group; names the nearest.
        InputError: several groups have places and times, or too many are there to look.
    """
    if wanted and wanted not in groups:
        raise unknown_name("group", wanted, groups[1:])
    reader = open(wanted)
    if wanted or len(groups) == 1 or reader.coordinates.error is None:
        return reader
    if len(groups) - 1 > GROUPS_MAX:
        raise _several(f"{len(groups) - 1:,} groups", groups[1:])
    placed: dict[str, Reader] = {}
    for group in groups[1:]:
        if not any(_is_within(group, other) for other in placed):
            found = open(group)
            if found.coordinates.error is None:
                placed[group] = found
    if len(placed) > 1:
        raise _several(f"{len(placed)} groups with places and times", list(placed))
    if not placed:
        reader.coordinates.error.message += f". No group has them: {format_names(groups[1:])}"
    return next(iter(placed.values()), reader)


def _several(what: str, groups: Sequence[str]) -> InputError:
    return InputError(
        f"expected one group to read, got {what}: {format_names(groups)}",
        expected="group",
        remedy="netcdf_group",
        candidates=list(groups[:CANDIDATES_SHOWN_MAX]),
    )


@contextmanager
def _open(
    path: Path, xarray: Any, default_fills: dict[str, Any], *, within: dict[str, list[str]]
) -> Iterator[Any]:
    """Opens a file; values are unpacked on demand and not cached.

    A variable without a fill value gets that of the library, which marks what was never written.
    """
    with library_errors(path, format="NetCDF"), ExitStack() as stack:
        dataset = joined(xarray, path, within, stack, {"engine": "netcdf4"})
        _check_claims(path, dataset)
        for variable in dataset.variables.values():
            raw = variable.dtype
            fill = default_fills.get(f"{raw.kind}{raw.itemsize}") if raw.itemsize > 1 else None
            if fill is not None and not set(FILLS) & set(variable.attrs):
                variable.attrs["_FillValue"] = np.asarray(fill).astype(raw)[()]
        with decoded(path, dataset, xarray) as decoded_dataset:
            yield decoded_dataset


def joined(
    xarray: Any,
    file: Any,
    within: dict[str, list[str]],
    stack: ExitStack,
    options: dict[str, Any],
) -> Any:
    """The dataset of a group as it is stored, not cached.

    Of the groups `within` which one is, it has the variables too, but for those with a dimension
    that a group further down has itself.
    """
    dataset = xarray.Dataset()
    options = options | {"decode_cf": False, "cache": False}
    for group, dims in within.items():
        own = stack.enter_context(xarray.open_dataset(file, group=group or None, **options))
        dataset = dataset.drop_dims(dims, errors="ignore")
        dataset = dataset.assign(own.variables).assign_attrs(own.attrs)
    return dataset


@contextmanager
def decoded(name: object, dataset: Any, xarray: Any, *, format: str = "NetCDF") -> Iterator[Any]:
    """Decodes masks and scales; times stay numbers, and integers stay integers."""
    with library_errors(name, format=format):
        counted = {
            dim
            for variable in dataset.variables.values()
            if variable.dtype.kind in MEASURED_KINDS
            for dim in variable.dims
        }
        yield xarray.decode_cf(
            dataset,
            # Argo has characters that are no parts of a text: one for each level.
            concat_characters={
                name: variable.dtype != "S1" or not counted & {*variable.dims[-1:]}
                for name, variable in dataset.variables.items()
            },
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
