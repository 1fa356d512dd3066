"""Deliveries in virtual time, with a cluster in memory and an endpoint that a test controls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest.mock import AsyncMock, patch

import pyarrow as pa
import pytest
from simulator.delivery_world import FAULTS, Journal, MemoryClient, at_once, now
from simulator.virtual_time import SimulatedClock, SimulatedLoop, run_simulated

import galileo.worker.delivery
import galileo.worker.worker
from galileo.client import async_channels, stored_rows
from galileo.client.results import Delivery
from galileo.client.row_changes import read_row, replace_row
from galileo.cursor import Cursor
from galileo.errors import HistoryChanged, Unavailable
from galileo.model.broker import BROKERS, WORKERS, Broker, Webhook
from galileo.model.channel import Channel
from galileo.model.reader import POSITIONS
from galileo.model.table import hashes_of, partitions_of
from galileo.wire import token as tokens
from galileo.worker.delivery import (
    CHECK_S,
    REFUSED_MAX,
    RETRY_AFTER_MAX_S,
    TAKE_OVER_S,
    WAIT_CHECK_S,
)
from galileo.worker.endpoints import Chunk, DeliveryError, DisabledError, RefusedError
from galileo.worker.options import WorkerOptions
from galileo.worker.worker import FORGET_S, LEASE_S, LOOK_S, Worker

POISON = "poison"
Scene = Callable[["Stage"], Awaitable[None]]


class Endpoint:
    """Keeps what comes.

    Attributes:
        error: what it answers; None: it accepts.
        gone: what it answers to what is gone; None: it accepts.
        poison: what it answers to a chunk with a subscription that begins with "poison".
        came: times and chunks.
        accepted: the keys of notifications.
    """

    pairs_max = 4

    def __init__(self) -> None:
        self.error: DeliveryError | None = None
        self.poison: DeliveryError = RefusedError("422")
        self.gone: DeliveryError | None = None
        self.took_s = 0.01
        self.came: list[tuple[float, Chunk]] = []
        self.accepted: list[str] = []

    async def deliver(self, chunk: Chunk) -> None:
        self.came.append((now(), chunk))
        await asyncio.sleep(self.took_s)
        if self.error is not None:
            raise self.error
        if chunk.notifications.gone and self.gone is not None:
            raise self.gone
        names = chunk.notifications.subscriptions().to_pylist()
        if any(name.startswith(POISON) for name in names):
            raise self.poison
        self.accepted += [chunk.key_of(number) for number in range(len(names))]

    async def close(self) -> None:
        pass


class Stage:
    """A channel "one" of one partition, a broker "a", and a worker with its endpoint."""

    def __init__(self, loop: SimulatedLoop, faults: set[str]) -> None:
        self.journal = Journal(1, without=set(FAULTS) - faults)
        self.journal.add_channel("one", 1)
        self.operator = MemoryClient(self.journal, "operator")
        self.endpoint = Endpoint()
        self.opened: list[float] = []
        self._loop = loop
        self.running: list[tuple[MemoryClient, asyncio.Task[None]]] = []
        self.workers: list[Worker] = []

    def start(self) -> None:
        client = MemoryClient(self.journal, "")
        clock = SimulatedClock(self._loop)
        worker = Worker(client, WorkerOptions(), clock=clock)  # type: ignore[arg-type]

        async def opened(_: Any) -> Endpoint:
            self.opened.append(now())
            return self.endpoint

        worker.open_endpoint = opened  # type: ignore[assignment,method-assign]
        self.running.append((client, asyncio.create_task(worker.run())))
        self.workers.append(worker)

    def kill(self) -> None:
        client, task = self.running.pop()
        client.is_dead = True
        task.cancel()

    async def delivery(self) -> Delivery:
        row = self.journal.rows[POSITIONS.name]["broker/one/a",]
        return galileo.client.async_brokers._delivery(self.journal.channels["one"], "a", row, {})

    @property
    def letters(self) -> list[str]:
        return [row["subscription"] for row in self.journal.rows["one.dead-letters"].values()]


def play(scene: Scene, *, faults: set[str] = frozenset(), **options: Any) -> None:  # type: ignore[assignment]
    async def run(loop: SimulatedLoop) -> None:
        stage = Stage(loop, faults)
        await create(stage, **options)
        stage.start()
        await scene(stage)
        for _, task in stage.running:
            task.cancel()
        await asyncio.gather(*(task for _, task in stage.running), return_exceptions=True)

    with (
        patch.object(async_channels, "in_thread", at_once),
        patch.object(stored_rows, "in_thread", at_once),
        patch.object(galileo.worker.delivery, "in_thread", at_once),
    ):
        run_simulated(1, run)


async def create(stage: Stage, **options: Any) -> None:
    await stage.operator.create_broker(Broker("a", Webhook("https://example.org"), **options))


async def until(holds: Callable[[], bool], *, within_s: float = 100.0) -> None:
    deadline = now() + within_s
    while not holds():
        assert now() < deadline
        await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_refusals_that_do_not_follow_each_other_do_not_pause_a_broker() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(120):
            if number == 60:
                stage.journal.notify("one", "a", ["good"])
            stage.journal.notify("one", "a", [f"{POISON}{number}"])
        assert 60 < REFUSED_MAX < 120
        await until(lambda: len(stage.letters) == 120)
        assert not (await stage.operator.brokers())[0].paused

    play(scene)


def test_broker_whose_definition_cannot_be_read_does_not_stop_the_others() -> None:
    async def scene(stage: Stage) -> None:
        damaged = {"definition": "{not json", "paused": "", "revision": 1}
        stage.journal.rows[BROKERS.name]["b",] = {"name": "b", **damaged}
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: bool(stage.endpoint.accepted))
        await stage.operator.pause_broker("a")
        await stage.operator.resume_broker("a")
        brokers = {broker.name: broker for broker in await stage.operator.brokers()}
        assert "cannot be read" in brokers["b"].paused
        assert not brokers["a"].paused
        await stage.operator.drop_broker("b")
        assert [broker.name for broker in await stage.operator.brokers()] == ["a"]

    play(scene)


@pytest.mark.parametrize("damaged", ["{not json", "[]", '{"0": 5}', '{"x": [1, 2]}'])
def test_delivery_whose_progress_cannot_be_read_begins_behind_its_token(damaged: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.operator.acknowledge("one", "a", "")
        stage.journal.rows[POSITIONS.name]["broker/one/a",]["progress"] = damaged
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: bool(stage.endpoint.accepted))

    play(scene)


def test_delivery_whose_executions_were_lost_goes_on_behind_them() -> None:
    errors = list[HistoryChanged]()
    fetch = MemoryClient.fetch_notifications

    async def lost(client: MemoryClient, *names: str, token: str, **options: Any) -> Any:
        if token and not errors:
            following = tokens.encode("broker/one/a", Cursor({0: 7}))
            errors.append(HistoryChanged("executions were lost", token=following))
            raise errors[0]
        return await fetch(client, *names, token=token, **options)

    async def scene(stage: Stage) -> None:
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: bool(stage.endpoint.accepted))
        with patch.object(MemoryClient, "fetch_notifications", lost):
            await until(lambda: bool(errors))
            following = errors[0].details["token"]
            await until(lambda: row_of(stage)["token"] == following)
            for _ in range(7):
                stage.journal.notify("one", "a", ["bert"])
            await until(lambda: len(stage.endpoint.accepted) == 2)

    play(scene)


def row_of(stage: Stage) -> dict[str, Any]:
    row: dict[str, Any] = stage.journal.rows[POSITIONS.name]["broker/one/a",]
    return row


async def test_position_that_cannot_be_read_is_shown_as_a_failure() -> None:
    channel = Channel("one", "air", "pm10 > :least")
    row = dict.fromkeys(POSITIONS.arrow_schema.names) | {
        "reader": "broker/one/a",
        "token": "damaged",
    }
    delivery = galileo.client.async_brokers._delivery(channel, "a", row, {0: 3})
    assert delivery.behind == 3
    assert "cannot be read" in delivery.failure


@pytest.mark.parametrize(("asked_s", "waited_s"), [(30.0, 30.0), (1e8, 100.0)])
def test_endpoint_gets_the_pause_it_asks_for_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, asked_s: float, waited_s: float
) -> None:
    assert RETRY_AFTER_MAX_S == 3_600.0
    monkeypatch.setattr(galileo.worker.delivery, "RETRY_AFTER_MAX_S", 100.0)

    async def scene(stage: Stage) -> None:
        stage.endpoint.error = DeliveryError("503", asked_s)
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: len(stage.endpoint.came) == 2, within_s=2 * waited_s + 10.0)
        (first, _), (second, _) = stage.endpoint.came
        assert waited_s <= second - first < waited_s + 2.0
        await asyncio.sleep(1.0)
        delivery = await stage.delivery()
        assert delivery.failure == "503"
        assert delivery.retry_at is not None
        assert delivery.failed_at is not None
        assert (delivery.retry_at - delivery.failed_at).total_seconds() == waited_s

    play(scene)


@pytest.mark.parametrize("how", ["resume", "acknowledge", "create"])
def test_wait_ends_when_a_broker_is_resumed_acknowledged_or_changed(how: str) -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.error = DeliveryError("503", 3_000.0)
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: len(stage.endpoint.came) == 1)
        await asyncio.sleep(10.0)
        assert len(stage.endpoint.came) == 1
        begun, stage.endpoint.error = now(), None
        if how == "resume":
            await stage.operator.resume_broker("a")
        elif how == "acknowledge":
            await stage.operator.acknowledge("one", "a", "")
        else:
            await create(stage)
        await until(lambda: bool(stage.endpoint.accepted))
        assert now() - begun < WAIT_CHECK_S + LOOK_S + 1.0

    play(scene)


def test_broker_that_is_paused_or_dropped_is_sent_nothing() -> None:
    async def scene(stage: Stage) -> None:
        for stop in (stage.operator.pause_broker, stage.operator.drop_broker):
            await create(stage)
            count = len(stage.endpoint.came)
            stage.journal.notify("one", "a", ["anna"])
            await until(lambda c=count: len(stage.endpoint.came) > c)  # type: ignore[misc]
            await stop("a")
            await asyncio.sleep(3 * LOOK_S)
            count = len(stage.endpoint.came)
            stage.journal.notify("one", "a", ["bert"])
            await asyncio.sleep(30.0)
            assert len(stage.endpoint.came) == count

    play(scene)


def test_broker_dropped_before_a_worker_can_pause_it_is_no_failure_of_the_worker() -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.error, stage.endpoint.took_s = DisabledError("401"), 0.2
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: bool(stage.endpoint.came))
        await stage.operator.drop_broker("a")
        with patch.object(galileo.worker.worker.log, "error") as failure:
            await asyncio.sleep(3 * LOOK_S)
        assert len(stage.endpoint.came) == 1
        assert not failure.called

    play(scene)


@pytest.mark.parametrize("how", ["pause", "create"])
def test_worker_pauses_no_broker_that_was_paused_or_changed_meanwhile(how: str) -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.error, stage.endpoint.took_s = DisabledError("401"), 0.2
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: bool(stage.endpoint.came))
        if how == "pause":
            await stage.operator.pause_broker("a", "it moves")
        else:
            await create(stage)
        await asyncio.sleep(stage.endpoint.took_s)
        stage.endpoint.error = None
        await asyncio.sleep(3 * LOOK_S)
        [broker] = await stage.operator.brokers()
        assert broker.paused == ("it moves" if how == "pause" else "")
        assert bool(stage.endpoint.accepted) == (how == "create")

    play(scene)


def test_worker_pushes_while_dead_workers_cannot_be_forgotten() -> None:
    async def scene(stage: Stage) -> None:
        stage.start()
        await asyncio.sleep(5.0)
        stage.kill()
        client, _ = stage.running[0]
        refusal = AsyncMock(side_effect=Unavailable("no majority"))
        with patch.object(client, "delete", refusal):
            await asyncio.sleep(FORGET_S + LEASE_S)
            assert refusal.called
            await stage.operator.create_broker(Broker("b", Webhook("https://example.org")))
            stage.journal.notify("one", "b", ["anna"])
            await until(lambda: bool(stage.endpoint.accepted))

    play(scene)


def test_position_behind_a_failing_execution_takes_effect() -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.poison = DeliveryError("500")
        stage.journal.notify("one", "a", [POISON])
        stage.journal.notify("one", "a", ["good"])
        await until(lambda: len(stage.endpoint.came) > 2)
        first = (await stage.operator.fetch_notifications("one", "a"))[0]
        await stage.operator.acknowledge("one", "a", first.token)
        await until(lambda: bool(stage.endpoint.accepted))
        assert [key.split("/")[3] for key in stage.endpoint.accepted] == ["2"]

    play(scene)


def test_each_attempt_after_a_failure_opens_the_endpoint_anew() -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.error = DeliveryError("connection lost")
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: len(stage.endpoint.came) == 4)
        assert len(stage.opened) == 4

    play(scene)


def test_failure_is_the_present_one_until_a_success_or_another_definition() -> None:
    async def scene(stage: Stage) -> None:
        async def shows(failure: str) -> None:
            deadline = now() + 100.0
            while (await stage.delivery()).failure != failure:
                assert now() < deadline
                await asyncio.sleep(0.1)

        stage.endpoint.error = DeliveryError("certificate")
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: bool(stage.endpoint.came))
        await shows("certificate")
        stage.endpoint.error = DeliveryError("404")
        await shows("404")
        stage.endpoint.error = None
        await shows("")
        assert (await stage.delivery()).failed_at is None
        stage.endpoint.error = DeliveryError("500", 3_000.0)
        stage.journal.notify("one", "a", ["bert"])
        await shows("500")
        stage.endpoint.took_s, stage.endpoint.error = 50.0, None
        await create(stage)
        await shows("")

    play(scene)


@pytest.mark.parametrize("bound", [{"attempts_max": 3}, {"age_max": "20s"}])
def test_chunk_that_fails_beyond_a_bound_becomes_a_dead_letter(bound: dict[str, Any]) -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.poison = DeliveryError("500")
        stage.journal.notify("one", "a", ["anna", "bert", f"{POISON}1", "cleo"])
        stage.journal.notify("one", "a", ["dora"])
        await until(lambda: len(stage.endpoint.accepted) == 4, within_s=300.0)
        assert stage.letters == [f"{POISON}1"]
        if "attempts_max" in bound:
            assert sum(len(chunk.notifications) == 4 for _, chunk in stage.endpoint.came) == 3
        else:
            assert stage.endpoint.came[-1][0] - stage.endpoint.came[0][0] >= 20.0
            parts = [chunk.key for _, chunk in stage.endpoint.came if len(chunk.notifications) < 4]
            assert len(parts) == len(set(parts)), "parts of a chunk have no time of their own"

    play(scene, **bound)


@pytest.mark.slow
def test_without_bounds_a_failing_endpoint_gets_no_dead_letters() -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.error = DeliveryError("500")
        stage.journal.notify("one", "a", ["anna"])
        await asyncio.sleep(600.0)
        assert not stage.letters
        stage.endpoint.error = None
        await until(lambda: bool(stage.endpoint.accepted), within_s=400.0)

    play(scene)


@pytest.mark.parametrize("answer", [None, RefusedError("422"), RefusedError("413", [0])])
def test_results_deleted_before_they_are_pushed_are_counted_and_said(
    answer: DeliveryError | None,
) -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.gone = answer
        stage.journal.dropped["one", 0] = 0
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: bool(stage.endpoint.accepted))
        await asyncio.sleep(2.0)
        stage.endpoint.error = DeliveryError("503")
        stage.journal.notify("one", "a", ["bert"])
        await until(lambda: len(stage.endpoint.came) > 1)
        for _ in range(4):
            stage.journal.notify("one", "a", ["cleo"])
        stage.journal.dropped["one", 0] = 4
        stage.endpoint.error = None
        await until(lambda: len(stage.endpoint.accepted) == 4)
        assert [key.split("/")[3] for key in stage.endpoint.accepted] == ["1", "2", "5", "6"]
        [gone] = [chunk for _, chunk in stage.endpoint.came if chunk.notifications.gone]
        assert gone.key.endswith("/0/gone/3-4")
        assert (await stage.delivery()).gone == 2
        metric = 'galileo_worker_gone_total{channel="one",broker="a"} 2'
        assert metric in stage.workers[0].metrics.exposed()

    play(scene)


def test_broker_that_begins_is_not_told_what_was_deleted_before() -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(3):
            stage.journal.notify("one", "a", ["anna"])
        stage.journal.dropped["one", 0] = 2
        await until(lambda: bool(stage.endpoint.accepted))
        assert not [chunk for _, chunk in stage.endpoint.came if chunk.notifications.gone]
        assert (await stage.delivery()).gone == 0

    play(scene)


def test_worker_that_takes_over_goes_on_within_an_execution() -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.took_s = 0.1
        stage.journal.notify("one", "a", [f"s{number}" for number in range(400)])
        await until(lambda: len(stage.endpoint.accepted) >= 200)
        stage.kill()
        stage.start()
        await until(lambda: len(set(stage.endpoint.accepted)) == 400)
        assert len(stage.endpoint.accepted) - 400 <= 1.2 / 0.1 * Endpoint.pairs_max

    play(scene)


def test_worker_takes_over_from_a_living_one_that_does_not_give_up() -> None:
    """The release of who had the pair before may be lost."""

    async def scene(stage: Stage) -> None:
        stage.start()
        await asyncio.sleep(10.0)
        row = await read_row(stage.operator, POSITIONS, "broker/one/a")
        [other] = {worker.name for worker in stage.workers} - {row["worker"]}
        await replace_row(stage.operator, POSITIONS, row, worker=other)
        stage.journal.notify("one", "a", ["anna"])
        begun = now()
        await until(lambda: bool(stage.endpoint.accepted))
        assert TAKE_OVER_S <= now() - begun < 2 * TAKE_OVER_S

    play(scene)


def test_replay_begins_at_the_begin_of_an_execution() -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.took_s = 0.1
        stage.journal.notify("one", "a", [f"s{number}" for number in range(400)])
        await until(lambda: len(stage.endpoint.accepted) >= 200)
        assert stage.journal.rows[POSITIONS.name]["broker/one/a",]["progress"] != "{}"
        await stage.operator.acknowledge("one", "a", "")
        await until(lambda: len(set(stage.endpoint.accepted)) == 400)
        assert stage.endpoint.accepted.count(stage.endpoint.accepted[0]) == 2

    play(scene)


def test_worker_whose_row_is_away_counts_as_it_did_before() -> None:
    async def scene(stage: Stage) -> None:
        stage.start()
        await asyncio.sleep(5.0)
        workers = stage.journal.tables[WORKERS.name]
        first, second = stage.workers
        rows = pa.table({"name": [second.name]})
        stage.journal.away_partition = int(partitions_of(workers, hashes_of(workers, rows))[0])
        stage.journal.away_until = now() + 50.0
        await asyncio.sleep(45.0)
        assert first.is_alive(second.name)
        stage.kill()
        await asyncio.sleep(5.0 + 2 * LEASE_S)
        assert not first.is_alive(second.name)

    play(scene, faults={"away"})


def test_halves_of_a_refused_chunk_are_not_sent_behind_a_moved_position() -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.took_s = CHECK_S + 0.5
        stage.journal.notify("one", "a", [POISON, "anna", "bert", "carl"])
        await until(lambda: bool(stage.endpoint.came))
        first = (await stage.operator.fetch_notifications("one", "a"))[0]
        await stage.operator.acknowledge("one", "a", first.token)
        await asyncio.sleep(30.0)
        assert len(stage.endpoint.came) == 1
        assert not stage.letters

    play(scene)


def test_worker_that_is_cut_off_sends_nothing_and_goes_on_later() -> None:
    async def scene(stage: Stage) -> None:
        stage.endpoint.error = DeliveryError("503")
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: len(stage.endpoint.came) > 1)
        cut_at = now()
        stage.journal.down_until = cut_at + 60.0
        await asyncio.sleep(60.0)
        assert all(at < cut_at + CHECK_S for at, _ in stage.endpoint.came)
        stage.endpoint.error = None
        await until(lambda: bool(stage.endpoint.accepted))

    play(scene, faults={"cluster"})


def test_worker_goes_on_with_what_it_knows_while_a_partition_is_away() -> None:
    async def scene(stage: Stage) -> None:
        stage.journal.notify("one", "a", ["anna"])
        await until(lambda: len(stage.endpoint.accepted) == 1)
        workers = stage.journal.tables[WORKERS.name]
        hashes = hashes_of(workers, pa.table({"name": [stage.workers[0].name]}))
        stage.journal.away_partition = int(partitions_of(workers, hashes)[0])
        stage.journal.away_until = now() + 100.0
        stage.journal.notify("one", "a", ["bert"])
        await until(lambda: len(stage.endpoint.accepted) == 2)
        await asyncio.sleep(30.0)
        stage.journal.notify("one", "a", ["cleo"])
        await until(lambda: len(stage.endpoint.accepted) == 3)
        assert now() < stage.journal.away_until

    play(scene, faults={"away"})


def test_follower_does_not_move_a_position_while_a_worker_pushes() -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(2):
            stage.journal.notify("one", "a", ["anna"])
        await until(lambda: len(stage.endpoint.accepted) == 2)
        await asyncio.sleep(2.0)
        given = await stage.operator.position("one", "a")
        first = (await stage.operator.fetch_notifications("one", "a"))[0].token
        assert not await stage.operator._advance("one", "a", given, first)
        for client, task in stage.running:
            task.cancel()
            await asyncio.wait([task])
            assert not client.is_dead
        assert await stage.operator._advance("one", "a", given, first)

    play(scene)
