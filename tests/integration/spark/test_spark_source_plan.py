"""How what is stored is cut into tasks."""

from __future__ import annotations

import pickle
from dataclasses import replace

from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology import Group, Move, NodeInfo, Topology
from galileo.errors import Unavailable
from galileo.model.forks import first_of
from galileo.spark.source.plan import (
    Split,
    StoredCommits,
    check_complete,
    limit_commits,
    merge_status,
    splits,
    stream_tasks,
)
from galileo.wire.v1 import cluster_pb2, common_pb2

TOPOLOGY = Topology(
    "test",
    (
        Group("west", (NodeInfo("a", "127.0.0.1:1"), NodeInfo("b", "127.0.0.1:2"))),
        Group("east", (NodeInfo("c", "127.0.0.1:3"),)),
    ),
    (("", 0), ("s", 1)),
    partitions_per_group=4,
)
PARTITIONS = list(TOPOLOGY.partitions)

cursors = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 40)).map(Cursor)


def commits(split: Split) -> list[tuple[int, int]]:
    return [
        (partition, sequence)
        for partition in split.partitions
        for sequence in range(split.after[partition] + 1, split.until[partition] + 1)
    ]


@given(cursors, cursors, st.integers(1, 60))
def test_splits_have_each_commit_once_at_its_owner(
    start: Cursor, more: Cursor, weight_max: int
) -> None:
    end = Cursor({p: start[p] + more[p] for p in PARTITIONS})
    found = splits(TOPOLOGY, after=start, until=end, weights={}, weight_max=weight_max)
    expected = [(p, s) for p in PARTITIONS for s in range(start[p] + 1, end[p] + 1)]
    assert sorted(one for split in found for one in commits(split)) == expected
    for split in found:
        assert 0 < len(commits(split)) <= weight_max
        owners = {placement.owner(TOPOLOGY, partition) for partition in split.partitions}
        [owner] = owners
        assert split.addresses[0] == TOPOLOGY.by_name[owner].address
        assert sorted(split.addresses) == [node.address for node in TOPOLOGY.nodes]
        assert pickle.loads(pickle.dumps(split)) == split


@given(
    cursors,
    cursors,
    st.integers(1, 60),
    st.dictionaries(st.sampled_from([p for p in PARTITIONS if p < 4]), st.sampled_from("ab")),
)
def test_stream_tasks_do_not_depend_on_owners(
    start: Cursor, more: Cursor, commits_max: int, moved: dict[int, str]
) -> None:
    end = Cursor({p: start[p] + more[p] for p in PARTITIONS})
    later = replace(TOPOLOGY, moved=tuple(Move(p, 1, moved[p]) for p in sorted(moved)))
    before, after = (
        stream_tasks(topology, after=start, until=end, commits_max=commits_max)
        for topology in (TOPOLOGY, later)
    )
    tasks = [sorted(one for split in task.splits for one in commits(split)) for task in before]
    assert tasks == [
        sorted(one for split in task.splits for one in commits(split)) for task in after
    ]
    expected = [(p, s) for p in PARTITIONS for s in range(start[p] + 1, end[p] + 1)]
    assert sorted(one for task in tasks for one in task) == expected
    assert all(0 < len(task) <= commits_max for task in tasks)
    for topology, found in ((TOPOLOGY, before), (later, after)):
        for split in (split for task in found for split in task.splits):
            [owner] = {placement.owner(topology, partition) for partition in split.partitions}
            assert split.addresses[0] == topology.by_name[owner].address


@given(cursors, cursors, st.integers(1, 60))
def test_stream_tasks_of_tables_have_each_partition_once(
    start: Cursor, more: Cursor, commits_max: int
) -> None:
    end = Cursor({p: start[p] + more[p] for p in PARTITIONS})
    tasks = stream_tasks(
        TOPOLOGY, after=start, until=end, commits_max=commits_max, cuts_partitions=False
    )
    spans = [
        (partition, split.after[partition], split.until[partition])
        for task in tasks
        for split in task.splits
        for partition in split.partitions
    ]
    assert sorted(spans) == [(p, start[p], end[p]) for p in PARTITIONS if more[p]]
    for task in tasks:
        sizes = [len(commits(split)) for split in task.splits]
        assert sum(sizes) <= commits_max or sum(len(s.partitions) for s in task.splits) == 1


@given(cursors, cursors, st.integers(1, 60))
def test_limit_commits_is_fair(start: Cursor, more: Cursor, commits_max: int) -> None:
    end = Cursor({p: start[p] + more[p] for p in PARTITIONS})
    reached = limit_commits(start, end, commits_max=commits_max)
    assert reached.covers(start)
    assert end.covers(reached)
    taken = {p: reached[p] - start[p] for p in PARTITIONS}
    assert sum(taken.values()) == min(commits_max, sum(more.values()))
    behind = [p for p in PARTITIONS if reached[p] < end[p]]
    assert all(taken[q] <= taken[p] + 1 for p in behind for q in PARTITIONS)


def test_limit_commits_below_partitions_starves_none() -> None:
    reached, end = EMPTY_CURSOR, Cursor({0: 30})
    for _ in range(10):
        end = end.join({p: end[p] + 1 for p in PARTITIONS[1:4]})
        reached = limit_commits(reached, end, commits_max=3)
    assert reached[0] > 0


def test_limit_commits_after_jump_ends() -> None:
    start, end = Cursor({0: 10, 1: 3}), Cursor({0: first_of(9) + 19, 1: 5})
    steps = 0
    while start != end:
        start, steps = limit_commits(start, end, commits_max=7), steps + 1
    assert steps == -(-(20 + 2) // 7)


def test_splits_across_jump_are_few_and_have_each_commit_once() -> None:
    end = Cursor({0: first_of(9) + 4})
    found = splits(TOPOLOGY, after=Cursor({0: 10}), until=end, weights={}, weight_max=2)
    ranges = sorted((split.after[0], split.until[0]) for split in found)
    begin = first_of(9) - 1
    assert ranges == [(10, begin), (begin, begin + 2), (begin + 2, begin + 4), (begin + 4, end[0])]


def test_splits_heavy_commits_make_small_tasks() -> None:
    end = Cursor({0: 10, 1: 10})
    heavy = splits(
        TOPOLOGY, after=EMPTY_CURSOR, until=end, weights={0: 100.0, 1: 1.0}, weight_max=250
    )
    assert max(sum(p == 0 for p, _ in commits(one)) for one in heavy) == 2
    assert any(sum(p == 1 for p, _ in commits(one)) == 10 for one in heavy)
    assert splits(TOPOLOGY, after=end, until=end, weights={}, weight_max=5) == []


def status(name: str, state: str, dataset: str, sequences: dict[int, int], rows: int):
    value = common_pb2.Cursor(partitions=list(sequences), sequences=list(sequences.values()))
    one = cluster_pb2.DatasetStatus(dataset=dataset, sequences=value, rows=rows)
    return cluster_pb2.NodeStatus(name=name, state=state, datasets=[one] if rows else [])


def test_merge_status_joins_nodes() -> None:
    owned = placement.partitions_by_node(TOPOLOGY)
    here, away = sorted("ab", key=lambda name: len(owned[name]), reverse=True)
    first = min(owned[here])
    nodes = [
        status(here, "up", "air", {first: 4}, 100),
        status(away, "unreachable", "air", {}, 0),
        status("c", "up", "other", {5: 9}, 7),
    ]
    found = merge_status(TOPOLOGY, nodes, dataset="air")
    assert found == StoredCommits(Cursor({first: 4}), EMPTY_CURSOR, {first: 25.0}, owned[away])


def test_check_complete_missing_partitions_are_unavailable() -> None:
    check_complete(StoredCommits(EMPTY_CURSOR, EMPTY_CURSOR, {}, frozenset()))
    with raises(Unavailable, missing=[3]):
        check_complete(StoredCommits(EMPTY_CURSOR, EMPTY_CURSOR, {}, frozenset([3])))
