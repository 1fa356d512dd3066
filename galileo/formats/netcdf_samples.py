"""Stations, trajectories and profiles in NetCDF files, and the dimensions that make rows.

The discrete sampling geometries of the CF conventions (1.11, chapter 9 and appendix H): arrays with
a dimension for each level, and ragged arrays, in which the samples of all stations or profiles
follow each other. A ragged array is read as if the variables of its instances were repeated for
each of their samples; what is read of a file grows with the samples that are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from galileo.errors import InputError
from galileo.formats.variables import unknown_name
from galileo.optional_imports import library

FEATURE_TYPES = (
    *("point", "timeseries", "trajectory", "profile", "timeseriesprofile", "trajectoryprofile"),
)
ROLES = ("timeseries_id", "trajectory_id", "profile_id")
VERTICALS = (
    *("depth", "height", "altitude", "air_pressure", "sea_water_pressure", "model_level_number"),
    *("height_above_mean_sea_level", "height_above_reference_ellipsoid"),
)
"""Standard names of coordinates that are vertical without the attributes axis and positive."""
COUNT, INDEX = "sample_dimension", "instance_dimension"
QUALITY_CODES = "Argo reference table 2"
QUALITY_FLAGS = {
    0: "no_qc_performed",
    1: "good_data",
    2: "probably_good_data",
    3: "probably_bad_data",
    4: "bad_data",
    5: "value_changed",
    8: "estimated_value",
    9: "missing_value",
}
"""The codes of Argo reference table 2 (Argo user's manual 3.1), without those that are not used."""


def attribute(variable: Any, name: str) -> str:
    """A text attribute of a variable; empty if it is absent, or no text."""
    value = variable.attrs.get(name, "")
    return value if isinstance(value, str) else ""


def is_sampled(dataset: Any) -> bool:
    """Whether the file has stations, trajectories or profiles, by its conventions."""
    kind = str(dataset.attrs.get("featureType", "")).lower()
    is_argo = "argo" in str(dataset.attrs.get("Conventions", "")).lower()
    roles = {attribute(variable, "cf_role") for variable in dataset.variables.values()}
    return kind in FEATURE_TYPES or is_argo or bool(roles & {*ROLES})


def is_quality(variable: Any) -> bool:
    """Whether it has the quality codes of Argo, which are characters."""
    return variable.dtype.kind == "S" and attribute(variable, "conventions") == QUALITY_CODES


# --- ragged arrays ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Link:
    """A variable that says which samples belong to which instances."""

    name: str
    instances: str
    samples: str


def with_instances_repeated(dataset: Any) -> tuple[Any, frozenset[str]]:
    """The dataset with the variables of instances repeated for each sample, and their names.

    The samples of one ragged array may be the instances of another: profiles of stations.

    Raises:
        InputError: counts or indices contradict the dimensions; names the variable.
    """
    links, repeated = _links(dataset), set[str]()
    while links:
        inner = {link.samples for link in links}
        outermost = [link for link in links if link.instances not in inner]
        if not outermost or len({link.instances for link in links}) < len(links):
            raise _refused(links[0].name, "one variable for each dimension of instances, no circle")
        link = outermost[0]
        if attribute(dataset[link.name], COUNT):
            index = _repeated(dataset, link)
        else:
            index, used = _indices(dataset, link)
            dataset = dataset.isel({link.samples: used})
        dataset = dataset.drop_vars(link.name)
        names = [n for n, v in dataset.variables.items() if link.instances in v.dims]
        gathered = {n: _gathered(dataset[n].variable, link, index) for n in names}
        dataset = dataset.drop_vars(names).assign(gathered)
        repeated |= {*map(str, names)}
        links.remove(link)
    if repeated and not is_sampled(dataset):
        dataset = dataset.assign_attrs(featureType=FEATURE_TYPES[0])
    return dataset, frozenset(repeated)


def _gathered(variable: Any, link: _Link, index: Any) -> Any:
    """A variable of instances along the samples; gathers only what is read.

    There are fewer instances than samples, and HDF5 is slow at reading single ones.
    """
    xarray = library("xarray", purpose="reading NetCDF")
    values = xarray.core.indexing.LazilyIndexedArray(variable.values)
    loaded = xarray.Variable(variable.dims, values, variable.attrs, variable.encoding)
    return loaded.isel({link.instances: xarray.Variable((link.samples,), index)})


def _links(dataset: Any) -> list[_Link]:
    links = []
    for name, variable in dataset.variables.items():
        samples, instances = attribute(variable, COUNT), attribute(variable, INDEX)
        if not samples and not instances:
            continue
        if len(variable.dims) != 1 or variable.dtype.kind not in "iu":
            raise _refused(str(name), "whole numbers along one dimension")
        other = str(variable.dims[0])
        link = _Link(str(name), other, samples) if samples else _Link(str(name), instances, other)
        if link.samples not in dataset.sizes or link.samples == link.instances:
            raise _refused(str(name), f"a dimension {link.samples!r} of samples")
        links.append(link)
    return links


def _repeated(dataset: Any, link: _Link) -> Any:
    """The instance of each sample, from the count of samples of each instance."""
    counts, is_known = _whole_numbers(dataset[link.name])
    counts = np.where(is_known, counts, 0)
    size = dataset.sizes[link.samples]
    if (counts < 0).any() or (counts > size).any() or counts.sum() != size:
        raise _refused(
            link.name,
            f"counts that add up to the {size:,} samples of dimension {link.samples!r}",
            f"{int(counts.sum()):,}",
        )
    return np.repeat(np.arange(len(counts)), counts)


def _indices(dataset: Any, link: _Link) -> tuple[Any, Any]:
    """The instances of the samples that have one, and which samples these are."""
    indices, is_used = _whole_numbers(dataset[link.name])
    known, used = indices[is_used], np.flatnonzero(is_used)
    size = dataset.sizes.get(link.instances, 0)
    if len(known) and not (known.min() >= 0 and known.max() < size):
        raise _refused(
            link.name,
            f"indices from 0 to {size - 1} of dimension {link.instances!r}",
            f"{known.min()} to {known.max()}",
        )
    is_block = len(used) and used[-1] - used[0] + 1 == len(used)
    return known, slice(used[0], used[-1] + 1) if is_block else used


def _whole_numbers(variable: Any) -> tuple[Any, Any]:
    """The values of a variable of integers, and which of them are not missing."""
    values = variable.values.astype(np.int64)
    fills = [
        variable.attrs[name] for name in ("_FillValue", "missing_value") if name in variable.attrs
    ]
    return values, ~np.isin(values, np.asarray(fills))


def _refused(name: str, expected: str, got: str = "others") -> InputError:
    return InputError(
        f"expected in variable {name!r} of a ragged array {expected}, got {got}; correct the file",
        expected="ragged_array",
        variable=name,
    )


# --- rows ------------------------------------------------------------------------------------


def verticals(dataset: Any, others: Collection[str]) -> list[str]:
    """The vertical coordinates: of axis Z, or with a direction or a standard name that is vertical.

    Fluxes have a direction, too. They are taken only where no coordinate is vertical.

    Args:
        dataset: a file or a group.
        others: the coordinates of places and times.
    """
    numbers = {
        str(name): variable
        for name, variable in dataset.variables.items()
        if variable.dtype.kind in "iuf" and name not in others
    }
    directed = [n for n in numbers if attribute(numbers[n], "positive").lower() in ("up", "down")]
    named = [n for n in numbers if attribute(numbers[n], "standard_name") in VERTICALS]
    by_axis = [n for n in numbers if attribute(numbers[n], "axis").upper() == "Z"]
    declared = [name for name in (*directed, *named) if name in dataset.coords]
    return list(dict.fromkeys([*by_axis, *declared])) or directed


def with_positions(dataset: Any, dims: Sequence[str]) -> Any:
    """The dataset with positions from 0 along each of the dimensions that has no coordinate."""
    along = {dim for name in verticals(dataset, ()) for dim in dataset[name].dims}
    along |= {v.dims[0] for v in dataset.variables.values() if len(v.dims) == 1}
    bare = [dim for dim in dims if dim in dataset.sizes and dim not in along]
    return dataset.assign_coords({dim: np.arange(dataset.sizes[dim]) for dim in bare})


def row_dimensions(
    dataset: Any, wanted: Sequence[str], *, levels: Sequence[str], dims: Sequence[str]
) -> tuple[str, ...]:
    """The dimensions that make rows beside those of places and times.

    Args:
        dataset: a file or a group.
        wanted: those of the caller; empty: the levels of profiles, and the members of an ensemble.
        levels: the vertical coordinates.
        dims: of places and times.

    Raises:
        UnknownProperty: the file has no such dimension; names the nearest.
    """
    known = [str(dim) for dim in dataset.sizes]
    for dim in wanted:
        if dim not in known:
            raise unknown_name("dimension", dim, known)
    if wanted:
        return tuple(dim for dim in dict.fromkeys(wanted) if dim not in dims)
    members = [
        str(dim)
        for variable in dataset.variables.values()
        if attribute(variable, "standard_name") == "realization"
        for dim in variable.dims
    ]
    along = (
        [str(dim) for name in levels for dim in dataset[name].dims] if is_sampled(dataset) else []
    )
    return tuple(dim for dim in dict.fromkeys([*members, *along]) if dim not in dims)
