"""Deletions at nodes with copies that fail and move, against what was sent and acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from replica_nodes import (
    PARTITIONS,
    SCHEMA,
    START_US,
    BusyWorld,
    expect_crash,
)

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import BatchConflict, GalileoError, InputError, Unavailable
from galileo.model.deletions import STRETCHES_SCHEMA, Stretches, deletes
from galileo.model.times import TIME_TYPE
from galileo.node import deleting
from galileo.node.cluster_scan import ScanEnd
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import ReadTask
from galileo.node.select import CursorRange
from galileo.node.storage_node import StorageNode
from galileo.query import parse
from galileo.server.withdrawals import withdrawals
from galileo.storage import compaction

ROWS = 12
"""Observations of a batch; they have few blocks, so each path has several."""
PRODUCERS, DELETERS = 2, 2
DELETED = 6
"""Deletions between two faults, and at the end."""
EVERYTHING = parse("", SCHEMA)
Place: TypeAlias = tuple[int, int, int]


def batch_of(number: int) -> pa.Table:
    """Observations at three places; the time tells each from all others."""
    chance = random.Random(number)
    spots = [chance.choice(((-50.0, -100.0), (10.0, 20.0), (60.0, 140.0))) for _ in range(ROWS)]
    times = [START_US + 1_000 * number + row for row in range(ROWS)]
    return pa.table(
        [
            pa.array([latitude for latitude, _ in spots]),
            pa.array([longitude for _, longitude in spots]),
            pa.array(times, pa.int64()).cast(TIME_TYPE),
            pa.array([280.0 + number % 2] * ROWS),
        ],
        schema=SCHEMA.observation_schema,
    )


def places_of(labels: pa.Table) -> list[Place]:
    columns = (labels.column(name).to_pylist() for name in STRETCHES_SCHEMA.names)
    return [
        (partition, sequence, place)
        for partition, sequence, row, rows in zip(*columns, strict=True)
        for place in range(row, row + rows)
    ]


def stretches_of(places: Sequence[Place]) -> pa.Table:
    rows = [[*place, 1] for place in places]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, STRETCHES_SCHEMA, strict=True)]
    return pa.table(arrays, schema=STRETCHES_SCHEMA)


def scanned(shard: DatasetShard, partition: int, at: int) -> list[Place]:
    cursor, partitions = Cursor({partition: at}), frozenset([partition])
    labels = shard.graph.scan(EVERYTHING, until=cursor, partitions=partitions)
    return sorted(places_of(labels))


def logged(shard: DatasetShard, partition: int, at: int) -> list[Place]:
    """The rows that count at a commit, by a look at each commit of the log."""
    journal, there = shard.journals[partition], set[Place]()
    for sequence in range(journal.dropped + 1, at + 1):
        paths = journal.paths(sequence)
        if deletes(paths) is None:
            there |= {(partition, sequence, row) for row in range(journal.header(sequence).rows)}
            continue
        gone = Stretches.from_paths(paths)
        for of, row, rows in zip(gone.sequence, gone.row, gone.rows, strict=True):
            there -= {(partition, int(of), place) for place in range(row, row + rows)}
    return sorted(there)


class DeletionWorld(BusyWorld):
    """Producers, some who delete a part of what they read, and readers that compare.

    Attributes:
        begun: rows that were asked to be deleted.
        done: those of which it was acknowledged.
        finished: how many deletions were.
        read_at: what was read at cursors.
        compared: how often the same was read there again.
    """

    segment_bytes_max = 6_000
    faults, steps = ("crash", "crash", "disk", "cut", "all"), DELETED

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self.begun, self.done = set[Place](), set[Place]()
        self.finished = self.compared = 0
        self.read_at: list[tuple[Cursor, list[Place]]] = []

    @property
    def progress(self) -> int:
        return self.finished

    def table_of(self, number: int, node: StorageNode) -> pa.Table:
        return batch_of(number)

    def any_node(self) -> StorageNode:
        return self.random.choice(list(self.hosts.values())).node

    async def labels_of(self, node: StorageNode) -> tuple[list[Place], Cursor]:
        parts, frontier = list[pa.Table](), EMPTY_CURSOR
        async with aclosing(node.scans.run(EVERYTHING)) as answers:
            async for answer in answers:
                if isinstance(answer, ScanEnd):
                    frontier = answer.frontier
                    if answer.missing:
                        raise Unavailable("partitions are missing")
                else:
                    parts.append(answer)
        places = [place for part in parts for place in places_of(part)]
        return [place for place in places if place[1] <= frontier[place[0]]], frontier

    async def delete(self, number: int) -> None:
        """Deletes a few of the rows that some node shows; the same until it is acknowledged."""
        chosen = list[Place]()
        while not (self.is_over and not chosen):
            try:
                async with asyncio.timeout(5.0):
                    node = self.any_node()
                    if not chosen:
                        places, _ = await self.labels_of(node)
                        chosen = self.random.sample(places, min(len(places), 9))
                        if not chosen:
                            await asyncio.sleep(0.05)
                            continue
                        self.begun |= {*chosen}
                    await node.ingest.ingest(
                        "nam", stretches_of(chosen), producer="d", batch=number, deletes=True
                    )
                self.done |= {*chosen}
                self.finished += 1
                return
            except (GalileoError, TimeoutError, IndexError):
                await asyncio.sleep(0.01)
            except RuntimeError as error:
                expect_crash(error)

    async def deletes(self, number: int) -> None:
        while not self.is_over:
            await self.delete(number)
            number += 10

    async def ask(self, node: StorageNode, due: int) -> None:
        """What was deleted is not there, and at a cursor the same is at all nodes."""
        gone = {*self.done}
        try:
            places, at = await self.labels_of(node)
            assert not gone & {*places}, "a deleted row is there"
            assert len(places) == len({*places}), "a row is there twice"
            self.read_at.append((at, sorted(places)))
            await self.ask_again(self.any_node())
        except (GalileoError, IndexError):
            return
        except RuntimeError as error:
            expect_crash(error)

    async def ask_again(self, node: StorageNode) -> None:
        at, expected = self.random.choice(self.read_at[-20:])
        commits, rows = CursorRange(frozenset(at), EMPTY_CURSOR, at), 0
        async with aclosing(node.selection.select(EVERYTHING, commits=commits)) as tables:
            async for table in tables:
                rows += table.num_rows
        least = self.least_at(expected)
        assert least <= rows <= len(expected), f"{node.name}: {rows} at {at}, not {len(expected)}"
        self.compared += 1

    def least_at(self, expected: Sequence[Place]) -> int:
        """How many of the rows that counted at a cursor are there for sure."""
        return len(expected)

    def judge(self) -> None:
        super().judge()
        chance = random.Random(self.finished)
        for partition in range(PARTITIONS):
            shards = [host.node.catalog.shard("nam") for host in self.members_of(partition)]
            last = shards[0].journals[partition].last_sequence
            for at in {last, *(chance.randint(1, last) for _ in range(6))}:
                expected = logged(shards[0], partition, at)
                for shard in shards:
                    erased = max(at, min(shard.graph.erased[partition], last))
                    left = {*logged(shards[0], partition, erased)}
                    there = [place for place in expected if place in left]
                    assert scanned(shard, partition, at) == there, f"at {partition}: {at}"
            left = {*scanned(shards[0], partition, last)}
            rows = {
                (partition, sequence, row)
                for sequence in range(1, last + 1)
                for row in range(shards[0].journals[partition].header(sequence).rows)
            }
            assert not left & self.done, "an acknowledged deletion is lost"
            assert rows - left <= self.begun, "a row is gone that no deletion names"


async def run(directory: Path, seed: int, *, faults: int) -> DeletionWorld:
    world = DeletionWorld(directory, seed)
    works = [
        *(world.produce(n) for n in range(PRODUCERS)),
        *(world.deletes(n) for n in range(5, 5 + DELETERS)),
        *(world.read() for _ in range(2)),
    ]
    await world.play(works, faults=faults)
    return world


class ErasingWorld(DeletionWorld):
    """Deletions that replicas erase at different times, and a reader that folds what changes.

    Attributes:
        erased: rows that became blank.
        folded: updates of the reader.
        resets: how often it began anew.
        held: the labels that it has, by partition, commit, first row and number of rows.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self.erased = self.folded = self.resets = 0
        self.held: set[tuple[int, ...]] = set()
        self.at = EMPTY_CURSOR

    def least_at(self, expected: Sequence[Place]) -> int:
        return len({*expected} - self.begun)

    async def erases(self) -> None:
        """Some replica erases what some of its deletions have removed."""
        while not self.is_over:
            await asyncio.sleep(0.05)
            with contextlib.suppress(GalileoError, IndexError, KeyError, OSError):
                shard = self.any_node().catalog.shard("nam")
                partition = self.random.choice([*shard.journals])
                published = shard.published_sequence(partition)
                until = self.random.choice((published, self.random.randint(0, published)))
                if self.random.random() < 0.7:
                    await asyncio.to_thread(shard.journals[partition].seal)
                done = await asyncio.to_thread(shard.erase, partition, until, lambda _: True)
                self.erased += done.rows

    async def follows(self) -> None:
        while not self.is_over:
            await asyncio.sleep(0.02)
            await self.fold()

    async def fold(self) -> None:
        """What has come since and is withdrawn, as a continuous query's reader gets it."""
        try:
            async with asyncio.timeout(5.0):
                labels, until = await self.scan_between(self.any_node(), EMPTY_CURSOR)
                scans = self.any_node().scans
                new, _ = await self.scan_between(self.any_node(), self.at, until)
                gone = await withdrawals(
                    scans,
                    EVERYTHING,
                    after=self.at,
                    until=until,
                    labels_max=10**6,
                    partitions=frozenset(range(PARTITIONS)),
                )
        except (GalileoError, TimeoutError, IndexError):
            return
        except RuntimeError as error:
            expect_crash(error)
            return
        if gone.missing or gone.until != until:
            return
        if gone.is_expired:
            self.held, self.resets = labels, self.resets + 1
        else:
            withdrawn = _labels_of(gone.withdrawn) | _labels_of(gone.replaced)
            self.held = (self.held | new) - withdrawn | _labels_of(gone.shortened)
        self.at, self.folded = until, self.folded + 1

    async def scan_between(
        self, node: StorageNode, after: Cursor, until: Cursor | None = None
    ) -> tuple[set[tuple[int, ...]], Cursor]:
        parts, frontier = set[tuple[int, ...]](), EMPTY_CURSOR
        every = frozenset(range(PARTITIONS))
        async with aclosing(
            node.scans.between(EVERYTHING, partitions=every, after=after, until=until)
        ) as answers:
            async for answer in answers:
                if isinstance(answer, ScanEnd):
                    frontier = answer.frontier
                    if answer.missing or (until is not None and frontier != until):
                        raise Unavailable("partitions are missing")
                else:
                    parts |= _labels_of(answer)
        return {label for label in parts if label[1] <= frontier[label[0]]}, frontier

    async def judge_answers(self) -> None:
        """The reader has what is there, and nothing that is not."""
        folded = self.folded
        while self.folded == folded:
            await self.fold()
        places, _ = await self.labels_of(self.any_node())
        held = [(p, s, row + n) for p, s, row, rows in self.held for n in range(rows)]
        assert sorted(held) == sorted(places), "a reader holds what is not there, or lacks some"
        for place in places:
            node = self.any_node()
            parts = stretches_of([place])
            async with aclosing(node.reading.read(ReadTask.of(EVERYTHING, parts))) as tables:
                rows = pa.concat_tables([table async for table in tables])
            assert rows.num_rows == 1, "a row that counts can be read"


def _labels_of(labels: pa.Table) -> set[tuple[int, ...]]:
    return {*zip(*(labels.column(n).to_pylist() for n in STRETCHES_SCHEMA.names), strict=True)}


async def run_erasing(directory: Path, seed: int, *, faults: int) -> ErasingWorld:
    world = ErasingWorld(directory, seed)
    works = [
        *(world.produce(n) for n in range(PRODUCERS)),
        *(world.deletes(n) for n in range(5, 5 + DELETERS)),
        *(world.erases() for _ in range(2)),
        world.read(),
        world.follows(),
    ]
    await world.play(works, faults=faults)
    return world


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "faults"), [(0, 3), *((n, 10) for n in range(1, 8))])
async def test_replicas_that_erase_at_different_times_answer_alike(
    tmp_path: Path, seed: int, faults: int
) -> None:
    world = await run_erasing(tmp_path, seed, faults=faults)
    assert world.erased
    assert world.folded
    assert world.resets, "a reader met an erased deletion"


def _without_bound(frame: Any, removed: Any) -> Any:
    """Blank rows that no header tells of: the bound is lost at a start, and unknown to copies."""
    erased = _erased(frame, removed)
    return replace(erased, header=replace(erased.header, erased=0))


_erased = compaction._erased


@pytest.mark.parametrize(
    ("place", "mutant"),
    [
        ("galileo.storage.compaction._erased", _without_bound),
        ("galileo.node.dataset_shard.DatasetShard.erased", lambda self: EMPTY_CURSOR),
        ("galileo.graph.metadata_graph.MetadataGraph.erase", lambda *_: None),
    ],
)
@pytest.mark.slow
async def test_a_world_convicts_a_mutant_of_erasing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, mutant: object
) -> None:
    monkeypatch.setattr(place, mutant)
    for seed in range(4):
        try:
            await run_erasing(tmp_path / str(seed), seed, faults=4)
        except (AssertionError, GalileoError):
            return
    pytest.fail(f"a mutant of {place} survived")


@pytest.mark.parametrize(
    ("seed", "faults"),
    [(0, 3), *(pytest.param(n, 10, marks=pytest.mark.slow) for n in range(1, 8))],
)
async def test_deletions_are_kept_and_all_replicas_agree(
    tmp_path: Path, seed: int, faults: int
) -> None:
    world = await run(tmp_path, seed, faults=faults)
    assert world.done
    assert world.compared, "readers compare cursors"


def _forgetting(shard: DatasetShard, task: object) -> tuple[Mapping[int, Stretches], dict]:
    """A deletion that is acknowledged and not stored."""
    parts, _ = _commits(shard, task)
    return parts, {}


_commits = deleting._commits


@pytest.mark.parametrize(
    ("place", "mutant"),
    [
        ("galileo.node.deleting._commits", _forgetting),
        ("galileo.graph.metadata_graph.deletes", lambda paths: None),
        ("galileo.graph.deletion_vectors._Met.shortened", lambda *_: iter(())),
    ],
)
async def test_a_world_convicts_a_mutant_of_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, mutant: object
) -> None:
    monkeypatch.setattr(place, mutant)
    for seed in range(3):
        try:
            await run(tmp_path / str(seed), seed, faults=0)
        except AssertionError:
            return
    pytest.fail(f"a mutant of {place} survived")


async def test_delete_bad_input_is_refused(tmp_path: Path) -> None:
    world = DeletionWorld(tmp_path, 0)
    await world.begin()
    try:
        await world.send(1)
        node = world.any_node()
        places, frontier = await world.labels_of(node)
        delete = partial(node.ingest.ingest, "nam", producer="d", deletes=True)
        partition = places[0][0]
        with pytest.raises(InputError, match="columns"):
            await delete(batch_of(2), batch=1)
        with pytest.raises(InputError, match="partitions of this cluster"):
            await delete(stretches_of([(99, 1, 0)]), batch=2)
        with pytest.raises(InputError, match="name rows of this cluster"):
            await delete(stretches_of([(partition, frontier[partition] + 5, 0)]), batch=3)
        nothing = stretches_of([(partition, 1, 0)]).set_column(
            3, STRETCHES_SCHEMA.field("rows"), pa.array([0], pa.int32())
        )
        with pytest.raises(InputError, match="at least one row"):
            await delete(nothing, batch=4)
        with pytest.raises(InputError, match="expected rows 0 to"):
            await delete(stretches_of([(partition, 1, 2**31 - 2)]), batch=5)
        assert sorted((await world.labels_of(node))[0]) == sorted(places)
        first = await delete(stretches_of(places[:3]), batch=5)
        again = await delete(stretches_of(places[:3]), batch=5)
        assert (first.rows, again.rows, again.duplicate_rows) == (3, 3, 3)
        with pytest.raises(BatchConflict):
            await delete(stretches_of(places[:2]), batch=5)
        assert sorted((await world.labels_of(node))[0]) == sorted(places[3:])
    finally:
        await world.close()
