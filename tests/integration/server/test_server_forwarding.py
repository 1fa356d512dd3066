"""Fetches that go on to the coordinator, which answers, dies, or is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from expected_errors import raises

from galileo.ccq.model import CcqDefinition, Record
from galileo.config import LimitsSection
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import CcqCancelled, Unavailable
from galileo.rpc.peers import GrpcPeers
from galileo.server.continuous import MOVING_RETRY_S, ContinuousQueries
from galileo.wire.v1 import continuous_pb2


class Members:
    """A node is silent from the start, and counts as dead when the test says so."""

    nodes: tuple[str, ...] = ("node-2",)

    def __init__(self) -> None:
        self.dead = asyncio.Event()

    async def until_dead(self, node: str) -> None:
        assert node in self.nodes
        await self.dead.wait()


class Peers:
    """The coordinator: answers, fails, or says nothing for ever."""

    def __init__(self, *parts: continuous_pb2.FetchPart | Exception | None) -> None:
        self.parts = parts
        self.left = False

    def address(self, node: str) -> str:
        return f"{node}:7701"

    async def fetch(
        self, node: str, ccq_id: str, *, token: str, wait_s: float, labels_max: int
    ) -> AsyncGenerator[continuous_pb2.FetchPart, None]:
        try:
            for part in self.parts:
                if isinstance(part, Exception):
                    raise part
                if part is None:
                    await asyncio.Event().wait()
                else:
                    yield part
        finally:
            self.left = True


class Records:
    """What a node knows of one continuous query, and the leader now."""

    def __init__(self, known: Record, now: Record | None = None) -> None:
        self.known, self.now = known, now or known

    async def find(self, ccq_id: str) -> Record:
        return self.known

    async def look_up(self, ccq_id: str) -> Record:
        self.known = self.now
        return self.now

    def forget_hint(self, ccq_id: str) -> None:
        self.known = self.now


def record(*nodes: str, **options: Any) -> Record:
    return Record(CcqDefinition("ccq-1", "nam", "true", 1.0, 9.0), 1, nodes, **options)


def part(**tail: Any) -> continuous_pb2.FetchPart:
    return continuous_pb2.FetchPart(
        head=continuous_pb2.SubmitHead(schema_json="{}"), tail=continuous_pb2.FetchTail(**tail)
    )


def forwarding(peers: Any, members: Any, records: Any = None) -> ContinuousQueries:
    unused: Any = None
    state = SimpleNamespace(is_gone=lambda node: node == "node-9")
    members.machine = SimpleNamespace(state=state)
    records = records or Records(record("node-2"))
    return ContinuousQueries(
        SimpleNamespace(name="node-1"),  # type: ignore[arg-type]
        members,
        records=records,
        work=unused,
        peers=peers,
        clock=unused,
        limits=LimitsSection(),
        warm=lambda: None,
    )


async def fetch(queries: ContinuousQueries) -> Any:
    return await queries.fetch("ccq-1", token="", wait_s=60.0, labels_max=9)


async def fetch_here(queries: ContinuousQueries) -> Any:
    return await queries.fetch_here("ccq-1", token="", wait_s=60.0, labels_max=9)


async def test_forward_returns_the_answer_of_the_coordinator() -> None:
    peers = Peers(part(token="after", more=True))
    [answer] = await fetch(forwarding(peers, Members()))
    assert answer == part(token="after", more=True, coordinator="node-2:7701")


async def test_forward_to_a_silent_coordinator_ends_when_it_is_dead() -> None:
    """A stopped process keeps its connections: nothing breaks, and nothing comes."""
    peers, members = Peers(None), Members()
    asking = asyncio.ensure_future(fetch(forwarding(peers, members)))
    await asyncio.sleep(0.05)
    assert not asking.done()
    members.dead.set()
    with raises(Unavailable, node="node-2", after_s=MOVING_RETRY_S):
        async with asyncio.timeout(60):
            await asking
    assert peers.left


@pytest.mark.parametrize("details", [{}, {"after_s": 1.0, "node": "node-2"}])
async def test_forward_to_an_unreachable_coordinator_is_retried_soon(
    details: dict[str, Any],
) -> None:
    """The successor is there a moment after the coordinator is missed, not a second later."""
    peers = Peers(Unavailable("node-2 is unreachable", **details))
    with raises(Unavailable, **{**details, "after_s": MOVING_RETRY_S}):
        await fetch(forwarding(peers, Members()))


async def test_forward_to_an_unknown_coordinator_is_unavailable() -> None:
    """One that was added, and started before this node knew it."""
    nodes = (NodeInfo("node-1", "127.0.0.1:1"),)
    topology = Topology("test", (Group("g", nodes),), even_ranges(1))
    peers = GrpcPeers(topology, is_dead=lambda name: False)
    driver = SimpleNamespace(until_dead=lambda name: asyncio.Event().wait())
    try:
        with raises(Unavailable, node="node-8"):
            async with asyncio.timeout(60):
                await fetch(forwarding(peers, driver, Records(record("node-8"))))
    finally:
        await peers.close()


async def test_fetch_goes_to_the_first_node_that_lives() -> None:
    peers = Peers(part(token="after"))
    queries = forwarding(peers, Members(), Records(record("node-9", "node-2", "node-1")))
    [answer] = await fetch(queries)
    assert answer.tail.coordinator == "node-2:7701"


@pytest.mark.parametrize("ask", [fetch, fetch_here])
async def test_fetch_of_an_ended_query_says_how_it_ended(ask: Any) -> None:
    """Also at a node that never ran it, which has heard of the end."""
    ended = record("node-2", ended="cancelled", ended_at=1.0)
    with pytest.raises(CcqCancelled):
        await ask(forwarding(Peers(), Members(), Records(ended)))


async def test_fetch_of_a_query_whose_nodes_are_all_gone_is_retried_soon() -> None:
    with raises(Unavailable, after_s=MOVING_RETRY_S):
        await fetch(forwarding(Peers(), Members(), Records(record("node-9"))))


async def test_fetch_by_an_old_record_finds_the_new_coordinator_at_the_next_attempt() -> None:
    peers, records = Peers(Unavailable("it moved")), Records(record("node-3"), record("node-2"))
    members = Members()
    members.nodes = ("node-2", "node-3")
    queries = forwarding(peers, members, records)
    with raises(Unavailable, after_s=MOVING_RETRY_S):
        await fetch(queries)
    peers.parts = (part(token="after"),)
    [answer] = await fetch(queries)
    assert answer.tail.coordinator == "node-2:7701"


async def test_forwarded_fetch_asks_the_leader_when_the_record_names_others() -> None:
    records = Records(record("node-2"), record("node-3"))
    with raises(Unavailable, ccq_id="ccq-1"):
        await fetch_here(forwarding(Peers(), Members(), records))
    assert records.known == record("node-3")
