"""Tables of real nodes with one copy: cleaning in the background, restarts, nodes that are away."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from lone_nodes import LoneOwner, commit_alone
from parameters import keep_quick
from simulator.channel_mutants import CHANNEL_MUTANTS

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import DataExpired, DatasetExists, InputError, Unavailable
from galileo.hashing import hash128
from galileo.model.reader import POSITIONS, reader_key
from galileo.model.schema import Feature, Schema
from galileo.model.table import Table
from galileo.node import table_cleaner
from galileo.node.catalog import Catalog
from galileo.node.peers import TableTask
from galileo.node.retention_runner import RetentionRunnerOptions
from galileo.node.storage_node import StorageNode
from galileo.node.table_cleaner import CLEANER, TableCleaner
from galileo.node.table_index import Versions
from galileo.node.versioned_shard import PIECE_BYTES
from galileo.storage.commits import Commit, Committed
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions
from galileo.wire import token

TABLE = Table("ships", {"id": "int", "port": "text"}, key="id")
KEYS = 40
WAITED_S = 60.0


class Ships:
    """The table at the nodes, and a dict of what it has to have."""

    def __init__(self, cluster: Any, seed: int = 0) -> None:
        self.cluster, self.chance = cluster, random.Random(seed)
        self.expected: dict[int, str] = {}
        self.batches = 0

    def any_node(self) -> StorageNode:
        return self.chance.choice(self.cluster.nodes)

    async def write(self, count: int) -> None:
        """Batches of upserts and deletions, at any node."""
        for _ in range(count):
            keys = [self.chance.randrange(KEYS) for _ in range(10)]
            deleted = [self.chance.random() < 0.2 for _ in keys]
            ports = [None if gone else f"port-{self.chance.random()}" for gone in deleted]
            rows = pa.table({"id": keys, "port": ports, "deleted": deleted})
            node, self.batches = self.any_node(), self.batches + 1
            await node.ingest.ingest("ships", rows, producer="p", batch=self.batches)
            for key, port in zip(keys, ports, strict=True):
                self.expected.pop(key, None)
                if port is not None:
                    self.expected[key] = port

    async def read(self, **task: Any) -> tuple[list[dict[str, Any]], Cursor]:
        rows, reached = [], EMPTY_CURSOR
        async for part in self.any_node().tables.read(TableTask("ships", **task)):
            rows += part.rows.to_pylist()
            reached = reached.join(part.reached)
        return rows, reached

    async def check(self) -> Cursor:
        rows, reached = await self.read()
        assert {row["id"]: row["port"] for row in rows} == self.expected
        assert len(rows) == len(self.expected)
        return reached

    @property
    def dropped(self) -> Cursor:
        return Cursor(
            {
                partition: sequence
                for node in self.cluster.nodes
                for partition, sequence in node.catalog.table_shard("ships").dropped().items()
                if sequence
            }
        )


@pytest.fixture
async def ships(cluster: Any) -> Ships:
    cluster.journals = replace(cluster.journals, segment_bytes_max=8_000)
    for name in ("a", "b", "c"):
        await cluster.restart(name)
    await cluster["b"].create_dataset(TABLE)
    return Ships(cluster)


def version_of(
    key: int, number: int, *, since: int = 0, deleted: bool = False, producer: str = "q"
) -> Commit:
    """The commit of one version of a key."""
    [[high, low]] = hash128([pa.array([key])]).tolist()
    path = {"high": high, "low": low, "since": since, "deleted": deleted}
    row = {"id": key, "port": "x", "deleted": deleted}
    rows = pa.Table.from_pylist([row], TABLE.observation_schema)
    return Commit(producer, number, rows, pa.RecordBatch.from_pylist([path], TABLE.path_schema))


def clean_always(node: StorageNode) -> None:
    node.retain(lambda _: (), RetentionRunnerOptions(check_s=0.02, table_age_s=0.02))


async def test_a_deletion_stays_where_files_end_between_it_and_an_older_copy(ships: Ships) -> None:
    """As those of a replica do, which drops what its leader has dropped."""
    await drop_between_deletion_and_copy(ships)


async def test_a_judge_convicts_deletions_that_are_dropped_alone(
    ships: Ships, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, mutant in CHANNEL_MUTANTS["deletions_dropped_alone"].items():
        monkeypatch.setattr(place, mutant)
    with pytest.raises(AssertionError):
        await drop_between_deletion_and_copy(ships)


async def drop_between_deletion_and_copy(ships: Ships) -> None:
    await ships.write(1)
    shards = [node.catalog.table_shard("ships") for node in ships.cluster.nodes]
    shard, partition = next((one, p) for one in shards for p in one.own)
    journal, key = shard.journal(partition), KEYS + 1
    journal.seal()
    last = journal.last_sequence
    [[high, _]] = hash128([pa.array([key])]).tolist()

    def commit(number: int, since: int, *, deleted: bool) -> None:
        version = version_of(key, number, since=since, deleted=deleted)
        [stored] = commit_alone(shard, {partition: [version]})[partition]
        assert isinstance(stored, Committed)
        assert stored.sequence == last + number

    def rows() -> list[int]:
        newest = shard.index.newest(partition, until=last + 3)
        return newest.high[~newest.deleted].tolist()

    commit(1, 0, deleted=False)
    journal.seal()
    commit(2, 0, deleted=True)
    journal.seal()
    commit(3, last + 1, deleted=False)  # The cleaner's, from before the deletion.
    for number in (4, 5):
        commit(number, 0, deleted=True)
    journal.seal()
    assert [file.last - last for file in journal.log_files() if file.sealed][-3:] == [1, 2, 5]
    for dropped in (1, 3):
        shard.drop(partition, last + dropped)
        assert shard.dropped()[partition] == last + dropped
        assert high not in rows()
    assert journal.dropped < last + 2
    shard.drop(partition, last + 5)
    assert journal.dropped == last + 5


def test_a_deletion_stays_while_a_copy_of_what_it_deletes_may_be_committed(tmp_path: Path) -> None:
    """The leader has no majority for the copy, which it had begun before the deletion came."""
    options = JournalOptions(durability="none")
    with Store.open(tmp_path, options, wall=lambda: 0.0) as store, ThreadPoolExecutor(1) as threads:
        catalog = Catalog(
            store,
            executor=threads,
            syncing=threads,
            machines=LoneOwner(),
        )
        catalog.adopt(TABLE)
        shard = catalog.table_shard("ships")
        journal = store.journal("ships", 0)
        shard.attach(0, journal)

        def append(commit: Commit) -> None:
            """Without a majority: readers do not see it."""
            begun = shard.append({0: [commit]}, terms={0: 1}, begin=lambda _: ())
            assert isinstance(begun[0].results[0], Committed)

        def clean() -> Cursor:
            TableCleaner(catalog).clean(shard, shard.published(), is_over=lambda: False)
            return shard.dropped()

        append(version_of(1, 1))
        append(version_of(1, 2, deleted=True))
        shard.publish({0: 2})
        journal.seal()
        append(version_of(1, 1, since=1, producer=CLEANER))
        assert clean() == EMPTY_CURSOR
        shard.publish({0: 3})
        assert clean() == EMPTY_CURSOR, "another leader may have cleaned up to there"
        journal.seal()
        assert clean() == Cursor({0: 3})
        assert not len(shard.index.newest(0, until=4))


def test_a_leader_does_not_clean_below_what_another_one_has_cleaned(tmp_path: Path) -> None:
    """Else it would copy a version that a deletion up to there has superseded."""
    options = JournalOptions(durability="none")
    with Store.open(tmp_path, options, wall=lambda: 0.0) as store, ThreadPoolExecutor(1) as threads:
        catalog = Catalog(store, executor=threads, syncing=threads, machines=LoneOwner())
        catalog.adopt(TABLE)
        shard = catalog.table_shard("ships")
        journal = store.journal("ships", 0)
        shard.attach(0, journal)

        def commit(*versions: Commit) -> None:
            results = commit_alone(shard, {0: list(versions)})[0]
            assert all(isinstance(one, Committed) for one in results)

        def clean(settled: int) -> int:
            TableCleaner(catalog).clean(shard, Cursor({0: settled}), is_over=lambda: False)
            return journal.dropped

        def copies() -> int:
            return journal.last_batch(CLEANER) or 0

        commit(*(version_of(1, number) for number in range(1, 6)), version_of(2, 6))
        journal.seal()
        commit(version_of(1, 7, deleted=True), version_of(3, 8))
        shard.drop(0, 7)  # As a follower, whose files end elsewhere.
        assert (journal.dropped, clean(6), copies()) == (0, 0, 0)
        journal.seal()
        assert (clean(8), copies()) == (8, 1)
        commit(*(version_of(4, number) for number in range(10, 15)))
        journal.seal()
        last = journal.last_sequence
        commit(version_of(5, 15, deleted=True), version_of(2, 2, since=6, producer=CLEANER))
        assert (clean(last), copies()) == (8, 2), "another leader may have cleaned up to 15"


def test_the_bound_of_a_drop_within_a_file_outlasts_a_restart(tmp_path: Path) -> None:
    """Else a reader at a cursor before it would miss what was superseded up to there."""
    options = JournalOptions(durability="none")
    for is_first in (True, False):
        with (
            Store.open(tmp_path, options, wall=lambda: 0.0) as store,
            ThreadPoolExecutor(1) as threads,
        ):
            catalog = Catalog(store, executor=threads, syncing=threads, machines=LoneOwner())
            catalog.adopt(TABLE)
            shard = catalog.table_shard("ships")
            shard.attach(0, journal := store.journal("ships", 0))
            if is_first:
                for commit in (version_of(1, 1), version_of(1, 2), version_of(1, 3)):
                    commit_alone(shard, {0: [commit]})
                    if commit.batch == 1:
                        journal.seal()
                shard.drop(0, 2)  # As a follower, whose files end elsewhere.
            assert (journal.dropped, shard.dropped()) == (1, Cursor({0: 2}))
            shard.check_kept([0], Cursor({0: 2}))
            with pytest.raises(DataExpired):
                shard.check_kept([0], Cursor({0: 1}))


@pytest.mark.parametrize("seed", keep_quick(range(6), 0))
def test_a_cleaner_does_not_look_before_enough_has_come(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cleans whenever one without memory would, and seldom looks at the versions."""
    monkeypatch.setattr(table_cleaner, "WEIGHED_MAX", 8)
    chance, looks, kept = random.Random(seed), list[int](), Versions.kept

    def look(self: Versions, bound: int) -> Versions:
        looks.append(bound)
        return kept(self, bound)

    with (
        Store.open(tmp_path, JournalOptions(durability="none"), wall=lambda: 0.0) as store,
        ThreadPoolExecutor(1) as threads,
    ):
        catalog = Catalog(store, executor=threads, syncing=threads, machines=LoneOwner())
        catalog.adopt(TABLE)
        shard = catalog.table_shard("ships")
        shard.attach(0, journal := store.journal("ships", 0))
        cleaner, calm, in_vain = TableCleaner(catalog), 0, 0
        for number in range(200):
            if number % 25 == 0:
                phase, first = chance.randrange(3), number
            is_deletion = phase == 1
            key = number if phase == 0 else first - 1 - number % 25
            if phase == 2:
                key = chance.randrange(1 + number)
            commit_alone(shard, {0: [version_of(key, number + 1, deleted=is_deletion)]})
            journal.seal()
            settled = shard.published()
            expected = TableCleaner(catalog).is_due(shard, settled)
            looks.clear()
            monkeypatch.setattr(Versions, "kept", look)
            assert cleaner.is_due(shard, settled) == expected
            monkeypatch.setattr(Versions, "kept", kept)
            if not expected:
                calm, in_vain = calm + 1, in_vain + len(looks)
            if expected and chance.random() < 0.3:
                cleaner.clean(shard, settled, is_over=lambda: False)
        assert in_vain < calm / 2


@pytest.mark.parametrize("rounds_min", keep_quick([8, 20], 8))
async def test_a_table_that_changes_for_long_stays_small_and_right(
    ships: Ships, rounds_min: int
) -> None:
    for node in ships.cluster.nodes:
        clean_always(node)
    rounds, first = 0, await ships.check()
    async with asyncio.timeout(WAITED_S):
        while len(ships.dropped) < 6 or rounds < rounds_min:
            await ships.write(20)
            reached, rounds = await ships.check(), rounds + 1
        while 2 * sum(ships.dropped.values()) < sum(reached.values()):
            await asyncio.to_thread(time.sleep, 0.02)
    await ships.check()
    with pytest.raises(DataExpired):
        await ships.read(after=first)
    await ships.cluster.restart("a")
    await ships.cluster.restart("b")
    await ships.check()


@pytest.mark.slow
async def test_what_was_cleaned_is_the_same_after_restarts_and_at_cursors(ships: Ships) -> None:
    states = []
    for _ in range(12):
        await ships.write(15)
        states.append((await ships.check(), dict(ships.expected)))
    for node in ships.cluster.nodes:
        clean_always(node)
    async with asyncio.timeout(WAITED_S):
        while len(ships.dropped) < 4:
            await asyncio.to_thread(time.sleep, 0.02)
    for name in ("a", "b", "c"):
        await ships.cluster.restart(name)
    await ships.check()
    expired = 0
    for cursor, expected in states:
        if cursor.covers(ships.dropped):
            rows, _ = await ships.read(until=cursor)
            assert {row["id"]: row["port"] for row in rows} == expected
        else:
            expired += 1
            with pytest.raises(DataExpired):
                await ships.read(until=cursor)
    assert expired


HOLD_S = 3_600.0


async def store_reader(ships: Ships, cursor: Cursor, *, ago_s: float) -> None:
    """Stores a named reader, as of some seconds ago."""
    node = ships.any_node()
    key = reader_key(node.catalog.table_shard("ships").schema, "sync")
    stored_at = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago_s)
    row = {
        "reader": key,
        "token": token.encode(key, cursor),
        "hold_us": round(HOLD_S * 1e6),
        "stored_at": stored_at,
    }
    ships.batches += 1
    rows = pa.Table.from_pylist([row], schema=POSITIONS.arrow_schema)
    await node.ingest.ingest(POSITIONS.key, rows, producer="sync", batch=ships.batches)


@pytest.mark.slow
async def test_changes_past_a_named_reader_are_kept_until_its_hold_is_over(ships: Ships) -> None:
    await ships.write(20)
    position, before = await ships.check(), dict(ships.expected)
    await store_reader(ships, position, ago_s=0.5 * HOLD_S)
    for node in ships.cluster.nodes:
        clean_always(node)
    for _ in range(10):
        await ships.write(15)
        await asyncio.to_thread(time.sleep, 0.1)
        assert position.covers(ships.dropped)
        changed, _ = await ships.read(after=position)
        deleted = {row["id"] for row in changed if row["deleted"]}
        new = {row["id"]: row["port"] for row in changed if not row["deleted"]}
        kept = {key: port for key, port in before.items() if key not in deleted}
        assert kept | new == ships.expected
    await store_reader(ships, position, ago_s=1.1 * HOLD_S)
    async with asyncio.timeout(WAITED_S):
        while position.covers(ships.dropped):
            await ships.write(1)
            await asyncio.to_thread(time.sleep, 0.02)
    with pytest.raises(DataExpired):
        await ships.read(after=position)
    await ships.check()


@pytest.mark.slow
async def test_large_rows_are_read_and_copied_a_few_at_a_time(ships: Ships) -> None:
    sizes = {key: 10 if key % 2 else PIECE_BYTES // 2 for key in range(KEYS)}

    async def write(keys: range, **columns: Any) -> None:
        ships.batches += 1
        rows = pa.table({"id": [*keys], **columns})
        await ships.any_node().ingest.ingest("ships", rows, producer="p", batch=ships.batches)

    for keys in (range(0, KEYS, 2), range(1, KEYS, 2)):
        await write(keys, port=["x" * sizes[key] for key in keys])
    read = [part async for part in ships.any_node().tables.read(TableTask("ships"))]
    assert {row["id"]: len(row["port"]) for part in read for row in part.rows.to_pylist()} == sizes
    most = max(part.rows.nbytes for part in read)
    assert PIECE_BYTES // 2 < most < 2 * PIECE_BYTES
    counts = []
    for node in ships.cluster.nodes:
        shard = node.catalog.table_shard("ships")
        for partition, journal in shard.own.items():
            newest = shard.index.newest(partition, until=journal.last_sequence)
            for ordered in newest.pieces(KEYS):
                pieces = shard.split_by_bytes(partition, ordered)
                counts.append(len(pieces))
                together = Versions.concatenate(pieces)
                assert together.row.tolist() == ordered.row.tolist()
                assert together.sequence.tolist() == ordered.sequence.tolist()
    assert max(counts) > 1
    for node in ships.cluster.nodes:
        clean_always(node)
    gone = range(0, KEYS, 4)
    async with asyncio.timeout(WAITED_S):
        while len(ships.dropped) < 4:
            await write(gone, deleted=[True] * len(gone))
            await asyncio.to_thread(time.sleep, 0.02)
    found, _ = await ships.read()
    expected = {key: size for key, size in sizes.items() if key not in gone}
    assert {row["id"]: len(row["port"]) for row in found} == expected


async def test_rows_of_a_node_that_is_away_are_an_error_and_keys_elsewhere_are_not(
    ships: Ships,
) -> None:
    await ships.write(10)
    ships.cluster.network.away = {"c"}
    node, answered = ships.cluster["a"], 0
    with pytest.raises(Unavailable):
        [part async for part in node.tables.read(TableTask("ships"))]
    for key in range(KEYS):
        keys = pa.table([pa.array([key])], schema=TABLE.key_schema)
        try:
            parts = [part async for part in node.tables.read(TableTask("ships", keys=keys))]
        except Unavailable:
            continue
        found = [row["port"] for part in parts for row in part.rows.to_pylist()]
        assert found == [ships.expected[key]] if key in ships.expected else found == []
        answered += 1
    assert 0 < answered < KEYS


async def test_tables_and_datasets_share_names_and_refuse_each_others_calls(ships: Ships) -> None:
    node = ships.cluster["a"]
    with raises(DatasetExists, same=False):
        await node.create_dataset(Table("nam", {"id": "int"}, key="id"))
    with raises(DatasetExists, same=False):
        await node.create_dataset(Schema("ships", [Feature("t")]))
    with raises(InputError, expected="dataset"):
        await node.schema("ships")
    with raises(InputError, expected="table"):
        node.catalog.table_shard("nam")
    with raises(InputError, expected="dataset"):
        await node.add_features("ships", [Feature("t")])


async def test_a_table_is_dropped_with_its_files_and_its_name_is_free(ships: Ships) -> None:
    await ships.write(10)
    removed = await ships.cluster["a"].drop_dataset("ships")
    assert sum(one.rows for one in removed.values()) == 100
    created = await ships.cluster["c"].create_dataset(Table("ships", {"id": "text"}, key="id"))
    assert created.key == "ships@1"
    for name in ("a", "b", "c"):
        await ships.cluster.restart(name)
        assert ships.cluster[name].catalog.stored_schema("ships@1") == created
