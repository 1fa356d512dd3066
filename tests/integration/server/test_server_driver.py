"""The driver with machines that follow a script, so that the order of things can be seen."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from expected_errors import raises

from galileo import spans
from galileo.ccq import events as ccq
from galileo.clock import SystemClock
from galileo.cursor import EMPTY_CURSOR
from galileo.dht.membership import Membership, MembershipOptions
from galileo.errors import Failure, Overloaded
from galileo.server import driver as driver_module
from galileo.server.driver import Driver

TIMEOUT_S = 300.0

Answer = Callable[[Any], list[Any]]


@dataclass
class Script:
    """A machine: notes what it is fed, and answers as instructed; ticks are passed over."""

    answer: Answer = lambda _: []
    fed: list[Any] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    cycle_due_at = None

    def step(self, event: Any, now: float) -> list[Any]:
        if isinstance(event, ccq.Ticked):
            return []
        self.fed.append(event)
        self.news.set()
        return self.answer(event)

    async def until(self, kind: type) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while not any(isinstance(event, kind) for event in self.fed):
                self.news.clear()
                await self.news.wait()
        return next(event for event in self.fed if isinstance(event, kind))


@dataclass
class Due(Script):
    """A cycle is due at each tenth of a second; notes when it ticks."""

    ticks: list[float] = field(default_factory=list)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    cycle_due_at = property(lambda self: math.floor(time.monotonic() / 0.1 + 1) * 0.1)

    def step(self, event: Any, now: float) -> list[Any]:
        self.ticks.append(now)
        if len(self.ticks) == 4:
            self.enough.set()
        return super().step(event, now)


@dataclass
class Mail:
    """Notes to which nodes heartbeats go; b and c coordinate continuous queries."""

    sent: list[str] = field(default_factory=list)

    def coordinates(self, node: str) -> bool:
        return node in ("b", "c")

    def send_heartbeat(self, to: str) -> None:
        self.sent.append(to)

    async def run(self) -> None:
        await asyncio.Event().wait()


@dataclass
class Bench:
    script: Script
    driver: Driver
    work: dict[type, Callable[[Any], Any]]
    running: asyncio.Task[None]


@pytest.fixture
def limits() -> dict[str, float]:
    """Constants of the driver with other values; tests override it."""
    return {}


@pytest.fixture
def script() -> Script:
    """The machine; tests override it."""
    return Script()


def driver_of(script: Script, members: Membership, **options: Any) -> Driver:
    """A driver without work."""
    given = {
        "mail": Mail(),
        "work": None,
        "new_commits": list,
        "drop_spills": None,
        "has_readers": lambda: False,
        **options,
    }
    return Driver(script, members, clock=SystemClock(), **given)  # type: ignore[arg-type]


@pytest.fixture
async def bench(
    script: Script, limits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    for name, value in limits.items():
        monkeypatch.setattr(driver_module, name, value)
    work: dict[type, Callable[[Any], Any]] = {}

    async def worker(effect: Any) -> Any:
        return await work[type(effect)](effect)

    driver = driver_of(script, Membership("a", []), work=worker)
    running = asyncio.create_task(driver.run())
    yield Bench(script, driver, work, running)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def on(kind: type, *effects: Any) -> Answer:
    return lambda event: list(effects) if isinstance(event, kind) else []


WAKE = ccq.CommitsObserved("nam", EMPTY_CURSOR)


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("script", [Due()], ids=[""])
@pytest.mark.parametrize("limits", [{"TICK_S": 10.0}], ids=[""])
async def test_driver_ticks_when_cycles_are_due(script: Due) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await script.enough.wait()
    assert script.ticks[3] - script.ticks[0] > 0.15


async def test_driver_ask_returns_the_answer_of_its_request(bench: Bench) -> None:
    def answer(event: Any) -> list[Any]:
        if isinstance(event, ccq.FetchRequested):
            strangers = ccq.RedirectFetch(999, "no such request")
            return [strangers, ccq.RedirectFetch(event.request, event.ccq_id)]
        return []

    bench.script.answer = answer
    answers = await asyncio.gather(
        *(
            bench.driver.ask(
                lambda request, name=name: ccq.FetchRequested(request, name, EMPTY_CURSOR),
                timeout_s=TIMEOUT_S,
            )
            for name in ("x", "y", "z")
        )
    )
    assert [answer.coordinator for answer in answers] == ["x", "y", "z"]
    assert len({answer.request for answer in answers}) == 3
    assert not any(isinstance(event, ccq.FetchAbandoned) for event in bench.script.fed)


async def test_driver_ask_returns_a_refusal(bench: Bench) -> None:
    refusal = Failure("unknown_ccq", "no such thing")
    bench.script.answer = lambda event: (
        [ccq.RefuseFetch(event.request, refusal)] if isinstance(event, ccq.FetchRequested) else []
    )
    answer = await bench.driver.ask(
        lambda request: ccq.FetchRequested(request, "x", EMPTY_CURSOR), timeout_s=TIMEOUT_S
    )
    assert answer.failure is refusal


async def test_driver_ask_after_its_timeout_abandons_the_request(bench: Bench) -> None:
    with pytest.raises(TimeoutError):
        await bench.driver.ask(
            lambda request: ccq.FetchRequested(request, "x", EMPTY_CURSOR), timeout_s=0.01
        )
    asked = await bench.script.until(ccq.FetchRequested)
    assert (await bench.script.until(ccq.FetchAbandoned)).request == asked.request


async def test_driver_ask_when_cancelled_abandons_the_request(bench: Bench) -> None:
    waiting = asyncio.ensure_future(
        bench.driver.ask(
            lambda request: ccq.FetchRequested(request, "x", EMPTY_CURSOR), timeout_s=60
        )
    )
    asked = await bench.script.until(ccq.FetchRequested)
    waiting.cancel()
    assert (await bench.script.until(ccq.FetchAbandoned)).request == asked.request


@pytest.mark.parametrize("limits", [{"EVENTS_WAITING_MAX": 3}], ids=[""])
async def test_driver_ask_with_a_full_queue_is_overloaded(bench: Bench) -> None:
    for _ in range(5):
        bench.driver.feed(WAKE)
    with raises(Overloaded, after_s=1.0):
        await bench.driver.ask(ccq.FetchAbandoned, timeout_s=1)


async def test_driver_runs_long_effects_concurrently(bench: Bench) -> None:
    gate = asyncio.Event()

    async def confirm(effect: ccq.ConfirmSequences) -> ccq.SequencesConfirmed:
        await gate.wait()
        return ccq.SequencesConfirmed(effect.request, EMPTY_CURSOR)

    bench.work[ccq.ConfirmSequences] = confirm
    bench.script.answer = on(ccq.CommitsObserved, ccq.ConfirmSequences(7, "nam", (1,)))
    bench.driver.feed(WAKE)
    bench.driver.feed(ccq.FetchAbandoned(9))
    await bench.script.until(ccq.FetchAbandoned)
    gate.set()
    assert await bench.script.until(ccq.SequencesConfirmed) == ccq.SequencesConfirmed(
        7, EMPTY_CURSOR
    )


async def test_driver_span_of_a_late_cycle_begins_when_it_was_due(bench: Bench) -> None:
    begun: dict[str, int] = {}

    class Recorder:
        traceparent = f"00-{1:032x}-{1:016x}-01"

        def begin(self, name: str, *, begun_ns: int | None, **_: Any) -> Recorder:
            begun[name] = begun_ns or time.time_ns()
            return self

        def end(self, **_: Any) -> None:
            """Nothing here looks at it."""

    async def cycle(effect: ccq.StartCycle) -> ccq.CycleFinished:
        return ccq.CycleFinished(effect.cycle_id, ())

    bench.work[ccq.StartCycle] = cycle
    bench.script.cycle_due_at = time.monotonic() - 5.0
    bench.script.answer = lambda event: {ccq.CommitsObserved: [ccq.StartCycle(1, ())]}.get(
        type(event), []
    )
    spans.record_with(Recorder())
    try:
        bench.driver.feed(WAKE)
        await bench.script.until(ccq.CycleFinished)
    finally:
        spans.record_with(None)
    assert begun["tick"] <= begun["due"]


async def test_driver_abandon_cycle_cancels_that_cycle_only(bench: Bench) -> None:
    started, stopped, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def cycle(effect: ccq.StartCycle) -> ccq.CycleFinished:
        started.set()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            stopped.set()
            raise
        return ccq.CycleFinished(effect.cycle_id, ())

    bench.work[ccq.StartCycle] = cycle
    bench.script.answer = lambda event: {
        ccq.CommitsObserved: [ccq.StartCycle(1, ()), ccq.StartCycle(2, ())],
        ccq.FetchAbandoned: [ccq.AbandonCycle(1), ccq.AbandonCycle(77)],
    }.get(type(event), [])
    async with asyncio.timeout(TIMEOUT_S):
        bench.driver.feed(WAKE)
        await started.wait()
        bench.driver.feed(ccq.FetchAbandoned(9))
        await stopped.wait()
    gate.set()
    assert (await bench.script.until(ccq.CycleFinished)).cycle_id == 2


async def test_driver_with_an_unexpected_error_ends() -> None:
    """A node that goes on without its machine would look alive and answer nothing."""

    def broken(event: Any) -> list[Any]:
        raise ZeroDivisionError("a mistake of ours")

    driver = driver_of(Script(broken), Membership("a", []))
    driver.feed(WAKE)
    with pytest.raises(ExceptionGroup) as ended:
        await driver.run()
    assert ended.value.subgroup(ZeroDivisionError) is not None


async def test_driver_announces_commits_to_coordinators_at_bounded_rate() -> None:
    quiet = MembershipOptions(heartbeat_interval_s=1e6, failure_timeout_s=2e6)
    mail = Mail()
    driver = driver_of(Script(), Membership("a", ["b", "c", "d"], options=quiet), mail=mail)
    at = []
    for tick in range(20):
        before = len(mail.sent)
        driver.announce_commits(
            ([WAKE] if tick in (4, 5, 6, 15) else []), tick * driver_module.TICK_S
        )
        at += [tick] * (len(mail.sent) - before)
    assert at == [4, 4, 9, 9, 15, 15]
    assert mail.sent == ["b", "c"] * 3


async def test_driver_announces_commits_to_many_nodes_at_a_lower_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = [f"n{number:02}" for number in range(24)]
    monkeypatch.setattr(driver_module, "ANNOUNCE_INTERVAL_S", 1.0)
    monkeypatch.setattr(driver_module, "ANNOUNCED_MAX", 8)
    mail = Mail()
    driver = driver_of(Script(), Membership("a", peers), mail=mail, has_readers=lambda: True)
    counts = []
    for now in range(7):
        driver.announce_commits([WAKE], now)
        counts.append(len(mail.sent))
    assert counts == [24, 24, 24, 48, 48, 48, 72]
    assert mail.sent == peers * 3


async def test_driver_of_an_idle_node_ticks_when_an_event_or_a_commit_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pause would be endless otherwise."""
    ticked: asyncio.Queue[None] = asyncio.Queue()

    def count() -> list[ccq.ContinuousEvent]:
        ticked.put_nowait(None)
        return []

    never = MembershipOptions(heartbeat_interval_s=1e6, failure_timeout_s=2e6)
    for name, value in {"TICK_S": 0.001, "IDLE_AFTER_S": 0.0, "IDLE_TICK_S": 1e6}.items():
        monkeypatch.setattr(driver_module, name, value)
    members = Membership("a", [], options=never)
    driver = driver_of(Script(), members, new_commits=count)
    running = asyncio.create_task(driver.run())
    async with asyncio.timeout(TIMEOUT_S):
        await ticked.get()
        for wake in (driver.wake, lambda: driver.feed(WAKE), driver.wake):
            await asyncio.sleep(0.01)
            wake()
            await ticked.get()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
