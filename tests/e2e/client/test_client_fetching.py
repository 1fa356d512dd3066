"""Where a client goes for what is new: to the coordinator where it answers, else to any node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from expected_errors import raises
from partial_services import add_part
from simulator.logs import SCHEMA

from galileo.client import AsyncClient, fetching
from galileo.cursor import Cursor
from galileo.errors import InvalidToken
from galileo.rpc.error_mapping import streaming
from galileo.wire.channel import server_options
from galileo.wire.codec import cursor_to_pb
from galileo.wire.services import CLUSTER, CONTINUOUS
from galileo.wire.v1 import continuous_pb2


class Node:
    """Answers fetches with nothing new, and says who knew so.

    Attributes:
        coordinator: address that it names.
        asked: the tokens of all fetches.
        silent: whether it lets them wait for ever.
        error: what it answers instead.
        age_s, interval_s: that it answers.
        token: that it answers; that of the fetch if it is empty.
    """

    def __init__(self) -> None:
        self.coordinator = ""
        self.asked: list[str] = []
        self.silent = False
        self.error: Exception | None = None
        self.address = ""
        self.age_s = self.interval_s = 0.0
        self.token = ""

    @streaming
    async def Fetch(self, request, context):
        self.asked.append(request.token)
        if self.silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        cursor = cursor_to_pb(Cursor({0: 1}))
        tail = continuous_pb2.FetchTail(
            token=self.token or request.token,
            cursor=cursor,
            frontier=cursor,
            coordinator=self.coordinator,
        )
        tail.age_s, tail.interval_s = self.age_s, self.interval_s
        head = continuous_pb2.SubmitHead(schema_json=SCHEMA.to_json())
        yield continuous_pb2.FetchPart(head=head, tail=tail)

    async def Topology(self, request, context):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")


@contextlib.asynccontextmanager
async def serving(node: Node) -> AsyncIterator[grpc.aio.Server]:
    server = grpc.aio.server(options=server_options())
    add_part(CONTINUOUS, node, server)
    add_part(CLUSTER, node, server)
    node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield server
    await server.stop(None)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    """The configured node, and the coordinator that it names."""
    known, coordinator = Node(), Node()
    async with serving(known), serving(coordinator):
        known.coordinator = coordinator.address
        yield known, coordinator


async def fetches(client: AsyncClient, *tokens: str) -> None:
    for token in tokens:
        assert (await client.fetch("ccq-1", token=token)).token == token


async def test_fetch_goes_to_the_coordinator_of_the_last_answer(nodes: tuple[Node, Node]) -> None:
    known, coordinator = nodes
    async with AsyncClient(known.address) as client:
        await fetches(client, "a", "b", "c")
    assert (known.asked, coordinator.asked) == (["a"], ["b", "c"])


async def test_fetch_follows_a_moved_coordinator(nodes: tuple[Node, Node]) -> None:
    known, coordinator = nodes
    coordinator.coordinator = known.address
    async with AsyncClient(known.address) as client:
        await fetches(client, "a", "b", "c")
    assert (known.asked, coordinator.asked) == (["a", "c"], ["b"])


async def test_fetch_of_a_silent_coordinator_asks_another_node(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it tried again with the next fetch, though the other node still names it."""
    monkeypatch.setattr(fetching, "COORDINATOR_S", 1.0)
    known, coordinator = nodes
    async with AsyncClient(known.address) as client:
        await fetches(client, "a")
        coordinator.silent = True
        await fetches(client, "b", "c")
    assert (known.asked, coordinator.asked) == (["a", "b", "c"], ["b"])


async def test_fetch_of_a_stopped_coordinator_asks_another_node() -> None:
    known, coordinator = Node(), Node()
    async with serving(known), AsyncClient(known.address) as client:
        async with serving(coordinator):
            known.coordinator = coordinator.address
            await fetches(client, "a", "b")
        await fetches(client, "c", "d")
    assert (known.asked, coordinator.asked) == (["a", "c", "d"], ["b"])


async def test_fetch_refused_by_the_coordinator_is_refused(nodes: tuple[Node, Node]) -> None:
    known, coordinator = nodes
    async with AsyncClient(known.address) as client:
        await fetches(client, "a")
        coordinator.error = InvalidToken("expected another token")
        with raises(InvalidToken):
            await client.fetch("ccq-1", token="b")
    assert known.asked == ["a"]


async def test_fetch_with_wait_goes_to_any_node(nodes: tuple[Node, Node]) -> None:
    """A coordinator that is silent then may just have none."""
    known, coordinator = nodes
    async with AsyncClient(known.address) as client:
        await fetches(client, "a")
        await client.fetch("ccq-1", token="b", wait="1s")
    assert (known.asked, coordinator.asked) == (["a", "b"], [])


async def test_fetcher_remembers_coordinators_max(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "COORDINATORS_MAX", 2)
    known, coordinator = nodes
    async with AsyncClient(known.address) as client:
        for number in (1, 2, 3, 1, 3):
            await client.fetch(f"ccq-{number}", token=f"{number}")
    assert (known.asked, coordinator.asked) == (["1", "2", "3", "1"], ["3"])


@pytest.mark.parametrize(
    ("age_s", "interval_s", "wait_s", "tokens", "warns"),
    [
        (30.2, 29.3, 30.0, "", True),
        (30.2, 29.3, 30.0, "aa", True),
        (30.2, 29.3, 30.0, "ab", False),  # evaluated, and more was committed meanwhile
        (0.5, 1.0, 30.0, "", False),  # evaluated, and nothing was new
        (900.0, 3600.0, 30.0, "", False),  # not due yet
        (30.2, 29.3, None, "", False),  # did not wait
    ],
)
async def test_fetch_wait_without_evaluation_is_logged(
    caplog: pytest.LogCaptureFixture,
    age_s: float,
    interval_s: float,
    wait_s: float | None,
    tokens: str,
    warns: bool,
) -> None:
    node = Node()
    node.age_s, node.interval_s, node.token = age_s, interval_s, tokens[1:]
    async with serving(node), AsyncClient(node.address) as client:
        update = await client.fetch("ccq-1", token=tokens[:1], wait=wait_s)
    assert update.status == (
        f"the query was last evaluated {age_s:.3g} s ago; it is evaluated every {interval_s:.3g} s "
        "at the moment"
    )
    assert ("nothing new in 30 s: the query was last evaluated 30.2 s ago" in caplog.text) == warns
