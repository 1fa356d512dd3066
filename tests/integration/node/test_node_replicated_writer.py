"""Commits of one dataset at a leader with other members: when its producers have their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from lone_nodes import LoneOwner
from node_cluster import SCHEMA, make_observations

from galileo.errors import GalileoError, PartitionMoved
from galileo.model import paths
from galileo.node.dataset_shard import DatasetShard
from galileo.node.replication.log_writer import LogWriter
from galileo.node.shard import Results
from galileo.storage.commits import Commit, Committed, FrameGroup
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

PARTITION = 3


class OpenLeader(LoneOwner):
    """The machines of a node that leads all partitions, with other members that are silent."""

    alone: frozenset[int] = frozenset()

    def begin(self, dataset: str, groups: Mapping[int, FrameGroup]) -> frozenset[int]:
        return frozenset()


def refuse(*_: object) -> None:
    raise AssertionError("all logs are open")


@dataclass
class Bench:
    """The log of one partition; the test says what is committed."""

    writer: LogWriter
    machines: OpenLeader
    commit_of: Callable[[str, int], Commit]

    async def store(self, producer: str, batch: int) -> Future[Results]:
        """Has a batch durable at this node."""
        done = self.writer.submit({PARTITION: self.commit_of(producer, batch)})
        await self.writer.drained()
        return done

    async def publish(self, until: int) -> None:
        self.writer.publish(PARTITION, until)
        await self.writer.drained()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    with Store.open(tmp_path, JournalOptions(durability="none"), wall=lambda: 0.0) as store:
        store.create_dataset(SCHEMA)
        store.recover(lambda *_: None)
        shard = DatasetShard(SCHEMA)
        shard.attach(PARTITION, store.journal(SCHEMA.name, PARTITION))

        def commit_of(producer: str, batch: int) -> Commit:
            table = make_observations(5, seed=batch)
            return Commit(producer, batch, *paths.index(SCHEMA, table))

        with ThreadPoolExecutor(1) as executor:
            machines = OpenLeader()
            writer = LogWriter(
                shard,
                machines=machines,
                open_journal=refuse,
                restart_journal=refuse,
                executor=executor,
                syncing=executor,
                waiting_max=10,
            )
            yield Bench(writer, machines, commit_of)
            await writer.drained()


def outcome(done: Future[Results]) -> tuple[int, bool] | type[GalileoError]:
    """The sequence of a batch and whether it was there before, or its error; it is there."""
    result = done.result(0)[PARTITION]
    if isinstance(result, Committed):
        return result.sequence, result.duplicate
    return type(result)


async def test_batch_that_is_repeated_before_its_commit_waits_for_it(bench: Bench) -> None:
    first, later = await bench.store("p", 1), await bench.store("p", 2)
    again = await bench.store("p", 1)
    assert not first.done()
    assert not again.done(), "no other member may have it"
    await bench.publish(1)
    assert [outcome(first), outcome(again)] == [(1, False), (1, True)]
    assert not later.done()
    assert outcome(await bench.store("p", 1)) == (1, True)


async def test_truncated_batches_fail_whatever_is_committed_in_their_place(bench: Bench) -> None:
    truncated = [await bench.store("p", batch) for batch in (1, 2)]
    bench.writer.truncate(PARTITION, 0)
    others = [await bench.store("q", batch) for batch in (1, 2)]
    await bench.publish(2)
    assert [outcome(done) for done in truncated] == [PartitionMoved, PartitionMoved]
    assert [outcome(done) for done in others] == [(1, False), (2, False)]


async def test_truncated_batch_fails_though_an_earlier_one_was_repeated_behind_it(
    bench: Bench,
) -> None:
    first, truncated = await bench.store("p", 1), await bench.store("p", 2)
    again = await bench.store("p", 1)
    bench.writer.truncate(PARTITION, 1)
    other = await bench.store("q", 1)
    await bench.publish(2)
    assert outcome(truncated) == PartitionMoved
    assert [outcome(done) for done in (first, again, other)] == [(1, False), (1, True), (2, False)]


async def test_batches_that_wait_are_committed_when_their_leader_is_alone(bench: Bench) -> None:
    """The set has only this member now, and the machine has not said yet that they count."""
    waiting = [await bench.store("p", batch) for batch in (1, 2)]
    bench.machines.alone = frozenset([PARTITION])
    third, again = await bench.store("p", 3), await bench.store("p", 2)
    assert [outcome(done) for done in waiting] == [(1, False), (2, False)]
    assert [outcome(third), outcome(again)] == [(3, False), (2, True)]
    await bench.publish(2)
    assert outcome(await bench.store("p", 4)) == (4, False)
