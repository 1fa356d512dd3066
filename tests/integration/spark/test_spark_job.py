"""Which task of a job asks which node for which items, and requests in halves."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.spark.job_queue import count_items, halves
from galileo.spark.options import EvaluatorOptions
from galileo.spark.task import Job

OPTIONS = EvaluatorOptions(Path())


def calls_of(*asked, tasks=1) -> list[tuple[str, int, list[int], list[int]]]:
    """Of each call of all tasks the address, the number of the request, partitions and items."""
    requests = tuple(request for one in asked for request in one.requests)
    job = Job(0, requests, tasks, OPTIONS)
    return [
        (
            one.address,
            one.number,
            one.request.partitions.tolist(),
            one.request.items.tolist(),
        )
        for task in range(tasks)
        for one in job.of_task(task)
    ]


def test_of_task_has_each_partition_once(make_request):
    asked = make_request(
        {"a": [0, 1], "b": [1, 2], "c": [9]}, [{}, {"partitions": [1, 2]}, {"partitions": [5]}]
    )
    assert calls_of(asked) == [
        ("a", 0, [0, 1], [0, 1]),
        ("b", 0, [2], [0, 1]),
        ("c", 0, [9], [0]),
    ]


def test_of_task_joined_requests_name_each_node_once(make_request):
    one = make_request({"a": [0], "b": [1]}, [{}, {}])
    other = make_request({"b": [1], "a": [0]}, [{}])
    assert calls_of(one, other) == [
        ("a", 0, [0], [0, 1]),
        ("a", 1, [0], [0]),
        ("b", 0, [1], [0, 1]),
        ("b", 1, [1], [0]),
    ]
    assert calls_of() == []


def test_of_task_omits_items_without_partitions(make_request):
    items = [{"partitions": [0]}, {"partitions": [1]}, {"partitions": []}]
    asked = make_request({"a": [0], "b": [1], "c": [2]}, items)
    assert calls_of(asked) == [("a", 0, [0], [0]), ("b", 0, [1], [1])]
    (whole,) = asked.requests
    (own,) = Job(0, (whole,), 2, OPTIONS).of_task(1)
    assert own.request.digest_of(0) == whole.digest_of(1)
    assert own.request.cursor_rows.tolist() == [[0]]


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_of_task_distributes_nodes_evenly(make_request, tasks):
    nodes = {f"node-{number}": [number] for number in range(5)}
    job = Job(0, tuple(make_request(nodes, [{}]).requests), tasks, OPTIONS)
    distributed = [one.address for task in range(tasks) for one in job.of_task(task)]
    assert sorted(distributed) == sorted(nodes)
    counts = sorted((len(job.of_task(task)) for task in range(tasks)), reverse=True)
    assert counts[0] - counts[-1] <= 1
    again = pickle.loads(pickle.dumps(job))
    assert [one.address for one in again.of_task(0)] == [one.address for one in job.of_task(0)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) > 1))
def test_halves_keep_numbers_and_share_items_evenly(make_group, sizes):
    requests = [make_group(*(f"{n} of {size}" for n in range(size))) for size in sizes]
    first, second = halves(requests)
    assert len(first) == len(second) == len(requests)
    assert abs(count_items(first) - count_items(second)) <= 1
    for whole, left, right in zip(requests, first, second, strict=True):
        assert [*left.items, *right.items] == whole.items.tolist()
        assert left.digests.tobytes() + right.digests.tobytes() == whole.digests.tobytes()
