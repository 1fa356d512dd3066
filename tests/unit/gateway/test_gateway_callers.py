"""Who is let in, and counters of callers: each is given back, however many come and go."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from starlette.requests import Request

from galileo.client.results import CallerIdentity
from galileo.errors import Forbidden, Overloaded, Unauthenticated, Unavailable
from galileo.gateway import rights
from galileo.gateway.callers import Callers
from galileo.gateway.options import REQUESTS_OF_CALLER_MAX, GatewayOptions
from galileo.gateway.rights import PUBLIC, Principals, Right
from galileo.rpc.access import ANONYMOUS
from galileo.shares import SHARE_HOLDER, ShareHolder

READ, STORE = Right("Storage/Select", "{collectionId}"), Right("Storage/Ingest", "{collectionId}")


def request_of(token: str, *, host: str = "h", dataset: str = "rain") -> Request:
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {"type": "http", "headers": headers, "client": (host, 1)}
    return Request({**scope, "path_params": {"collectionId": dataset}})


class Nodes:
    """Nodes that know some tokens, as a test says, and count what they are asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.known: dict[str, CallerIdentity] = {}
        self.failure: Exception | None = None

    def add(self, token: str, *roles: str, datasets: tuple[str, ...] = ("*",)) -> None:
        self.known[token] = CallerIdentity(f"name of {token}", roles, datasets, None, {})

    async def whoami(self, token: str) -> CallerIdentity:
        self.asked.append(token)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        if token not in self.known:
            raise Unauthenticated("unknown")
        return self.known[token]


@pytest.fixture
def nodes() -> Nodes:
    made = Nodes()
    for token in "abc":
        made.add(token, "reader")
    return made


@pytest.fixture
def made(nodes: Nodes) -> Callers:
    made = Callers(GatewayOptions(nodes=("127.0.0.1:1",), connections_max=16))
    made._principals = Principals(nodes.whoami)
    return made


async def admitted(made: Callers, token: str, **where: Any) -> Request:
    request = request_of(token, **where)
    await made.admit(request, READ)
    return request


async def test_callers_that_have_left_are_not_counted(made: Callers, nodes: Nodes) -> None:
    for number in range(20):
        nodes.add(f"t{number}", "reader")
        request = await admitted(made, f"t{number}")
        async with made.client(request), made.reader(request):
            assert made.readers == 1
        with contextlib.suppress(ValueError):
            async with made.client(request):
                raise ValueError
    assert (made.readers, len(made._readers), len(made._requests)) == (0, 0, 0)
    await made.close()


async def test_requests_of_a_caller_are_bounded(made: Callers, nodes: Nodes) -> None:
    nodes.known["second of a"] = nodes.known["a"]
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(REQUESTS_OF_CALLER_MAX):
            await stack.enter_async_context(made.client(await admitted(made, "a")))
        await stack.enter_async_context(made.client(await admitted(made, "b")))
        for token in ("a", "second of a"):
            with pytest.raises(Overloaded):
                await stack.enter_async_context(made.client(await admitted(made, token)))
    await made.close()


async def test_callers_without_a_token_are_counted_by_host(made: Callers, nodes: Nodes) -> None:
    nodes.known[""] = CallerIdentity("", (), (), None, {})
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(REQUESTS_OF_CALLER_MAX):
            await stack.enter_async_context(made.client(await admitted(made, "", host="greedy")))
        with pytest.raises(Overloaded):
            await stack.enter_async_context(made.client(await admitted(made, "", host="greedy")))
        await stack.enter_async_context(made.client(await admitted(made, "", host="other")))
        assert SHARE_HOLDER.get() == ShareHolder("other")
    await made.close()


class Reader:
    """A stream of events, whose task ends when it is revoked."""

    def __init__(self, made: Callers, token: str) -> None:
        self.has_begun = asyncio.Event()
        self.task = asyncio.create_task(self._read(made, token))

    async def _read(self, made: Callers, token: str) -> None:
        async with made.reader(await admitted(made, token)):
            self.has_begun.set()
            await asyncio.Event().wait()


async def test_readers_of_the_caller_with_the_most_give_way(made: Callers) -> None:
    readers: dict[str, list[Reader]] = {}
    for token in "abc":
        readers[token] = [Reader(made, token) for _ in range(14)]
        for _ in range(60):
            await asyncio.sleep(0)
    counts = {
        token: sum(not reader.task.done() for reader in mine) for token, mine in readers.items()
    }
    assert sum(counts.values()) == made.readers <= 12
    assert max(counts.values()) - min(counts.values()) <= 2
    for mine in readers.values():
        for reader in mine:
            if reader.task.done():
                assert isinstance(reader.task.exception(), Overloaded)
            reader.task.cancel()
        await asyncio.gather(*(reader.task for reader in mine), return_exceptions=True)
    assert (made.readers, made._readers) == (0, {})
    await made.close()


async def test_right_is_checked_by_the_rules_of_nodes(made: Callers, nodes: Nodes) -> None:
    nodes.add("rain only", "writer", datasets=("rain*",))
    await made.admit(request_of("rain only"), STORE)
    for token, right, dataset in (("a", STORE, "rain"), ("rain only", READ, "wind")):
        with pytest.raises(Forbidden):
            await made.admit(request_of(token, dataset=dataset), right)
    with pytest.raises(Unauthenticated):
        await made.admit(request_of("unknown"), READ)
    nodes.asked.clear()
    await made.admit(request_of("unknown"), PUBLIC)
    assert not nodes.asked
    await made.close()


async def test_principals_are_known_for_a_while(nodes: Nodes) -> None:
    now = 0.0
    principals = Principals(nodes.whoami, monotonic=lambda: now)
    together = (principals.of_token("a", host="h") for _ in range(5))
    assert len({principal.name for principal in await asyncio.gather(*together)}) == 1
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await principals.of_token("wrong", host="h")
        await principals.of_token("a", host="h")
    assert nodes.asked == ["a", "wrong"], "negative answers are kept, too"
    now = rights.KNOWN_S + 1
    del nodes.known["a"]
    nodes.add("wrong", "reader")
    with pytest.raises(Unauthenticated):
        await principals.of_token("a", host="h")
    await principals.of_token("wrong", host="h")
    assert nodes.asked == ["a", "wrong", "a", "wrong"]
    kept = repr(principals._answers)
    assert "wrong" not in kept.replace("name of wrong", ""), "no token is kept"


async def test_flood_of_wrong_tokens_displaces_no_right_one(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "KNOWN_MAX", 4)
    principals = Principals(nodes.whoami, monotonic=lambda: 0.0)
    await principals.of_token("a", host="h")
    for number in range(20):
        with pytest.raises(Unauthenticated):
            await principals.of_token(f"wrong {number}", host="stranger")
    nodes.asked.clear()
    await principals.of_token("a", host="h")
    assert (nodes.asked, len(principals._answers)) == ([], 4)
    for token in "bca":
        await principals.of_token(token, host="h")
    with pytest.raises(Unauthenticated):
        await principals.of_token("wrong", host="stranger")
    for token in "abc":
        await principals.of_token(token, host="h")
    assert nodes.asked == ["b", "c", "wrong"]


async def test_error_of_nodes_is_not_kept(nodes: Nodes) -> None:
    principals = Principals(nodes.whoami)
    nodes.failure = Unavailable("no node")
    with pytest.raises(Unavailable):
        await principals.of_token("a", host="h")
    nodes.failure = None
    assert (await principals.of_token("a", host="h")).name == "name of a"


async def test_cluster_without_tokens_lets_everybody_in(nodes: Nodes) -> None:
    nodes.known[""] = CallerIdentity("", (), (), None, {})
    principals = Principals(nodes.whoami)
    principal = await principals.of_token("", host="h")
    assert principal is ANONYMOUS
    STORE.check(principal, {"collectionId": "rain"})
