"""Fetches and cancellations that go on to the coordinator, which answers, dies, or is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from expected_errors import raises

from galileo.ccq import events as ccq
from galileo.ccq.model import Ccq, Record
from galileo.clock import SystemClock
from galileo.config import LimitsSection
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import Unavailable
from galileo.rpc.peers import GrpcPeers
from galileo.server.cluster_ccqs import ClusterCcqs
from galileo.server.continuous import MOVING_RETRY_S, ContinuousQueries
from galileo.wire.v1 import continuous_pb2

REQUEST = continuous_pb2.FetchRequest(ccq_id="ccq-1", wait_s=60.0, forwarded=True)


class Members:
    """A node is silent from the start, and counts as dead when the test says so."""

    def __init__(self) -> None:
        self.dead = asyncio.Event()

    async def until_dead(self, node: str) -> None:
        assert node == "node-2"
        await self.dead.wait()


class Peers:
    """The coordinator: answers, fails, or says nothing for ever."""

    def __init__(self, *parts: continuous_pb2.FetchPart | Exception | None) -> None:
        self.parts = parts
        self.left = False
        self.cancelled: list[tuple[str, str]] = []

    def address(self, node: str) -> str:
        return f"{node}:7701"

    async def fetch(
        self, node: str, request: continuous_pb2.FetchRequest
    ) -> AsyncIterator[continuous_pb2.FetchPart]:
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

    async def cancel(self, node: str, ccq_id: str) -> None:
        if self.parts == (None,):
            await asyncio.Event().wait()
        self.cancelled.append((node, ccq_id))


class CancellingDriver(Members):
    """The driver of a node with a CCQ that node-2 coordinates."""

    def __init__(self) -> None:
        super().__init__()
        records = {"ccq-1": Record(Ccq("ccq-1", "nam", "true", 1.0, 9.0), 1, "node-2")}
        table = SimpleNamespace(records=records)
        self.machine = SimpleNamespace(state=SimpleNamespace(record_table=table))

    async def ask(self, make: Any, *, timeout_s: float) -> ccq.AnswerCancel:
        return ccq.AnswerCancel(make(1).request, "ccq-1")


def part(**tail: Any) -> continuous_pb2.FetchPart:
    return continuous_pb2.FetchPart(
        head=continuous_pb2.SubmitHead(schema_json="{}"), tail=continuous_pb2.FetchTail(**tail)
    )


def forwarding(peers: Any, members: Any) -> ContinuousQueries:
    unused: Any = None
    return ContinuousQueries(
        SimpleNamespace(name="node-1"),  # type: ignore[arg-type]
        members,
        ccqs=unused,
        work=unused,
        peers=peers,
        clock=unused,
        limits=LimitsSection(),
        warm=lambda: None,
    )


async def test_forward_returns_the_answer_of_the_coordinator() -> None:
    peers = Peers(part(token="after", more=True))
    [answer] = await forwarding(peers, Members())._forward("node-2", REQUEST, forwarded=False)
    assert answer == part(token="after", more=True, coordinator="node-2:7701")


async def test_forward_to_a_silent_coordinator_ends_when_it_is_dead() -> None:
    """A stopped process keeps its connections: nothing breaks, and nothing comes."""
    peers, members = Peers(None), Members()
    asking = asyncio.ensure_future(
        forwarding(peers, members)._forward("node-2", REQUEST, forwarded=False)
    )
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
        await forwarding(peers, Members())._forward("node-2", REQUEST, forwarded=False)


async def test_forward_of_a_forwarded_request_is_unavailable() -> None:
    with raises(Unavailable, ccq_id="ccq-1"):
        await forwarding(Peers(), Members())._forward("node-2", REQUEST, forwarded=True)


async def test_forward_to_an_unknown_coordinator_is_unavailable() -> None:
    """One that was added, and started before this node knew it."""
    nodes = (NodeInfo("node-1", "127.0.0.1:1"),)
    topology = Topology("test", (Group("g", nodes),), even_ranges(1))
    peers = GrpcPeers(topology, is_dead=lambda name: False)
    made = Ccq("ccq-1", "nam", "true", 1.0, 9.0)
    driver = SimpleNamespace(machine=None, until_dead=lambda name: asyncio.Event().wait())
    queries = forwarding(peers, driver)
    try:
        with raises(Unavailable, node="node-9"):
            async with asyncio.timeout(60):
                await queries._forward("node-9", REQUEST, forwarded=False)
        ccqs = ClusterCcqs(driver, driver, peers=peers, clock=SystemClock())  # type: ignore[arg-type]
        infos = [ccqs.info(Record(made, 1, node)) for node in ("node-9", "node-1")]
        assert [one.coordinator_address for one in infos] == ["", "127.0.0.1:1"]
    finally:
        await peers.close()


async def test_cancel_returns_when_the_coordinator_has_cancelled() -> None:
    """Else a fetch after it may still be answered with labels."""
    peers = Peers()
    await forwarding(peers, CancellingDriver()).cancel("ccq-1", forwarded=False)
    assert peers.cancelled == [("node-2", "ccq-1")]


async def test_cancel_that_is_forwarded_is_not_forwarded_again() -> None:
    peers = Peers()
    await forwarding(peers, CancellingDriver()).cancel("ccq-1", forwarded=True)
    assert not peers.cancelled


async def test_cancel_with_a_silent_coordinator_ends_when_it_is_dead() -> None:
    driver = CancellingDriver()
    cancelling = asyncio.ensure_future(
        forwarding(Peers(None), driver).cancel("ccq-1", forwarded=False)
    )
    driver.dead.set()
    async with asyncio.timeout(60):
        await cancelling
