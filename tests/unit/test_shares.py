"""Pools with shares: against a plain list of what is held and waits, and case by case."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from stopped_clock import StoppedClock

from galileo.errors import GalileoError, Overloaded
from galileo.shares import HOST_PART, SLOW_AFTER_S, ArrivingRequest, Pool, ShareHolder

ANN, BOB, EVE = (ShareHolder("a", "ann"), ShareHolder("a", "bob"), ShareHolder("b", "eve"))
NODE = ShareHolder("a", "n1", is_kept=True)
CALLERS = (ANN, BOB, EVE, NODE, ShareHolder("a"), ShareHolder("c"))
MOST, KEPT = 40, 6
FAR = 1e9


@dataclass(eq=False)
class Waiting:
    """A call that waits in the pool and in the model."""

    caller: ShareHolder
    amount: int
    task: asyncio.Task[bool] | None = None


@dataclass
class Model:
    """The same pool as lists that are summed up each time."""

    held: list[Waiting] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    turns: list[ShareHolder] = field(default_factory=list)

    def total(self, of: Iterable[ShareHolder]) -> int:
        callers = set(of)
        return sum(one.amount for one in self.held if one.caller in callers)

    def may(self, one: Waiting) -> bool:
        if one.caller.is_kept:
            return self.total(CALLERS) + one.amount <= MOST
        clients = [caller for caller in CALLERS if not caller.is_kept]
        own = self.total([one.caller]) + one.amount
        at_host = self.total(c for c in clients if c.host == one.caller.host) + one.amount
        free = MOST - KEPT - self.total(CALLERS)
        if not one.caller.name:
            return at_host <= free
        return own <= free and at_host <= HOST_PART * free and one.amount <= free

    def add(self, one: Waiting) -> None:
        self.waiting.append(one)
        if one.caller not in self.turns:
            self.turns.append(one.caller)
        self.grant()

    def grant(self) -> None:
        """Goes through the turns over and over, until a round grants nothing."""
        is_granted = True
        while is_granted:
            is_granted = False
            for caller in list(self.turns):
                first = next((one for one in self.waiting if one.caller == caller), None)
                if first is None:
                    self.turns.remove(caller)
                elif self.may(first):
                    is_granted = True
                    self.waiting.remove(first)
                    self.held.append(first)
                    self.turns.remove(caller)
                    self.turns.append(caller)


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(20))
async def test_pool_grants_what_a_plain_list_grants(seed: int) -> None:
    draw, pool, model = random.Random(seed), Pool(MOST, kept=KEPT), Model()
    for _ in range(80):
        act = draw.random()
        if act < 0.5:
            one = Waiting(draw.choice(CALLERS), draw.randint(1, 8))
            one.task = asyncio.create_task(pool.take(one.caller, one.amount, within_s=FAR))
            model.add(one)
        elif act < 0.85 and model.held:
            one = model.held.pop(draw.randrange(len(model.held)))
            pool.give_back(one.caller, one.amount)
            model.grant()
        elif model.waiting:
            one = model.waiting.pop(draw.randrange(len(model.waiting)))
            assert one.task is not None
            one.task.cancel()
            model.grant()
        await settle()
        assert pool.held == model.total(CALLERS) <= MOST
        assert all(one.task is not None and one.task.done() for one in model.held)
        assert not any(one.task is None or one.task.done() for one in model.waiting)
    for one in model.waiting:
        assert one.task is not None
        one.task.cancel()


def test_pool_keeps_room_for_one_more_caller() -> None:
    pool = Pool(60, kept=0)
    for callers in range(1, 6):
        caller = ShareHolder(f"h{callers}", f"p{callers}")
        taken = 0
        while pool.take_now(caller):
            taken += 1
        assert taken >= 60 // (2**callers)
    assert pool.held < 60


def test_pool_gives_equal_shares_to_callers_that_take_in_turns() -> None:
    pool, callers = Pool(110, kept=0), [ShareHolder("h", f"p{number}") for number in range(10)]
    taken = dict.fromkeys(callers, 0)
    while any([pool.take_now(caller) for caller in callers]):  # noqa: C419
        taken = {caller: pool._names.get(caller.name, 0) for caller in callers}
    assert max(taken.values()) - min(taken.values()) <= 1
    assert sum(taken.values()) <= HOST_PART * 110 / (HOST_PART + 1) + 1


def test_pool_keeps_room_for_processes_of_the_cluster() -> None:
    pool = Pool(16)
    for number in range(100):
        while pool.take_now(ShareHolder(f"h{number}", f"p{number}")):
            pass
    assert pool.held == 14
    assert [pool.take_now(NODE) for _ in range(3)] == [True, True, False]


async def test_pool_after_a_timeout_keeps_its_count() -> None:
    pool = Pool(1)
    assert pool.take_now(ANN)
    waiting = asyncio.create_task(pool.take(BOB, within_s=0.0))
    await asyncio.sleep(0)  # It waits by now, and what ends its wait is next but one.
    pool.give_back(ANN)
    for _ in range(int(await waiting)):
        pool.give_back(BOB)
    assert pool.held == 0
    assert pool.take_now(EVE)


# --- requests that arrive -------------------------------------------------------------------------


@dataclass
class Sender:
    """A request and the error that it was ended with."""

    pool: Pool
    caller: ShareHolder
    errors: list[GalileoError] = field(default_factory=list)
    request: ArrivingRequest = field(init=False)

    def __post_init__(self) -> None:
        self.request = ArrivingRequest(self.pool, self.caller, end=self.errors.append)

    async def send(self, size: int, *, within_s: float = FAR) -> None:
        await self.request.reserve(size, within_s=within_s)
        self.request.arrived(size)


async def test_request_holds_what_has_arrived_and_what_may_come_next() -> None:
    pool = Pool(100)
    sender = Sender(pool, ANN)
    await sender.request.reserve(10, within_s=0.0)
    assert pool.held == 10
    sender.request.arrived(3)
    await sender.request.reserve(10, within_s=0.0)
    assert pool.held == 13
    sender.request.arrived(10)
    sender.request.complete()
    assert pool.held == 13
    sender.request.release()
    sender.request.release()
    assert pool.held == 0


async def test_request_without_room_in_time_is_overloaded() -> None:
    pool = Pool(10, kept=0)
    await Sender(pool, ANN).send(5)
    with pytest.raises(Overloaded) as caught:
        await Sender(pool, ANN).send(5, within_s=0.0)
    assert caught.value.details["after_s"] == 1.0
    await Sender(pool, EVE).send(5, within_s=0.0)


@pytest.mark.parametrize("seed", range(20))
async def test_requests_that_grow_in_step_all_arrive(seed: int) -> None:
    """All hold a part of their request when the share is used up; none waits for ever."""
    draw, pool = random.Random(seed), Pool(100, kept=0)
    largest, exceeding = 40, 0

    async def upload(caller: ShareHolder) -> None:
        nonlocal exceeding
        sender = Sender(pool, caller)
        try:
            while sender.request.size < largest:
                await sender.send(draw.randint(1, 8))
                exceeding = max(exceeding, pool.held - 100)
                for _ in range(draw.randint(0, 3)):
                    await asyncio.sleep(0)
            sender.request.complete()
            await asyncio.sleep(0)
        finally:
            sender.request.release()

    uploads = [upload(draw.choice(CALLERS)) for _ in range(30)]
    async with asyncio.timeout(30):
        await asyncio.gather(*uploads)
    assert pool.held == 0
    assert exceeding <= largest + 8


async def test_request_that_is_slow_is_ended_while_others_wait() -> None:
    clock = StoppedClock()
    pool = Pool(100_000, kept=0, look_s=0.001, monotonic=clock)
    slow, fast = Sender(pool, ANN), Sender(pool, ANN)
    await slow.send(25_000)
    await fast.send(25_000)
    clock.now += SLOW_AFTER_S + 1
    await fast.send(0)
    pool.relieve()
    assert not slow.errors, "both sent 25 kB"
    clock.now += SLOW_AFTER_S - 1
    await asyncio.sleep(0.01)
    assert not slow.errors, "no caller waits"
    waiting = asyncio.create_task(Sender(pool, ANN).send(25_000))
    await asyncio.sleep(0.01)
    assert not slow.errors
    fast.request.arrived(10_000)
    clock.now += 2
    async with asyncio.timeout(30):
        while not slow.errors:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert isinstance(slow.errors[0], Overloaded)
    assert "at least 1,000 bytes a second" in slow.errors[0].message
    assert not waiting.done()
    slow.request.release()
    await waiting
    assert not fast.errors
    assert len(slow.errors) == 1


async def test_request_that_waits_for_room_is_not_slow() -> None:
    clock = StoppedClock()
    pool = Pool(20, kept=0, monotonic=clock)
    first, second = Sender(pool, ANN), Sender(pool, ANN)
    await first.send(10)
    first.request.complete()
    waiting = asyncio.create_task(second.send(5))
    await settle()
    clock.now += 2 * SLOW_AFTER_S
    pool.relieve()
    assert not second.errors
    first.request.release()
    await waiting
    clock.now += SLOW_AFTER_S - 1
    pool.relieve()
    assert not second.errors
