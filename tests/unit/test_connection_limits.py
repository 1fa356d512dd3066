"""Who gives way where all seats are taken: against a plain list with times, and case by case."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.connection_limits import Connection, ConnectionLimiter, select_victim

HOSTS = ("a", "b", "c")


@dataclass(eq=False)
class Line:
    """What a seat needs of a socket."""

    is_open: bool = True

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_RDWR
        self.is_open = False


@dataclass
class Known:
    """The same seat as the dumb model has it: with the time at which it got on."""

    line: Line
    host: str
    at: int
    works: bool = False
    held: int = 0


class Model:
    def __init__(self, seats_max: int, held_max: int) -> None:
        self.seats_max, self.held_max = seats_max, held_max
        self.all: list[Known] = []
        self.leaving = 0
        self.times = count()

    def find(self, line: Line) -> Known | None:
        return next((one for one in self.all if one.line is line), None)

    def worst(self, candidates: list[Known]) -> Known | None:
        hosts = Counter(one.host for one in candidates)
        waiting = [one for one in candidates if not one.works]
        return min(waiting, key=lambda one: (-hosts[one.host], one.at), default=None)

    def drop(self, one: Known) -> None:
        self.all.remove(one)
        self.leaving += 1

    def take(self, line: Line, host: str) -> bool:
        if self.leaving >= self.seats_max:
            return False
        if len(self.all) >= self.seats_max:
            worst = self.worst(self.all)
            if worst is None:
                return False
            self.drop(worst)
        self.all.append(Known(line, host, next(self.times)))
        return True

    def answer(self, line: Line, held: int) -> None:
        if (one := self.find(line)) is not None:
            one.at, one.works, one.held = next(self.times), False, held
        while sum(one.held for one in self.all) > self.held_max:
            worst = self.worst([one for one in self.all if one.held and one.line is not line])
            if worst is None:
                return
            self.drop(worst)


steps = st.tuples(
    st.sampled_from(["take", "request", "answer", "taken", "end", "leave"]),
    st.integers(0, 11),
    st.sampled_from(HOSTS),
    st.integers(0, 6),
)


@given(st.integers(1, 4), st.lists(steps, max_size=60))
def test_connection_limiter_random_steps_equal_plain_list(
    seats_max: int, what: list[tuple]
) -> None:
    seats, model = (
        ConnectionLimiter(seats_max, held_bytes_max=8, grace_s=0.0, leave_within_s=0.0),
        Model(seats_max, 8),
    )
    lines: list[Line] = []
    for step, number, host, held in what:
        if step == "take":
            line = Line()
            taken = seats.take(line, host)  # type: ignore[arg-type]
            assert taken == model.take(line, host)
            if taken:
                lines.append(line)
        elif lines:
            line = lines[number % len(lines)]
            act(seats, model, step, line, held)
            if step == "leave":
                lines.remove(line)
        open_lines = {id(one) for one in lines if one.is_open}
        assert open_lines == {id(one.line) for one in model.all}
        assert len(seats) == len(model.all) <= seats_max


def act(seats: ConnectionLimiter, model: Model, step: str, line: Line, held: int) -> None:
    known = model.find(line)
    if step == "leave":
        seats.leave(line)  # type: ignore[arg-type]
        if known is not None:
            model.all.remove(known)
        else:
            model.leaving -= 1
    elif step == "answer":
        seats.record_answer(line, held)  # type: ignore[arg-type]
        model.answer(line, held)
    else:
        getattr(
            seats,
            {"request": "record_request", "taken": "record_written", "end": "record_end"}[step],
        )(line)
        if known is not None:
            known.at = next(model.times)
            known.works = {"request": True, "taken": known.works, "end": False}[step]
            known.held = 0 if step == "end" else known.held


@pytest.fixture
def lines() -> Iterator[Line]:
    return (Line() for _ in count())


def test_select_victim_takes_idle_connection_of_largest_host(lines: Iterator[Line]) -> None:
    first = Connection(next(lines), "calm", 0.0)  # type: ignore[arg-type]
    many = [Connection(next(lines), "greedy", 0.0) for _ in range(3)]  # type: ignore[arg-type]
    assert select_victim([first, *many]) is many[0]
    many[0].is_worked_for = True
    assert select_victim([first, *many]) is many[1]


def test_connection_limiter_new_connection_waits_for_victim() -> None:
    seats = ConnectionLimiter(1, held_bytes_max=1, leave_within_s=60.0)
    first, second, third = Line(), Line(), Line()
    assert seats.take(first, "a")  # type: ignore[arg-type]
    assert seats.take(second, "a")  # type: ignore[arg-type]
    later = threading.Timer(0.05, seats.leave, [first])
    later.start()
    assert seats.take(third, "a")  # type: ignore[arg-type]
    later.join()
    assert [first.is_open, second.is_open, third.is_open] == [False, False, True]


def test_connection_limiter_young_connection_is_kept_for_grace() -> None:
    seats = ConnectionLimiter(1, held_bytes_max=1, grace_s=0.2, leave_within_s=60.0)
    first, second = Line(), Line()
    started = time.monotonic()
    assert seats.take(first, "a")  # type: ignore[arg-type]
    assert seats.take(second, "b")  # type: ignore[arg-type]
    assert time.monotonic() - started >= 0.2
    assert not first.is_open


def test_connection_limiter_busy_connection_is_kept(lines: Iterator[Line]) -> None:
    seats = ConnectionLimiter(1, held_bytes_max=1)
    one = next(lines)
    assert seats.take(one, "a")  # type: ignore[arg-type]
    seats.record_request(one)  # type: ignore[arg-type]
    assert not seats.take(next(lines), "b")  # type: ignore[arg-type]
    seats.record_end(one)  # type: ignore[arg-type]
    assert seats.take(next(lines), "b")  # type: ignore[arg-type]
    assert not one.is_open
