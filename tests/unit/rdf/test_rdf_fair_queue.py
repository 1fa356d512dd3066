"""Turns of queries: who asks without end waits for himself, others for one query of his."""

from __future__ import annotations

import asyncio
import time

import pytest
from expected_errors import raises

from galileo.errors import Cancelled, DeadlineExceeded, Overloaded
from galileo.rdf.fair_queue import FairQueue

WITHIN_S = 300.0


class Asker:
    """Holds one turn until `end`."""

    def __init__(
        self, turns: FairQueue, host: str, order: list[str], *, within_s: float = WITHIN_S
    ):
        self.turns, self.host, self.order, self.within_s = turns, host, order, within_s
        self.may_end, self.has_begun = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.turns.acquire(self.host, until=time.monotonic() + self.within_s):
            self.order.append(self.host)
            self.has_begun.set()
            await self.may_end.wait()

    async def end(self) -> None:
        self.may_end.set()
        await self.task


async def askers(turns: FairQueue, order: list[str], *hosts: str) -> list[Asker]:
    """Askers that have asked, in this order."""
    made = [Asker(turns, host, order) for host in hosts]
    await asyncio.sleep(0)
    return made


async def test_fair_queue_host_with_oldest_turn_is_next():
    turns, order = FairQueue(8), []
    *greedy, calm = await askers(turns, order, *["greedy"] * 5, "calm")
    await greedy[0].has_begun.wait()
    await greedy[0].end()
    await calm.has_begun.wait()
    await calm.end()
    for one in greedy[1:]:
        await one.has_begun.wait()
        await one.end()
    assert order == ["greedy", "calm", *["greedy"] * 4]
    assert len(turns) == 0
    assert not turns._last_turns, "nothing is kept of hosts that are gone"


async def test_fair_queue_hosts_take_turns():
    turns, order = FairQueue(9), []
    waiting = await askers(turns, order, "a", "a", "a", "b", "b", "c")
    while waiting:
        await asyncio.sleep(0)
        for one in [one for one in waiting if one.has_begun.is_set()]:
            await one.end()
            waiting.remove(one)
    assert order == ["a", "b", "c", "a", "b", "a"]


async def test_fair_queue_full_evicts_latest_query_of_largest_host():
    turns, order = FairQueue(3), []
    greedy = await askers(turns, order, *["greedy"] * 3)
    [refused] = await askers(turns, order, "greedy")
    with raises(Overloaded, bound=3):
        await refused.task
    [calm] = await askers(turns, order, "calm")
    with raises(Overloaded, bound=3):
        await greedy[2].task
    assert not greedy[1].task.done()
    await greedy[0].end()
    await calm.has_begun.wait()
    await calm.end()
    await greedy[1].end()
    assert len(turns) == 0


async def test_fair_queue_running_query_is_not_evicted():
    turns, order = FairQueue(1), []
    [running] = await askers(turns, order, "a")
    with raises(Overloaded, bound=1):
        async with turns.acquire("b", until=time.monotonic() + 1):
            pass
    await running.end()


async def test_fair_queue_waiting_query_ends_by_timeout_cancel_and_close():
    turns, order = FairQueue(8), []
    [running] = await askers(turns, order, "a")
    late = Asker(turns, "b", order, within_s=0.05)
    with pytest.raises(DeadlineExceeded):
        await late.task
    [gone] = await askers(turns, order, "b")
    gone.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone.task
    assert len(turns) == 1
    [closed] = await askers(turns, order, "b")
    turns.close()
    for one in (closed, Asker(turns, "c", order)):
        with pytest.raises(Cancelled):
            await one.task
    await running.end()
    assert order == ["a"]
    assert len(turns) == 0


async def test_fair_queue_host_with_as_many_queries_keeps_its_own():
    turns, order = FairQueue(3), []
    first, second, other = await askers(turns, order, "a", "a", "b")
    with raises(Overloaded):  # Its host would have two of three places, as the other has.
        async with turns.acquire("b", until=time.monotonic() + 1):
            pass
    for one in (first, other, second):
        await one.has_begun.wait()
        await one.end()
    assert order == ["a", "b", "a"]
