from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from galileo.cursor import Cursor
from galileo.errors import InputError, SamplerFailed
from galileo.matches import from_bytes, to_bytes
from galileo.spark import tick as ticks
from galileo.spark.tick import (
    NOTHING,
    ROW_SCHEMA,
    Outcome,
    Row,
    Tick,
    TickLimits,
    outcomes_of,
    packed,
    shifted,
    work_of,
)
from galileo.wire.codec import cursor_to_pb
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.status import error_to_pb

LIMITS = TickLimits(1.0, 1.0)


def told(work) -> list[tuple[str, list[tuple[int, list[int], list[int]]]]]:
    """Each share's address, and for each ask the group, the partitions and the items."""
    return [
        (
            share.address,
            [
                (
                    ask.group,
                    work.groups[ask.group].partitions[ask.columns].tolist(),
                    ask.items.tolist(),
                )
                for ask in share.asks
            ],
        )
        for share in work.shares()
    ]


def test_every_partition_is_asked_once_at_a_node_that_holds_it(make_request):
    asked = make_request(
        {"a": [0, 1], "b": [1, 2], "c": [9]}, [{}, {"partitions": [1, 2]}, {"partitions": [5]}]
    )
    assert told(work_of(asked.request)) == [
        ("a", [(0, [0, 1], [0, 1])]),
        ("b", [(0, [2], [0, 1])]),
        ("c", [(0, [9], [0])]),
    ]


def damaged(request, **changes):
    for name, value in changes.items():
        setattr(request.groups[0], name, value)
    return request


@pytest.mark.parametrize(
    "changes",
    [
        {"after": b"123"},
        {"cursors": to_bytes(np.array([9]))},
        {"cursors": to_bytes(np.array([0, 0]))},
        {"digests": b"short"},
        {"samplers": to_bytes(np.array([1]))},
        {"samplers": b""},
    ],
)
def test_damaged_columns_are_refused(make_request, changes):
    with pytest.raises(InputError):
        work_of(damaged(make_request({"a": [0]}, [{}]).request, **changes))


def test_joined_requests_ask_each_node_once(make_request):
    one = work_of(make_request({"a": [0], "b": [1]}, [{}, {}]).request)
    other = work_of(make_request({"b": [1], "a": [0]}, [{}]).request)
    both = one + other
    assert told(both) == [
        ("a", [(0, [0], [0, 1]), (1, [0], [0])]),
        ("b", [(0, [1], [0, 1]), (1, [1], [0])]),
    ]
    assert (len(one), len(other), len(both), len(NOTHING)) == (2, 1, 3, 0)
    assert NOTHING.shares() == ()


def test_who_has_nothing_to_ask_of_a_node_is_not_in_its_share(make_request):
    items = [{"partitions": [0]}, {"partitions": [1]}, {"partitions": []}]
    work = work_of(make_request({"a": [0], "b": [1], "c": [2]}, items).request)
    assert told(work) == [("a", [(0, [0], [0])]), ("b", [(0, [1], [1])])]
    (group,) = work.groups
    assert group.digests_of(np.array([1], dtype=np.uint32)) == group.digests[16:32]


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_shares_are_dealt_out_to_the_tasks(make_request, tasks):
    nodes = {f"node-{number}": [number] for number in range(5)}
    work = work_of(make_request(nodes, [{}]).request)
    tick = Tick(0, work.groups, work.shares(), tasks, LIMITS)
    dealt = [share.address for task in range(tasks) for share in tick.shares_of(task)]
    assert sorted(dealt) == [share.address for share in tick.shares]
    counts = sorted((len(tick.shares_of(task)) for task in range(tasks)), reverse=True)
    assert counts[0] - counts[-1] <= 1
    again = pickle.loads(pickle.dumps(tick))
    assert told(ticks.Work(again.groups)) == told(work)


def part(items, reached, labels=()) -> peers_pb2.MatchPart:
    return peers_pb2.MatchPart(
        answered=to_bytes(np.array(items)),
        reached=cursor_to_pb(Cursor(reached)),
        labels=labels,
        items=to_bytes(np.array(items)),
        places=to_bytes(np.array(items)),
        dropped=cursor_to_pb(Cursor({7: 1})),
    )


def failure(items, error) -> peers_pb2.MatchFailure:
    return peers_pb2.MatchFailure(items=to_bytes(np.array(items)), error=error_to_pb(error))


def test_rows_come_back_as_outcomes():
    error = SamplerFailed("no", sampler="x")
    rows = [
        Row(0, Outcome(parts=[part([0, 1], {0: 3}, [b"one"])]).SerializeToString()),
        Row(2, Outcome(failures=[failure([4], error)]).SerializeToString()),
        Row(0, Outcome(unknown=[b"1234"]).SerializeToString()),
        Row(0, Outcome(parts=[part([2], {1: 4})]).SerializeToString()),
    ]
    found = outcomes_of(pa.Table.from_batches(packed(rows), ROW_SCHEMA), 3)
    assert found[0] == Outcome(
        parts=[part([0, 1], {0: 3}, [b"one"]), part([2], {1: 4})], unknown=[b"1234"]
    )
    assert found[1] == Outcome()
    assert found[2] == Outcome(failures=[failure([4], error)])


def test_what_is_said_of_a_part_is_said_of_the_whole():
    error = SamplerFailed("no", sampler="x")
    outcome = Outcome(
        parts=[part([0, 2], {0: 3}, [b"one"])],
        unknown=[to_bytes(np.array([1]))],
        failures=[failure([3], error)],
    )
    moved = shifted(outcome, 10)
    assert from_bytes(moved.parts[0].answered).tolist() == [10, 12]
    assert from_bytes(moved.parts[0].items).tolist() == [10, 12]
    assert moved.parts[0].places == outcome.parts[0].places
    assert moved.parts[0].labels == [b"one"]
    assert moved.parts[0].reached == outcome.parts[0].reached
    assert moved.parts[0].dropped == outcome.parts[0].dropped
    assert from_bytes(moved.unknown[0]).tolist() == [11]
    assert from_bytes(moved.failures[0].items).tolist() == [13]
    assert shifted(outcome, 0) == outcome


def test_rows_are_packed_into_few_batches_of_bounded_size(monkeypatch):
    monkeypatch.setattr(ticks, "BATCH_BYTES_MAX", 1_000)
    rows = [Row(i, b"x" * 300) for i in range(8)] + [Row(8, b"") for _ in range(600)]
    batches = list(packed(rows))
    assert [batch.num_rows for batch in batches] == [4, 4, 256, 256, 88]
    groups = [group for batch in batches for group in batch.column(0).to_pylist()]
    assert groups == [row.group for row in rows]
    assert list(packed([])) == []
