"""Fair turns: who asks without end waits for himself, others for one turn of his."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from expected_errors import raises
from stopped_clock import StoppedClock

from galileo.errors import Cancelled, Overloaded
from galileo.turns import FairTurns

WITHIN_S = 300.0


class Asker:
    """Holds one turn until `end`."""

    def __init__(
        self, turns: FairTurns, caller: str, order: list[str], *, within_s: float = WITHIN_S
    ) -> None:
        self.turns, self.caller, self.order, self.within_s = turns, caller, order, within_s
        self.may_end, self.has_begun = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.turns.acquire(self.caller, within_s=self.within_s):
            self.order.append(self.caller)
            self.has_begun.set()
            await self.may_end.wait()

    async def end(self) -> None:
        self.may_end.set()
        await self.task


async def askers(turns: FairTurns, order: list[str], *callers: str) -> list[Asker]:
    """Askers that have asked, in this order."""
    made = [Asker(turns, caller, order) for caller in callers]
    await asyncio.sleep(0)
    return made


def one_turn(
    clock: StoppedClock | None = None, *, first_turn_s: float = 0.0, waiting_max: int = 1_000
) -> FairTurns:
    return FairTurns(
        1,
        what="queries",
        first_turn_s=first_turn_s,
        waiting_max=waiting_max,
        monotonic=clock or StoppedClock(),
    )


async def test_callers_take_turns() -> None:
    turns, order = one_turn(), []
    waiting = await askers(turns, order, "a", "a", "a", "b", "b", "c")
    while waiting:
        await asyncio.sleep(0)
        for one in [one for one in waiting if one.has_begun.is_set()]:
            await one.end()
            waiting.remove(one)
    assert order == ["a", "b", "c", "a", "b", "a"]
    assert (turns.running, turns.waiting, turns.callers) == (0, 0, 0)


async def test_caller_that_comes_again_and_again_does_not_starve_one_that_waits() -> None:
    """Callers that leave and return at once are no newcomers."""
    clock, order = StoppedClock(), []
    turns = one_turn(clock)
    [first, *waiting] = await askers(turns, order, "a", "a", "b", "c")
    clock.now += 5
    await first.end()
    for _ in range(22):
        await asyncio.sleep(0)
        ended = next(one for one in waiting if one.has_begun.is_set())
        clock.now += 1
        waiting.remove(ended)
        await ended.end()
        waiting += await askers(turns, order, ended.caller)
    assert order[:3] == ["a", "b", "c"]
    assert order.count("a") == 2, (
        "its turns take five seconds: it had the second when the others had had nine"
    )
    for one in waiting:
        one.task.cancel()


async def test_caller_that_used_more_time_waits_for_one_that_used_less() -> None:
    clock, order = StoppedClock(), []
    turns = one_turn(clock)
    long, *rest = await askers(turns, order, "long", "short", "short", "short", "long")
    clock.now += 10
    await long.end()
    for one in rest[:3]:
        await one.has_begun.wait()
        clock.now += 1
        await one.end()
    await rest[3].end()
    assert order == ["long", "short", "short", "short", "long"]


async def test_caller_that_stays_away_saves_up_no_turns() -> None:
    clock, order = StoppedClock(), []
    turns = one_turn(clock)
    for caller, took_s in (("a", 5), ("b", 100)):
        [one] = await askers(turns, order, caller)
        clock.now += took_s
        await one.end()
    waiting = await askers(turns, order, "b", "c", *"aaaa")
    while waiting:
        await asyncio.sleep(0)
        for one in [one for one in waiting if one.has_begun.is_set()]:
            clock.now += 2
            await one.end()
            waiting.remove(one)
    assert order == [*"ab", *"bc", *"aaaa"], "a has no claim to 95 seconds"


async def test_caller_with_short_turns_that_asks_again_goes_before_those_with_long_ones() -> None:
    clock, order = StoppedClock(), []
    turns = one_turn(clock)
    waiting = await askers(turns, order, *"abcd", "short")
    for turn in range(40):
        await asyncio.sleep(0)
        [ended] = [one for one in waiting if one.has_begun.is_set()]
        clock.now += 0.25 if ended.caller == "short" else 2.7 + 0.001 * (turn % 3)
        waiting.remove(ended)
        await ended.end()  # The next turn is given out before the same caller asks again.
        waiting += await askers(turns, order, ended.caller)
    assert order.count("short") >= 18, "it had a turn after each long one"
    for one in waiting:
        one.task.cancel()


async def test_caller_with_short_turns_does_not_wait_for_a_round_of_those_that_come_back() -> None:
    """Ten callers come while another one asks, are away, and come again."""
    clock, order = StoppedClock(), []
    turns = one_turn(clock, first_turn_s=1.0)
    for _ in range(2):
        waiting = await askers(turns, order, "short")
        for _ in range(50):
            clock.now += 0.2
            await waiting.pop().end()
            waiting = await askers(turns, order, "short")
        waiting += await askers(turns, order, *"abcdefghij", *"abcdefghij")
        order.clear()
        for turn in range(40):
            await asyncio.sleep(0)
            [ended] = [one for one in waiting if one.has_begun.is_set()]
            clock.now += 0.2 if ended.caller == "short" else 1.4 + 0.001 * (turn % 3)
            waiting.remove(ended)
            await ended.end()
            waiting += await askers(turns, order, ended.caller)
        assert order[:8].count("short") >= 3, order
        assert order.count("short") >= 0.8 / 11 * clock.now / 0.2 / 4, order
        for one in waiting:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in waiting), return_exceptions=True)


async def test_latest_request_of_the_caller_with_the_most_gives_way() -> None:
    turns, order = one_turn(waiting_max=2), []
    greedy = await askers(turns, order, *["greedy"] * 3)
    [refused] = await askers(turns, order, "greedy")
    with raises(Overloaded, bound=2):
        await refused.task
    [calm] = await askers(turns, order, "calm")
    with raises(Overloaded, bound=2):
        await greedy[2].task
    with raises(Overloaded, bound=2):  # It would have as many as the other.
        async with turns.acquire("calm", within_s=WITHIN_S):
            pass
    assert not greedy[1].task.done()
    for one in (greedy[0], calm, greedy[1]):
        await one.end()
    assert order == ["greedy", "calm", "greedy"]
    assert (turns.running, turns.waiting, turns.callers) == (0, 0, 0)


async def test_wait_ends_by_timeout_cancellation_and_close() -> None:
    turns, order = one_turn(), []
    [running] = await askers(turns, order, "a")
    with pytest.raises(Overloaded):
        async with turns.acquire("b", within_s=0):
            pass
    [gone] = await askers(turns, order, "b")
    gone.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone.task
    assert (turns.waiting, turns.callers) == (0, 1)
    [closed] = await askers(turns, order, "b")
    turns.close()
    for one in (closed, Asker(turns, "c", order)):
        with pytest.raises(Cancelled):
            await one.task
    await running.end()
    assert (order, turns.running, turns.callers) == (["a"], 0, 0)


async def test_turn_that_is_granted_to_a_cancelled_task_is_given_back() -> None:
    turns, order = one_turn(), []
    first, second = await askers(turns, order, "a", "b")
    first.may_end.set()
    await asyncio.sleep(0)  # The grant is on its way.
    second.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await second.task
    await first.task
    assert (order, turns.running, turns.callers) == (["a"], 0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_turns_go_as_a_dumb_model_says(seed: int) -> None:
    """Random requests: no turn is idle while one waits, and it goes to who used least of it."""
    rng, clock = random.Random(seed), StoppedClock()
    turns_max = rng.randint(1, 4)
    turns = FairTurns(turns_max, what="queries", waiting_max=1_000, monotonic=clock)
    order: list[str] = []
    asked: list[Asker] = []
    for _ in range(200):
        clock.now += rng.random()
        action, begun = rng.random(), [one for one in asked if one.has_begun.is_set()]
        waited = [one for one in asked if not one.has_begun.is_set()]
        if action < 0.5:
            asked += await askers(turns, order, rng.choice("abcd"))
        elif action < 0.9 and begun:
            ended = rng.choice(begun)
            await ended.end()
            asked.remove(ended)
        elif waited:
            gone = rng.choice(waited)
            gone.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone.task
            asked.remove(gone)
        for _ in range(3):
            await asyncio.sleep(0)
        running = sum(one.has_begun.is_set() for one in asked)
        assert running == turns.running == min(turns_max, len(asked))
        assert turns.waiting == len(asked) - running
        assert turns.callers == len({one.caller for one in asked})
        for caller in "abcd":  # Within a caller, in order.
            has_begun = [one.has_begun.is_set() for one in asked if one.caller == caller]
            assert has_begun == sorted(has_begun, reverse=True)
    for one in asked:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in asked), return_exceptions=True)
    assert (turns.running, turns.waiting, turns.callers) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(3))
async def test_one_caller_beside_ten_greedy_ones_has_its_part_of_the_time(seed: int) -> None:
    """Turns of any length: no caller that waits gets less than its part."""
    rng, clock = random.Random(seed), StoppedClock()
    turns = one_turn(clock)
    used, running = Counter[str](), asyncio.Queue[tuple[str, asyncio.Event]]()

    async def ask(caller: str) -> None:
        while True:
            async with turns.acquire(caller, within_s=WITHIN_S):
                end = asyncio.Event()
                running.put_nowait((caller, end))
                await end.wait()

    tasks = [asyncio.create_task(ask(f"greedy {n % 10}")) for n in range(100)]
    tasks.append(asyncio.create_task(ask("calm")))
    longest = 0.0
    for _ in range(1_000):
        caller, end = await running.get()
        took_s = 0.2 if caller == "calm" else rng.uniform(0.1, 3.0)
        longest = max(longest, took_s)
        clock.now += took_s
        used[caller] += took_s
        end.set()
    # The calm caller uses less than its part only as far as it does not ask while others run.
    greedy = [used[caller] for caller in used if caller != "calm"]
    assert max(greedy) - min(greedy) <= 2 * longest
    assert used["calm"] >= min(min(greedy), 0.07 * clock.now / 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
