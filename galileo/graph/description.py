"""Descriptions: contents of a dataset, from the columns of its paths alone.

A sorted run is immutable, so its description is computed once and kept. A call reads only the
memtable, new runs, and runs of which retention dropped commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.geo import geohash
from galileo.graph.columns import Paths, StringDictionary
from galileo.graph.run_scan import Check, never_cancelled
from galileo.graph.snapshot import LivePart, Snapshot
from galileo.graph.sorted_runs import SortedRun
from galileo.graph.summary import Summary, merge_summaries, moments
from galileo.model.schema import Schema
from galileo.query.columns import NULL_CODE, TextColumn

VALUES_MAX = 1_000
"""Distinct values of a text feature that are counted; with more, only `has_more` is reported."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Extent:
    """Place and time of observations, to the width of a block.

    Attributes:
        south, west, north, east: degrees, of all cells.
        start_us: of the first time bucket, microseconds since 1970-01-01 UTC.
        end_us: of the last one, exclusive.
    """

    south: float
    west: float
    north: float
    east: float
    start_us: int
    end_us: int

    def join(self, other: Extent) -> Extent:
        """The smallest extent that contains both."""
        return Extent(
            min(self.south, other.south),
            min(self.west, other.west),
            max(self.north, other.north),
            max(self.east, other.east),
            min(self.start_us, other.start_us),
            max(self.end_us, other.end_us),
        )


@dataclass(frozen=True, slots=True)
class TextCounts:
    """The values of a text feature.

    Attributes:
        nulls: observations without a value.
        counts: observations of each value; empty with more than `VALUES_MAX` values.
        has_more: whether there are more than `VALUES_MAX` values.
    """

    nulls: int
    counts: Mapping[str, int]
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """The contents of a dataset, or of some partitions.

    Attributes:
        observations: number of stored observations.
        paths: of the metadata graph.
        extent: None where nothing is stored.
        numbers: statistics of each indexed numeric feature; a bool counts as 0 and 1.
        texts: values of each indexed text feature.
    """

    observations: int
    paths: int
    extent: Extent | None
    numbers: Mapping[str, Summary]
    texts: Mapping[str, TextCounts]

    def facts(self) -> dict[str, Any]:
        """All of it in the types of JSON."""
        return {
            "observations": self.observations,
            "paths": self.paths,
            "extent": None if self.extent is None else asdict(self.extent),
            "numbers": {name: summary.facts() for name, summary in self.numbers.items()},
            "texts": {name: asdict(counts) for name, counts in self.texts.items()},
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Description:
        """The inverse of `facts`; takes more of them, too."""
        return cls(
            facts["observations"],
            facts["paths"],
            None if facts["extent"] is None else Extent(**facts["extent"]),
            {name: Summary.of(summary) for name, summary in facts["numbers"].items()},
            {name: TextCounts(**counts) for name, counts in facts["texts"].items()},
        )


def merge_descriptions(schema: Schema, parts: Sequence[Description]) -> Description:
    """The description of the union of disjoint parts."""
    extents = [part.extent for part in parts if part.extent is not None]
    extent = extents[0] if extents else None
    for other in extents[1:]:
        extent = other.join(cast(Extent, extent))
    kinds = {feature.name: feature.type for feature in schema.indexed}
    return Description(
        observations=sum(part.observations for part in parts),
        paths=sum(part.paths for part in parts),
        extent=extent,
        numbers={
            name: merge_summaries([part.numbers[name] for part in parts])
            for name, kind in kinds.items()
            if kind != "text"
        },
        texts={
            name: _merge_texts([part.texts[name] for part in parts])
            for name, kind in kinds.items()
            if kind == "text"
        },
    )


class Descriptions:
    """Describes snapshots of one graph; caches the descriptions of sorted runs."""

    def __init__(self, schema: Schema, texts: StringDictionary) -> None:
        self._schema = schema
        self._texts = texts
        self._known: dict[int, tuple[SortedRun, Description]] = {}

    def describe(
        self, snapshot: Snapshot, partitions: frozenset[int], *, check: Check = never_cancelled
    ) -> Description:
        """The contents of some partitions in a snapshot; thread-safe."""
        known, described = self._known, dict[int, tuple[SortedRun, Description]]()
        parts: list[Description] = []
        for part in snapshot.parts_of(partitions):
            check()
            run = part.run
            if not part.is_whole or run.zone_map is None:  # The memtable grows.
                parts.append(self._of_live(part))
                continue
            described[id(run)] = known.get(id(run)) or (run, self._of_live(part))
            parts.append(described[id(run)][1])
        self._known = described
        return merge_descriptions(self._schema, parts)

    def _of_live(self, part: LivePart) -> Description:
        masks = part.masks(slice(0, len(part.run)))
        paths = part.run.paths
        return self._of(paths.take(np.logical_and.reduce(masks)) if masks else paths)

    def _of(self, paths: Paths) -> Description:
        weights = paths.rows.astype(np.int64)
        numbers: dict[str, Summary] = {}
        texts: dict[str, TextCounts] = {}
        for feature in self._schema.indexed:
            column = paths.columns.features[feature.name]
            if isinstance(column, TextColumn):
                texts[feature.name] = self._text_counts(column.codes, weights)
            else:
                numbers[feature.name] = moments(column, weights)
        observations = int(weights.sum())
        return Description(observations, len(paths), self._extent(paths), numbers, texts)

    def _extent(self, paths: Paths) -> Extent | None:
        if len(paths) == 0:
            return None
        cells = np.unique(paths.columns.cell)
        west, south, east, north = geohash.bounds(cells, self._schema.geohash_precision)
        buckets = paths.columns.bucket
        return Extent(
            float(south.min()),
            float(west.min()),
            float(north.max()),
            float(east.max()),
            int(buckets.min()),
            int(buckets.max()) + self._schema.time_bucket_us,
        )

    def _text_counts(self, codes: npt.NDArray[np.int32], weights: Counts) -> TextCounts:
        by_code = np.bincount(codes - NULL_CODE, weights=weights, minlength=1).astype(np.int64)
        nulls, counts = int(by_code[0]), by_code[1:]
        used = np.flatnonzero(counts)
        if len(used) > VALUES_MAX:
            return TextCounts(nulls, {}, has_more=True)
        column = self._texts.bound(TextColumn(used.astype(np.int32), pa.array([], pa.string())))
        values = column.to_arrow().to_pylist()
        return TextCounts(nulls, dict(zip(values, counts[used].tolist(), strict=True)))


def _merge_texts(parts: Sequence[TextCounts]) -> TextCounts:
    nulls = sum(part.nulls for part in parts)
    counts: dict[str, int] = {}
    for part in parts:
        for value, count in part.counts.items():
            counts[value] = counts.get(value, 0) + count
    if len(counts) > VALUES_MAX or any(part.has_more for part in parts):
        return TextCounts(nulls, {}, has_more=True)
    return TextCounts(nulls, counts)
