from __future__ import annotations

import pickle
from itertools import pairwise

import pyarrow as pa
import pytest

from galileo.cursor import Cursor
from galileo.errors import InputError, SamplerFailed
from galileo.spark import tick as ticks
from galileo.spark.tick import (
    NOTHING,
    ROW_SCHEMA,
    Ask,
    Outcome,
    Row,
    Share,
    Tick,
    TickLimits,
    outcomes_of,
    packed,
    work_of,
)

LIMITS = TickLimits(1.0, 1.0)


def test_every_partition_is_asked_once_at_a_node_that_holds_it(make_request):
    request = make_request(
        {"a": [0, 1], "b": [1, 2], "c": [9]}, [{}, {"partitions": [1, 2]}, {"partitions": [5]}]
    )
    assert work_of(request).shares() == (
        Share("a", (Ask(0, (0, 1)), Ask(1, (1,)))),
        Share("b", (Ask(0, (2,)), Ask(1, (2,)))),
        Share("c", (Ask(0, (9,)),)),
    )


def test_a_damaged_cursor_is_refused(make_request):
    request = make_request({"a": [0]}, [{}])
    request.items[0].after.partitions.append(1)
    with pytest.raises(InputError, match="as many sequences"):
        work_of(request)


def test_joined_requests_ask_each_node_once(make_request):
    one = work_of(make_request({"a": [0], "b": [1]}, [{}, {}]))
    other = work_of(make_request({"b": [1], "a": [0]}, [{}]))
    both = one + other
    assert [share.address for share in both.shares()] == ["a", "b"]
    assert [ask.item for ask in both.shares()[0].asks] == [0, 1, 2]
    assert both.part(2, 3) == other
    assert NOTHING + one == one
    assert NOTHING.shares() == ()


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_shares_are_dealt_out_to_the_tasks(make_request, tasks):
    nodes = {f"node-{number}": [number] for number in range(5)}
    work = work_of(make_request(nodes, [{}]))
    tick = Tick(0, work.items, work.shares(), tasks, LIMITS)
    dealt = [share for task in range(tasks) for share in tick.shares_of(task)]
    assert sorted(dealt, key=lambda share: share.address) == list(tick.shares)
    counts = sorted((len(tick.shares_of(task)) for task in range(tasks)), reverse=True)
    assert counts[0] - counts[-1] <= 1
    assert pickle.loads(pickle.dumps(tick)) == tick


def test_rows_come_back_as_outcomes():
    rows = [
        Row(0, labels=b"one", reached=Cursor({0: 3})),
        Row(0, labels=b"two", reached=Cursor({1: 4})),
        Row(0, reached=Cursor({2: 5})),
        Row(1, labels=b"lost", reached=Cursor({0: 3})),
        Row(1, error=SamplerFailed("no", sampler="x")),
        Row(1, labels=b"lost too", reached=Cursor({1: 3})),
    ]
    found = outcomes_of(pa.Table.from_batches(packed(rows), ROW_SCHEMA), 3)
    assert found[0] == Outcome((b"one", b"two"), Cursor({0: 3, 1: 4, 2: 5}))
    assert (found[1].labels, found[1].reached) == ((), Cursor())
    assert isinstance(found[1].error, SamplerFailed)
    assert found[1].error.details == {"sampler": "x"}
    assert found[2] == Outcome()


def test_rows_are_packed_into_few_batches_of_bounded_size(monkeypatch):
    monkeypatch.setattr(ticks, "BATCH_BYTES_MAX", 1_000)
    rows = [Row(i, labels=b"x" * 300) for i in range(8)] + [Row(8) for _ in range(600)]
    batches = list(packed(rows))
    assert [batch.num_rows for batch in batches] == [4, 4, 256, 256, 88]
    items = [item for batch in batches for item in batch.column(0).to_pylist()]
    assert all(a <= b for a, b in pairwise(items))
    assert list(packed([])) == []
