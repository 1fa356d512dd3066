"""Zarr stores, versions 2 and 3, in a directory or a zip file, by the rules for NetCDF files.

xarray and zarr read them, in blocks of whole chunks where these are small enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from galileo.errors import InputError
from galileo.formats.mapping import Mapping
from galileo.formats.netcdf import SLAB_VALUES_MAX, decoded, joined, open_groups
from galileo.formats.reader import Reader, library_errors
from galileo.optional_imports import library

MARKERS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
"""Files of which the directory of a store has one."""
_UNSAFE_FILTERS = ("pickle",)


def is_zarr(path: Path) -> bool:
    """Whether a directory is a Zarr store."""
    return any((path / name).is_file() for name in MARKERS)


def open_zarr(path: Path, mapping: Mapping, *, slab_values_max: int = SLAB_VALUES_MAX) -> Reader:
    """A reader of a Zarr store.

    Raises:
        InputError: it is damaged, or its coordinates span no grid.
        MissingExtra: xarray or zarr is not installed.
    """
    xarray = library("xarray", purpose="reading Zarr")
    zarr = library("zarr", purpose="reading Zarr")
    with library_errors(path, format="Zarr"), _store(zarr, path) as store:
        groups = _groups(path, zarr.open_group(store, mode="r"))

    @contextmanager
    def opened(within: dict[str, list[str]]) -> Iterator[Any]:
        with library_errors(path, format="Zarr"), _store(zarr, path) as store, ExitStack() as stack:
            options = {"engine": "zarr", "consolidated": False, "chunks": None}
            dataset = joined(xarray, store, within, stack, options)
            # A directory has no order that a copy keeps.
            dataset = dataset[sorted(map(str, dataset.variables))]
            with decoded(path, dataset, xarray, format="Zarr") as decoded_dataset:
                yield decoded_dataset

    return open_groups(groups, opened, mapping, slab_values_max=slab_values_max)


@contextmanager
def _store(zarr: Any, path: Path) -> Iterator[Any]:
    if path.is_dir():
        yield zarr.storage.LocalStore(path, read_only=True)
        return
    with zarr.storage.ZipStore(path, mode="r") as store:
        yield store


def _groups(path: Path, group: Any, name: str = "") -> dict[str, list[str]]:
    """By path the dimensions of the groups of a store, "" for its root, parents before children.

    Raises:
        InputError: decoding an array could run code.
    """
    dims: dict[str, None] = {}
    for array_name, array in group.arrays():
        filters = [getattr(one, "codec_id", "") for one in array.filters]
        if unsafe := [one for one in filters if one in _UNSAFE_FILTERS]:
            raise InputError(
                f"expected data that can be decoded safely in {path}, got {array_name!r} with the "
                f"filter {unsafe[0]!r}, which can run code; write its texts as such",
                expected="filters",
                variable=array_name,
            )
        named = getattr(array.metadata, "dimension_names", None)
        dims |= dict.fromkeys(named or array.attrs.get("_ARRAY_DIMENSIONS", ()))
    groups = {name: list(dims)}
    for child, members in group.groups():
        groups |= _groups(path, members, f"{name}/{child}".strip("/"))
    return groups
