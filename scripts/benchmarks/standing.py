"""Very many standing queries at once: polygons from ingest to cache, boxes in a node's one pass."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import standing_boxes, standing_polygons
from benchmarks.figures import Figure
from benchmarks.sizes import Bench


def measure(bench: Bench) -> Iterator[Figure]:
    yield from standing_boxes.measure(bench)
    yield from standing_polygons.measure(bench)
