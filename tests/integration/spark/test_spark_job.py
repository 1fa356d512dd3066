from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from galileo.cursor import Cursor
from galileo.errors import InputError, SamplerFailed
from galileo.match_batch import from_bytes, to_bytes
from galileo.spark import job as jobs_module
from galileo.spark.job import (
    BATCH_BYTES_MAX,
    EMPTY_REQUEST,
    ROW_SCHEMA,
    Job,
    JobLimits,
    Outcome,
    TaskRow,
    merge_rows,
    request_from_pb,
    shift_items,
    to_batches,
)
from galileo.spark.node_scanner import match_request
from galileo.wire.codec import cursor_to_pb
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.match_codec import sequences_from_bytes, sequences_to_bytes
from galileo.wire.status import error_to_pb

LIMITS = JobLimits(1.0, 1.0)


def requests_as_lists(job_request) -> list[tuple[str, list[tuple[int, list[int], list[int]]]]]:
    """Each node's address, and for each query its group, partitions and items."""
    return [
        (
            request.address,
            [
                (
                    query.group,
                    job_request.groups[query.group].partitions[query.columns].tolist(),
                    query.items.tolist(),
                )
                for query in request.queries
            ],
        )
        for request in job_request.node_requests()
    ]


def test_node_requests_have_each_partition_once(make_request):
    asked = make_request(
        {"a": [0, 1], "b": [1, 2], "c": [9]}, [{}, {"partitions": [1, 2]}, {"partitions": [5]}]
    )
    assert requests_as_lists(request_from_pb(asked.request)) == [
        ("a", [(0, [0, 1], [0, 1])]),
        ("b", [(0, [2], [0, 1])]),
        ("c", [(0, [9], [0])]),
    ]


def test_node_requests_prefer_replicas_of_a_group_and_name_what_is_committed(make_request):
    request = make_request({"a": [0, 1], "b": [2, 3]}, [{}]).request
    (group,) = request.groups
    group.replicas.add(name="c", address="c", partitions=[1, 2])
    group.committed = sequences_to_bytes(np.array([10, 11, 12, 13]))
    job_request = request_from_pb(request)
    assert requests_as_lists(job_request) == [
        ("a", [(0, [0], [0])]),
        ("b", [(0, [3], [0])]),
        ("c", [(0, [1, 2], [0])]),
    ]
    committed = {
        one.address: sequences_from_bytes(
            match_request(query, job_request.groups[0]).committed, partitions=len(query.columns)
        ).tolist()
        for one in job_request.node_requests()
        for query in one.queries
    }
    assert committed == {"a": [[10]], "b": [[13]], "c": [[11, 12]]}


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
        {"committed": b"123"},
    ],
)
def test_request_from_pb_invalid_columns_are_refused(make_request, changes):
    with pytest.raises(InputError):
        request_from_pb(damaged(make_request({"a": [0]}, [{}]).request, **changes))


def test_node_requests_of_joined_requests_have_each_node_once(make_request):
    one = request_from_pb(make_request({"a": [0], "b": [1]}, [{}, {}]).request)
    other = request_from_pb(make_request({"b": [1], "a": [0]}, [{}]).request)
    both = one + other
    assert requests_as_lists(both) == [
        ("a", [(0, [0], [0, 1]), (1, [0], [0])]),
        ("b", [(0, [1], [0, 1]), (1, [1], [0])]),
    ]
    assert (len(one), len(other), len(both), len(EMPTY_REQUEST)) == (2, 1, 3, 0)
    assert EMPTY_REQUEST.node_requests() == ()


def test_node_requests_omit_items_without_partitions(make_request):
    items = [{"partitions": [0]}, {"partitions": [1]}, {"partitions": []}]
    job_request = request_from_pb(make_request({"a": [0], "b": [1], "c": [2]}, items).request)
    assert requests_as_lists(job_request) == [("a", [(0, [0], [0])]), ("b", [(0, [1], [1])])]
    (group,) = job_request.groups
    assert group.digests_of(np.array([1], dtype=np.uint32)) == group.digests[16:32]


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_requests_of_task_distribute_nodes_evenly(make_request, tasks):
    nodes = {f"node-{number}": [number] for number in range(5)}
    job_request = request_from_pb(make_request(nodes, [{}]).request)
    job = Job(0, job_request.groups, job_request.node_requests(), tasks, LIMITS)
    distributed = [
        request.address for task in range(tasks) for request in job.requests_of_task(task)
    ]
    assert sorted(distributed) == [request.address for request in job.node_requests]
    counts = sorted((len(job.requests_of_task(task)) for task in range(tasks)), reverse=True)
    assert counts[0] - counts[-1] <= 1
    again = pickle.loads(pickle.dumps(job))
    assert requests_as_lists(jobs_module.JobRequest(again.groups)) == requests_as_lists(job_request)


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


def test_merge_rows_returns_outcomes_by_group():
    error = SamplerFailed("no", sampler="x")
    rows = [
        TaskRow(0, Outcome(parts=[part([0, 1], {0: 3}, [b"one"])]).SerializeToString()),
        TaskRow(2, Outcome(failures=[failure([4], error)]).SerializeToString()),
        TaskRow(0, Outcome(unknown=[b"1234"]).SerializeToString()),
        TaskRow(0, Outcome(parts=[part([2], {1: 4})]).SerializeToString()),
    ]
    found = merge_rows(pa.Table.from_batches(to_batches(rows), ROW_SCHEMA), 3)
    assert found[0] == Outcome(
        parts=[part([0, 1], {0: 3}, [b"one"]), part([2], {1: 4})], unknown=[b"1234"]
    )
    assert found[1] == Outcome()
    assert found[2] == Outcome(failures=[failure([4], error)])


def test_shift_items_renumbers_parts_unknown_and_failures():
    error = SamplerFailed("no", sampler="x")
    outcome = Outcome(
        parts=[part([0, 2], {0: 3}, [b"one"])],
        unknown=[to_bytes(np.array([1]))],
        failures=[failure([3], error)],
    )
    moved = shift_items(outcome, 10)
    assert from_bytes(moved.parts[0].answered).tolist() == [10, 12]
    assert from_bytes(moved.parts[0].items).tolist() == [10, 12]
    assert moved.parts[0].places == outcome.parts[0].places
    assert moved.parts[0].labels == [b"one"]
    assert moved.parts[0].reached == outcome.parts[0].reached
    assert moved.parts[0].dropped == outcome.parts[0].dropped
    assert from_bytes(moved.unknown[0]).tolist() == [11]
    assert from_bytes(moved.failures[0].items).tolist() == [13]
    assert shift_items(outcome, 0) == outcome


def test_to_batches_bounds_rows_and_bytes():
    rows = [TaskRow(i, bytes(BATCH_BYTES_MAX // 3 - 1)) for i in range(8)] + [
        TaskRow(8, b"") for _ in range(600)
    ]
    batches = list(to_batches(rows))
    assert [batch.num_rows for batch in batches] == [4, 4, 256, 256, 88]
    groups = [group for batch in batches for group in batch.column(0).to_pylist()]
    assert groups == [row.group for row in rows]
    assert list(to_batches([])) == []
