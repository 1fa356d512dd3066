"""Datasets are defined by the nodes of a cluster with copies: real nodes, disks and registers."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises

from galileo.clock import SystemClock
from galileo.dht import definitions, register, topology_changes
from galileo.dht.definitions import SLOTS, Definitions
from galileo.dht.register import Prepare, Register, RegisterOptions, RegisterState, seat_of
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    DatasetExists,
    GalileoError,
    InputError,
    InvalidSchema,
    PartitionReadOnly,
    Unavailable,
    UnknownDataset,
)
from galileo.model.retention import Removed, Retention, VersionedRetention
from galileo.model.schema import Feature, Schema
from galileo.node.catalog import dataset_home
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.server import definition_registers
from galileo.server.definition_registers import OPTIONS, DefinitionMessage, DefinitionRegisters
from galileo.server.register_driver import RegisterDriver
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

TIMEOUT_S = 60.0
CLOCK = SystemClock()
ONE_COPY = Topology(
    "t",
    (Group("g", tuple(NodeInfo(name, f"h:{n}") for n, name in enumerate("abcd", start=1))),),
    even_ranges(1),
    4,
)
COPIES = topology_changes.set_replicas(ONE_COPY, 3)
"""Its voters are a, b and c."""


@dataclass
class Cluster:
    """Nodes in this process; a node that is not there neither gets messages nor answers calls.

    Attributes:
        away: nodes that cannot be reached.
        refused: nodes that do not take what is handed to them.
    """

    directory: Path
    nodes: dict[str, StorageNode] = field(default_factory=dict)
    registers: dict[str, DefinitionRegisters] = field(default_factory=dict)
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    options: RegisterOptions = OPTIONS

    def start(self, name: str, topology: Topology = ONE_COPY) -> StorageNode:
        options = JournalOptions(durability="none")
        store = Store.open(self.directory / name, options, wall=lambda: 1.5e9)
        # The copies themselves are another matter: nodes keep one, and learn later of more.
        live = TopologyState(replace(topology, replicas=1))
        node = StorageNode(name, live, store=store, peers=self, options=NodeOptions())
        live.replace_nodes(topology)
        made = self.registers[name] = DefinitionRegisters(
            node,
            send=partial(self._send, name),
            directory_of=self.directory_of,
            is_alive=lambda other: other in self.nodes and other not in self.away,
            clock=CLOCK,
            options=self.options,
        )
        node.agreed = made
        self.nodes[name] = node
        self.running[name] = asyncio.create_task(made.run())
        return node

    async def stop(self, name: str) -> None:
        running = self.running.pop(name)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await self.nodes.pop(name).close()
        del self.registers[name]

    async def lose(self, name: str) -> None:
        """Ends a node, whose directory is lost."""
        await self.stop(name)
        shutil.rmtree(self.directory / name)

    async def close(self) -> None:
        for name in list(self.nodes):
            await self.stop(name)

    def directory_of(self, name: str) -> str:
        return self.nodes[name].store.identity if name in self.nodes else ""

    def follow(self, topology: Topology, names: str = "abcd") -> None:
        """Nodes learn of a later topology."""
        for name in names:
            self.nodes[name].live.replace_nodes(topology)

    def voters(self, name: str, slot: int) -> set[str]:
        chosen = definition_registers.load_states(self.nodes[name].store).get(slot)
        return set() if chosen is None else set(chosen.chosen.entry.voters)

    def seats(self, names: str) -> set[str]:
        return {seat_of(name, self.directory_of(name)) for name in names}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def until_seated(self, names: str) -> None:
        """Returns when the voters of all registers are these nodes, as one of them knows."""
        seats = self.seats(names)
        known = names[-1]
        await self.until(lambda: all(self.voters(known, slot) == seats for slot in range(SLOTS)))

    # --- the network -------------------------------------------------------------------------

    def _send(self, sender: str, to: str, message: DefinitionMessage) -> None:
        if to in self.nodes and not {sender, to} & self.away:
            self.registers[to].receive(sender, message)

    def _reach(self, name: str) -> StorageNode:
        if name not in self.nodes or name in self.away:
            raise Unavailable(f"node {name} is away", node=name)
        return self.nodes[name]

    async def create_dataset(self, node: str, schema: Schema, *, replicate: bool) -> Schema:
        there = self._reach(node)
        if not replicate:
            return await there.create_dataset(schema)
        if node in self.refused:
            raise PartitionReadOnly("the disk refuses")
        await there.adopt(schema)
        return schema

    async def drop_dataset(self, node: str, dataset: str) -> dict[str, Removed | GalileoError]:
        return await self._reach(node).drop_dataset(dataset)

    async def drop_generations(self, node: str, name: str, generations: int) -> Removed:
        return await self._reach(node).drop(name, generations)

    async def add_features(self, node: str, dataset: str, features: Sequence[Feature]) -> Schema:
        return await self._reach(node).add_features(dataset, features)

    async def datasets(self, node: str) -> list[Schema]:
        return [shard.schema for shard in self._reach(node).catalog.shards.values()]

    async def definitions(self, node: str, slot: int) -> Definitions:
        answer = definitions.encode(await self._reach(node).definitions(slot))
        return definitions.decode(answer)

    async def set_retention(
        self, node: str, dataset: str, retention: Retention | None
    ) -> VersionedRetention:
        return await self._reach(node).set_retention(dataset, retention)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def copies(cluster: Cluster) -> Cluster:
    """A cluster with copies whose registers are founded."""
    return await founded(cluster)


async def founded(cluster: Cluster) -> Cluster:
    for name in "abcd":
        cluster.start(name, COPIES)
    await cluster.until_seated("abc")
    return cluster


def schema(name: str, feature: str = "depth") -> Schema:
    return Schema(name, [Feature(feature)])


def homed(home: str, count: int = 1) -> list[str]:
    """Names of datasets whose home this node would be with one copy."""
    names = (f"dataset-{number}" for number in range(1000))
    return [name for name in names if dataset_home(ONE_COPY, name) == home][:count]


async def test_features_are_added_while_the_home_is_lost_and_it_learns_them_when_it_is_back(
    copies: Cluster,
) -> None:
    gust, site = Feature("gust"), Feature("site", type="text")
    [name] = homed("a")
    await copies.nodes["a"].create_dataset(schema(name))
    await copies.lose("a")
    wider = await copies.nodes["d"].add_features(name, [gust])
    assert wider == schema(name).with_features([gust])
    with raises(InvalidSchema, expected="free_name", feature="gust"):
        await copies.nodes["b"].add_features(name, [Feature("gust", type="int")])
    node = copies.start("a", COPIES)
    await copies.until_seated("abc")
    await copies.until(lambda: not node.catalog.lacks(name, 1))
    widest = await node.add_features(name, [site])
    assert widest == wider.with_features([site])
    assert {one.catalog.schema(name) for one in copies.nodes.values()} == {widest}


async def test_features_that_are_added_at_once_at_all_nodes_are_all_there(copies: Cluster) -> None:
    [name] = homed("b")
    await copies.nodes["a"].create_dataset(schema(name))
    features = {node: Feature(f"of_{node}") for node in "abcd"}
    await asyncio.gather(
        *(copies.nodes[node].add_features(name, [feature]) for node, feature in features.items())
    )
    widest = await copies.nodes["c"].schema(name, added=4)
    assert set(widest.features[1:]) == set(features.values())
    for node in copies.nodes.values():
        assert await node.schema(name, added=4) == widest


@pytest.mark.slow
async def test_without_a_majority_of_the_voters_no_features_are_added(cluster: Cluster) -> None:
    cluster.options = RegisterOptions(change_s=0.5)
    copies = await founded(cluster)
    [name] = homed("a")
    await copies.nodes["a"].create_dataset(schema(name))
    copies.away |= {"b", "c"}
    with pytest.raises(Unavailable):
        await copies.nodes["d"].add_features(name, [Feature("gust")])
    assert copies.nodes["a"].catalog.schema(name).added == 0


async def test_datasets_are_defined_while_the_home_is_lost_and_it_agrees_when_it_is_back(
    copies: Cluster,
) -> None:
    old, kept, new, again = homed("a", 4)
    await copies.nodes["a"].create_dataset(schema(old))
    await copies.nodes["a"].create_dataset(schema(kept))
    await copies.lose("a")
    created = await copies.nodes["b"].create_dataset(schema(new))
    assert created == schema(new)
    removed = await copies.nodes["c"].drop_dataset(old)
    assert isinstance(removed["a"], Unavailable)
    assert removed["b"] == removed["d"] == Removed()
    numbered = await copies.nodes["d"].set_retention(kept, Retention("1d"))
    assert numbered == VersionedRetention(1, Retention("1d"))
    with raises(DatasetExists, same=False):
        await copies.nodes["d"].create_dataset(schema(new, "speed"))
    with raises(UnknownDataset, dropped=old):
        await copies.nodes["d"].drop_dataset(old)

    node = copies.start("a", COPIES)
    await copies.until_seated("abc")
    await copies.until(lambda: node.catalog.names == sorted([kept, new]))
    assert node.catalog.generations == {old: 1}
    assert node.catalog.retention(kept) == numbered
    await copies.lose("b")  # Now the new directory of a counts.
    assert await node.create_dataset(schema(again)) == schema(again)
    assert await node.create_dataset(schema(old, "speed")) == schema(old, "speed").of_generation(1)


async def test_dataset_created_twice_at_once_has_one_schema(copies: Cluster) -> None:
    wanted = [schema("twice", feature) for feature in ("depth", "speed", "depth", "height")]
    creating = [copies.nodes[n].create_dataset(s) for n, s in zip("abcd", wanted, strict=True)]
    outcomes = await asyncio.gather(*creating, return_exceptions=True)
    created = [one for one in outcomes if isinstance(one, Schema)]
    assert len(created) == 1
    assert sum(isinstance(one, DatasetExists) for one in outcomes) == 3
    found = [await node.named("twice") for node in copies.nodes.values()]
    assert found == created * 4


async def test_dataset_is_looked_up_by_a_node_that_missed_it(copies: Cluster) -> None:
    copies.away = {"d"}
    await copies.nodes["a"].create_dataset(schema("missed"))
    copies.away = {"a"}
    assert not copies.nodes["d"].catalog.names
    assert await copies.nodes["d"].named("missed") == schema("missed")
    with raises(UnknownDataset, dataset="other"):
        await copies.nodes["d"].named("other")


async def test_datasets_without_a_majority_are_not_defined(copies: Cluster) -> None:
    await copies.stop("c")
    copies.options = RegisterOptions(change_s=0.5)
    copies.start("c", COPIES)
    copies.away = {"a", "b"}
    with raises(Unavailable, nodes=["a", "b"]):
        await copies.nodes["c"].create_dataset(schema("lonely"))
    assert "lonely" not in copies.nodes["c"].catalog.names


async def test_registers_begin_with_what_every_home_has_decided(cluster: Cluster) -> None:
    for name in "abcd":
        cluster.start(name)
    dropped, kept, late = homed("d", 3)
    home = cluster.nodes["d"]
    for name in (dropped, kept):
        await cluster.nodes["a"].create_dataset(schema(name))
    cluster.away = {"a", "b", "c"}
    await home.drop_dataset(dropped)
    await home.set_retention(kept, Retention("1d"))
    await home.create_dataset(schema(late))
    cluster.away = set()
    cluster.follow(COPIES, "abc")
    creating = asyncio.create_task(cluster.nodes["a"].create_dataset(schema(late, "speed")))
    done, _ = await asyncio.wait([creating], timeout=1.0)
    assert not done, "d does not know of copies yet, and may decide as a home"
    await home.set_retention(kept, Retention("2d"))
    cluster.follow(COPIES, "d")
    with raises(DatasetExists, same=False):
        await creating
    assert cluster.nodes["a"].catalog.generations == {dropped: 1}
    numbered = await cluster.nodes["b"].set_retention(kept, None)
    assert numbered == VersionedRetention(3)


async def test_voter_that_leaves_is_replaced_before_it_goes(copies: Cluster) -> None:
    await copies.nodes["a"].create_dataset(schema("before"))
    copies.follow(topology_changes.set_leaving(COPIES, "a", is_leaving=True))
    await copies.registers["a"].leave()
    assert all(copies.voters("a", slot) == copies.seats("bcd") for slot in range(SLOTS))
    await copies.lose("a")
    with raises(DatasetExists, same=True):
        await copies.nodes["d"].create_dataset(schema("before"))


async def test_two_nodes_define_together_and_survive_the_loss_of_one_disk(
    cluster: Cluster,
) -> None:
    group = replace(ONE_COPY.groups[0], nodes=ONE_COPY.groups[0].nodes[:2])
    two = topology_changes.set_replicas(replace(ONE_COPY, groups=(group,)), 2)
    for name in "ab":
        cluster.start(name, two)
    await cluster.until_seated("ab")
    await cluster.nodes["a"].create_dataset(schema("first"))
    await cluster.nodes["a"].drop_dataset("first")
    for name in "ab":
        await cluster.lose(name)
        cluster.start(name, two)
        await cluster.until_seated("ab")
        assert await cluster.nodes[name].definitions(definitions.slot_of("first")) == {
            "first": definitions.Definition(1)
        }


async def test_what_is_chosen_is_stored_once_the_disk_takes_it(
    copies: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = copies.nodes["b"]
    refused: list[Definitions] = []
    learn = node.learn_definitions

    async def refuse_once(learned: Definitions) -> None:
        if "late" in learned and not refused:
            refused.append(learned)
            raise PartitionReadOnly("the disk refuses")
        await learn(learned)

    monkeypatch.setattr(node, "learn_definitions", refuse_once)
    copies.refused = {"b"}
    await copies.nodes["a"].create_dataset(schema("late"))
    await copies.until(lambda: node.catalog.names == ["late"])
    assert refused


def test_message_of_an_unknown_slot_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path, wall=lambda: 1.5e9) as store:
        node: Any = StorageNode(
            "a", TopologyState(ONE_COPY), store=store, peers=Any, options=NodeOptions()
        )
        made = DefinitionRegisters(
            node,
            send=lambda to, message: None,
            directory_of=lambda name: "",
            is_alive=lambda name: True,
            clock=CLOCK,
        )
        with raises(InputError, bound=SLOTS):
            made.receive("b", DefinitionMessage(SLOTS, Prepare(1)))


async def test_step_of_a_cancelled_message_is_carried_out_to_its_end() -> None:
    """A promise that is not durable would be given to the next asker."""
    stored: list[RegisterState] = []
    sent: list[str] = []
    begun, may_save = threading.Event(), threading.Event()

    def save(state: RegisterState) -> None:
        begun.set()
        assert may_save.wait(TIMEOUT_S)
        stored.append(state)

    async def ignore(entry: register.Entry) -> None:
        """Does nothing."""

    driver = RegisterDriver(
        register.first_state(["a", "b", "c"], ""),
        machine=partial(Register, "a", 0),
        save=save,
        send=lambda to, message: sent.append(to),
        on_chosen=ignore,
        clock=CLOCK,
    )
    asked = asyncio.create_task(driver.receive("b", Prepare(4097)))
    await asyncio.to_thread(begun.wait, TIMEOUT_S)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert asked.cancelled()
    may_save.set()
    async with asyncio.timeout(TIMEOUT_S):
        while not sent:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [state.promised for state in stored] == [4097]
    await driver.receive("c", Prepare(4098))
    assert (stored[-1].promised, sent) == (4098, ["b", "c"])
