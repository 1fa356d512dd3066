"""Counters that writers increase by conditional writes at nodes with copies, while nodes fail."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from parameters import keep_quick
from replica_nodes import PARTITIONS, World, expect_crash, play

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Conflict, GalileoError
from galileo.model.table import Table, versions_of
from galileo.node.peers import TableTask
from galileo.node.storage_node import StorageNode
from galileo.node.table_shard import TableShard
from galileo.storage.commits import Commit

COUNTERS = Table("nam", {"id": "text", "value": "int"}, key="id").spread(PARTITIONS)
KEYS = ("a", "b", "c")
WRITERS = 4
ACKNOWLEDGED = 20


class CounterWorld(World):
    """Writers that read a counter at any node, and store the next value if it has not changed.

    Attributes:
        values: that were acknowledged, by counter.
        conflicts: writes that were refused.
    """

    def __init__(self, directory: Path, seed: int, keys: Sequence[str]) -> None:
        super().__init__(directory, seed, schema=COUNTERS)
        self.keys = keys
        self.values = defaultdict[str, list[int]](list)
        self.conflicts = 0

    async def send(self, number: int) -> None:
        """One attempt to increase a counter; the same batch until it is answered."""
        key, sent = self.random.choice(self.keys), None
        while not self.is_over:
            hosts = list(self.hosts.values())
            try:
                async with asyncio.timeout(5.0):
                    node = self.random.choice(hosts).node
                    sent = sent or await self._next(node, key)
                    rows, seen = sent
                    await node.ingest.ingest(
                        "nam", rows, producer="p", batch=number, unchanged_since=seen
                    )
                self.acknowledged.add(number)
                self.values[key] += rows.column("value").to_pylist()
                return
            except Conflict:
                self.conflicts += 1
                return
            except (GalileoError, TimeoutError, IndexError):
                await asyncio.sleep(0.01)
            except RuntimeError as error:
                expect_crash(error)

    async def _next(self, node: StorageNode, key: str) -> tuple[pa.Table, Cursor]:
        """The next version of a counter, and up to where the last one was read."""
        keys = pa.table([pa.array([key])], schema=COUNTERS.key_schema)
        value, seen = 0, EMPTY_CURSOR
        async for part in node.tables.read(TableTask("nam", keys=keys)):
            seen = seen.join(part.reached)
            value = max([value, *part.rows.column("value").to_pylist()])
        return versions_of(COUNTERS, pa.table({"id": [key], "value": [value + 1]})), seen

    def judge(self) -> None:
        """As the log has it, each version of a counter counts on from the one before."""
        super().judge()
        for values in self.values.values():
            assert len(set(values)) == len(values), "a value was acknowledged twice"
        for partition in self.topology.partitions:
            [host, *_] = self.group_of(partition)
            journal = host.node.catalog.table_shard("nam").journals[partition]
            counters = dict.fromkeys(self.keys, 0)
            for sequence in range(1, journal.last_sequence + 1):
                for row in journal.read(sequence).to_pylist():
                    assert row["value"] == counters[row["id"]] + 1, (partition, sequence, row)
                    counters[row["id"]] = row["value"]


async def play_counters(
    directory: Path, seed: int, *, faults: int, keys: Sequence[str] = KEYS, conflicts: int = 20
) -> None:
    """Plays until so many writes have been refused, and then judges."""
    world = CounterWorld(directory, seed, keys)
    await play(
        world,
        producers=WRITERS,
        faults=faults,
        is_enough=lambda: len(world.acknowledged) > ACKNOWLEDGED and world.conflicts >= conflicts,
    )


@pytest.mark.parametrize(
    ("seed", "faults"), [(0, 2), *(pytest.param(n, 8, marks=pytest.mark.slow) for n in range(1, 8))]
)
async def test_counters_lose_no_increment(tmp_path: Path, seed: int, faults: int) -> None:
    await play_counters(tmp_path, seed, faults=faults)


def _refuses_nothing(
    self: TableShard, commits: Mapping[int, Sequence[Commit]]
) -> Mapping[int, Sequence[Commit]]:
    return commits


def _overlooks_pending(self: TableShard, partition: int, commits: Sequence[Commit]) -> list[Commit]:
    return []


def _overlooks_published(self: TableShard, partition: int, commit: Commit) -> None:
    return None


@pytest.mark.parametrize(
    ("name", "mutant"),
    keep_quick(
        [
            ("refuse_stale", _refuses_nothing),
            ("_overlapping", _overlooks_pending),
            ("_refusal", _overlooks_published),
        ],
        ("refuse_stale", _refuses_nothing),
    ),
)
async def test_judge_convicts_a_mutant_of_conditional_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mutant: object
) -> None:
    monkeypatch.setattr(TableShard, name, mutant)
    for seed in range(5):
        try:
            await play_counters(tmp_path / str(seed), seed, faults=0, keys=["a"], conflicts=0)
        except AssertionError:
            return
    pytest.fail(f"a mutant without {name} survived")
