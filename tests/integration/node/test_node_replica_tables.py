"""Replicated tables, compared with lists of versions, while nodes crash and lose their disks."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pyarrow as pa
import pytest
from replica_nodes import PARTITIONS, Host, World, expect_crash, hurt, scrub_all

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError
from galileo.model.keyed import placed_keys
from galileo.model.table import Table
from galileo.node.peers import TableTask
from galileo.node.storage_node import StorageNode
from galileo.node.table_cleaner import CLEANER, TableCleaner
from galileo.node.table_index import TableIndex, Versions

TABLE = Table("nam", {"id": "text", "value": "int"}, key="id").spread(PARTITIONS)
STEPS = 8
PRODUCERS = 3
KEYS = 4
"""Of each producer, so that the versions of a key have one order."""


def batch_of(number: int) -> list[tuple[str, int | None]]:
    """The versions of a batch: keys and values, None deletes."""
    chance = random.Random(number)
    return [
        (f"{number % 10}-{chance.randrange(KEYS)}", None if chance.random() < 0.3 else number)
        for _ in range(3)
    ]


def table_of(batch: list[tuple[str, int | None]]) -> pa.Table:
    keys, values = zip(*batch, strict=True)
    columns = [pa.array(keys), pa.array(values, pa.int64()), pa.array([v is None for v in values])]
    return pa.table(columns, schema=TABLE.observation_schema)


def applied(rows: dict[str, int], versions) -> dict[str, int]:
    rows = dict(rows)
    for key, value in versions:
        rows.pop(key, None)
        if value is not None:
            rows[key] = value
    return rows


async def read(node: StorageNode, **task) -> tuple[list[dict], Cursor]:
    rows, reached = [], EMPTY_CURSOR
    async for part in node.tables.read(TableTask("nam", **task)):
        rows += part.rows.to_pylist()
        reached = reached.join(part.reached)
    return rows, reached


class TableWorld(World):
    """Each producer writes its own keys, and readers compare.

    Attributes:
        begun: the last batch of each producer that was sent.
        finished: the last one that was acknowledged.
        log: the new versions of each commit that some node has shown, by partition and sequence.
        stored: the batches in them.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed, schema=TABLE)
        self.begun = dict.fromkeys(range(PRODUCERS), -1)
        self.finished = dict.fromkeys(range(PRODUCERS), -1)
        self.log: dict[int, dict[int, list[tuple[str, int | None]]]] = {0: {}, 1: {}}
        self.stored: set[int] = set()

    def table_of(self, number: int, node: StorageNode) -> pa.Table:
        self.begun[number % 10] = number
        return table_of(batch_of(number))

    async def send(self, number: int) -> None:
        await super().send(number)
        self.finished[number % 10] = number

    async def ask(self, node: StorageNode, due: int) -> None:
        """An answer has each key as an acknowledged batch left it, or a later one."""
        least = dict(self.finished)
        keys = None
        if self.random.random() < 0.5:
            named = [f"{p}-{k}" for p in range(PRODUCERS) for k in range(KEYS)]
            keys = pa.table([named], schema=TABLE.key_schema)
        try:
            rows, _ = await read(node, keys=keys)
        except GalileoError:
            return
        except RuntimeError as error:
            expect_crash(error)
            return
        found = {row["id"]: row["value"] for row in rows}
        assert len(found) == len(rows), "a key is there twice"
        for producer in range(PRODUCERS):
            for key in (f"{producer}-{k}" for k in range(KEYS)):
                possible = self.states(key, producer, least[producer], self.begun[producer])
                assert found.get(key) in possible, f"{key}: {found.get(key)} not in {possible}"

    def states(self, key: str, producer: int, first: int, last: int) -> set[int | None]:
        """The values of a key from one batch of its producer to another."""
        state: int | None = None
        states = {state} if first < 0 else set()
        for number in range(producer, last + 1, 10):
            for other, value in batch_of(number):
                state = value if other == key else state
            if number >= first:
                states.add(state)
        return states

    def remember(self, host: Host) -> None:
        """Adds what a node shows to readers to `log`, before it is dropped."""
        shard = host.node.catalog.table_shard("nam")
        for partition, journal in shard.journals.items():
            log = self.log[partition]
            for sequence in range(journal.dropped + 1, shard.published_sequence(partition) + 1):
                if sequence not in log:
                    header, rows = journal.header(sequence), journal.read(sequence).to_pylist()
                    is_new = header.producer != CLEANER
                    log[sequence] = [(row["id"], row["value"]) for row in rows] if is_new else []
                    self.stored |= {header.batch} if is_new else set()

    async def clean(self) -> None:
        """Cleans the partitions that one node leads."""
        hosts = list(self.hosts.values())
        if not hosts:
            return
        host = self.random.choice(hosts)
        catalog = host.node.catalog
        if not catalog.knows("nam"):
            return

        def work() -> None:
            shard = catalog.table_shard("nam")
            self.remember(host)
            cleaner = TableCleaner(catalog)
            cleaner.clean(shard, shard.published(), is_over=lambda: self.is_gone(host))

        try:
            await asyncio.to_thread(work)
        except GalileoError:
            pass
        except RuntimeError as error:
            expect_crash(error)

    def is_gone(self, host: Host) -> bool:
        return self.is_over or self.hosts.get(host.name) is not host

    def judge(self) -> None:
        """Replicas have the same commits, as far as none has dropped them; none is lost."""
        for host in self.hosts.values():
            self.remember(host)
        assert self.acknowledged <= self.stored, "an acknowledged batch is lost"
        for partition in range(PARTITIONS):
            journals = [
                host.node.catalog.table_shard("nam").journals[partition]
                for host in self.group_of(partition)
            ]
            first = 1 + max(journal.dropped for journal in journals)
            logs = [
                [journal.read(n).to_pylist() for n in range(first, journal.last_sequence + 1)]
                for journal in journals
            ]
            assert all(log == logs[0] for log in logs), "replicas differ"
            assert sorted(self.log[partition]) == [*range(1, journals[0].last_sequence + 1)]

    async def compare(self) -> None:
        """All nodes answer at any cursor as the log says, by keys, too, and with changes."""
        logs = {p: [of_one[n] for n in sorted(of_one)] for p, of_one in self.log.items()}
        for _ in range(12):
            first, second = self.cursor(logs), self.cursor(logs)
            first, second = meet(first, second), first.join(second)
            node = self.random.choice(list(self.hosts.values())).node
            before, after = await self.at(node, logs, first), await self.at(node, logs, second)
            changes, reached = await read(node, after=first, until=second)
            assert len({row["id"] for row in changes}) == len(changes)
            assert reached == second
            versions = [(r["id"], None if r["deleted"] else r["value"]) for r in changes]
            assert applied(before, versions) == after
            changed = {k for p in logs for c in logs[p][first[p] : second[p]] for k, _ in c}
            assert {key for key, _ in versions} == changed

    def cursor(self, logs) -> Cursor:
        shards = [host.node.catalog.table_shard("nam") for host in self.hosts.values()]
        first = {p: max(shard.dropped()[p] for shard in shards) for p in logs}
        return Cursor({p: self.random.randint(first[p], len(log)) for p, log in logs.items()})

    async def at(self, node: StorageNode, logs, cursor: Cursor) -> dict[str, int]:
        expected: dict[str, int] = {}
        for partition, log in logs.items():
            for commit in log[: cursor[partition]]:
                expected = applied(expected, commit)
        rows, _ = await read(node, until=cursor)
        assert {row["id"]: row["value"] for row in rows} == expected
        some = [f"{p}-{k}" for p in range(PRODUCERS + 1) for k in range(0, KEYS, 2)]
        rows, _ = await read(node, until=cursor, keys=pa.table([some], schema=TABLE.key_schema))
        found = {row["id"]: row["value"] for row in rows}
        assert found == {key: value for key, value in expected.items() if key in some}
        return expected


def meet(one: Cursor, other: Cursor) -> Cursor:
    return Cursor({p: min(one[p], other[p]) for p in range(PARTITIONS)})


async def run(directory: Path, seed: int, steps: int) -> TableWorld:
    world = TableWorld(directory, seed)
    await world.begin()
    works = [asyncio.create_task(world.produce(n)) for n in range(PRODUCERS)]
    works.append(asyncio.create_task(world.read()))
    try:
        for _ in range(steps):
            await asyncio.sleep(world.random.uniform(0.1, 0.6))
            await world.clean()
            await hurt(world)
            await world.clean()
        await scrub_all(world)
        await world.settle()
        await asyncio.gather(*works)
        await world.settle()  # The last batches may have come since.
        world.judge()
        await world.compare()
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await world.close()
    return world


async def run_several(directory: Path) -> None:
    """On a busy machine, one history may not meet a mistake."""
    for seed in range(5):
        await run(directory / str(seed), seed, 1)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 3), *(pytest.param(seed, STEPS, marks=pytest.mark.slow) for seed in range(1, 20))],
)
async def test_replicas_of_a_table_lose_no_version_and_answer_at_any_cursor(
    tmp_path: Path, seed: int, steps: int
) -> None:
    await run(tmp_path, seed, steps)


_newest = TableIndex.newest


def _cursors_do_not_count(self, partition, *, after=0, until):
    return _newest(self, partition, after=after, until=10**9)


def _partitions_by_the_other_half(table: Table, keys):
    _, hashes = placed_keys(table, keys)
    return (hashes[:, 1] % table.partitions).astype("int32"), hashes


def _first_piece_alone(self, count: int):
    return itertools.islice(_pieces(self, 4), 1)


_pieces = Versions.pieces


@pytest.mark.parametrize(
    ("place", "mutant"),
    [
        ("galileo.node.table_index.TableIndex.newest", _cursors_do_not_count),
        ("galileo.node.table_reader.placed_keys", _partitions_by_the_other_half),
        ("galileo.node.table_index.Versions.pieces", _first_piece_alone),
    ],
)
@pytest.mark.slow
async def test_a_history_convicts_a_mutant(
    tmp_path: Path, place: str, mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, mutant)
    with pytest.raises(AssertionError):
        await run_several(tmp_path)
