"""A client that asks for a partition to be moved, of nodes that end the stream too early."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from expected_errors import raises
from partial_services import add_part

import galileo
from galileo.errors import Unavailable
from galileo.wire.caller import BackoffClock
from galileo.wire.services import CLUSTER, PARTITIONS
from galileo.wire.v1 import partitions_pb2


class Node:
    """Begins moves, and ends so many of their streams without a word."""

    def __init__(self) -> None:
        self.silent = 0
        self.moves = 0

    async def Move(self, request: Any, context: Any) -> AsyncIterator[partitions_pb2.MoveProgress]:
        self.moves += 1
        yield partitions_pb2.MoveProgress(stage="copy")
        if self.moves > self.silent:
            yield partitions_pb2.MoveProgress(stage="done")

    async def Topology(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")


@pytest.fixture
async def node() -> Node:
    return Node()


@pytest.fixture
async def client(node: Node) -> AsyncIterator[galileo.AsyncClient]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_part(PARTITIONS, node, server)
    add_part(CLUSTER, node, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with galileo.AsyncClient(f"127.0.0.1:{port}", timeout="30s") as made:
        yield made
    await server.stop(None)


async def test_move_stream_that_ends_early_is_retried(
    node: Node, client: galileo.AsyncClient
) -> None:
    node.silent = 3
    paused = []

    async def sleep(wait_s: float) -> None:
        paused.append(wait_s)

    client._caller.clock = BackoffClock(sleep=sleep)
    stages = [one.stage async for one in client.move(0, to="node-2")]
    assert stages == ["copy", "copy", "copy", "copy", "done"]
    assert len(paused) == 3
    assert min(paused) > 0


async def test_move_stream_that_always_ends_early_is_unavailable(
    node: Node, client: galileo.AsyncClient
) -> None:
    node.silent = 1_000
    now = [time.monotonic()]

    async def sleep(wait_s: float) -> None:
        now[0] += wait_s

    client._caller.clock = BackoffClock(lambda: now[0], sleep)
    with raises(Unavailable):
        async for _ in client.move(0, to="node-2"):
            pass
    assert node.moves < 200
