"""Watching a node that ends the stream between two updates, as one does that is killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import grpc
import grpc.aio
import pytest
from expected_errors import raises
from partial_services import add_part
from simulator.logs import SCHEMA, to_labels

from galileo.client import AsyncClient, Spool, fetching
from galileo.cursor import Cursor
from galileo.errors import SpoolConflict, TransientError
from galileo.wire.channel import server_options
from galileo.wire.codec import cursor_to_pb
from galileo.wire.services import CLUSTER, CONTINUOUS
from galileo.wire.v1 import continuous_pb2


class Quiet:
    """Answers one request of each watch, and takes the next ones without a word."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def Watch(self, request, context):
        async for one in request:
            self.tokens.append(one.token)
            yield update(len(self.tokens))
            break
        await asyncio.Event().wait()

    async def Topology(self, request, context):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")


class Partial(Quiet):
    """Finds something before it has looked at everything, and nothing after that."""

    async def Watch(self, request, context):
        async for _ in request:
            self.tokens.append(f"token-{len(self.tokens)}")
            number = len(self.tokens)
            part = update(1) if number == 2 else nothing(min(number, 3))
            yield part


class Steady(Quiet):
    """Has an update after each token."""

    async def Watch(self, request, context):
        async for one in request:
            self.tokens.append(one.token)
            yield update(int(one.token.rpartition("-")[2] or 0) + 1)


class Halting(Steady):
    """Falls silent in the middle of its first answer."""

    async def Watch(self, request, context):
        if not self.tokens:
            async for one in request:
                self.tokens.append(one.token)
                yield continuous_pb2.FetchPart(head=update(1).head)
                await asyncio.Event().wait()
        async for part in super().Watch(request, context):
            yield part


class Flighty(Quiet):
    """Answers one request of each watch, and is gone before it is asked again."""

    async def Watch(self, request, context):
        async for one in request:
            self.tokens.append(one.token)
            yield update(len(self.tokens))
            break
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the node was killed")


def update(number: int) -> continuous_pb2.FetchPart:
    labels = to_labels([(0, number, 0, 7)])
    assert labels is not None
    cursor = cursor_to_pb(Cursor({0: number}))
    return continuous_pb2.FetchPart(
        head=continuous_pb2.SubmitHead(schema_json=SCHEMA.to_json()),
        packed=labels.to_bytes(),
        tail=continuous_pb2.FetchTail(token=f"token-{number}", cursor=cursor, frontier=cursor),
    )


def nothing(reached: int) -> continuous_pb2.FetchPart:
    part = update(1)
    cursor = cursor_to_pb(Cursor({0: reached}))
    tail = continuous_pb2.FetchTail(token="token", cursor=cursor, frontier=cursor)
    return continuous_pb2.FetchPart(head=part.head, tail=tail)


@contextlib.asynccontextmanager
async def serving(node: Quiet) -> AsyncIterator[AsyncClient]:
    server = grpc.aio.server(options=server_options())
    add_part(CONTINUOUS, node, server)
    add_part(CLUSTER, node, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncClient(f"127.0.0.1:{port}") as client:
        yield client
    await server.stop(None)


async def test_watch_after_its_stream_ended_continues() -> None:
    node, got = Flighty(), []
    async with serving(node) as client:
        async for one in client.watch("ccq-1"):
            got.append(one.labels.sequences.tolist())
            if len(got) == 3:
                break
            await asyncio.sleep(
                0.3
            )  # The stream ends meanwhile, and the client does not wait for it.
    assert got == [[1], [2], [3]]
    assert node.tokens == ["", "token-1", "token-2"]


@pytest.mark.slow
async def test_watch_of_a_silent_node_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "WATCH_SILENCE_S", 0.5)
    monkeypatch.setattr(fetching, "WATCH_WAIT_S", 0.1)
    node, got = Quiet(), []
    async with serving(node) as client, asyncio.timeout(60):
        async for one in client.watch("ccq-1"):
            got.append(one.labels.sequences.tolist())
            if len(got) == 3:
                break
    assert got == [[1], [2], [3]]
    assert node.tokens == ["", "token-1", "token-2"]


async def test_watch_of_an_unfinished_answer_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "PART_S", 0.5)
    node = Halting()
    async with (
        serving(node) as client,
        asyncio.timeout(60),
        aclosing(client.watch("ccq-1")) as updates,
    ):
        assert (await anext(updates)).labels.sequences.tolist() == [1]
    assert node.tokens[:2] == ["", ""]


async def test_watch_reports_frontiers_after_partial_news() -> None:
    """Who waits for what was ingested would wait for ever, where the rest has no match."""
    got: list[tuple[int, Cursor]] = []
    async with serving(Partial()) as client, asyncio.timeout(60):
        async for one in client.watch("ccq-1"):
            got.append((len(one.labels), one.frontier))
            if one.frontier.covers(Cursor({0: 3})):
                break
    assert got == [(1, Cursor({0: 1})), (0, Cursor({0: 3}))]


async def test_watch_with_a_failing_spool_repeats_the_update(tmp_path: Path) -> None:
    async with serving(Steady()) as client, asyncio.timeout(60):
        with Spool(tmp_path / "x.spool") as spool:
            updates = client.watch("ccq-1", spool=spool)
            await anext(updates)
            spool._database.execute("PRAGMA query_only = 1")  # As a disk that refuses.
            with raises(TransientError, file=str(tmp_path / "x.spool")):
                await anext(updates)
            assert spool.labels().sequences.tolist() == [1]
            spool._database.execute("PRAGMA query_only = 0")
            async with aclosing(client.watch("ccq-1", spool=spool)) as updates:
                assert (await anext(updates)).labels.sequences.tolist() == [2]
            assert spool.labels().sequences.tolist() == [1, 2]


async def test_watch_twice_into_one_spool_is_a_conflict(tmp_path: Path) -> None:
    """Nor does one that goes on while what an earlier one had to store is on its way."""
    async with serving(Steady()) as client, asyncio.timeout(60):
        with Spool(tmp_path / "x.spool") as spool:
            watches = [client.watch("ccq-1", spool=spool) for _ in range(2)]
            found = await asyncio.gather(*map(anext, watches), return_exceptions=True)
            assert sorted(isinstance(one, SpoolConflict) for one in found) == [False, True]
            assert spool.labels().sequences.tolist() == [1]
            for one in watches:
                await one.aclose()


async def test_watch_into_a_spool_continues_after_another_reader(tmp_path: Path) -> None:
    path = tmp_path / "x.spool"
    async with serving(Steady()) as client, asyncio.timeout(60):
        with Spool(path) as early, Spool(path) as other:
            for spool in (other, early):
                async with aclosing(client.watch("ccq-1", spool=spool)) as updates:
                    await anext(updates)
            assert early.labels().sequences.tolist() == [1, 2]
