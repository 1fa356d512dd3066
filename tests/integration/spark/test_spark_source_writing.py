"""How a task's rows become numbered batches, and who takes them."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import BatchConflict, InputError, RangesChanged
from galileo.model.schema import DELETED
from galileo.model.times import times_from_micros
from galileo.spark.source import writing
from galileo.spark.source.writing import BatchNumbers, WriteSpec, Written, send
from galileo.storage.commits import ranges_changed
from galileo.wire.caller import Backoff, BackoffClock, CallOptions
from galileo.wire.v1 import storage_pb2

ROWS = 1_000
SCHEMA = galileo.Schema("air", [galileo.Feature("number", "1", type="int", indexed=False)])
NODES = (NodeInfo("a", "a:7701"), NodeInfo("b", "b:7701"))
TOPOLOGY = Topology("test", tuple(Group(node.name, (node,)) for node in NODES), even_ranges(2))
COLUMNS = SCHEMA.observation_schema.names
SENDING = WriteSpec(("127.0.0.1:1",), SCHEMA.to_json(), "sorted", 70)


def made(rows: int = ROWS) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "number": pa.array(numbers),
            "time": times_from_micros(1_330_560_000_000_000 + numbers // 3),
            "longitude": numbers % 360 - 180.0,
            "latitude": numbers % 160 - 80.0,
        }
    )


def shuffled(table: pa.Table, seed: int) -> pa.Table:
    return table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))


@given(
    st.integers(0, 5),
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.integers(1, 300),
    st.sampled_from(["sorted", "as_given"]),
)
def test_send_batches_depend_on_rows_only(
    seed: int, sizes: list[int], batch_rows: int, order: str
) -> None:
    sending = dataclasses.replace(SENDING, order=order, batch_rows=batch_rows)
    whole = made(sum(sizes))
    given_rows = shuffled(whole, seed) if order == "sorted" else whole
    starts = np.cumsum([0, *sizes])
    pieces = [
        batch
        for start, size in zip(starts, sizes, strict=False)
        for batch in given_rows.slice(start, size).combine_chunks().to_batches()
    ]
    tables = list(writing._tables(pieces, sending, SCHEMA))
    assert [table.num_rows for table in tables[:-1]] == [batch_rows] * (len(tables) - 1)
    assert 0 < tables[-1].num_rows <= batch_rows
    keys = [(name, "ascending") for name in ("time", "latitude", "longitude", "number")]
    ordered = whole.sort_by(keys) if order == "sorted" else whole
    assert pa.concat_tables(tables).equals(ordered.select(COLUMNS))


def test_send_too_many_rows_to_sort_are_refused() -> None:
    with pytest.raises(InputError, match="expected fewer than 500 rows in one task"):
        list(writing._tables(made().to_batches(100), SENDING, SCHEMA, rows_sorted_max=500))


def test_send_repeated_task_stores_rows_once(
    cluster: galileo.LocalCluster, client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("sent")
    schema = galileo.Schema(name, SCHEMA.features)
    client.create_dataset(schema)
    sending = dataclasses.replace(
        SENDING, addresses=tuple(cluster.addresses), schema_json=schema.to_json()
    )
    for turn, duplicates in enumerate((0, ROWS)):
        rows = shuffled(made(), turn).to_batches(300)
        assert send(rows, sending, BatchNumbers("job-1", 1, 5)) == Written(ROWS, duplicates)
    assert client.count(name) == ROWS
    with pytest.raises(BatchConflict):
        send(made().slice(1).to_batches(), sending, BatchNumbers("job-1", 1, 5))
    assert send([], sending, BatchNumbers("job-2", 2, 0)) == Written(0, 0)


@pytest.mark.slow
def test_send_stores_the_rows_of_a_table_and_deletes_others(
    cluster: galileo.LocalCluster, client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("kept")
    columns = {"id": "text", "day": "time", "number": "int"}
    client.create_table(galileo.Table(name, columns, key=["id", "day"]))
    [table] = [one for one in client.tables() if one.name == name]
    sending = WriteSpec(tuple(cluster.addresses), table.to_json(), "sorted", 70, is_table=True)
    ids, days = pa.array([f"s{n % 7}" for n in range(ROWS)]), times_from_micros(np.arange(ROWS))
    rows = pa.table({"id": ids, "day": days, "number": np.arange(ROWS)})
    for turn, duplicates in enumerate((0, ROWS)):
        given_rows = shuffled(rows, turn).to_batches(300)
        assert send(given_rows, sending, BatchNumbers("job-1", 1, 5)) == Written(ROWS, duplicates)
    found = client.table(name).rows.sort_by("number").select(["id", "number"])
    assert found.to_pydict() == rows.select(["id", "number"]).to_pydict()
    with pytest.raises(InputError, match=r"each key \(id, day\) in one row of a write"):
        send([*rows.to_batches(), *rows.slice(3, 1).to_batches()], sending, BatchNumbers("x", 0, 0))

    # As given: the last row of a key counts, also over batches that follow each other closely.
    versions = pa.concat_tables([rows.slice(0, 10)] * 200)
    versions = versions.set_column(2, "number", pa.array(np.arange(2_000)))
    versions = versions.append_column(DELETED, pa.array(np.arange(2_000) % 10 == 9))
    sending = dataclasses.replace(sending, order="as_given", batch_rows=15)
    assert send(versions.to_batches(64), sending, BatchNumbers("job-2", 0, 0)).rows == 2_000
    found = client.table(name).rows
    assert found.num_rows == ROWS - 1
    assert sorted(found["number"].to_pylist()) == [*range(10, ROWS), *range(1_990, 1_999)]


class Resplitting:
    """The calls of nodes of which one refuses the ranges `refusals` times, and one is slow.

    Attributes:
        under_way: calls that have begun and not ended.
        topologies_read: how often the topology was read.
        met: a split was sent while a part of an earlier one was under way.
    """

    options = CallOptions(patience_s=5.0)

    def __init__(self, refusals: int) -> None:
        self._refusals = refusals
        self._counting = threading.Lock()
        self.under_way: Counter[int] = Counter()
        self.topologies_read = 0
        self.met = False

    def backoff(self) -> Backoff:
        clock = BackoffClock(monotonic=lambda: 0.5 * self.topologies_read)
        return Backoff(clock, patience_s=self.options.patience_s)

    def routing_topology(self) -> Topology:
        self.met |= bool(self.under_way.total())
        self.topologies_read += 1
        return TOPOLOGY

    def learn_ranges(self, changed: RangesChanged, backoff: Backoff) -> None:
        pass

    def ingest(self, request: Any, *, first: str) -> storage_pb2.IngestReply:
        split = self.topologies_read
        if request.head.digest:
            return storage_pb2.IngestReply()
        with self._counting:
            self.under_way[split] += 1
        try:
            if first == "a:7701" and split <= self._refusals:
                raise ranges_changed(1)
            time.sleep(0.01)  # The other node answers later than the one that refuses.
            return storage_pb2.IngestReply(rows=1)
        finally:
            with self._counting:
                self.under_way[split] -= 1


@pytest.mark.parametrize("refusals", [0, 2, 1_000_000])
def test_sent_batch_of_changed_ranges_is_split_again_until_its_patience_ends(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "time", SimpleNamespace(sleep=lambda pause_s: None))
    nodes = Resplitting(refusals)
    with ThreadPoolExecutor(4) as pool:
        sent = writing._SentBatch(nodes, pool, SCHEMA, made())  # type: ignore[arg-type]
        sent.send("job-1", 0)
        if refusals > 10:
            with pytest.raises(RangesChanged):
                sent.results()
        else:
            assert len(sent.results()) == 2
    assert not nodes.met, "a late part of one split meets the next split"
    assert nodes.topologies_read == refusals + 1 if refusals < 10 else nodes.topologies_read < 12
