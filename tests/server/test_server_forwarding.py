"""A fetch that is handed on to the coordinator, which answers, dies, or says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from galileo.config import LimitsSection
from galileo.errors import Unavailable
from galileo.server.continuous import MOVING_RETRY_S, ContinuousQueries
from galileo.wire.pb import continuous_pb2

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


def part(**tail: Any) -> continuous_pb2.FetchPart:
    return continuous_pb2.FetchPart(
        head=continuous_pb2.SubmitHead(schema_json="{}"), tail=continuous_pb2.FetchTail(**tail)
    )


def forwarding(peers: Peers, members: Members) -> ContinuousQueries:
    unused: Any = None
    return ContinuousQueries(
        SimpleNamespace(name="node-1"),  # type: ignore[arg-type]
        members,  # type: ignore[arg-type]
        work=unused,
        peers=peers,  # type: ignore[arg-type]
        clock=unused,
        limits=LimitsSection(),
        warm=lambda: None,
    )


async def test_an_answer_is_handed_back() -> None:
    peers = Peers(part(token="after", more=True))
    fetched = await forwarding(peers, Members())._forward("node-2", REQUEST, forwarded=False)
    assert (fetched.token, fetched.more) == ("after", True)


async def test_a_coordinator_that_fell_silent_is_not_waited_for_once_it_counts_as_dead() -> None:
    """A stopped process keeps its connections: nothing breaks, and nothing comes."""
    peers, members = Peers(None), Members()
    asking = asyncio.ensure_future(
        forwarding(peers, members)._forward("node-2", REQUEST, forwarded=False)
    )
    await asyncio.sleep(0.05)
    assert not asking.done()
    members.dead.set()
    with pytest.raises(Unavailable, match="node-2") as refused:
        async with asyncio.timeout(60):
            await asking
    assert refused.value.details["after_s"] == MOVING_RETRY_S
    assert peers.left


@pytest.mark.parametrize("details", [{}, {"after_s": 1.0, "node": "node-2"}])
async def test_who_asked_is_told_to_come_back_soon(details: dict[str, Any]) -> None:
    """The successor is there a moment after the coordinator is missed, not a second later."""
    peers = Peers(Unavailable("node-2 has not been heard from", **details))
    with pytest.raises(Unavailable, match="not been heard") as refused:
        await forwarding(peers, Members())._forward("node-2", REQUEST, forwarded=False)
    assert refused.value.details == {**details, "after_s": MOVING_RETRY_S}


async def test_what_was_handed_on_once_is_not_handed_on_again() -> None:
    with pytest.raises(Unavailable, match="changing its coordinator"):
        await forwarding(Peers(), Members())._forward("node-2", REQUEST, forwarded=True)
