"""Which connection is closed where there are too many: against a plain list, and case by case."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.connection_limits import ConnectionLimiter, OpenConnection, select_victim

HOSTS = ("a", "b", "c")


class Line(OpenConnection):
    """A connection that knows whether it was closed."""

    def __init__(self, host: str) -> None:
        super().__init__(host, self._close)
        self.is_open = True

    def _close(self) -> None:
        self.is_open = False


@dataclass
class Known:
    """The same connection as the dumb model has it: with the time at which it got on."""

    line: Line
    at: int
    works: bool = False
    held: int = 0


@dataclass
class Model:
    connections_max: int
    held_max: int
    all: list[Known] = field(default_factory=list)
    times: count[int] = field(default_factory=count)

    def worst(self, candidates: list[Known]) -> Known | None:
        hosts = Counter(one.line.host for one in candidates)
        waiting = [one for one in candidates if not one.works]
        return min(waiting, key=lambda one: (-hosts[one.line.host], one.at), default=None)

    def admit(self, line: Line) -> bool:
        if len(self.all) >= self.connections_max:
            worst = self.worst(self.all)
            if worst is None:
                return False
            self.all.remove(worst)
        self.all.append(Known(line, next(self.times)))
        return True

    def act(self, step: str, line: Line, held: int) -> None:
        known = next((one for one in self.all if one.line is line), None)
        if known is None:
            return
        if step == "remove":
            self.all.remove(known)
            return
        known.at = next(self.times)
        known.works = step == "request"
        known.held = {"request": 0, "answer": held, "written": known.held, "end": 0}[step]
        while step == "answer" and sum(one.held for one in self.all) > self.held_max:
            worst = self.worst([one for one in self.all if one.held and one.line is not line])
            if worst is None:
                return
            self.all.remove(worst)


steps = st.tuples(
    st.sampled_from(["admit", "request", "answer", "written", "end", "remove"]),
    st.integers(0, 11),
    st.sampled_from(HOSTS),
    st.integers(0, 6),
)


@given(st.integers(1, 4), st.lists(steps, max_size=60))
def test_connection_limiter_random_steps_equal_plain_list(
    connections_max: int, what: list[tuple[str, int, str, int]]
) -> None:
    asyncio.run(compare(connections_max, what))


async def compare(connections_max: int, what: list[tuple[str, int, str, int]]) -> None:
    limiter = ConnectionLimiter(connections_max, held_bytes_max=8, grace_s=0.0)
    model = Model(connections_max, 8)
    lines: list[Line] = []
    for step, number, host, held in what:
        if step == "admit":
            line = Line(host)
            is_admitted = await limiter.admit(line)
            assert is_admitted == model.admit(line)
            if is_admitted:
                lines.append(line)
        elif lines:
            line = lines[number % len(lines)]
            act(limiter, step, line, held)
            model.act(step, line, held)
            if step == "remove":
                lines.remove(line)
        open_lines = {id(one) for one in lines if one.is_open}
        assert open_lines == {id(one.line) for one in model.all}
        assert len(limiter) == len(model.all) <= connections_max
        assert limiter.held_bytes == sum(one.held for one in model.all)


class Counted(OpenConnection):
    """A connection that counts how often its size is read."""

    reads = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "held_bytes":
            Counted.reads += 1
        return super().__getattribute__(name)


async def test_connection_limiter_many_connections_cost_no_more() -> None:
    limiter = ConnectionLimiter(2_000, held_bytes_max=8)
    connections = [Counted("a", lambda: None) for _ in range(1_000)]
    for connection in connections:
        await limiter.admit(connection)
    Counted.reads = 0
    limiter.record_answer(connections[0], 4)
    limiter.record_written(connections[0])
    limiter.record_end(connections[0])
    assert Counted.reads < 10
    assert limiter.held_bytes == 0


def act(limiter: ConnectionLimiter, step: str, line: Line, held: int) -> None:
    if step == "remove":
        limiter.remove(line)
    elif step == "answer":
        limiter.record_answer(line, held)
    else:
        {
            "request": limiter.record_request,
            "written": limiter.record_written,
            "end": limiter.record_end,
        }[step](line)


def test_select_victim_takes_idle_connection_of_largest_host() -> None:
    first, many = Line("calm"), [Line("greedy") for _ in range(3)]
    assert select_victim([first, *many]) is many[0]
    many[0].is_worked_for = True
    assert select_victim([first, *many]) is many[1]


@pytest.mark.parametrize("progress", ["request", "answer", "written", "end"])
async def test_connection_limiter_closes_the_idle_connection_with_the_least_recent_progress(
    progress: str,
) -> None:
    limiter = ConnectionLimiter(2, held_bytes_max=8, grace_s=0.0)
    first, second, third = (Line("a") for _ in range(3))
    assert await limiter.admit(first)
    assert await limiter.admit(second)
    act(limiter, progress, first, 1)
    if progress == "request":
        first.is_worked_for = False
    assert await limiter.admit(third)
    assert (first.is_open, second.is_open, third.is_open) == (True, False, True)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


async def admitting(limiter: ConnectionLimiter, line: Line) -> asyncio.Task[bool]:
    """An admission that has begun."""
    task = asyncio.create_task(limiter.admit(line))
    await asyncio.sleep(0)
    return task


async def test_connection_limiter_young_connection_is_kept_for_grace() -> None:
    clock = Clock()
    limiter = ConnectionLimiter(1, held_bytes_max=1, grace_s=0.05, monotonic=clock.monotonic)
    first, second = Line("a"), Line("b")
    assert await limiter.admit(first)
    task = await admitting(limiter, second)
    await asyncio.sleep(0.1)  # It looks again after the grace, by a clock that stands still.
    assert first.is_open
    clock.now = 0.06
    assert await task
    assert not first.is_open


async def test_connection_limiter_end_of_a_connection_admits_the_next() -> None:
    limiter = ConnectionLimiter(1, held_bytes_max=1, grace_s=300.0, admit_within_s=300.0)
    first, second = Line("a"), Line("a")
    assert await limiter.admit(first)
    task = await admitting(limiter, second)
    limiter.remove(first)
    assert await task
    assert first.is_open


async def test_connection_limiter_gives_up_when_all_make_progress() -> None:
    clock = Clock()
    limiter = ConnectionLimiter(
        1, held_bytes_max=1, grace_s=0.01, admit_within_s=1.0, monotonic=clock.monotonic
    )
    assert await limiter.admit(Line("a"))
    task = await admitting(limiter, Line("b"))
    clock.now = 1.0
    limiter.record_end(next(iter(limiter._connections)))
    assert not await task


async def test_connection_limiter_busy_connection_is_kept() -> None:
    limiter = ConnectionLimiter(1, held_bytes_max=1, grace_s=0.0)
    line = Line("a")
    assert await limiter.admit(line)
    limiter.record_request(line)
    assert not await limiter.admit(Line("b"))
    limiter.record_end(line)
    assert await limiter.admit(Line("b"))
    assert not line.is_open
