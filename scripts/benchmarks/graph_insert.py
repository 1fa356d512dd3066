"""How fast paths enter the metadata graph, and what they take there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import weather
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.measure import in_turn
from benchmarks.sizes import Bench
from galileo.graph.metadata_graph import MetadataGraph

PATHS_PER_S = 1e6


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    batches = weather.path_batches(sizes.paths, size=sizes.paths_per_batch, seed=1)
    alone, merging, floor = in_turn(
        lambda: insert(batches, merged=False),
        lambda: insert(batches, merged=True),
        lambda: concatenated(batches),
        runs=sizes.runs,
    )
    peer = Peer("NumPy concatenation of the columns", floor.per_second(sizes.paths))
    what = f"of {sizes.paths:,} paths in commits of {sizes.paths_per_batch:,}"
    yield Figure(f"insert {what}", "paths/s", alone.per_second(sizes.paths), (peer,))
    yield Figure(
        f"insert {what}, runs merged after each, as a node does",
        "paths/s",
        merging.per_second(sizes.paths),
        (peer,),
        (Goal("at least", PATHS_PER_S),),
    )
    yield memory(insert(batches, merged=True), batches)


def insert(batches: Sequence[pa.RecordBatch], *, merged: bool) -> MetadataGraph:
    """A new graph of these commits."""
    graph = MetadataGraph(weather.SCHEMA)
    for number, batch in enumerate(batches):
        graph.insert(batch, **weather.place(number))
        if merged:
            graph.maintain()
    return graph


def concatenated(batches: Sequence[pa.RecordBatch]) -> dict[str, Any]:
    """The same columns as plain arrays, one each."""
    return {
        name: np.concatenate([batch.column(name).to_numpy() for batch in batches])
        for name in batches[0].schema.names
    }


def memory(graph: MetadataGraph, batches: Sequence[pa.RecordBatch]) -> Figure:
    paths = graph.count()
    plain = sum(array.nbytes for array in concatenated(batches).values())
    return Figure(
        f"memory of the graph of {paths:,} paths",
        "B/path",
        Spread.of([graph.memory_bytes() / paths]),
        (Peer("the columns alone", Spread.of([plain / paths])),),
    )
