"""The register of the topology at real directories, one of which is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from galileo.clock import SystemClock
from galileo.config import Config, from_dict
from galileo.dht import register, topology_changes
from galileo.dht.register import Ballot, Prepare, Register, RegisterState, node_of, seat_of
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.server.joining import resolve_topology
from galileo.server.register_driver import STATE, RegisterDriver
from galileo.server.topology_register import TopologyRegister, joined_state, load_state, save_state
from galileo.storage.store import Store

NODES = tuple(NodeInfo(name, f"h:{port}") for port, name in enumerate("abc", start=1))
FIRST = Topology("t", (Group("west", NODES),), even_ranges(1), 4)
TIMEOUT_S = 30.0


class _Registers:
    """Three nodes, whose messages arrive at those that run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stores: dict[str, Store] = {}
        self.running: dict[str, tuple[TopologyRegister, asyncio.Task[None]]] = {}
        self._directories = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._open = ExitStack()

    def start(self, name: str) -> None:
        if name not in self.stores:
            self._directories += 1
            path = self.directory / str(self._directories)
            self.stores[name] = self._open.enter_context(Store.open(path, wall=lambda: 0.0))
        register = TopologyRegister(
            name,
            TopologyState(FIRST),
            store=self.stores[name],
            clock=SystemClock(),
            send=partial(self._send, name),
            on_changed=lambda: None,
        )
        self.running[name] = register, asyncio.create_task(register.run())

    async def stop(self, name: str) -> None:
        _, running = self.running.pop(name)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def close(self) -> None:
        for name in list(self.running):
            await self.stop(name)
        await asyncio.gather(*self._sending, return_exceptions=True)
        self._open.close()

    def lose_directory(self, name: str) -> None:
        del self.stores[name]

    def _send(self, sender: str, to: str, message: Any) -> None:
        task = asyncio.create_task(self._deliver(sender, to, message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, sender: str, to: str, message: Any) -> None:
        if to in self.running:
            await self.running[to][0].receive(sender, message)

    async def add(self, at: str, name: str) -> Topology:
        node = NodeInfo(name, f"h:{name}1")  # Announced: it does not vote.
        return await self.running[at][0].change(partial(topology_changes.add_node, node=node))

    def voters(self, name: str) -> set[str]:
        state = load_state(self.stores[name])
        return set() if state is None else set(state.chosen.entry.voters)

    def seats(self) -> set[str]:
        return {seat_of(name, store.identity) for name, store in self.stores.items()}


@pytest.fixture
async def registers(tmp_path: Path) -> AsyncIterator[_Registers]:
    opened = _Registers(tmp_path)
    for node in NODES:
        opened.start(node.name)
    yield opened
    await opened.close()


async def until_seated(registers: _Registers, name: str) -> None:
    """Returns when a node knows the directories of all nodes as those of voters."""
    async with asyncio.timeout(TIMEOUT_S):
        while registers.voters(name) != registers.seats():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_register_first_changes_name_the_directories_that_answered(
    registers: _Registers,
) -> None:
    await registers.add("a", "4")
    assert {node_of(seat) for seat in registers.voters("a")} == {"a", "b", "c"}
    assert len(registers.voters("a") & registers.seats()) >= 2
    await registers.add("b", "6")
    await registers.add("c", "8")
    assert registers.running["c"][0].version == 4


async def test_register_of_a_lost_directory_votes_again_once_it_is_named(
    registers: _Registers,
) -> None:
    await registers.stop("c")
    await registers.add("a", "4")
    assert len(registers.voters("a") & registers.seats()) == 2
    registers.start("c")
    await registers.stop("b")
    registers.lose_directory("b")
    await registers.add("c", "6")
    registers.start("b")
    await registers.running["b"][0].learn("c", registers.running["c"][0].encoded)
    await until_seated(registers, "b")
    await registers.stop("a")
    changed = await registers.add("b", "8")
    assert {"4", "6", "8"} <= changed.by_name.keys()


async def test_register_of_a_lost_directory_does_not_count_before_it_is_named(
    registers: _Registers,
) -> None:
    """It has forgotten what it accepted, which another voter may not know."""
    await registers.stop("c")
    await registers.add("a", "4")
    await registers.stop("a")
    await registers.stop("b")
    registers.lose_directory("b")
    registers.start("c")
    registers.start("b")
    state = load_state(registers.stores["a"])
    assert state is not None
    await registers.running["c"][0].learn("a", STATE.encode(state.chosen))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await registers.add("c", "6")
    registers.start("a")
    changed = await registers.add("c", "8")
    assert {"4", "8"} <= changed.by_name.keys()


async def test_register_change_that_makes_an_equal_topology_ends(registers: _Registers) -> None:
    register, _ = registers.running["a"]
    change = partial(topology_changes.set_rack, name="b", rack="north")
    async with asyncio.timeout(TIMEOUT_S):
        first = await register.change(change)
        assert await register.change(change) == first


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
        clock=SystemClock(),
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


def _file(directory: Path, ports: dict[str, int]) -> Config:
    nodes = [{"name": name, "address": f"127.0.0.1:{port}"} for name, port in ports.items()]
    return from_dict(
        {
            "node": {"name": "a", "directory": str(directory)},
            "cluster": {"groups": [{"name": "west", "nodes": nodes}]},
        }
    )


async def test_node_starts_with_the_addresses_of_its_file(tmp_path: Path) -> None:
    """Nodes that have all moved, one after the other, find each other by their files alone."""
    began, now = {"a": 1001, "b": 1002, "c": 1003}, {"a": 2001, "b": 2002, "c": 1003}
    first = topology_changes.pin(_file(tmp_path, began).topology)
    chosen = register.first_state(["a"], first.to_json(), version=2).chosen.entry
    with Store.open(tmp_path, wall=lambda: 0.0) as store:
        save_state(store, joined_state(STATE.encode(Ballot(4096, chosen))))
        config = await resolve_topology(_file(tmp_path, now), store)
    assert config.topology.version == 2
    found = {node.name: node.address for node in config.topology.nodes}
    assert found == {name: f"127.0.0.1:{port}" for name, port in now.items()}
