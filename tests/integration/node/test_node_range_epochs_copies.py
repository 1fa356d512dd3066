"""Ranges are cut anew in a cluster with copies: each row is stored once, whichever node leads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from node_cluster import SCHEMA
from range_histories import EAST, WEST, CopiesHistory, Violation, named_rows
from replica_nodes import PATIENT, Host, World, topology_of, under_replicated

from galileo.dht import placement, topology_changes
from galileo.errors import GalileoError, RangesChanged, TransientError
from galileo.model import paths
from galileo.node.catalog import Catalog
from galileo.node.earlier_batches import EarlierBatches
from galileo.node.peers import BatchLookup, CommitAnswer, CommitTask
from galileo.node.shard import Shard
from galileo.storage.commits import ranges_changed, seal_of
from galileo.storage.journal import PartitionJournal

GROUPS = ("ace", "bdf")
HISTORIES = 60
WAIT_S = 60.0


@pytest.fixture
def history(tmp_path: Path) -> Callable[[int], Any]:
    """`await history(seed)` plays one history in a world of its own."""

    async def played(seed: int) -> CopiesHistory:
        where = tmp_path / f"{seed}"
        world = World(where, seed, topology=topology_of(GROUPS), schema=SCHEMA, options=PATIENT)
        await world.begin()
        history = CopiesHistory(world, random.Random(seed))
        try:
            await history.play()
        finally:
            await world.close()
        return history

    return played


# --- histories by hand -------------------------------------------------------------------------


class Scene:
    """Three nodes with copies in the west, where all ranges are, and one in the east.

    A batch of rows whose partition in the west is 0 goes to its leader in the first range epoch,
    and to the east in the second.
    """

    def __init__(self, world: World, table: pa.Table) -> None:
        self.world, self.schema = world, world.schema
        place = partial(placement.partitions_from_cells, world.topology, world.schema)
        self.table = paths.index_parts(world.schema, table, place=place)[0][0]
        self.first = world.topology

    def learn(self, names: str) -> None:
        """Has nodes learn that all ranges are in the east."""
        proposed = topology_changes.propose_ranges(self.first, (("", EAST),))
        version = proposed.version
        cut = topology_changes.activate_ranges(proposed, (("", EAST),), known_version=version)
        for name in names:
            self.world.hosts[name].live.replace_nodes(replace(cut, version=version + 1))

    async def until(self, condition: Callable[[], Any]) -> Any:
        """What a condition gives, once that is something."""
        async with asyncio.timeout(WAIT_S):
            while not (value := condition()):
                self.world.spread_leaders()
                await asyncio.sleep(0.01)
            return value

    async def leader(self, *, of: str = "abc") -> Host:
        def found() -> Host | None:
            host = self.world.leader_of(0)
            return host if host is not None and host.name in of else None

        host: Host = await self.until(found)
        return host

    def end(self, host: Host) -> int:
        journal = host.node.catalog.shard("nam").journals.get(0)
        return 0 if journal is None else journal.end_sequence

    async def append(
        self, isolate: Callable[[Host], None], is_there: Callable[[Host], bool]
    ) -> tuple[Host, asyncio.Task[CommitAnswer]]:
        """Has a leader append the batch of the first range epoch, and not learn that it may commit.

        A leader whose lease ends before that refuses, and the same is done again.
        """
        while True:
            leader = await self.leader()
            isolate(leader)
            first = self.send_first(leader)
            await self.until(partial(lambda at, sent: is_there(at) or sent.done(), leader, first))
            if not first.done():
                return leader, first
            with suppress(GalileoError):
                await first
            self.world.cut.clear()
            self.world.muted.clear()

    def send_first(self, to: Host) -> asyncio.Task[CommitAnswer]:
        """Sends the batch as in the first range epoch."""
        task = CommitTask("nam", "p", 0, self.table)
        return asyncio.create_task(to.node.ingest.commit(task))

    async def repeat(self) -> CommitAnswer:
        """Sends the batch to the east until it is stored."""
        while True:
            try:
                return await self.world.hosts["d"].node.ingest.ingest(
                    "nam", self.table, producer="p", batch=0
                )
            except TransientError:
                self.world.spread_leaders()
                await asyncio.sleep(0.02)

    async def stored(self) -> list[str]:
        """The stations of all rows, when all nodes work again."""
        world = self.world
        world.cut.clear()
        world.muted.clear()
        for name in world.names:
            if name not in world.hosts:
                world.start(name)
        await self.until(
            lambda: all(world.leader_of(p) and len(world.ends(p)) == 1 for p in range(4))
        )
        stations = list[str]()
        for partition in range(4):
            leader = world.leader_of(partition)
            assert leader is not None
            journal = leader.node.catalog.shard("nam").journals.get(partition)
            for sequence in range(1, 1 + (0 if journal is None else journal.last_sequence)):
                assert journal is not None
                stations += journal.read(sequence).column("station").to_pylist()
        return stations

    async def check(self) -> None:
        """Each row is stored once."""
        assert sorted(await self.stored()) == sorted(self.table.column("station").to_pylist())


async def late_commit_after_the_leader_is_lost(scene: Scene) -> None:
    """The next leader does not know the new ranges, and a request of the first epoch comes."""
    leader = await scene.leader()
    scene.learn(f"{leader.name}d")
    assert (await scene.repeat()).duplicate_rows == 0
    await scene.world.crash(leader.name, is_lost=True)
    is_answered = False
    while not is_answered:
        successor = await scene.leader()
        assert successor.node.topology.range_epoch == 1
        try:
            await scene.send_first(successor)
            is_answered = True
        except RangesChanged:
            is_answered = True
        except TransientError:
            await asyncio.sleep(0.02)
    await scene.check()


async def commit_of_a_leader_that_is_cut_off(scene: Scene) -> None:
    """The batch is on the disk of one leader alone, which another one replaces."""
    cut = scene.world.cut
    leader, first = await scene.append(
        isolate=lambda leader: cut.add(leader.name), is_there=lambda leader: scene.end(leader) > 0
    )
    scene.learn("abcd")
    again = asyncio.create_task(scene.repeat())
    await scene.leader(of="abc".replace(leader.name, ""))
    await again
    with suppress(GalileoError):
        await first
    await scene.check()


async def commit_that_the_next_leader_has(scene: Scene) -> None:
    """The batch is on all disks, and its leader does not know that."""
    hosts = [scene.world.hosts[name] for name in "abc"]
    leader, first = await scene.append(
        isolate=lambda leader: scene.world.muted.update({"a", "b", "c"} - {leader.name}),
        is_there=lambda _: all(map(scene.end, hosts)),
    )
    scene.learn("abcd")
    again = asyncio.create_task(scene.repeat())
    await scene.until(lambda: scene.end(leader) > 1 or again.done())
    await asyncio.wait([again], timeout=0.5)
    scene.world.muted.clear()
    assert (await again).duplicate_rows == scene.table.num_rows
    with suppress(GalileoError):
        await first
    await scene.check()


@pytest.fixture
async def scene(tmp_path: Path) -> Any:
    world = World(tmp_path, 0, topology=topology_of(("abc", "d")), schema=SCHEMA)
    world.topology = replace(world.topology, ranges=(("", WEST),))
    await world.begin()
    world.is_calm = True
    scene = Scene(world, named_rows(40, "p"))
    await scene.until(lambda: not {0, 1}.intersection(under_replicated(world)))
    await scene.until(lambda: all(map(world.leader_of, range(4))))
    yield scene
    await world.close()


SCENES = [
    late_commit_after_the_leader_is_lost,
    commit_of_a_leader_that_is_cut_off,
    commit_that_the_next_leader_has,
]


# Slow, for on a busy machine leases end before a leader has appended, and a scene begins anew.
@pytest.mark.slow
@pytest.mark.parametrize("play", SCENES)
async def test_ingest_repeated_after_a_cut_with_copies(scene: Scene, play: Any) -> None:
    await play(scene)


# --- mutants -----------------------------------------------------------------------------------


async def _make_journals(earlier: EarlierBatches, lookup: BatchLookup) -> None:
    for _, partition in lookup.places:
        await asyncio.to_thread(earlier._catalog._make_journal, lookup.dataset, partition)


def _no_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def seal(self: EarlierBatches, shard: Shard, lookup: BatchLookup) -> None:
        await _make_journals(self, lookup)

    monkeypatch.setattr(EarlierBatches, "_seal", seal)


def _seal_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader remembers it, and the next one does not know."""
    sealed, commit = dict[tuple[int, int], int](), Catalog.commit

    async def seal(self: EarlierBatches, shard: Shard, lookup: BatchLookup) -> None:
        await _make_journals(self, lookup)
        sealed.update({(id(self._catalog), p): lookup.range_epoch for _, p in lookup.places})

    def checked(self: Catalog, dataset: str, commits: Any, **known: Any) -> Any:
        for partition, one in commits.items():
            if one.range_epoch < sealed.get((id(self), partition), 1):
                raise ranges_changed(sealed[id(self), partition])
        return commit(self, dataset, commits, **known)

    monkeypatch.setattr(EarlierBatches, "_seal", seal)
    monkeypatch.setattr(Catalog, "commit", checked)


def _awaits_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup is answered when the seal is on the leader's disk."""

    async def seal(self: EarlierBatches, shard: Shard, lookup: BatchLookup) -> None:
        seals = {p: seal_of(shard.schema, lookup.range_epoch) for _, p in lookup.places}
        sealing = await asyncio.to_thread(self._catalog.commit, lookup.dataset, seals)
        while not sealing.done():
            if all(p in shard.journals and shard.journals[p]._last_seal > 1 for p in seals):
                return
            await asyncio.sleep(0.01)

    monkeypatch.setattr(EarlierBatches, "_seal", seal)


def _finds_uncommitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup is answered at once from what the leader has."""
    _no_seal(monkeypatch)

    def find(self: PartitionJournal, producer: str, number: int) -> int | None:
        return self._producers.sequence_of(producer, number)

    monkeypatch.setattr(PartitionJournal, "find_batch", find)


MUTANTS = {
    "no_seal": (_no_seal, late_commit_after_the_leader_is_lost),
    "seal_in_memory": (_seal_in_memory, late_commit_after_the_leader_is_lost),
    "finds_uncommitted": (_finds_uncommitted, commit_of_a_leader_that_is_cut_off),
    "awaits_no_commit": (_awaits_no_commit, commit_that_the_next_leader_has),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
async def test_ingest_after_a_cut_with_copies_convicts_a_mutant(
    scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate, play = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        await play(scene)


# --- random histories --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_ingest_random_history_with_copies_stores_each_row_once(
    history: Any, seed: int
) -> None:
    await history(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutate", [_no_seal, _seal_in_memory, _finds_uncommitted])
async def test_random_histories_with_copies_convict_a_mutant(
    history: Any, mutate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in range(HISTORIES):
        try:
            await history(seed)
        except Violation:
            return
    pytest.fail(f"no history of {HISTORIES} shows that the mutant is wrong")
