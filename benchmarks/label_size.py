"""Bytes of a result's labels in the forms that they take, and how fast these are made and undone.

The rows are those of the paper's Table I (text labels, compacted, compressed), with the codecs that
come with Arrow next to them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.sizes import Bench
from galileo.ccq.cache import LabelCache
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.placement import partitions_from_cells
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.generate import NamLike
from galileo.graph.metadata_graph import MetadataGraph
from galileo.labels import LabelSet, from_ipc, parse_label, to_ipc
from galileo.model import paths
from galileo.model.schema import Schema
from galileo.packing import Compression
from galileo.packs import PackedLabels, pack_labels
from galileo.query import parse

QUERY = "humidity < 60"
START = "2014-03-01T00:00:00Z"
LABELS_PER_HOUR = 50_000
PARSED = 1_000
RUN_S = 0.05
ONE_NODE = Topology("bench", (Group("group", (NodeInfo("node", "127.0.0.1:1"),)),), even_ranges(1))
# Bytes of a label, its time and value compacted, and compressed with LZW (the paper, Table I).
BYTES_MAX, LABELS_PER_S = 5.0, 5e6
"""The goals, for as many results as the paper has."""
PAPER_RESULTS, PAPER_COMPACTED, PAPER_COMPRESSED = 100_000, 27.4, 7.2


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the same labels.

    Attributes:
        size: bytes of all of them.
        make: puts all of them into the form; `undo` takes `undone` of them out of it.
        paper: bytes of a label that the paper has for it, if it has.
        bytes_max: that a label is meant to take at most; 0 for no goal.
    """

    name: str
    size: int
    make: Callable[[], Any]
    undo: Callable[[], Any]
    undone: int
    paper: float = 0.0
    bytes_max: float = 0.0


def measure(bench: Bench) -> Iterator[Figure]:
    most = max(bench.sizes.labels)
    result = nam_result(bench.sizes.stride, least=most)
    bench.say(f"{len(result):,} paths match {QUERY!r}")
    for wanted in bench.sizes.labels:
        yield from figures_of(result.slice(0, wanted), runs=bench.sizes.runs)
        gc.collect()


def nam_result(stride: int, *, least: int) -> LabelSet:
    """All matches of as many hours of a generated forecast as that takes, in commit order."""
    model = NamLike(seed=7, stride=stride)
    schema = model.schema()
    graph = MetadataGraph(schema)
    query = parse(QUERY, schema)
    hours = 1 + least * stride**2 // LABELS_PER_HOUR
    for number, table in enumerate(model.stream(START, hours=hours), start=1):
        for partition, batch in split(schema, table):
            graph.insert(batch, partition=partition, sequence=number)
    found = LabelSet(schema, graph.scan(query)).in_commit_order()
    if len(found) < least:
        raise AssertionError(f"expected {least} labels of {QUERY!r}, got {len(found)}")
    return LabelSet(schema, found.table.combine_chunks())


def split(schema: Schema, table: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The paths of one batch, partition by partition, as a node makes them."""
    cells, buckets = paths.cells_from_table(schema, table), paths.buckets_from_table(schema, table)
    placed = partitions_from_cells(ONE_NODE, schema, cells, buckets)
    for partition in np.unique(placed).tolist():
        yield partition, paths.index(schema, table.filter(pa.array(placed == partition)))[1]


def figures_of(labels: LabelSet, *, runs: int) -> Iterator[Figure]:
    """Bytes of a label in each form, then how many labels a second go into it and out of it."""
    count = len(labels)
    forms = forms_of(labels)
    texts = forms[0].size / count
    for form in forms:
        peers = [] if form is forms[0] else [Peer("the texts", Spread.of([texts]))]
        if form.paper:
            peers.append(Peer("the paper's", Spread.of([form.paper])))
        size = Spread.of([form.size / count])
        goals = (Goal("at most", form.bytes_max),) if form.bytes_max else ()
        yield Figure(f"{count:,} labels: {form.name}", "B/label", size, tuple(peers), goals)
    yield from _speeds(forms, count, runs=runs)


def _speeds(forms: list[Form], count: int, *, runs: int) -> Iterator[Figure]:
    makes = in_turn(*(form.make for form in forms), runs=runs, run_s=RUN_S)
    undoes = in_turn(*(form.undo for form in forms), runs=runs, run_s=RUN_S)
    for form, make, undo in zip(forms, makes, undoes, strict=True):
        goals = (Goal("at least", LABELS_PER_S),) if form.bytes_max else ()
        made, undone = make.per_second(count), undo.per_second(form.undone)
        yield Figure(f"{count:,} labels into {form.name}", "labels/s", made, goals=goals)
        yield Figure(f"{count:,} labels out of {form.name}", "labels/s", undone, goals=goals)


def forms_of(labels: LabelSet) -> list[Form]:
    """The forms that labels take, the texts first."""
    return [
        _texts(labels),
        *(_ipc(labels, codec) for codec in (None, "lz4", "zstd")),
        _cached(labels, compression=Compression.NONE, paper=PAPER_COMPACTED),
        _cached(labels, compression=Compression.LZ4, paper=PAPER_COMPRESSED),
    ]


def _texts(labels: LabelSet) -> Form:
    """Parsed one by one, which is slow; some of them tell how slow."""
    texts = labels.texts()
    some = texts.slice(0, PARSED).to_pylist()
    size = int(pc.sum(pc.binary_length(texts)).as_py())
    return Form(
        "path labels as text",
        size,
        labels.texts,
        lambda: [parse_label(labels.schema, text) for text in some],
        undone=len(some),
    )


def _ipc(labels: LabelSet, codec: str | None) -> Form:
    table, schema = labels.table, labels.schema.label_schema
    data = to_ipc(table, compression=codec)
    name = f"Arrow IPC, {codec}" if codec else "Arrow IPC"
    return Form(
        name,
        len(data),
        lambda: to_ipc(table, compression=codec),
        lambda: from_ipc(data, schema),
        undone=len(labels),
    )


def _cached(labels: LabelSet, *, compression: Compression, paper: float) -> Form:
    """As the cache of a continuous query has them."""
    cache = LabelCache(EMPTY_CURSOR)
    found = _whole(labels, compression=compression)
    reached = Cursor({p: int(labels.sequences.max()) for p in np.unique(labels.partitions)})
    cache.append(found, reached=reached)
    held = cache.select(EMPTY_CURSOR, labels_max=len(labels)).labels
    if held is None or not held.labels().in_commit_order().table.equals(labels.table):
        raise AssertionError("expected the labels that the cache was given, got others")
    name = (
        "the cache, compressed with lz4"
        if compression is Compression.LZ4
        else "the cache, compacted"
    )
    return Form(
        name,
        cache.bytes,
        lambda: _whole(labels, compression=compression),
        held.labels,
        undone=len(labels),
        paper=paper if len(labels) == PAPER_RESULTS else 0.0,
        bytes_max=BYTES_MAX
        if compression is Compression.LZ4 and len(labels) == PAPER_RESULTS
        else 0.0,
    )


def _whole(labels: LabelSet, *, compression: Compression) -> PackedLabels:
    found = pack_labels(labels, compression)
    if found is None:
        raise AssertionError("expected labels, got none")
    return found
