"""The schema of a new dataset from a file: its features, and blocks that suit its first rows.

A commit stores a path for each distinct tuple of cell, bucket and indexed values (paper, Fig. 1),
which takes about as much room as a row with one float. Wider blocks have more rows for each path,
but an index on exact measured values makes a path of each row in blocks of any width. So the paths
that the first batch would have are counted for one choice after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.arrays import one_array
from galileo.errors import GalileoWarning, InputError, UnknownProperty, listed
from galileo.formats.expressions import Literal, names
from galileo.formats.source import Binding, Source, skipped_words
from galileo.formats.variables import format_names
from galileo.geo import geohash
from galileo.model.observations import normalise
from galileo.model.paths import cells_from_table
from galileo.model.schema import (
    COORDINATES,
    FLOATS,
    NUMBERS,
    Feature,
    FeatureType,
    Schema,
    nearest_name,
)
from galileo.model.times import MICROS, Duration, column_micros, duration_text, seconds
from galileo.model.units import is_known

DEFAULT_INDEXED_MAX = 32
PRECISIONS = (5, 4, 3, 2)
"""Cells to choose from, of 5 km to 1,250 km; larger ones exclude next to nothing from a query."""
BUCKETS = ("1h", "3h", "6h", "12h", "1d", "2d", "4d", "8d", "16d", "32d", "64d", "128d", "256d")
ROWS_MIN = 10_000
"""Fewer rows are no reason to leave a feature out of the index: their paths take 0.3 MB."""
PATH_ROWS_MIN = 16
"""Rows of a path from which on paths take at most 6 % of the room of rows with one float32."""
GAIN_MIN = 4
"""By how much features that are left out of the index must reduce the number of paths."""
GRID_PLACES_MIN = 256
"""Places at each time from which on rows are taken for a grid, if no text names the places."""

Ints: TypeAlias = npt.NDArray[np.int64]
Size = TypeVar("Size", int, float)
Block: TypeAlias = tuple[int, float]
"""Geohash characters of a cell, and seconds of a bucket."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a new dataset because no option says it.

    Attributes:
        option: "precision", "bucket" or "index", which chooses otherwise.
        value: that was chosen.
        reason: for people, with the numbers that it follows from.

    Example:
        >>> with open("mast.csv", "w") as file:
        ...     print("lat,lon,time,t", "40,-105,2014-03-01,278", sep=chr(10), file=file)
        >>> receipt = client.ingest_file("mast", "mast.csv", create=True)
        >>> receipt.choices[1].option, receipt.choices[1].value
        ('bucket', '1h')
    """

    option: str
    value: str
    reason: str


def suggest_schema(
    source: Source,
    name: str,
    *,
    geohash_precision: int | None = None,
    time_bucket: Duration | None = None,
    index: Sequence[str] | None = None,
    key: Sequence[str] = (),
) -> Schema:
    """A schema for a dataset of the file's observations; see `suggest`."""
    options: dict[str, Any] = {"precision": geohash_precision, "bucket": time_bucket}
    return suggest(source, name, index=index, key=key, is_row_needed=False, **options)[0]


def suggest(
    source: Source,
    name: str,
    *,
    precision: int | None,
    bucket: Duration | None,
    index: Sequence[str] | None,
    key: Sequence[str],
    is_row_needed: bool = True,
) -> tuple[Schema, tuple[Choice, ...]]:
    """A schema for a dataset of the file's observations, and what was chosen for it and why.

    The features have what the file says of them. What no feature can have, such as a unit that
    UDUNITS does not know, is left out with a warning. A schema's features are for ever, and a wrong
    file or mapping must not leave a dataset behind: the first batch of a file is read and checked.
    Data in memory is not read, since some can be read only once.

    Args:
        source: of the observations.
        name: of the dataset.
        precision: geohash characters of a cell; None: the first batch decides.
        bucket: width of a block in time; None: the first batch decides.
        index: the features that are indexed. None: the mapped features; without a mapping the
            first `DEFAULT_INDEXED_MAX`, except identifiers and features that give each row a path
            of its own.
        key: features of the key, which are indexed.
        is_row_needed: whether it is an error if all rows are skipped.

    Raises:
        UnknownProperty: `index` or `key` names an unknown feature.
        InvalidSchema: a feature of `key` has a type that no key can have.
        InputError: the first batch is damaged or does not fit, or all rows are skipped.
    """
    selected = {feature for feature, _ in source.mapping.features}
    if index is not None:
        selected = {_known_feature(name, source.bindings, use="index") for name in index}
    key = [_known_feature(name, source.bindings, use="make the key of") for name in key]
    variables = source.variables()
    identifiers = {variable.name for variable in variables if variable.identifier}
    candidates = [
        binding.feature
        for binding in source.bindings
        if binding.expression and not identifiers & {*names(binding.expression)}
    ]
    first = list(dict.fromkeys([*key, *candidates]))[:DEFAULT_INDEXED_MAX]
    is_first = index is None and not selected
    indexed = {*key, *(first if is_first else selected)}
    features = [_feature(b, indexed=b.feature in indexed) for b in source.bindings]
    precisions = PRECISIONS if precision is None else (precision,)
    widths = [*map(seconds, BUCKETS if bucket is None else (bucket,))]
    schema = Schema(name, features, geohash_precision=precisions[0], time_bucket=widths[0], key=key)
    measured = {variable.name for variable in variables if not variable.auxiliary}
    droppable = [
        feature.name
        for feature, binding in zip(features, source.bindings, strict=True)
        if is_first and not feature.flags and measured & {*names(binding.expression or Literal(0))}
    ]
    rows = _first_rows(source.bound_to(schema), schema, is_needed=is_row_needed)
    block, levels = (precisions[0], widths[0]), [feature.name for feature in schema.indexed]
    reasons = [f"{rows.num_rows:,} rows are too few to choose by"] * 3
    if schema.is_keyed:
        reasons = ["each observation of a keyed dataset has a path of its own"] * 3
    elif rows.num_rows >= ROWS_MIN:
        chooser = _Chooser(schema, rows, precisions, widths)
        block, levels = chooser.choose(droppable)
        reasons = chooser.reasons(block, levels)
    if len(levels) == DEFAULT_INDEXED_MAX < len(features):
        words = f"; only the first {len(levels)} of {len(features)} features are indexed, so that "
        reasons[2] += words + "queries can use no others"
    values = f"{block[0]}", duration_text(block[1]), listed(levels) or "nothing"
    options = {"precision": precision, "bucket": bucket, "index": index}
    choices = map(Choice, options, values, reasons)
    features = [replace(feature, indexed=feature.name in levels) for feature in features]
    chosen = Schema(name, features, geohash_precision=block[0], time_bucket=block[1], key=key)
    return chosen, tuple(choice for choice in choices if options[choice.option] is None)


def _first_rows(source: Source, schema: Schema, *, is_needed: bool) -> pa.Table:
    """The first batch of a file, normalised; no rows of data in memory."""
    table = None if source.path is None else next(source.batches(), None)
    if table is None and source.skipped and is_needed:
        raise InputError(
            f"expected an observation, got none: {skipped_words(source.lacking)}; the dataset was "
            "not created",
            expected="observations",
        )
    return schema.observation_schema.empty_table() if table is None else normalise(schema, table)


class _Chooser:
    """Chooses by the first rows of a dataset, whose values are numbered from 0.

    Args:
        schema: with all features indexed that may be.
        rows: normalised.
        precisions, widths: of cells and buckets to choose from, finest first.
    """

    def __init__(
        self, schema: Schema, rows: pa.Table, precisions: Sequence[int], widths: Sequence[float]
    ) -> None:
        self._rows = rows.num_rows
        self._types = {feature.name: feature.type for feature in schema.indexed}
        self._features = {name: _numbers(one_array(rows.column(name))) for name in self._types}
        self._levels: dict[tuple[str, ...], Ints] = {(): np.zeros(self._rows, dtype=np.int64)}
        coordinates = (_numbers(one_array(rows.column(name))) for name in COORDINATES[:2])
        self._places = _tuples(*coordinates)
        if self._rows > _count(self._places) ** 2:
            precisions = precisions[:1]  # A few places have long series: cells tell them apart.
        cells, cell = np.unique(cells_from_table(schema, rows), return_inverse=True)
        micros, self._time = np.unique(column_micros(rows.column("time")), return_inverse=True)
        coarser = {p: geohash.coarsen(cells, precisions[0], p) for p in precisions}
        self._cells = _distinct(coarser, cell)
        self._buckets = _distinct({w: micros // round(w * MICROS) for w in widths}, self._time)

    def choose(self, droppable: Collection[str]) -> tuple[Block, list[str]]:
        """The block, and which features are indexed; those of `droppable` may be left out."""
        features = [*self._types]
        measured = [name for name in self._measured() if name in droppable]
        levels = [name for name in features if name not in measured]
        block, paths = self._closest(levels)
        if self._paths(block, features) < GAIN_MIN * paths:
            return self._closest(features)[0], features
        most = max(paths, self._rows // PATH_ROWS_MIN)
        for name in sorted(measured, key=lambda name: _count(self._features[name])):
            if self._paths(block, [*levels, name]) <= most:
                levels.append(name)
        return block, [name for name in features if name in levels]

    def _measured(self) -> list[str]:
        """Features whose values rarely occur twice in a block.

        In a grid, which has many places at each time and no text that names them, these are all
        numbers; else floats of which nearly each row has another.
        """
        counts = {name: _count(numbers) for name, numbers in self._features.items()}
        texts = max((counts[name] for name in counts if self._types[name] == "text"), default=0)
        at_times = _count(_tuples(self._places, self._time)) / _count(self._time)
        if at_times >= GRID_PLACES_MIN and 2 * texts < _count(self._places):
            return [name for name in counts if self._types[name] in NUMBERS]
        floats = [name for name in counts if self._types[name] in FLOATS]
        return [name for name in floats if 2 * counts[name] >= self._rows]

    def _closest(self, levels: Sequence[str]) -> tuple[Block, int]:
        """The closest block with enough rows for each path, else with few paths; these paths.

        The closest has the least ratio, in latitude, longitude or time, of the number of the finest
        blocks to that of its size.
        """
        cells = {precision: _count(numbers) for precision, numbers in self._cells.items()}
        buckets = {width: _count(numbers) for width, numbers in self._buckets.items()}
        ratios = {
            (precision, width): max((max(cells.values()) / n) ** 0.5, max(buckets.values()) / m)
            for precision, n in cells.items()
            for width, m in buckets.items()
        }
        paths: dict[Block, int] = {}
        for block in sorted(ratios, key=ratios.__getitem__):
            paths[block] = self._paths(block, levels)
            if PATH_ROWS_MIN * paths[block] <= self._rows:
                return block, paths[block]
        least, finest = min(paths.values()), next(iter(paths.values()))
        most = 1.25 * least if 2 * least <= finest else finest
        return next(item for item in paths.items() if item[1] <= most)

    def _paths(self, block: Block, levels: Sequence[str]) -> int:
        cells, buckets = self._cells[block[0]], self._buckets[block[1]]
        values = self._tuples_of(tuple(levels))
        ordered = np.sort((cells * _count(buckets) + buckets) * _count(values) + values)
        return int(np.count_nonzero(np.diff(ordered))) + 1

    def _tuples_of(self, levels: tuple[str, ...]) -> Ints:
        """The number of the tuple of indexed values of each row; kept, since others begin so."""
        if levels not in self._levels:
            last = self._features[levels[-1]]
            self._levels[levels] = _tuples(self._tuples_of(levels[:-1]), last)
        return self._levels[levels]

    def reasons(self, block: Block, levels: Sequence[str]) -> list[str]:
        """Why the precision, the bucket and the index are as they are, for people."""

        def average(precision: int, width: float, levels: Sequence[str]) -> str:
            return f"{self._rows / self._paths((precision, width), levels):,.1f}"

        words = f"a path has {average(*block, levels)} of the first {self._rows:,} rows on average"
        reasons, finest, hour = [words] * 3, next(iter(self._cells)), next(iter(self._buckets))
        if block[0] != finest:
            reasons[0] += f", and {average(finest, block[1], levels)} with {finest}"
        if block[1] != hour:
            reasons[1] += f", and {average(block[0], hour, levels)} with {duration_text(hour)}"
        if dropped := [name for name in self._types if name not in levels]:
            reasons[2] += (
                f", and {average(*block, [*self._types])} with {listed(dropped)}; conditions and "
                "statistics of labels can use indexed features only"
            )
        return reasons


def _distinct(sizes: Mapping[Size, npt.NDArray[Any]], rows: Ints) -> dict[Size, Ints]:
    """The numbers of rows in cells or buckets of sizes, finest first, that divide them differently.

    Args:
        sizes: the cells or buckets of distinct places or times.
        rows: the place or time of each row.
    """
    numbers = {size: _numbered(values) for size, values in sizes.items()}
    finest = {_count(numbers[size]): size for size in reversed(numbers)}
    return {size: numbers[size][rows] for size in reversed(finest.values())}


def _numbers(values: pa.Array) -> Ints:
    """The same number for equal values; null is a value."""
    if pa.types.is_floating(values.type):
        return _numbered(values.to_numpy(zero_copy_only=False))
    codes = values.dictionary_encode(null_encoding="encode")
    return np.asarray(codes.indices.to_numpy(), dtype=np.int64)


def _numbered(values: npt.NDArray[Any]) -> Ints:
    numbers: Ints = np.unique(values, return_inverse=True)[1]
    return numbers


def _tuples(first: Ints, second: Ints) -> Ints:
    """The same number for equal pairs."""
    is_each_different = _count(first) == len(first)
    return first if is_each_different else _numbered(first * _count(second) + second)


def _count(numbers: Ints) -> int:
    """How many different ones there are."""
    return int(numbers.max()) + 1


def _feature(binding: Binding, *, indexed: bool) -> Feature:
    """The feature of a binding, with a warning about what is left out of its description."""
    about, kind = binding.about, _known_type(binding)
    left_out = [about.left_out] if about.left_out else []
    if not is_known(about.unit):
        left_out.append(f"the unit {about.unit!r}, which UDUNITS does not know")
        about = replace(about, unit="")
    if about.flags and kind != "int":
        left_out.append(f"flags of the type {kind}")
        about = replace(about, flags=())
    for words in left_out:
        warnings.warn(
            GalileoWarning(f"{binding.feature}: left out of its description: {words}"), stacklevel=3
        )
    return Feature(
        binding.feature,
        about.unit,
        kind,
        indexed,
        standard_name=about.standard_name,
        description=about.description,
        flags=dict(about.flags),
    )


def _known_type(binding: Binding) -> FeatureType:
    if binding.type is None:
        raise InputError(
            f"expected a value that tells the type of feature {binding.feature!r}, got none in the "
            "whole file; leave it out and add it later, or create the dataset with its types",
            expected="value",
            feature=binding.feature,
        )
    return binding.type


def _known_feature(name: str, bindings: Sequence[Binding], *, use: str) -> str:
    features = [binding.feature for binding in bindings]
    if name not in features:
        close = nearest_name(name, features)
        hint = f"; did you mean {close!r}?" if close else "."
        raise UnknownProperty(
            f"there is no feature {name!r} to {use}{hint} "
            f"The features are {format_names(features)}",
            nearest=close,
        )
    return name
