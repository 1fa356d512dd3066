"""Random histories of a keyed dataset, compared after every step with a dict.

A history has one leader of all partitions, and a standby that copies its logs and takes over. In
each step observations are stored or deleted, or a node does what nodes do in the background. After
it, all that can be asked is asked: what counts, what counted at earlier cursors, what a reader of a
continuous query holds, and what has changed since a cursor. A table with the same key gets the same
writes, and has to name the same changes.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from buoys import BUOYS, QUERIES, START, Buoys, Key, Row, ordered
from journals import RELAXED
from lone_nodes import lone_node
from node_cluster import Network
from parameters import seeds_in_parts

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import Conflict, DataExpired
from galileo.geo import geohash
from galileo.graph import metadata_graph
from galileo.graph.columns import Commits
from galileo.model import keyed
from galileo.model.observations import normalise
from galileo.model.table import Table
from galileo.node import table_cleaner, table_index
from galileo.node.cluster_scan import ScanEnd
from galileo.node.keyed_shard import KeyedShard
from galileo.node.peers import TableTask
from galileo.node.replication.replicas import KIND, encode_state, load_states
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.node.table_cleaner import TableCleaner
from galileo.node.table_index import Versions
from galileo.query import parse
from galileo.replication.values import Epochs
from galileo.server import resets, withdrawals
from galileo.storage.compaction import CompactionOptions
from galileo.storage.store import Store

EXAMPLES, TOGETHER = 10_000, 250
QUICK = 12
STEPS_MAX = 10
LABELS_MAX = 10**6

TOPOLOGY = Topology("test", (Group("west", (NodeInfo("a", "127.0.0.1:1"),)),), even_ranges(1), 2)
PARTITIONS = frozenset(range(2))
TWIN = Table("twin", {"id": "text", "level": "int", "remark": "text"}, key="id").spread(2)
JOURNALS = replace(RELAXED, segment_bytes_max=2_000)
MERGING = CompactionOptions(bytes_min=1)
Label: TypeAlias = tuple[int, dt.datetime, str | None, int]
Written: TypeAlias = dict[Key, Row | None]


class Pair:
    """A leader and a standby, each with a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directories = [directory / "a", directory / "b"]
        self.leader, self.standby = map(self._open, self._directories)
        for node in (self.leader, self.standby):
            node.catalog.adopt(BUOYS.placed_by(TOPOLOGY.range_epoch))
            node.catalog.adopt(TWIN)

    @property
    def nodes(self) -> list[StorageNode]:
        """Those that people write to."""
        return [self.leader]

    @staticmethod
    def _open(directory: Path, *, promised: int = 0) -> StorageNode:
        store = Store.open(directory, JOURNALS, wall=lambda: 1.4e9)
        if promised:
            states = {
                str(p): encode_state(replace(state, promised=max(promised, state.promised)))
                for p, state in load_states(store).items()
            }
            store.save_batch(KIND, states)
        return lone_node(
            "a",
            TOPOLOGY,
            store=store,
            peers=Network(),
            options=NodeOptions(merging=None),
        )

    async def restart(self) -> None:
        await self.leader.close()
        self.leader = self._open(self._directories[0])

    async def take_over(self) -> None:
        """The standby leads, by a later term; the leader stands by."""
        self.catch_up()
        term = max(self.leader.replicas.terms.values())
        await self.leader.close()
        await self.standby.close()
        self._directories.reverse()
        self.leader = self._open(self._directories[0], promised=term)
        self.standby = self._open(self._directories[1])

    def catch_up(self) -> None:
        """Copies to the standby what it lacks, as replicas do, and drops what the leader has."""
        for name in ("buoys", "twin"):
            for partition in self.leader.catalog.versioned_shard(name).journals:
                self._copy(name, partition)

    def _copy(self, name: str, partition: int) -> None:
        theirs, ours = (node.catalog for node in (self.leader, self.standby))
        journal = theirs.versioned_shard(name).journals[partition]
        shard = ours.versioned_shard(name)
        if partition not in shard.journals:
            ours._make_journal(name, partition)
        if shard.journals[partition].end_sequence < journal.dropped:
            ours.restart_journal(name, partition, journal.log_start_record)
        while (end := shard.journals[partition].end_sequence) < journal.end_sequence:
            last, frames = journal.frames(end, journal.end_sequence, bytes_max=3_000)
            epochs = Epochs(journal.epochs, journal.end_sequence, journal.dropped, journal.forks)
            part = (epochs.range(end, last), frames)
            assert shard.append_frames({partition: [part]}) == {partition: None}
            shard.publish({partition: last})
        dropped = theirs.versioned_shard(name).dropped()[partition]
        if dropped > shard.dropped()[partition]:
            shard.drop(partition, dropped)

    async def close(self) -> None:
        await self.leader.close()
        await self.standby.close()


@dataclass(slots=True, eq=False)
class Reader:
    """A reader of a continuous query, and what its coordinator has in the cache.

    Attributes:
        held: labels, as the documentation tells readers to keep them.
        token: up to where the reader has fetched.
        evaluated: up to where the coordinator has.
        cached: labels of what came between these two.
    """

    text: str
    held: pa.Table = field(default_factory=BUOYS.label_schema.empty_table)
    token: Cursor = EMPTY_CURSOR
    evaluated: Cursor = EMPTY_CURSOR
    cached: list[pa.Table] = field(default_factory=list)
    withdrawn: int = 0
    resets: int = 0

    async def evaluate(self, node: StorageNode) -> None:
        """A cycle."""
        query, until = parse(self.text, BUOYS), node.catalog.shard("buoys").published()
        answer = node.scans.between(query, partitions=PARTITIONS, after=self.evaluated, until=until)
        async with aclosing(answer) as parts:
            self.cached += [part async for part in parts if not isinstance(part, ScanEnd)]
        self.evaluated = until

    async def fetch(self, node: StorageNode) -> None:
        query = parse(self.text, BUOYS)
        gone = await withdrawals.withdrawals(
            node.scans,
            query,
            after=self.token,
            until=self.evaluated,
            labels_max=LABELS_MAX,
            partitions=frozenset(self.token.news(self.evaluated)),
        )
        if gone.is_expired:
            await self._begin_anew(node)
            return
        assert gone.until == self.evaluated
        new = keyed.without_labels(joined(self.cached), gone.replaced)
        lost = keyed.without_keys(BUOYS, gone.withdrawn, new)
        left = keyed.still_held(BUOYS, self.held, withdrawn=lost, new=new)
        self.held, self.token, self.cached = joined([left, new]), self.evaluated, []
        self.withdrawn += lost.num_rows

    async def _begin_anew(self, node: StorageNode) -> None:
        query = parse(self.text, BUOYS)
        snapshot, place = await resets.newest_snapshot(node.scans, query), EMPTY_CURSOR
        tables = list[pa.Table]()
        while place != snapshot:
            part = await resets.next_part(
                node.scans, query, place=place, snapshot=snapshot, labels_max=2
            )
            assert part is not None, "nothing is cleaned meanwhile"
            assert part.place != place, "a part without an end"
            tables.append(part.labels.table)
            place = part.place
        # Of partitions that can have no match, the snapshot names nothing.
        self.evaluated = self.token = self.evaluated.join(snapshot)
        self.held, self.cached = joined(tables), []
        self.resets += 1


def joined(tables: list[pa.Table]) -> pa.Table:
    schema = BUOYS.label_schema
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])


class History(Buoys):
    """One history.

    Attributes:
        writes: what each step has written, by key.
        twins: cursors of the table after each step.
    """

    partitions = PARTITIONS

    def __init__(self, pair: Pair, seed: int) -> None:
        super().__init__(pair, seed)
        self.pair = pair
        self.reader = Reader(self.chance.choice([*QUERIES]))
        self.writes, self.twins = list[Written](), list[Cursor]()
        self.counts = Counter[str]()

    async def play(self) -> None:
        for _ in range(self.chance.randint(4, STEPS_MAX)):
            await self.step()
            await self.compare()

    async def step(self) -> None:
        [name] = self.chance.choices([*STEPS], [*STEPS.values()])
        self.counts[name] += 1
        act: Callable[[], Coroutine[Any, Any, None]] = getattr(self, name)
        await act()

    # --- steps that write ------------------------------------------------------------------------

    async def ingest(self) -> None:
        """Rows of new and known keys, among which a key may be several times."""
        new = [self.new_row() for _ in range(self.chance.choice((1, 3, 8)))]
        await self.store({}, new, [False] * len(new))

    async def delete_rows(self) -> None:
        """Of keys that are there, and of others."""
        rows = dict(self.new_row() for _ in range(self.chance.choice((1, 2, 6))))
        await self.store({}, [*rows.items()], [True] * len(rows))

    async def mix(self) -> None:
        """Deletions and rows of one batch."""
        new = [self.new_row() for _ in range(self.chance.choice((2, 8)))]
        await self.store({}, new, [self.chance.random() < 0.4 for _ in new])

    async def delete_matching(self) -> None:
        """What matches a condition, which may be empty, unless it changes meanwhile."""
        text = self.chance.choice([*QUERIES])
        await self.delete_where(text, self.chance.random() < 0.3)

    async def delete_where(self, text: str, is_disturbed: bool) -> None:
        """As `client.delete` does: what has changed since the evaluation is evaluated again."""
        schema, written, asked = self.shards[0].schema, Written(), self.partitions
        while asked:
            seen, matching = self.published(), await self.select(text)
            if is_disturbed:
                key, row = self.new_row()
                await self.send([row], [False])
                self.note(key, row)
                written[key], is_disturbed = row, False
            places = {p: list[Row]() for p in asked}
            for row in matching:
                if (p := self.partition_of(row)) in asked:
                    places[p].append(row)
            asked = frozenset()
            for rows in places.values():
                table = pa.Table.from_pylist(rows, BUOYS.observation_schema)
                deletion = normalise(schema, keyed.deleted_rows(schema, table))
                try:
                    await self.commit(deletion, unchanged_since=seen)
                except Conflict as conflict:
                    asked |= {conflict.details["partition"]}
                    continue
                written |= {self.key_of(row): None for row in rows}
                for row in rows:
                    self.note(self.key_of(row), None)
        await self.mirror(written)

    async def write_unchanged(self) -> None:
        """A conditional write of one row, at a cursor that may be too early."""
        key, row = self.new_row()
        index = self.chance.randrange(len(self.states)) if self.states else -1
        if index < 0:
            return
        seen, partition = self.states[index][0], self.partition_of(row)
        is_stale = any(key in written for written in self.writes[index + 1 :])
        if seen[partition] < self.dropped()[partition]:
            with pytest.raises(DataExpired):
                await self.send([row], [False], unchanged_since=seen)
        elif is_stale:
            with pytest.raises(Conflict):
                await self.send([row], [False], unchanged_since=seen)
        else:
            await self.store({"unchanged_since": seen}, [(key, row)], [False])

    async def store(
        self, options: dict[str, Any], new: list[tuple[Key, Row]], deleted: list[bool]
    ) -> None:
        await self.send([row for _, row in new], deleted, **options)
        written = {
            key: None if is_deleted else row
            for (key, row), is_deleted in zip(new, deleted, strict=True)
        }
        for key, row in written.items():
            self.note(key, row)
        await self.mirror(written)

    async def commit(self, rows: pa.Table, **options: Any) -> None:
        if rows.num_rows:
            self.batches += 1
            given: dict[str, Any] = {"producer": "p", "batch": self.batches} | options
            await self.pair.leader.ingest.ingest("buoys", rows, **given)

    async def mirror(self, written: Written) -> None:
        """Writes the same into the table, and notes what is there now."""
        nothing = {"level": None, "remark": None}
        rows = [
            {"id": id_of(key), "deleted": row is None}
            | {name: (row or nothing)[name] for name in nothing}
            for key, row in written.items()
        ]
        if rows:
            self.batches += 1
            table = pa.Table.from_pylist(rows, TWIN.version_schema)
            await self.pair.leader.ingest.ingest("twin", table, producer="t", batch=self.batches)
        self.writes.append(written)
        self.states.append((self.published(), self.rows))
        self.twins.append(self.pair.leader.catalog.table_shard("twin").published())

    # --- steps of nodes --------------------------------------------------------------------------

    async def merge(self) -> None:
        """Merges runs of indexes, and files."""
        for node in (self.pair.leader, self.pair.standby):
            for name in ("buoys", "twin"):
                shard = node.catalog.versioned_shard(name)
                shard.maintain()
                for journal in shard.journals.values():
                    if self.chance.random() < 0.5:
                        journal.seal()
                    journal.merge(MERGING, lambda _: True)

    async def clean(self, expired_us: int | None = None) -> None:
        """Up to the reader's token, as for live queries, or past it; some cleanings are cut off."""
        is_held = self.chance.random() < 0.3
        for name in ("buoys", "twin"):
            shard = self.pair.leader.catalog.versioned_shard(name)
            for journal in shard.own.values():
                journal.seal()
            settled = self.reader.token if is_held and name == "buoys" else shard.published()
            cleaner, stops = TableCleaner(self.pair.leader.catalog), self.chance.choice((0, 0, 0.2))
            cleaner.clean(shard, settled, is_over=lambda: self.chance.random() < stops)  # noqa: B023

    async def restart(self) -> None:
        await self.pair.restart()

    async def follow(self) -> None:
        self.pair.catch_up()

    async def move(self) -> None:
        await self.pair.take_over()

    # --- what is compared ------------------------------------------------------------------------

    async def compare(self) -> None:
        text = self.chance.choice([*QUERIES])
        expected = [row for row in self.rows if QUERIES[text](row)]
        assert await self.select(text) == expected
        assert await self.pair.leader.selection.count(parse(text, BUOYS)) == len(expected)
        await self.compare_reader()
        if self.states:
            await self.compare_cursor(self.pair.leader)
            await self.compare_cursor(self.pair.standby)
            await self.compare_changes()

    async def compare_reader(self) -> None:
        """A reader has what matches, wherever it fetches."""
        reader, node = self.reader, self.pair.leader
        await reader.evaluate(node)
        if self.chance.random() < 0.5:
            await reader.fetch(node)
            matches = QUERIES[reader.text]
            expected = Counter(label_of(row) for row in self.rows if matches(row))
            columns = (reader.held.column(n).to_pylist() for n in ("cell", "bucket", "station"))
            levels = reader.held.column("level").to_pylist()
            assert Counter(zip(*columns, levels, strict=True)) == expected

    async def compare_cursor(self, node: StorageNode) -> None:
        """What counted at a cursor, by the graph and by the index of versions."""
        shard = node.catalog.shard("buoys")
        cursor, expected = self.chance.choice(self.states)
        if not shard.published().covers(cursor):
            return  # The standby has not caught up.
        dropped = shard.dropped()
        if any(cursor[p] < dropped[p] for p in cursor):
            with pytest.raises(DataExpired):
                await self.select(until=cursor, node=node)
            return
        assert await self.select(until=cursor, node=node) == expected
        found = await node.tables.read_all(TableTask("buoys", until=cursor))
        names = BUOYS.observation_schema.names
        assert ordered(found.rows.select(names).to_pylist()) == expected
        self.counts["read at a cursor"] += 1

    async def compare_changes(self) -> None:
        """What has changed since a cursor: as written, and as the table says."""
        number, tables = self.chance.randrange(len(self.states)), self.pair.leader.tables
        seen, twin = self.states[number][0], self.twins[number]
        dropped = {
            name: self.pair.leader.catalog.versioned_shard(name).dropped()
            for name in ("buoys", "twin")
        }
        if any(seen[p] < last for p, last in dropped["buoys"].items()):
            with pytest.raises(DataExpired):
                await tables.read_all(TableTask("buoys", after=seen))
            return
        later = Written()
        for written in self.writes[number + 1 :]:
            later |= written
        rows = (await tables.read_all(TableTask("buoys", after=seen))).rows.to_pylist()
        changes = {self.key_of(row): None if row.pop("deleted") else row for row in rows}
        assert (len(changes), changes) == (len(rows), later)
        if any(twin[p] < last for p, last in dropped["twin"].items()):
            return
        rows = (await tables.read_all(TableTask("twin", after=twin))).rows.to_pylist()
        of_table = {row["id"]: None if row["deleted"] else row["remark"] for row in rows}
        assert of_table == {id_of(k): row and row["remark"] for k, row in changes.items()}
        self.counts["changes"] += len(rows)

    # --- places ----------------------------------------------------------------------------------

    def partition_of(self, row: Row) -> int:
        table = pa.Table.from_pylist([row], BUOYS.observation_schema)
        schema = self.shards[0].schema
        [partition] = placement.partitions_of_rows(TOPOLOGY, schema, table)
        return int(partition)

    @staticmethod
    def key_of(row: Row) -> Key:
        bucket = (row["time"] - START) // dt.timedelta(hours=6)
        return (row["latitude"], row["longitude"]), bucket, row["station"]


STEPS = {
    "ingest": 26,
    "delete_rows": 8,
    "mix": 8,
    "delete_matching": 12,
    "write_unchanged": 8,
    "merge": 8,
    "clean": 14,
    "restart": 5,
    "follow": 8,
    "move": 4,
}
"""Steps of a history, and how often each comes in a hundred."""


def id_of(key: Key) -> str:
    return str(key)


def label_of(row: Row) -> Label:
    """What tells the label of a row from others."""
    [cell] = geohash.encode(np.array([row["latitude"]]), np.array([row["longitude"]]), 2).tolist()
    hours = (row["time"] - START) // dt.timedelta(hours=6) * 6
    return cell, START + dt.timedelta(hours=hours), row["station"], row["level"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memtables and pieces of copies are so small that a history has many."""
    monkeypatch.setattr(table_index, "MEMTABLE_VERSIONS", 6)
    monkeypatch.setattr(metadata_graph, "VERSIONS_MIN", 6)
    monkeypatch.setattr(table_cleaner, "COPIED_TOGETHER", 3)


async def play(directory: Path, seeds: range) -> Counter[str]:
    """Plays histories, and counts what they had."""
    counts = Counter[str]()
    for seed in seeds:
        pair = Pair(directory / str(seed))
        history = History(pair, seed)
        try:
            await history.play()
        except Exception as error:
            error.add_note(f"in the history of seed {seed}, at {history.counts}")
            raise
        finally:
            await pair.close()
        shutil.rmtree(directory / str(seed))
        counts += history.counts
        counts["withdrawn"] += history.reader.withdrawn
        counts["resets"] += history.reader.resets
    return counts


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seeds", [range(QUICK), *seeds_in_parts(EXAMPLES, TOGETHER)])
async def test_a_keyed_dataset_is_what_a_dict_is(tmp_path: Path, seeds: range) -> None:
    counts = await play(tmp_path, seeds)
    if len(seeds) > QUICK:
        wanted = {*STEPS, "read at a cursor", "changes", "withdrawn", "resets"}
        assert not wanted - counts.keys()


# --- mutants --------------------------------------------------------------------------------------


async def _withdraws_nothing(*arguments: Any, **options: Any) -> withdrawals.Withdrawals:
    found = await _withdrawals(*arguments, **options)
    return replace(found, withdrawn=found.withdrawn.slice(0, 0))


def _refuses_nothing(self: KeyedShard, commits: Any) -> Any:
    return commits


def _replaces_nothing(labels: pa.Table, others: pa.Table) -> pa.Table:
    return labels


def _counts_as_stored(data: pa.RecordBatch, commits: Commits, counts: Any) -> Versions:
    """Copies are new versions."""
    versions = _versions_of(data, commits, counts)
    return replace(versions, since=versions.sequence)


_withdrawals, _versions_of = withdrawals.withdrawals, table_index.versions_of


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("place", "mutant"),
    [
        ("galileo.server.withdrawals.withdrawals", _withdraws_nothing),
        pytest.param(
            "galileo.node.keyed_shard.KeyedShard.refuse_stale",
            _refuses_nothing,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "galileo.model.keyed.without_labels", _replaces_nothing, marks=pytest.mark.slow
        ),
        pytest.param(
            "galileo.node.keyed_index.versions_of", _counts_as_stored, marks=pytest.mark.slow
        ),
    ],
)
async def test_histories_convict_a_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, mutant: object
) -> None:
    monkeypatch.setattr(place, mutant)
    with pytest.raises((AssertionError, pytest.fail.Exception, DataExpired)):
        await play(tmp_path, range(200))
