"""Which node is called next, after which pause, and when a call ends with an error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import (
    GalileoError,
    IncompleteAnswer,
    NotPermitted,
    Overloaded,
    PartitionMoved,
    TransientError,
    Unavailable,
)
from galileo.wire import caller as wire_caller
from galileo.wire.blocking_caller import BlockingCaller
from galileo.wire.caller import (
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    PAUSE_S,
    PAUSE_SPREAD,
    Backoff,
    BackoffClock,
    Caller,
    CallOptions,
    Connection,
)


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, wait_s: float) -> None:
        self.slept.append(wait_s)
        self.now += wait_s


def backoff_clock(clock: Clock, chance: float = 0.5) -> BackoffClock:
    return BackoffClock(clock.monotonic, clock.sleep, lambda: chance)


async def fail_until_given_up(
    clock: Clock, error: TransientError, *, patience_s: float, chance: float = 0.5
) -> None:
    """Fails with the same error again and again, until that is no longer waited for."""
    pauses = Backoff(backoff_clock(clock, chance), patience_s=patience_s)
    with pytest.raises(type(error)) as raised:
        await wait_forever(pauses, error)
    assert raised.value is error


async def wait_forever(pauses: Backoff, error: TransientError) -> None:
    while True:
        await pauses.after(error)


async def test_backoff_pauses_double_up_to_bound() -> None:
    clock = Clock()
    await fail_until_given_up(clock, Unavailable("away"), patience_s=6.0)
    assert clock.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0])


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 20))
async def test_backoff_random_spread_stays_within_patience(
    chance: float, patience_s: float
) -> None:
    clock = Clock()
    await fail_until_given_up(clock, Unavailable("away"), patience_s=patience_s, chance=chance)
    plain = [min(PAUSE_S * 2**n, PAUSE_MAX_S) for n in range(len(clock.slept))]
    factor = 1 + PAUSE_SPREAD * (2 * chance - 1)
    assert clock.slept == pytest.approx([factor * pause for pause in plain])
    assert clock.now <= 1000.0 + patience_s + 1e-9
    following = factor * min(PAUSE_S * 2 ** len(plain), PAUSE_MAX_S)
    assert clock.now + following > 1000.0 + patience_s


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 3))
async def test_backoff_after_s_is_minimum_pause(chance: float, advised_s: float) -> None:
    clock = Clock()
    await fail_until_given_up(
        clock, Overloaded("busy", after_s=advised_s), patience_s=10.0, chance=chance
    )
    assert all(wait >= max(advised_s, PAUSE_MIN_S) for wait in clock.slept)
    assert all(wait <= max(advised_s, PAUSE_MIN_S) * (1 + PAUSE_SPREAD) for wait in clock.slept)
    assert clock.slept


async def test_backoff_after_s_does_not_change_later_pauses() -> None:
    clock = Clock()
    pauses = Backoff(backoff_clock(clock), patience_s=60.0)
    for error in (Unavailable("away"), *[Overloaded("busy", after_s=2.0)] * 5, Unavailable("away")):
        await pauses.after(error)
    assert clock.slept[0] == pytest.approx(0.1)
    assert clock.slept[-1] == pytest.approx(0.2)


async def test_backoff_after_s_beyond_patience_raises_at_once() -> None:
    clock = Clock()
    await fail_until_given_up(clock, Overloaded("busy", after_s=60.0), patience_s=5.0)
    assert clock.slept == []


async def test_backoff_clock_random_numbers_differ() -> None:
    first, second = BackoffClock(), BackoffClock()
    assert len({first.random() for _ in range(50)} | {second.random() for _ in range(50)}) > 90


def test_backoff_clock_random_keeps_global_generator() -> None:
    before = random.getstate()
    BackoffClock().random()
    assert random.getstate() == before


# --- calls ---------------------------------------------------------------------------------------


class Nodes:
    """Nodes at addresses, each of which answers a number or raises the errors of a list.

    Attributes:
        called: the addresses of the attempts so far.
    """

    def __init__(self, **errors: list[GalileoError]) -> None:
        self._errors = errors
        self.called: list[str] = []

    async def attempt(self, node: Connection) -> int:
        name = node.address.partition(":")[0]
        self.called.append(name)
        if self._errors.get(name):
            raise self._errors[name].pop(0)
        return len(self.called)

    def blocking_attempt(self, channel: Any) -> int:
        self.called.append(channel)
        if self._errors.get(channel):
            raise self._errors[channel].pop(0)
        return len(self.called)


def unreachable(name: str) -> Unavailable:
    return Unavailable("connection refused", address=f"{name}:1")


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def caller(clock: Clock) -> AsyncIterator[Caller]:
    options = CallOptions(patience_s=5.0)
    caller = Caller(["a:1", "b:1", "c:1"], clock=backoff_clock(clock), options=options)
    yield caller
    await caller.close()


async def test_caller_unreachable_nodes_are_tried_last(caller: Caller, clock: Clock) -> None:
    nodes = Nodes(a=[unreachable("a")], b=[unreachable("b")])
    assert await caller.call(nodes.attempt) == 3
    assert await caller.call(nodes.attempt) == 4
    assert nodes.called == ["a", "b", "c", "c"]
    assert caller.addresses == ["c:1", "a:1", "b:1"]
    assert clock.slept == []


async def test_caller_transient_error_repeats_at_same_node(caller: Caller, clock: Clock) -> None:
    nodes = Nodes(a=[Unavailable("the coordinator changes", after_s=0.06)] * 6)
    assert await caller.call(nodes.attempt) == 7
    assert set(nodes.called) == {"a"}
    assert clock.slept == pytest.approx([0.06 * 1.125] * 6)


async def test_caller_other_error_raises_at_once(caller: Caller, clock: Clock) -> None:
    nodes, seen = Nodes(a=[NotPermitted("no")]), []
    caller.on_error = seen.append
    with pytest.raises(NotPermitted):
        await caller.call(nodes.attempt)
    assert (nodes.called, clock.slept, len(seen)) == (["a"], [], 1)


async def test_caller_after_s_beyond_patience_raises_at_once(caller: Caller, clock: Clock) -> None:
    with pytest.raises(Overloaded):
        await caller.call(Nodes(a=[Overloaded("too many", after_s=60.0)]).attempt)
    assert clock.slept == []


async def test_caller_given_first_address_is_tried_once(caller: Caller) -> None:
    nodes = Nodes(c=[Overloaded("busy")])
    await caller.call(nodes.attempt, first="c:1")
    assert nodes.called == ["c", "a"]


async def test_caller_ask_one_node_is_called_once(caller: Caller) -> None:
    nodes = Nodes(b=[Overloaded("busy")])
    with pytest.raises(Overloaded):
        await caller.ask("b:1", nodes.attempt)
    assert await caller.ask("b:1", nodes.attempt) == 2


class Server(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A node that answers each method when it is open, else never; health checks count.

    Attributes:
        address: where it listens.
        is_live: whether it answers health checks.
        opened: set when it answers calls.
        checks: health checks so far.
        often_checked: set at the fifth.
    """

    def __init__(self, *, is_live: bool = True) -> None:
        self.is_live = is_live
        self.opened = asyncio.Event()
        self.checks, self.often_checked = 0, asyncio.Event()
        self._server = grpc.aio.server()
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.add_generic_rpc_handlers([self])

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            self._check if details.method.startswith("/grpc.health") else self._answer
        )

    async def _check(self, request: bytes, context: Any) -> bytes:
        self.checks += 1
        if self.checks == 5:
            self.often_checked.set()
        await (asyncio.sleep(0) if self.is_live else asyncio.Event().wait())
        return b""

    async def _answer(self, request: bytes, context: Any) -> bytes:
        await self.opened.wait()
        return b""

    async def __aenter__(self) -> Server:
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop(None)


async def call_address(node: Connection) -> str:
    """The address of a node that has answered a call."""
    await node.channel.unary_unary("/test/Call")(b"")
    return node.address


@pytest.fixture
def _checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are soon sent a health check, and have long to answer it."""
    monkeypatch.setattr(wire_caller, "SILENCE_S", 0.02)
    monkeypatch.setattr(wire_caller, "HEALTH_S", 60.0)


@pytest.mark.usefixtures("_checks")
async def test_caller_leaves_node_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server(is_live=False) as hung, Server() as sound:
        sound.opened.set()
        monkeypatch.setattr(wire_caller, "HEALTH_S", 1.0)
        caller = Caller([hung.address, sound.address])
        assert await caller.call(call_address) == sound.address
        assert hung.checks
        assert hung.address in caller.avoided
        assert caller.addresses == [sound.address, hung.address]
        await caller.close()


@pytest.mark.usefixtures("_checks")
async def test_caller_leaves_call_that_outlives_its_node() -> None:
    """The call hangs in the client, and nothing listens at the node's address any more."""
    async with Server() as gone:
        pass
    async with Server() as sound:
        sound.opened.set()
        caller = Caller([gone.address, sound.address])

        async def attempt(node: Connection) -> str:
            if node.address == gone.address:
                await asyncio.Event().wait()
            return await call_address(node)

        async with asyncio.timeout(60.0):
            assert await caller.call(attempt) == sound.address
        await caller.close()


@pytest.mark.usefixtures("_checks")
async def test_caller_waits_for_slow_node_that_is_live() -> None:
    async with Server() as slow, Server() as other:
        caller = Caller([slow.address, other.address])
        calls = [asyncio.create_task(caller.call(call_address)) for _ in range(20)]
        await slow.often_checked.wait()
        assert not any(call.done() for call in calls)
        slow.opened.set()
        assert await asyncio.gather(*calls) == [slow.address] * 20
        assert other.checks == 0
        await caller.close()


@pytest.mark.usefixtures("_checks")
async def test_caller_keeps_result_of_node_that_hangs_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading the addresses of other nodes is no part of the call."""

    async def discover(node: Connection) -> list[str]:
        await asyncio.sleep(0.2)
        return [node.address]

    async with Server(is_live=False) as hung, Server() as other:
        hung.opened.set()
        other.opened.set()
        monkeypatch.setattr(wire_caller, "HEALTH_S", 0.02)
        caller = Caller([hung.address, other.address], discover=discover)
        answered = list[str]()

        async def attempt(node: Connection) -> str:
            answered.append(await call_address(node))
            return answered[-1]

        assert [await caller.call(attempt)] == answered
        await caller.close()


@pytest.mark.usefixtures("_checks")
async def test_caller_with_one_address_sends_no_health_checks() -> None:
    async with Server(is_live=False) as only:
        caller = Caller([only.address])
        call = asyncio.create_task(caller.call(call_address))
        await asyncio.sleep(0.1)
        only.opened.set()
        assert (await call, only.checks) == (only.address, 0)
        await caller.close()


async def test_caller_discovers_addresses_at_start_and_after_failure(clock: Clock) -> None:
    members = [["b:1", "c:1"], ["b:1", "d:1"]]

    async def discover(node: Connection) -> list[str]:
        return members.pop(0)

    caller, nodes = Caller(["a:1"], discover=discover, clock=backoff_clock(clock)), Nodes()
    await caller.call(nodes.attempt)
    assert caller.addresses == ["a:1", "b:1", "c:1"]
    await caller.call(nodes.attempt)
    await caller.call(Nodes(a=[unreachable("a")]).attempt)
    assert caller.addresses == ["b:1", "a:1", "d:1"], "configured ones are kept"
    assert members == []
    await caller.close()


# --- streams -------------------------------------------------------------------------------------


async def test_caller_resume_stream_with_progress_continues(caller: Caller, clock: Clock) -> None:
    position = 0

    async def rest() -> AsyncGenerator[int, None]:
        nonlocal position
        for _ in range(3):
            if position == 10:
                return
            position += 1
            yield position
        raise Overloaded("busy", after_s=4.0)

    assert [item async for item in caller.resume(rest)] == list(range(1, 11))
    assert sum(clock.slept) > 5.0


async def test_caller_resume_stream_without_progress_raises(caller: Caller, clock: Clock) -> None:
    async def rest() -> AsyncGenerator[str, None]:
        yield "copy"
        raise Unavailable("closed")

    with raises(Unavailable):
        async for _ in caller.resume(rest, is_progress=lambda _: False):
            pass
    assert 0.0 < sum(clock.slept) <= 5.0


# --- blocking calls ------------------------------------------------------------------------------


class BlockingNodes(BlockingCaller):
    """Hands the name of a node to the attempts in place of a channel."""

    def _channel(self, address: str) -> Any:
        return address


def test_blocking_caller_transient_error_tries_next_node() -> None:
    nodes = Nodes(a=[PartitionMoved("moved")], b=[Overloaded("busy")])
    with BlockingNodes(["a", "b", "c"]) as caller:
        assert caller.call(nodes.blocking_attempt) == 3
        with pytest.raises(NotPermitted):
            caller.call(Nodes(a=[NotPermitted("no")]).blocking_attempt)
    assert nodes.called == ["a", "b", "c"]


def test_blocking_caller_incomplete_answer_is_raised_before_unavailable() -> None:
    nodes = Nodes(a=[unreachable("a")], b=[IncompleteAnswer("partitions 4, 5 are missing")])
    options = CallOptions(patience_s=0.0)
    with BlockingNodes(["a", "b"], options=options) as caller, raises(IncompleteAnswer):
        caller.call(nodes.blocking_attempt)
