"""Long work of the interpreter: one piece at a time, and callers with much work wait longest."""

from __future__ import annotations

import asyncio
import threading

import pytest
from expected_errors import raises

from galileo import interpreter_turns
from galileo.errors import Overloaded
from galileo.interpreter_turns import interpret
from galileo.offload import INLINE_STEPS_MAX
from galileo.shares import SHARE_HOLDER, ShareHolder

LONG = INLINE_STEPS_MAX + 1
ANN, BOB = ShareHolder("a", "ann"), ShareHolder("b", "bob")


class Work:
    """Pieces of work. Each piece blocks its thread until the test lets it end."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.running = self.running_max = 0
        self._ended = threading.Semaphore(0)
        self._begun = threading.Semaphore(0)

    def __call__(self, name: str) -> str:
        self.order.append(name)
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        self._begun.release()
        self._ended.acquire(timeout=10.0)
        self.running -= 1
        return name

    def start(self, caller: ShareHolder, name: str) -> asyncio.Task[str]:
        async def run() -> str:
            SHARE_HOLDER.set(caller)
            return await interpret(LONG, self, name)

        return asyncio.create_task(run())

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self._begun.acquire, timeout=10.0)

    def end(self, count: int = 1) -> None:
        self._ended.release(count)


async def test_caller_with_much_work_lets_another_one_before() -> None:
    work = Work()
    tasks = [work.start(ANN, f"ann {number}") for number in range(5)]
    await work.has_begun()
    tasks.append(work.start(BOB, "bob"))
    await asyncio.sleep(0)
    work.end(len(tasks))
    assert await asyncio.gather(*tasks) == [*(f"ann {number}" for number in range(5)), "bob"]
    assert work.order.index("bob") == 1
    assert work.running_max == 1


async def test_short_work_does_not_wait() -> None:
    work = Work()
    task = work.start(ANN, "long")
    await work.has_begun()
    thread = await interpret(INLINE_STEPS_MAX, threading.get_ident)
    assert thread == threading.get_ident()
    work.end()
    await task


async def test_work_of_a_cancelled_call_ends_before_the_next_begins() -> None:
    work = Work()
    first, second = work.start(ANN, "first"), work.start(ANN, "second")
    await work.has_begun()
    first.cancel()
    await asyncio.wait([first])
    await asyncio.sleep(0.02)
    assert work.order == ["first"]
    work.end(2)
    assert await second == "second"
    assert work.running_max == 1


async def test_work_that_waits_when_too_much_waits_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interpreter_turns, "WAITING_MAX", 2)
    work = Work()
    tasks = [work.start(ANN, str(number)) for number in range(3)]
    await work.has_begun()
    with raises(Overloaded, bound=2):
        await work.start(ANN, "one too many")
    work.end(len(tasks))
    assert await asyncio.gather(*tasks) == ["0", "1", "2"]


async def test_turn_that_does_not_come_in_time_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interpreter_turns, "WITHIN_S", 0.01)
    work = Work()
    task = work.start(ANN, "long")
    await work.has_begun()
    with raises(Overloaded):
        await work.start(BOB, "late")
    work.end()
    await task


async def test_error_of_the_work_is_raised_and_its_turn_ends() -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await interpret(LONG, divmod, 1, 0)
