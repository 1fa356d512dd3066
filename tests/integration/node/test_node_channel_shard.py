"""The shard of a channel: where its last executions are, after all that happens to its logs."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from channel_audit import TEMPLATES, air
from lone_nodes import commit_alone

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.columns import Commits
from galileo.model.channel import NO_BROKER, Channel
from galileo.model.times import times_from_micros
from galileo.node.channel_shard import ChannelShard, LastExecutions
from galileo.storage.commits import Commit, Committed, seal_of
from galileo.storage.recovery import Replayed
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

AIR = air("air")
CHANNEL = Channel("hot", "air", TEMPLATES[0]).bound(
    AIR, [("least", "float")], start={}, partitions=4
)
SMALL = JournalOptions(durability="none", segment_bytes_max=3_000)


def execution(number: int, *, range_epoch: int = 1) -> Commit:
    cut = {
        "execution": number,
        "broker": NO_BROKER,
        "partitions": [1, 2],
        "after": [number - 1, 0],
        "until": [number, 5],
        "subscriptions": 3,
    }
    share = {"execution": number, "broker": "me", "observations": b"o" * 300, "matches": b"m"}
    rows = pa.Table.from_pylist([cut, share], schema=CHANNEL.observation_schema)
    at = times_from_micros(np.array([1_000_000 * number]))
    paths = pa.RecordBatch.from_arrays([at, pa.array([3], pa.int64())], schema=CHANNEL.path_schema)
    return Commit("~execute", number, rows, paths, range_epoch)


def opened(directory: Path) -> tuple[Store, ChannelShard]:
    store = Store.open(directory, SMALL, wall=lambda: 1.5e9)
    if CHANNEL.key not in {schema.key for schema in store.schemas().values()}:
        store.recover(lambda *_: None)
        store.create_dataset(CHANNEL)
        return store, ChannelShard(CHANNEL)
    shard = ChannelShard(CHANNEL)

    def replay(dataset: str, partition: int, replayed: Replayed) -> None:
        shard.replay(partition, replayed)

    store.recover(replay)
    for (_, partition), journal in store.journals().items():
        shard.attach(partition, journal)
    return store, shard


def write(store: Store, shard: ChannelShard, partition: int, commit: Commit) -> Committed:
    if partition not in shard.journals:
        shard.attach(partition, store.journal(CHANNEL.key, partition))
    [result] = commit_alone(shard, {partition: [commit]})[partition]
    assert isinstance(result, Committed)
    return result


@pytest.mark.parametrize("seed", range(6))
def test_last_execution_is_that_of_the_log(tmp_path: Path, seed: int) -> None:
    """Executions and seals in several partitions; restarts, and files that are dropped."""
    chance = random.Random(seed)
    store, shard = opened(tmp_path)
    numbers, last = dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 0)
    seals = 1
    for _ in range(120):
        partition, kind = chance.randrange(3), chance.random()
        if kind < 0.75:
            numbers[partition] += 1
            commit = execution(numbers[partition], range_epoch=seals)
            last[partition] = write(store, shard, partition, commit).sequence
        elif kind < 0.85:
            seals += 1
            write(store, shard, partition, seal_of(CHANNEL, seals))
        elif kind < 0.95 and partition in shard.journals:
            until = chance.randint(0, max(last[partition] - 1, 0))
            if shard.drop(partition, until).files:
                assert shard.index.dropped[partition] == shard.journals[partition].dropped
        else:
            store.close()
            store, shard = opened(tmp_path)
        for one, sequence in last.items():
            assert shard.index.last(one) == sequence
            if sequence:
                rows = shard.journal(one).read(sequence)
                assert rows.column("execution")[0].as_py() == numbers[one]
    assert sum(journal.dropped for journal in shard.journals.values())
    store.close()


def test_index_of_executions_forgets_a_partition_that_leaves() -> None:
    index = LastExecutions()
    commits = Commits(np.array([1, 1, 2]), np.array([4, 5, 9]))
    paths = pa.concat_batches([execution(1).paths, execution(2).paths])
    index.insert_many(paths, commits, np.array([1, 1, 0]))
    assert [index.last(partition) for partition in range(4)] == [0, 5, 0, 0]
    index.drop_before(1, 4)
    index.drop_before(2, 3)
    assert index.dropped == Cursor({1: 3, 2: 2})
    index.remove(1)
    assert (index.last(1), index.dropped) == (0, Cursor({2: 2}))
    index.remove(2)
    index.remove(3)
    assert index.dropped == EMPTY_CURSOR
    index.insert_many(execution(1).paths, Commits(np.array([1]), np.array([1])), np.array([1]))
    assert index.last(1) == 1
    assert not index.maintain()
