"""Calls that arrive while a group is carried out are the next group."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable

import pytest

from galileo.grouped_calls import GroupedCalls

TRACE: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="")


class Groups:
    """Records groups; each is carried out when the test says so, and doubles its items."""

    def __init__(
        self,
        *,
        wait_s: float = 60.0,
        items_max: int = 100,
        weight: Callable[[int], int] = lambda _: 1,
    ) -> None:
        self.begun: list[tuple[int, ...]] = []
        self.traces: list[str] = []
        self.releases: list[asyncio.Future[None]] = []
        self.second = asyncio.Event()
        self.calls = GroupedCalls(
            self._carry_out, wait_s=wait_s, items_max=items_max, weight=weight
        )

    async def _carry_out(self, items: tuple[int, ...]) -> list[int | Exception]:
        self.begun.append(items)
        self.traces.append(TRACE.get())
        release = asyncio.get_running_loop().create_future()
        self.releases.append(release)
        if len(self.releases) == 2:
            self.second.set()
        await release
        return [ValueError(item) if item < 0 else 2 * item for item in items]

    def call(self, item: int) -> asyncio.Task[int]:
        return asyncio.ensure_future(self.calls.call(item))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_call_alone_begins_at_once():
    groups = Groups()
    call = groups.call(1)
    await settle()
    assert groups.begun == [(1,)]
    groups.releases[0].set_result(None)
    assert await call == 2


@pytest.mark.usefixtures("clock")
async def test_calls_during_group_are_next_group():
    groups = Groups()
    calls = [groups.call(1)]
    await settle()
    calls += [groups.call(item) for item in (2, 3, 4)]
    await settle()
    assert groups.begun == [(1,)]
    groups.releases[0].set_result(None)
    await settle()
    assert groups.begun == [(1,), (2, 3, 4)]
    groups.releases[1].set_result(None)
    assert await asyncio.gather(*calls) == [2, 4, 6, 8]


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the event loop, which stands still until it is changed."""
    now = [1_000.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    return now


async def test_next_group_waits_for_as_many_calls_as_the_last_had(clock: list[float]):
    groups = Groups()
    calls = [groups.call(item) for item in (1, 2, 3)]
    await settle()
    clock[0] += 10.0
    groups.releases[0].set_result(None)
    await settle()
    calls += [groups.call(item) for item in (4, 5)]
    await settle()
    assert groups.begun == [(1, 2, 3)]
    calls.append(groups.call(6))
    await settle()
    assert groups.begun == [(1, 2, 3), (4, 5, 6)]
    groups.releases[1].set_result(None)
    assert await asyncio.gather(*calls) == [2, 4, 6, 8, 10, 12]


async def test_next_group_waits_a_fifth_of_the_time_of_the_last(clock: list[float]):
    groups = Groups()
    calls = [groups.call(item) for item in (1, 2, 3)]
    await settle()
    clock[0] += 10.0
    groups.releases[0].set_result(None)
    await settle()
    calls.append(groups.call(4))
    clock[0] += 1.9
    await settle()
    assert groups.begun == [(1, 2, 3)]
    clock[0] += 0.2
    await settle()
    assert groups.begun == [(1, 2, 3), (4,)]
    groups.releases[1].set_result(None)
    assert await asyncio.gather(*calls) == [2, 4, 6, 8]


async def test_slow_group_does_not_stop_next():
    groups = Groups(wait_s=0.01)
    slow = groups.call(1)
    await settle()
    call = groups.call(2)
    async with asyncio.timeout(30):
        await groups.second.wait()
    groups.releases[1].set_result(None)
    assert await call == 4
    assert not slow.done()
    groups.releases[0].set_result(None)
    assert await slow == 2


@pytest.mark.usefixtures("clock")
async def test_more_items_than_fit_are_divided():
    groups = Groups(items_max=2)
    calls = [groups.call(item) for item in range(5)]
    for number in range(3):
        await settle()
        groups.releases[number].set_result(None)
    assert await asyncio.gather(*calls) == [0, 2, 4, 6, 8]
    assert groups.begun == [(0, 1), (2, 3), (4,)]


async def test_error_of_item_is_of_its_call_alone():
    groups = Groups()
    calls = [groups.call(item) for item in (1, -2, 3)]
    await settle()
    groups.releases[0].set_result(None)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert (results[0], results[2]) == (2, 6)
    with pytest.raises(ValueError, match="-2"):
        raise results[1]


@pytest.mark.usefixtures("clock")
async def test_error_of_group_is_of_all_and_next_goes_on():
    groups = Groups()
    calls = [groups.call(1), groups.call(2)]
    await settle()
    groups.releases[0].set_exception(OSError("cut"))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(error) for error in results] == ["cut", "cut"]
    call = groups.call(3)
    await settle()
    groups.releases[1].set_result(None)
    assert await call == 6


async def test_cancelled_call_leaves_others():
    groups = Groups()
    calls = [groups.call(item) for item in (1, 2, 3)]
    await settle()
    calls[1].cancel()
    await settle()
    groups.releases[0].set_result(None)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], asyncio.CancelledError)


async def test_call_cancelled_before_its_group_is_left_out():
    groups = Groups()
    calls = [groups.call(1)]
    await settle()
    calls += [groups.call(item) for item in (2, 3)]
    await settle()
    calls[1].cancel()
    groups.releases[0].set_result(None)
    await settle()
    groups.releases[1].set_result(None)
    assert await calls[2] == 6
    assert groups.begun == [(1,), (3,)]


@pytest.mark.usefixtures("clock")
async def test_group_weighs_at_most_its_bound_or_is_one_item():
    groups = Groups(items_max=10, weight=lambda item: item)
    calls = [groups.call(20)]
    await settle()
    calls += [groups.call(item) for item in (30, 4, 6, 1)]
    for number in range(4):
        await settle()
        groups.releases[number].set_result(None)
    assert await asyncio.gather(*calls) == [40, 60, 8, 12, 2]
    assert groups.begun == [(20,), (30,), (4, 6), (1,)]


@pytest.mark.usefixtures("clock")
async def test_group_runs_in_context_of_first_call():
    groups = Groups()
    calls = []
    for trace in ("a", "b", "c"):
        TRACE.set(trace)
        calls.append(groups.call(1))
        await settle()
    groups.releases[0].set_result(None)
    await settle()
    groups.releases[1].set_result(None)
    await asyncio.gather(*calls)
    assert groups.traces == ["a", "b"]


async def test_random_calls_each_get_their_result():
    drawn = random.Random(5)

    async def carry_out(items: tuple[int, ...]) -> list[int]:
        await asyncio.sleep(drawn.random() * 0.002)
        return [2 * item for item in items]

    calls = GroupedCalls(carry_out, wait_s=0.001, items_max=7)

    async def one(item: int) -> None:
        await asyncio.sleep(drawn.random() * 0.05)
        assert await calls.call(item) == 2 * item

    await asyncio.gather(*(one(item) for item in range(500)))
