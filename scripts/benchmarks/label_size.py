"""Bytes of a result's labels in the forms that they take (as the paper's Table I asks)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.figures import Figure, Peer, Spread
from benchmarks.sizes import Bench
from galileo.ccq.cache import LabelCache
from galileo.cursor import ORIGIN, Cursor
from galileo.dht.placement import partitions_of
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.generate import NamLike
from galileo.graph.metadata import MetadataGraph
from galileo.labels import LabelSet, to_ipc
from galileo.model import paths
from galileo.model.schema import Schema
from galileo.query import parse

QUERY = "humidity < 60"
START = "2014-03-01T00:00:00Z"
HOURS = 2
ONE_NODE = Topology("bench", (Group("group", (NodeInfo("node", "127.0.0.1:1"),)),), even_ranges(1))


def measure(bench: Bench) -> Iterator[Figure]:
    result = nam_result(bench.sizes.stride)
    bench.say(f"{len(result):,} paths of {HOURS} hours match {QUERY!r}")
    for wanted in bench.sizes.labels:
        if wanted > len(result):
            raise AssertionError(f"expected {wanted} labels of {QUERY!r}, got {len(result)}")
        yield from sizes_of(result.slice(0, wanted))


def nam_result(stride: int) -> LabelSet:
    """All matches of some hours of a generated forecast, in commit order."""
    model = NamLike(seed=7, stride=stride)
    schema = model.schema()
    graph = MetadataGraph(schema)
    for number, table in enumerate(model.stream(START, hours=HOURS), start=1):
        for partition, batch in split(schema, table):
            graph.insert(batch, partition=partition, sequence=number)
    return LabelSet(schema, graph.scan(parse(QUERY, schema))).in_commit_order()


def split(schema: Schema, table: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The paths of one batch, partition by partition, as a node makes them."""
    cells, buckets = paths.cells_of(schema, table), paths.buckets_of(schema, table)
    placed = partitions_of(ONE_NODE, schema, cells, buckets)
    for partition in np.unique(placed).tolist():
        yield partition, paths.index(schema, table.filter(pa.array(placed == partition)))[1]


def sizes_of(labels: LabelSet) -> Iterator[Figure]:
    texts = int(pc.sum(pc.binary_length(labels.texts())).as_py())
    table = labels.table.combine_chunks()
    forms = {
        "path labels as text": texts,
        "Arrow IPC": len(to_ipc(table)),
        "Arrow IPC, lz4": len(to_ipc(table, compression="lz4")),
        "cache of a continuous query": cached_bytes(labels, compressed=False),
        "cache of a continuous query, lz4": cached_bytes(labels, compressed=True),
    }
    peer = Peer("the texts", Spread.of([texts / len(labels)]))
    for name, size in forms.items():
        spread = Spread.of([size / len(labels)])
        peers = () if size == texts else (peer,)
        yield Figure(f"{len(labels):,} labels: {name}", "B/label", spread, peers)


def cached_bytes(labels: LabelSet, *, compressed: bool) -> int:
    """Bytes of the cache, which learns the labels commit by commit as cycles bring them."""
    cache = LabelCache(ORIGIN, compressed=compressed)
    partitions = np.unique(labels.partitions).tolist()
    for sequence in np.unique(labels.sequences).tolist():
        reached = Cursor(dict.fromkeys(partitions, sequence))
        cache.append(labels.where(labels.sequences == sequence), reached=reached)
    if len(cache) != len(labels):
        raise AssertionError(f"expected {len(labels)} labels in the cache, got {len(cache)}")
    return cache.bytes
