"""The driver with machines that follow a script, so that the order of things can be seen."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from expected_errors import raises

from galileo import spans
from galileo.ccq import events as ccq
from galileo.ccq.model import Ccq, Record
from galileo.clock import SystemClock
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.membership import Membership, MembershipOptions
from galileo.election import events as duties
from galileo.election.messages import Poll
from galileo.errors import Failure, Overloaded
from galileo.samplers import SamplerSpec
from galileo.server.driver import RECORD_KIND, Driver, DriverOptions
from galileo.server.peer_messaging import TAGGED
from galileo.storage.disk import RealDisk
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

TIMEOUT_S = 300.0

CCQ = Ccq("ccq-1", "nam", "true", 1.0, 9.0, SamplerSpec("uniform", {"fraction": 0.5}, 7), "lz4")


def record(term: int, ccq_id: str = "ccq-1") -> Record:
    made = Ccq(ccq_id, CCQ.dataset, CCQ.query, CCQ.interval_s, CCQ.expires_at, CCQ.sampler)
    return Record(made, term, "node-1", Cursor({2: 5}))


Answer = Callable[[Any], list[Any]]


@dataclass
class Script:
    """A machine: notes what it is fed, and answers as instructed; ticks are passed over."""

    answer: Answer = lambda _: []
    fed: list[Any] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    cycle_due_at = None

    def is_coordinator(self, node: str) -> bool:
        return node in ("b", "c")

    def step(self, event: Any, now: float) -> list[Any]:
        if isinstance(event, duties.Ticked):
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
    """Notes what is sent, and what the disk had at that moment."""

    store: Store
    sent: list[tuple[str, Any, dict[str, bytes]]] = field(default_factory=list)
    has_sent: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, to: str, message: Any) -> None:
        self.sent.append((to, message, self.store.load_batches(RECORD_KIND)))
        self.has_sent.set()

    async def until_sent(self, count: int = 1) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.sent) < count:
                self.has_sent.clear()
                await self.has_sent.wait()

    def send_heartbeat(self, to: str) -> None:
        raise AssertionError("there are no peers")

    async def run(self) -> None:
        await asyncio.Event().wait()


@dataclass
class Bench:
    store: Store
    script: Script
    driver: Driver
    mail: Mail
    work: dict[type, Callable[[Any], Any]]
    running: asyncio.Task[None]


@dataclass
class FullDisk(RealDisk):
    """Makes no file until there is room."""

    number: int = errno.ENOSPC
    has_room: bool = True
    refused: asyncio.Event = field(default_factory=asyncio.Event)

    def create(self, path: Path) -> int:
        if self.has_room:
            return super().create(path)
        self.loop.call_soon_threadsafe(self.refused.set)
        raise OSError(self.number, os.strerror(self.number))

    def fill(self) -> None:
        self.loop, self.has_room = asyncio.get_running_loop(), False

    async def refusals(self, count: int) -> None:
        for _ in range(count):
            self.refused.clear()
            await asyncio.wait_for(self.refused.wait(), TIMEOUT_S)


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
def driver_options() -> DriverOptions:
    """The options of the driver; tests override it."""
    return DriverOptions()


@pytest.fixture
def script() -> Script:
    """The machine; tests override it."""
    return Script()


@pytest.fixture
async def bench(
    tmp_path: Path, disk: FullDisk, script: Script, driver_options: DriverOptions
) -> AsyncIterator[Bench]:
    work: dict[type, Callable[[Any], Any]] = {}

    async def worker(effect: Any) -> Any:
        return await work[type(effect)](effect)

    options = JournalOptions(durability="none", disk=disk)
    with Store.open(tmp_path, options, wall=lambda: 0.0) as store:
        store.recover(lambda *_: None)
        driver = Driver(
            script,  # type: ignore[arg-type]
            Membership("a", []),
            store=store,
            clock=SystemClock(),
            work=worker,
            new_commits=lambda: [],
            drop_spills=lambda numbers: None,
            options=driver_options,
        )
        mail = Mail(store)
        driver.mail = mail  # type: ignore[assignment]
        running = asyncio.create_task(driver.run())
        made = Bench(store, script, driver, mail, work, running)
        yield made
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def on(kind: type, *effects: Any) -> Answer:
    return lambda event: list(effects) if isinstance(event, kind) else []


WAKE = ccq.CommitsObserved("nam", EMPTY_CURSOR)


@pytest.mark.parametrize("driver_options", [DriverOptions(records_retry_s=0.01)], ids=[""])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
async def test_driver_with_a_full_disk_delays_effects_behind_a_durable_record(
    bench: Bench, disk: FullDisk, number: int
) -> None:
    save = duties.SaveRecord(record(3), durable=True)
    bench.script.answer = on(ccq.CommitsObserved, save, duties.Send("b", "taken"))
    disk.number = number
    disk.fill()
    bench.driver.feed(WAKE)
    await disk.refusals(3)
    assert bench.mail.sent == []
    disk.has_room = True
    async with asyncio.timeout(TIMEOUT_S):
        await bench.mail.has_sent.wait()
    [(to, message, stored)] = bench.mail.sent
    assert (to, message, list(stored)) == ("b", "taken", ["ccq-1"])


@pytest.mark.parametrize(
    "driver_options", [DriverOptions(records_retry_s=0.01, tick_s=0.001)], ids=[""]
)
async def test_driver_with_a_full_disk_drops_messages_of_peers(
    bench: Bench, disk: FullDisk
) -> None:
    """A disk may be full for days, and peers announce thousands of records a second."""
    bench.script.answer = on(ccq.CommitsObserved, duties.SaveRecord(record(3), durable=True))
    disk.fill()
    bench.driver.feed(WAKE)
    await disk.refusals(3)
    before = bench.driver.events_waiting
    bench.driver.feed(duties.MessageArrived("b", Poll("lost")))
    bench.driver.feed(ccq.FetchAbandoned(9))
    await disk.refusals(20)
    assert bench.driver.events_waiting == before + 1
    disk.has_room = True
    await bench.script.until(ccq.FetchAbandoned)
    bench.driver.feed(duties.MessageArrived("b", Poll("heard")))
    heard = await bench.script.until(duties.MessageArrived)
    assert heard.message == Poll("heard")


async def test_driver_with_a_disk_error_ends(bench: Bench, disk: FullDisk) -> None:
    """Others take its continuous queries on; it could not answer for what it promised."""
    save = duties.SaveRecord(record(3), durable=True)
    bench.script.answer = on(ccq.CommitsObserved, save, duties.Send("b", "taken"))
    disk.number = errno.EIO
    disk.fill()
    bench.driver.feed(WAKE)
    with pytest.raises(BaseException) as caught:
        await asyncio.wait_for(bench.running, TIMEOUT_S)
    assert "Input/output error" in "".join(traceback.format_exception(caught.value))
    assert bench.mail.sent == []


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("script", [Due()], ids=[""])
@pytest.mark.parametrize("driver_options", [DriverOptions(tick_s=10.0)], ids=[""])
async def test_driver_ticks_when_cycles_are_due(script: Due) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await script.enough.wait()
    assert script.ticks[3] - script.ticks[0] > 0.15


async def test_driver_writes_a_durable_record_before_it_sends(bench: Bench) -> None:
    bench.script.answer = on(
        ccq.CommitsObserved,
        duties.SaveRecord(record(3), durable=True),
        duties.Send("b", Poll("after")),
    )
    bench.driver.feed(WAKE)
    await bench.mail.until_sent()
    ((to, message, stored),) = bench.mail.sent
    assert (to, message) == ("b", Poll("after"))
    assert TAGGED.decode(stored["ccq-1"]) == record(3)


async def test_driver_waits_for_one_durable_record_among_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sent, save = threading.Event(), bench.store.save_batch

    def save_late(*batch: Any) -> None:
        is_sent.wait(0.2)  # Where the driver does not wait for this, it sends meanwhile.
        save(*batch)

    def send(to: str, message: Any) -> None:
        sent(to, message)
        is_sent.set()

    sent = bench.mail.send
    monkeypatch.setattr(bench.store, "save_batch", save_late)
    monkeypatch.setattr(bench.mail, "send", send)
    bench.script.answer = on(
        ccq.CommitsObserved,
        duties.SaveRecord(record(3), durable=True),
        duties.SaveRecord(record(1, "ccq-2"), durable=False),
        duties.Send("b", Poll("after")),
    )
    bench.driver.feed(WAKE)
    await bench.mail.until_sent()
    ((_, _, stored),) = bench.mail.sent
    assert set(stored) == {"ccq-1", "ccq-2"}


async def test_driver_writes_records_in_order(
    bench: Bench,
) -> None:
    bench.script.answer = on(
        ccq.CommitsObserved,
        *(duties.SaveRecord(record(term), durable=False) for term in range(1, 20)),
        duties.SaveRecord(record(1, "ccq-2"), durable=False),
        duties.PurgeRecord("ccq-2"),
        duties.SaveRecord(record(20), durable=True),
        duties.Send("b", Poll("after")),
    )
    bench.driver.feed(WAKE)
    await bench.mail.until_sent()
    stored = bench.mail.sent[0][2]
    assert set(stored) == {"ccq-1"}
    assert TAGGED.decode(stored["ccq-1"]) == record(20)


async def test_driver_restore_feeds_records_first(bench: Bench) -> None:
    for name in ("ccq-2", "ccq-1"):
        data = TAGGED.encode(record(3, name))
        bench.store.save_batch(RECORD_KIND, {name: data})
    await bench.driver.restore()
    restored = await bench.script.until(duties.RecordsLoaded)
    assert bench.script.fed[0] is restored
    assert restored.records == (record(3, "ccq-1"), record(3, "ccq-2"))
    assert restored.wall > 1e9


async def test_driver_ask_returns_the_answer_of_its_request(bench: Bench) -> None:
    def answer(event: Any) -> list[Any]:
        if isinstance(event, ccq.CancelRequested):
            strangers = ccq.AnswerCancel(999, "no such request")
            return [strangers, ccq.AnswerCancel(event.request, event.ccq_id)]
        return []

    bench.script.answer = answer
    answers = await asyncio.gather(
        *(
            bench.driver.ask(
                lambda request, name=name: ccq.CancelRequested(request, name), timeout_s=TIMEOUT_S
            )
            for name in ("x", "y", "z")
        )
    )
    assert [answer.ccq_id for answer in answers] == ["x", "y", "z"]
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


@pytest.mark.parametrize("driver_options", [DriverOptions(events_waiting_max=3)], ids=[""])
async def test_driver_ask_with_a_full_queue_is_overloaded(bench: Bench) -> None:
    for _ in range(5):
        bench.driver.feed(WAKE)
    with raises(Overloaded, after_s=1.0):
        await bench.driver.ask(lambda request: ccq.CancelRequested(request, "x"), timeout_s=1)


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
    bench.script.state = SimpleNamespace(counts=SimpleNamespace(ended=[]))  # type: ignore[attr-defined]
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


async def test_driver_with_an_unexpected_error_ends(bench: Bench) -> None:
    """A node that goes on without its machine would look alive and answer nothing."""

    def broken(event: Any) -> list[Any]:
        raise ZeroDivisionError("a mistake of ours")

    script = Script(broken)
    driver = Driver(
        script,  # type: ignore[arg-type]
        Membership("a", []),
        store=bench.store,
        clock=SystemClock(),
        work=bench.driver._work,
        new_commits=lambda: [],
        drop_spills=lambda numbers: None,
    )
    driver.feed(WAKE)
    with pytest.raises(ExceptionGroup) as ended:
        await driver.run()
    assert ended.value.subgroup(ZeroDivisionError) is not None


async def test_driver_announces_commits_to_coordinators_at_bounded_rate(
    bench: Bench,
) -> None:
    announced: list[tuple[str, float]] = []
    quiet = MembershipOptions(heartbeat_interval_s=1e6, failure_timeout_s=2e6)
    driver = Driver(
        bench.script,  # type: ignore[arg-type]
        Membership("a", ["b", "c", "d"], options=quiet),
        store=bench.store,
        clock=SystemClock(),
        work=bench.driver._work,
        new_commits=lambda: [],
        drop_spills=lambda numbers: None,
    )
    now, tick_s = 0.0, DriverOptions().tick_s

    class Heartbeats(Mail):
        def send_heartbeat(self, to: str) -> None:
            announced.append((to, now))

    driver.mail = Heartbeats(bench.store)  # type: ignore[assignment]
    for tick in range(20):
        now = tick * tick_s
        driver.announce_commits(([WAKE] if tick in (4, 5, 6, 15) else []), now)
    at = [round(moment / tick_s) for to, moment in announced if to == "b"]
    assert at == [4, 9, 15]
    assert [to for to, _ in announced] == ["b", "c"] * 3


async def test_driver_writes_the_records_of_waiting_events_in_one_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[str]] = []
    save = bench.store.save_batch
    monkeypatch.setattr(
        bench.store,
        "save_batch",
        lambda kind, values: (written.append(list(values)), save(kind, values)),
    )

    def answer(event: Any) -> list[Any]:
        if not isinstance(event, ccq.FetchAbandoned):
            return []
        name = f"ccq-{event.request}"
        return [duties.SaveRecord(record(1, name), durable=True), duties.Send("b", Poll(name))]

    bench.script.answer = answer
    for number in range(20):
        bench.driver.feed(ccq.FetchAbandoned(number))
    await bench.mail.until_sent(20)
    assert written == [[f"ccq-{number}" for number in range(20)]]
    assert [message.election for _, message, _ in bench.mail.sent] == written[0]


async def test_driver_announces_commits_to_many_coordinators_at_a_lower_rate(
    bench: Bench,
) -> None:
    peers = [f"n{number:02}" for number in range(24)]
    script = Script(lambda event: [])
    script.is_coordinator = lambda node: True  # type: ignore[method-assign]
    driver = Driver(
        script,  # type: ignore[arg-type]
        Membership("a", peers),
        store=bench.store,
        clock=SystemClock(),
        work=bench.driver._work,
        new_commits=lambda: [],
        drop_spills=lambda numbers: None,
        options=DriverOptions(announce_interval_s=1.0, announced_max=8),
    )
    announced: list[tuple[str, float]] = []

    class Heartbeats(Mail):
        def send_heartbeat(self, to: str) -> None:
            announced.append((to, now))

    driver.mail = Heartbeats(bench.store)  # type: ignore[assignment]
    for now in range(7):
        driver.announce_commits([WAKE], now)
    assert announced == [(peer, at) for at in (0, 3, 6) for peer in peers]


async def test_driver_of_an_idle_node_ticks_when_an_event_or_a_commit_comes(
    bench: Bench,
) -> None:
    """Its pause would be endless otherwise."""
    ticked: asyncio.Queue[None] = asyncio.Queue()

    def count() -> list[ccq.ContinuousEvent]:
        ticked.put_nowait(None)
        return []

    never = MembershipOptions(heartbeat_interval_s=1e6, failure_timeout_s=2e6)
    driver = Driver(
        Script(lambda event: []),  # type: ignore[arg-type]
        Membership("a", [], options=never),
        store=bench.store,
        clock=SystemClock(),
        work=bench.driver._work,
        new_commits=count,
        drop_spills=lambda numbers: None,
        options=DriverOptions(tick_s=0.001, idle_after_s=0.0, idle_tick_s=1e6),
    )
    running = asyncio.create_task(driver.run())
    async with asyncio.timeout(TIMEOUT_S):
        await ticked.get()
        for wake in (driver.wake, lambda: driver.feed(WAKE), driver.wake):
            await asyncio.sleep(0.01)
            wake()
            await ticked.get()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_driver_writes_the_records_of_a_step_in_one_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[str]] = []
    save = bench.store.save_batch
    monkeypatch.setattr(
        bench.store,
        "save_batch",
        lambda kind, values: (written.append(list(values)), save(kind, values)),
    )
    bench.script.answer = on(
        ccq.CommitsObserved,
        *(duties.SaveRecord(record(1, f"ccq-{number}"), durable=True) for number in range(50)),
        duties.Send("b", Poll("after")),
    )
    bench.driver.feed(WAKE)
    await bench.mail.until_sent()
    assert written == [[f"ccq-{number}" for number in range(50)]]
    ((_, _, stored),) = bench.mail.sent
    assert len(stored) == 50
