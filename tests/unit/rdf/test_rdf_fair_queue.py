"""Turns of queries: who asks without end waits for himself, others for one query of his."""

from __future__ import annotations

import threading
import time

from expected_errors import raises

from galileo.errors import Cancelled, DeadlineExceeded, Overloaded
from galileo.rdf.cancellation import Cancellation
from galileo.rdf.fair_queue import FairQueue

WITHIN_S = 300.0


class Asker(threading.Thread):
    """Holds one turn until `end`."""

    def __init__(
        self, turns: FairQueue, host: str, order: list[str], *, within_s: float = WITHIN_S
    ):
        super().__init__(daemon=True)
        self.turns, self.host, self.order, self.within_s = turns, host, order, within_s
        self.cancel = Cancellation()
        self.may_end, self.has_begun = threading.Event(), threading.Event()
        self.error: Exception | None = None
        before = len(turns)
        self.start()
        await_that(lambda: len(turns) != before or not self.is_alive())

    def run(self) -> None:
        try:
            until = time.monotonic() + self.within_s
            with self.turns.acquire(self.host, until=until, cancel=self.cancel):
                self.order.append(self.host)
                self.has_begun.set()
                assert self.may_end.wait(WITHIN_S)
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self.may_end.set()
        self.join(WITHIN_S)
        assert not self.is_alive()


def await_that(holds) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_fair_queue_host_with_oldest_turn_is_next():
    turns, order = FairQueue(8), []
    greedy = [Asker(turns, "greedy", order) for _ in range(5)]
    calm = Asker(turns, "calm", order)
    assert greedy[0].has_begun.wait(WITHIN_S)
    greedy[0].end()
    assert calm.has_begun.wait(WITHIN_S)
    calm.end()
    for one in greedy[1:]:
        assert one.has_begun.wait(WITHIN_S), "in the order in which they came"
        one.end()
    assert order == ["greedy", "calm", *["greedy"] * 4]
    assert len(turns) == 0
    assert not turns._last_turns, "nothing is kept of hosts that are gone"


def test_fair_queue_hosts_take_turns():
    turns, order = FairQueue(9), []
    askers = [Asker(turns, host, order) for host in ("a", "a", "a", "b", "b", "c")]
    while waiting := [one for one in askers if one.is_alive()]:
        await_that(lambda waiting=waiting: any(one.has_begun.is_set() for one in waiting))
        next(one for one in waiting if one.has_begun.is_set()).end()
    assert order == ["a", "b", "c", "a", "b", "a"]


def test_fair_queue_full_evicts_latest_query_of_largest_host():
    turns, order = FairQueue(3), []
    greedy = [Asker(turns, "greedy", order) for _ in range(3)]
    refused = Asker(turns, "greedy", order)
    assert isinstance(refused.error, Overloaded)
    cancel = Cancellation()
    done = threading.Event()

    def ask() -> None:
        with turns.acquire("calm", until=time.monotonic() + WITHIN_S, cancel=cancel):
            done.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    greedy[2].join(WITHIN_S)
    assert isinstance(greedy[2].error, Overloaded)
    assert greedy[1].is_alive()
    greedy[0].end()
    assert done.wait(WITHIN_S)
    greedy[1].end()
    thread.join(WITHIN_S)
    assert len(turns) == 0


def test_fair_queue_running_query_is_not_evicted():
    turns, order = FairQueue(1), []
    running = Asker(turns, "a", order)
    with (
        raises(Overloaded, bound=1),
        turns.acquire("b", until=time.monotonic() + WITHIN_S, cancel=Cancellation()),
    ):
        pass
    running.end()
    assert running.error is None


def test_fair_queue_waiting_query_ends_by_timeout_and_cancel():
    turns, order = FairQueue(8), []
    running = Asker(turns, "a", order)
    late = Asker(turns, "b", order, within_s=0.05)
    late.join(WITHIN_S)
    assert isinstance(late.error, DeadlineExceeded)
    gone = Asker(turns, "b", order)
    gone.cancel.cancel()
    gone.join(WITHIN_S)
    assert isinstance(gone.error, Cancelled)
    running.end()
    turns.wait_until_empty(WITHIN_S)
    assert len(turns) == 0
