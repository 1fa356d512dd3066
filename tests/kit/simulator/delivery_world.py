"""Workers that push the notifications of channels to flaky endpoints, in virtual time.

The workers, the client above its calls of nodes, and the tokens are those of production. What is
faked: the calls of nodes (a cluster in memory, which is slow, fails, and loses answers), endpoints,
and the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import galileo
import galileo.worker.delivery
import galileo.worker.worker
from galileo.client import async_channels, stored_rows
from galileo.client.async_brokers import AsyncBrokers
from galileo.client.async_channels import AsyncChannels
from galileo.client.async_tables import AsyncTables
from galileo.client.group_commit import GroupCommit
from galileo.client.results import Notifications
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import BatchConflict, Conflict, Unavailable
from galileo.labels import from_ipc, to_ipc
from galileo.model.broker import Broker, Into
from galileo.model.channel import (
    BROKER,
    MATCHES_SCHEMA,
    Channel,
    pairs_of,
)
from galileo.model.reader import POSITIONS, PROGRESS, READER, TOKEN, WORKER, reader_of
from galileo.model.schema import DELETED, Schema, existing_dataset
from galileo.model.system import SYSTEM_TABLES
from galileo.model.table import SYSTEM, Table, hashes_of, partitions_of
from galileo.wire import token as tokens
from galileo.wire.caller import Backoff, BackoffClock
from galileo.wire.codec import cursor_to_pb
from galileo.wire.v1 import channels_pb2, storage_pb2
from galileo.worker.delivery import PairDelivery
from galileo.worker.endpoints import Chunk, DeliveryError, DisabledError, RefusedError
from galileo.worker.options import WorkerOptions
from galileo.worker.worker import Worker
from simulator.delivery_mutants import DELIVERY_MUTANTS
from simulator.loop import demand
from simulator.virtual_time import SimulatedClock, SimulatedLoop, run_simulated

FAULTS = ("crashes", "pauses", "cluster", "away", "endpoints", "operator", "poison", "cleaning")
FAULTS_UNTIL_S = 45.0
DRAIN_MAX_S = 400.0
PAIRS_MAX = 4
"""Of a chunk, so that executions have several."""
CLEANED_S = 300.0
OLD_S = 6.0
"""What is settled for so long is not sent any more: the row is read again before an attempt."""
_real_sleep = asyncio.sleep
_CLIENT: ContextVar[MemoryClient] = ContextVar("client")
"""Of the worker whose task runs."""
_DATASET = Schema("weather", [galileo.Feature("number", type="int")])


@dataclass(slots=True, eq=False)
class Execution:
    """One execution in one partition: for each broker the observations and matches."""

    number: int
    shares: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)


class Journal:
    """What the cluster in memory holds, and how it treats its callers.

    Attributes:
        due: of each channel and broker the notifications of each partition in order, as
            (key, subscription, number of the observation).
    """

    def __init__(self, seed: int, without: Collection[str]) -> None:
        self.random = Random(seed)
        self.without = without
        self.is_calm = False
        self.down_until = 0.0
        self.away_partition, self.away_until = 0, 0.0
        self.tables: dict[str, Table] = {}
        self.rows: dict[str, dict[Any, dict[str, Any]]] = {}
        self.batches: dict[tuple[str, str, int], tuple[list[dict[str, Any]], float, int]] = {}
        self.commits, self.changed_at = 0, dict[tuple[str, Any], int]()
        self.channels: dict[str, Channel] = {}
        self.executions: dict[str, dict[int, list[Execution]]] = {}
        self.dropped: dict[tuple[str, int], int] = {}
        self.changed = asyncio.Event()
        self.due: dict[tuple[str, str], dict[int, list[tuple[str, str, int]]]] = {}
        self.violations: list[str] = []
        self.on_position: Callable[[str, str, dict[str, Any]], None] = lambda *_: None
        self._numbers = 0
        for table in SYSTEM_TABLES.values():
            self.create(table)

    def note(self, holds: bool, otherwise: str) -> None:
        """Notes a violation, which `DeliveryWorld` raises: workers go on after any error."""
        if not holds:
            self.violations.append(otherwise)

    def away(self) -> int:
        """The partition of tables that cannot be reached now; -1 if all can."""
        return self.away_partition if now() < self.away_until else -1

    def allows(self, fault: str) -> bool:
        return not self.is_calm and fault not in self.without

    def add_channel(self, name: str, partitions: int) -> None:
        channel = Channel(name, _DATASET.name, "number > :least", period="1s").bound(
            _DATASET, [("least", "float")], start={}, partitions=partitions
        )
        self.channels[name] = channel
        self.executions[name] = {partition: [] for partition in range(partitions)}
        for table in channel.tables:
            self.create(table)

    def create(self, table: Table) -> None:
        self.tables[table.name] = table.spread(4)
        self.rows[table.name] = {}

    def execute(self, channel: str, partition: int, brokers: Collection[str]) -> None:
        """Adds an execution with made-up matches for some brokers."""
        found = {}
        for broker in sorted(brokers):
            count = self.random.randint(1, 3)
            observations = self._observations(count)
            found[broker] = observations, self._matches(count)
        self.store(channel, partition, found)

    def notify(self, channel: str, broker: str, subscriptions: Collection[str]) -> None:
        """Adds an execution of partition 0 in which one observation is for some subscriptions."""
        record = {"rows": [0], "subscriptions": list(subscriptions), "left": False}
        matches = pa.Table.from_pylist([record], schema=MATCHES_SCHEMA)
        self.store(channel, 0, {broker: (self._observations(1), matches)})

    def store(
        self, channel: str, partition: int, found: Mapping[str, tuple[pa.Table, pa.Table]]
    ) -> None:
        """Adds an execution with the observations and matches of some brokers."""
        log = self.executions[channel][partition]
        execution = Execution(len(log) + 1)
        for broker, (observations, matches) in found.items():
            execution.shares[broker] = to_ipc(observations), to_ipc(matches)
            key = f"{channel}/{broker}/{partition}/{execution.number}"
            numbers = observations.column("number").to_pylist()
            _, rows, ids = pairs_of(matches)
            due = self.due.setdefault((channel, broker), defaultdict(list))[partition]
            due += [
                (f"{key}/{place}", subscription, numbers[row])
                for place, (row, subscription) in enumerate(
                    zip(rows.tolist(), ids.to_pylist(), strict=True)
                )
            ]
        log.append(execution)
        self.changed.set()
        self.changed = asyncio.Event()

    def _observations(self, count: int) -> pa.Table:
        numbers = list(range(self._numbers, self._numbers + count))
        self._numbers += count
        values = {"latitude": [0.0] * count, "longitude": [0.0] * count, "time": [0] * count}
        arrays = {name: pa.array(column) for name, column in values.items()}
        schema = _DATASET.observation_schema
        arrays["number"] = pa.array(numbers)
        return pa.table(
            [arrays[name].cast(schema.field(name).type) for name in schema.names], schema
        )

    def _matches(self, count: int) -> pa.Table:
        records = []
        ids_max = 4 if self.random.random() < 0.95 else 60
        for _ in range(self.random.randint(1, 2)):
            rows = sorted(self.random.sample(range(count), self.random.randint(1, count)))
            ids = [f"s{self.random.randrange(100)}" for _ in range(self.random.randint(1, ids_max))]
            if self.allows("poison") and self.random.random() < 0.04:
                ids[0] = f"poison{self.random.randrange(100)}"
            records.append({"rows": rows, "subscriptions": ids, "left": False})
        return pa.Table.from_pylist(records, schema=MATCHES_SCHEMA)

    def upsert(
        self,
        table: Table,
        rows: list[dict[str, Any]],
        producer: str,
        batch: int,
        caller: str,
        *,
        unchanged_since: int | None = None,
    ) -> tuple[int, int]:
        """Stores versions; how many rows were known, and the number of their commit.

        Raises:
            BatchConflict: another batch has this number.
            Conflict: a row was changed since.
        """
        known = self.batches.get((table.name, producer, batch))
        if known is not None and not (self.allows("cleaning") and now() - known[1] > CLEANED_S):
            if known[0] != rows:
                raise BatchConflict("another batch has this number")
            return len(rows), known[2]
        keys = [tuple(row[name] for name in table.key_columns) for row in rows]
        since = {key: self.changed_at.get((table.name, key), 0) for key in keys}
        if unchanged_since is not None and max(since.values()) > unchanged_since:
            raise Conflict("a row was changed since")
        self.commits += 1
        self.batches[table.name, producer, batch] = rows, now(), self.commits
        for key, row in zip(keys, rows, strict=True):
            self.changed_at[table.name, key] = self.commits
            if row.pop(DELETED):
                self.rows[table.name].pop(key, None)
                continue
            before = self.rows[table.name].get(key, {})
            self.rows[table.name][key] = row
            if TOKEN in row and any(row[name] != before.get(name) for name in (TOKEN, PROGRESS)):
                self.on_position(caller, row[READER].split("/")[1], row)
        return 0, self.commits


class MemoryClient(AsyncBrokers, AsyncChannels, AsyncTables):
    """A client whose calls of nodes reach a `Journal`.

    Attributes:
        name: of the worker, or "operator".
        resumed: set while the process of the client is not paused.
    """

    def __init__(self, journal: Journal, name: str) -> None:
        self.name = name
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.is_dead = False
        self._journal = journal
        self._tables: dict[str, Table] = {}
        self._channels: dict[str, Channel] = {}
        self._schemas = {}
        self._group_commit = GroupCommit(self._send_group)
        self._router: Any = SimpleNamespace(ingest=self._ingest)
        clock = BackoffClock(now, _real_sleep, journal.random.random)
        self._caller: Any = SimpleNamespace(backoff=lambda: Backoff(clock, patience_s=60.0))

    async def _reach(self) -> None:
        """Waits as long as a call takes.

        Raises:
            Unavailable: the cluster does not answer.
        """
        journal = self._journal
        await asyncio.sleep(journal.random.expovariate(100.0))
        await self.alive()
        if journal.allows("cluster"):
            if now() < journal.down_until:
                await asyncio.sleep(journal.random.uniform(0.0, 4.0))
                raise Unavailable("no node answers")
            if journal.random.random() < 0.01:
                raise Unavailable("the call is lost")

    async def alive(self) -> None:
        """Waits while the process is paused; for ever once it has crashed.

        A process that is paused runs no timers: what is cancelled meanwhile ends when it goes on.
        """
        if self.is_dead:
            await _real_sleep(1e9)
        cancelled = None
        while not self.resumed.is_set():
            try:
                await self.resumed.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _lose(self) -> None:
        journal = self._journal
        if journal.allows("cluster") and journal.random.random() < 0.02:
            raise Unavailable("the answer is lost")

    def _lose_release(self, rows: pa.Table) -> None:
        """Loses some changes by which a worker gives a pair up."""
        is_release = WORKER in rows.column_names and not rows.column(WORKER)[0].as_py()
        may_fail = self.name != "operator" and self._journal.allows("cluster")
        if is_release and may_fail and self._journal.random.random() < 0.3:
            raise Unavailable("the release is lost")

    async def _list(self, name: str = "") -> Any:
        await self._reach()
        return SimpleNamespace(
            tables_json=[one.to_json() for one in self._journal.tables.values()],
            channels_json=[one.to_json() for one in self._journal.channels.values()],
        )

    async def _create(self, schema: Any) -> str:
        await self._reach()
        if schema.name in self._journal.tables:
            raise existing_dataset(self._journal.tables[schema.name], same=True)
        self._journal.create(schema)
        return str(schema.to_json())

    async def _ingest(
        self,
        table: Table,
        rows: pa.Table,
        *,
        partitions: npt.NDArray[np.int32],
        producer: str,
        batch: int,
        is_named: bool = False,
        unchanged_since: Cursor | None = None,
    ) -> list[storage_pb2.IngestReply]:
        """Stores rows; what is sent arrives, also if the caller does not wait for it."""
        bound = None if unchanged_since is None else max(unchanged_since.values(), default=0)
        sent = self._store_rows(
            table, rows, partitions.tolist(), producer=producer, batch=batch, bound=bound
        )
        task = asyncio.create_task(sent)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(task)

    async def _store_rows(
        self,
        table: Table,
        rows: pa.Table,
        places: list[int],
        *,
        producer: str,
        batch: int,
        bound: int | None,
    ) -> list[storage_pb2.IngestReply]:
        await self._reach()
        if self._journal.allows("away") and self._journal.away() in places:
            raise Unavailable("a partition is away")
        self._lose_release(rows)
        count, journal = rows.num_rows, self._journal
        known, commit = journal.upsert(
            table, rows.to_pylist(), producer, batch, self.name, unchanged_since=bound
        )
        reached = cursor_to_pb(Cursor(dict.fromkeys(places, commit)))
        self._lose()
        return [storage_pb2.IngestReply(rows=count, duplicate_rows=known, reached=reached)]

    async def _read_versions(
        self,
        table: Table | Schema,
        request: storage_pb2.ReadTableRequest,
        *,
        until: Cursor | None,
        keys: pa.Table | None = None,
    ) -> Any:
        assert isinstance(table, Table), "workers read tables"
        await self._reach()
        stored = self._journal.rows[table.name]
        if request.keys:
            keys = from_ipc(request.keys, table.key_schema).to_pylist()
            wanted = [tuple(key[name] for name in table.key_columns) for key in keys]
            chosen = [stored[key] | {DELETED: False} for key in wanted if key in stored]
        else:
            chosen = [row | {DELETED: False} for row in stored.values()]
        rows = pa.Table.from_pylist(chosen, schema=table.observation_schema)
        reached = set(table.placed)
        if self._journal.allows("away"):
            asked = set(partitions_of(table, hashes_of(table, rows)).tolist())
            reached.discard(self._journal.away())
            if asked - reached and not request.partial:
                raise Unavailable("a partition is away")
            here = np.isin(partitions_of(table, hashes_of(table, rows)), [*reached])
            rows = rows.filter(pa.array(here))
        return galileo.client.TableRows(rows, Cursor(dict.fromkeys(reached, self._journal.commits)))

    async def _follow(
        self, channel: Channel, broker: str, after: Cursor, *, wait_s: float, bytes_max: int
    ) -> list[channels_pb2.FollowPart]:
        deadline = now() + wait_s
        while True:
            await self._reach()
            changed = self._journal.changed
            parts = list(self._parts(channel.name, broker, after))
            if parts or now() >= deadline:
                self._lose()
                return parts
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await changed.wait()

    def _parts(self, channel: str, broker: str, after: Cursor) -> Any:
        most = self._journal.random.randint(1, 6)
        for partition, log in self._journal.executions[channel].items():
            dropped = self._journal.dropped.get((channel, partition), 0)
            if after[partition] < dropped:
                gone = Cursor({partition: dropped})
                after = after.join(gone)
                gone_pb = cursor_to_pb(gone)
                yield channels_pb2.FollowPart(partition=partition, reached=gone_pb, gone=gone_pb)
            for execution in log[after[partition] : after[partition] + most]:
                reached = cursor_to_pb(Cursor({partition: execution.number}))
                share = execution.shares.get(broker)
                if share is None:
                    yield channels_pb2.FollowPart(partition=partition, reached=reached)
                else:
                    yield channels_pb2.FollowPart(
                        partition=partition,
                        execution=execution.number,
                        observations=share[0],
                        matches=share[1],
                        reached=reached,
                    )


@dataclass(slots=True, eq=False)
class Ledger:
    """What the endpoint of a broker of a channel has accepted."""

    accepted: list[tuple[str, str, int]] = field(default_factory=list)
    payloads: dict[str, tuple[str, int]] = field(default_factory=dict)
    chunks: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    positions: list[tuple[float, Cursor, dict[int, list[int]]]] = field(default_factory=list)
    down_until: float = 0.0
    denied_until: float = 0.0

    def receive(self, chunk: Chunk, journal: Journal) -> None:
        """Judges what has arrived, whatever the answer: its key, and whether it is old."""
        pairs = _pairs(chunk.notifications)
        same = self.chunks.setdefault(chunk.key, pairs) == pairs
        journal.note(same, f"{chunk.key} was the key of other notifications")
        journal.note(not self._is_old(chunk), f"{chunk.key} was sent long after it was settled")

    def _is_old(self, chunk: Chunk) -> bool:
        """Whether all positions that were stored lately are past a chunk."""
        partition, execution = chunk.notifications.partition, chunk.notifications.execution
        stop = chunk.offset + len(chunk.notifications)
        for stored_at, cursor, progress in reversed(self.positions):
            if cursor[partition] < execution and progress.get(partition, []) < [execution, stop]:
                return False
            if now() - stored_at > OLD_S:
                return True
        return False

    def take(self, chunk: Chunk, journal: Journal) -> None:
        for number, (subscription, observation) in enumerate(_pairs(chunk.notifications)):
            key = chunk.key_of(number)
            payload = subscription, observation
            known = self.payloads.setdefault(key, payload)
            journal.note(known == payload, f"{key} had another payload before")
            self.accepted.append((key, *payload))


class FlakyEndpoint:
    """An endpoint that is slow, away, refuses poison, or denies everything for a while."""

    pairs_max = PAIRS_MAX

    def __init__(self, client: MemoryClient, journal: Journal, ledgers: Ledgers) -> None:
        self._client = client
        self._journal = journal
        self._ledgers = ledgers

    async def deliver(self, chunk: Chunk) -> None:
        journal, ledger = self._journal, self._ledgers[chunk.channel, chunk.broker]
        if not self._client.resumed.is_set():  # A process that is stopped sends nothing.
            await self._client.alive()
            raise DeliveryError("the connection was lost")
        await _real_sleep(journal.random.expovariate(20.0))
        if self._client.is_dead:
            await self._client.alive()
        ledger.receive(chunk, journal)
        if journal.allows("endpoints"):
            if now() < ledger.denied_until:
                raise DisabledError("401")
            if now() < ledger.down_until or journal.random.random() < 0.05:
                raise DeliveryError("503", journal.random.choice([0.0, 0.0, 3.0]))
        if any(name.startswith("poison") for name, _ in _pairs(chunk.notifications)):
            raise RefusedError("422")
        ledger.take(chunk, journal)
        if journal.allows("endpoints") and journal.random.random() < 0.05:
            raise DeliveryError("the answer is lost")
        await self._client.alive()

    async def close(self) -> None:
        pass


Ledgers = dict[tuple[str, str], Ledger]


def now() -> float:
    """Simulated seconds."""
    return asyncio.get_running_loop().time()


def _pairs(notifications: Notifications) -> list[tuple[str, int]]:
    rows = notifications.to_arrow()
    names, numbers = (rows.column(name).to_pylist() for name in ("subscription", "number"))
    return list(zip(names, numbers, strict=True))


class DeliveryWorld:
    """Two channels, three brokers, one to three workers at a time.

    Args:
        seed: of everything that is random.
        loop: in which it runs.
        without: kinds of faults that do not happen.
    """

    def __init__(self, seed: int, *, loop: SimulatedLoop, without: Collection[str] = ()) -> None:
        self.journal = Journal(seed, without)
        self.random = self.journal.random
        self.counters = Counter[str]()
        self._ledgers: Ledgers = defaultdict(Ledger)
        self._workers: list[tuple[MemoryClient, asyncio.Task[None]]] = []
        self._started: dict[str, Worker] = {}
        self._loop = loop
        self._operator = MemoryClient(self.journal, "operator")
        self._ends: dict[tuple[str, str], Cursor] = {}
        self.journal.on_position = self._check_position

    async def run(self) -> Counter[str]:
        journal = self.journal
        brokers = ["a", "b", "c"]
        channels = ["one", "two"]
        for channel in channels:
            journal.add_channel(channel, self.random.randint(1, 3))
        journal.is_calm = True
        for broker in brokers:
            chosen = [] if broker != "c" else ["one"]
            await self._operator.create_broker(Broker(broker, Into("sunk"), channels=chosen))
        journal.is_calm = False
        for _ in range(self.random.randint(1, 3)):
            self._start()
        while now() < FAULTS_UNTIL_S:
            await asyncio.sleep(self.random.expovariate(1.2))
            channel = self.random.choice(channels)
            some = [name for name in brokers[: 3 if channel == "one" else 2] if self._likely(0.6)]
            partition = self.random.choice(list(journal.executions[channel]))
            journal.execute(channel, partition, some)
            await self._trouble()
        await self._drain()
        self._judge()
        await self._stop()
        return self.counters

    def _likely(self, chance: float) -> bool:
        return self.random.random() < chance

    def _start(self) -> None:
        client = MemoryClient(self.journal, "")
        clock = SimulatedClock(self._loop)
        worker = Worker(client, WorkerOptions(), clock=clock)  # type: ignore[arg-type]
        client.name = worker.name
        worker.random_state = Random(self.random.random())
        self.counters["workers"] += 1
        self._started[worker.name] = worker

        async def opened(sink: Any) -> FlakyEndpoint:
            await client.alive()
            return FlakyEndpoint(client, self.journal, self._ledgers)

        worker.open_endpoint = opened  # type: ignore[method-assign]
        context = copy_context()
        context.run(_CLIENT.set, client)
        task = asyncio.create_task(worker.run(), context=context)
        self._workers.append((client, task))

    def _raise_violations(self) -> None:
        demand(not self.journal.violations, "; ".join(self.journal.violations[:3]))

    async def _trouble(self) -> None:
        self._raise_violations()
        journal, ledgers = self.journal, list(self._ledgers.values())
        if journal.allows("crashes") and self._likely(0.08):
            await self._crash()
        if journal.allows("pauses") and self._likely(0.08) and self._workers:
            client, _ = self.random.choice(self._workers)
            client.resumed.clear()
            length_s = self.random.choice([2.0, 15.0, 40.0])
            self._loop.call_later(length_s, client.resumed.set)
            self.counters["pauses"] += 1
        if journal.allows("cluster") and self._likely(0.03):
            journal.down_until = now() + self.random.uniform(1.0, 12.0)
            self.counters["outages"] += 1
        if journal.allows("away") and self._likely(0.03):
            journal.away_partition = self.random.choice([*range(4), SYSTEM])
            journal.away_until = now() + self.random.uniform(1.0, 25.0)
            self.counters["partitions away"] += 1
        if ledgers and journal.allows("endpoints"):
            ledger = self.random.choice(ledgers)
            if self._likely(0.1):
                ledger.down_until = now() + self.random.uniform(1.0, 20.0)
                self.counters["endpoints down"] += 1
            if self._likely(0.03):
                ledger.denied_until = now() + self.random.uniform(1.0, 20.0)
                self.counters["denials"] += 1
        if journal.allows("operator") and self._likely(0.08):
            with contextlib.suppress(Unavailable):
                await self._operate()

    async def _crash(self) -> None:
        if self._workers:
            client, task = self._workers.pop(self.random.randrange(len(self._workers)))
            client.is_dead = True  # Its last calls do not arrive.
            client.resumed.set()
            task.cancel()
            self.counters["crashes"] += 1
        if not self._workers or self._likely(0.7):
            self._start()

    async def _operate(self) -> None:
        """Replays a broker, or resumes those that were paused."""
        if self._likely(0.3):
            channel, broker = self.random.choice([("one", "a"), ("one", "b"), ("two", "a")])
            token = ""
            if self._likely(0.5):
                token = await self._operator.position(channel, broker)
            await self._operator.acknowledge(channel, broker, token)
            self.counters["replays"] += 1
        else:
            await self._resume()

    async def _resume(self) -> None:
        for broker in await self._operator.brokers():
            if broker.paused:
                await self._operator.resume_broker(broker.name)
                self.counters["resumed"] += 1

    async def _drain(self) -> None:
        """No faults any more: everything has to be delivered within a bound."""
        self.journal.is_calm = True
        for client, _ in self._workers:
            client.resumed.set()
        deadline = now() + DRAIN_MAX_S
        while not self._is_drained():
            self._raise_violations()
            demand(now() < deadline, f"not everything was delivered: {self._left()}")
            await asyncio.sleep(5.0)
            await self._resume()

    async def _stop(self) -> None:
        """Stops the workers while they push: they hold nothing of it any more."""
        for name in self.journal.channels:
            self.journal.execute(name, 0, ["a", "b"])
        await asyncio.sleep(self.random.uniform(0.0, 0.2))
        pairs = [
            (self._started[client.name].name, pair)
            for client, _ in self._workers
            for pair in self._started[client.name]._running
        ]
        for _, task in self._workers:
            task.cancel()
        await asyncio.gather(*(task for _, task in self._workers), return_exceptions=True)
        for name, pair in pairs:
            reader = reader_of(pair.channel, pair.broker.name)
            row = self.journal.rows[POSITIONS.name].get((reader,), {})
            demand(row.get(WORKER) != name, f"a worker that has stopped holds {row}")

    def _settled(self, channel: str, broker: str) -> set[str]:
        """The keys that were accepted, or are dead letters."""
        letters = self.journal.rows[f"{channel}.dead-letters"].values()
        keys = {row["id"] for row in letters if row[BROKER] == broker}
        return keys | {key for key, *_ in self._ledgers[channel, broker].accepted}

    def _left(self) -> dict[tuple[str, str], int]:
        return {
            pair: sum(len(due) for due in partitions.values()) - len(self._settled(*pair))
            for pair, partitions in self.journal.due.items()
        }

    def _is_drained(self) -> bool:
        return not any(self._left().values()) and all(
            self._position(*pair).covers(self._end(pair[0])) for pair in self.journal.due
        )

    def _position(self, channel: str, broker: str) -> Cursor:
        reader = reader_of(self.journal.channels[channel], broker)
        row = self.journal.rows[POSITIONS.name].get((reader,))
        return self._cursor(channel, broker, (row or {}).get(TOKEN) or "")

    def _cursor(self, channel: str, broker: str, token: str) -> Cursor:
        reader = reader_of(self.journal.channels[channel], broker)
        return tokens.decode(token, ccq_id=reader) if token else EMPTY_CURSOR

    def _end(self, channel: str) -> Cursor:
        """Past the last execution of each partition that has matches."""
        ends = {
            partition: max((one.number for one in log if one.shares), default=0)
            for partition, log in self.journal.executions[channel].items()
        }
        return Cursor({partition: end for partition, end in ends.items() if end})

    def _check_position(self, caller: str, channel: str, row: dict[str, Any]) -> None:
        """A worker never stores a position past what is settled, nor an earlier one."""
        broker = row[READER].rpartition("/")[2]
        cursor = self._cursor(channel, broker, row[TOKEN] or "")
        progress = {int(p): done for p, done in json.loads(row[PROGRESS] or "{}").items()}
        self._ledgers[channel, broker].positions.append((now(), cursor, progress))
        before = self._ends.get((channel, broker), EMPTY_CURSOR)
        self._ends[channel, broker] = cursor
        if caller == "operator":
            return
        note = self.journal.note
        note(cursor.covers(before), f"{caller} has moved {channel}/{broker} back")
        settled = self._settled(channel, broker)
        for partition, due in self.journal.due.get((channel, broker), {}).items():
            for key, *_ in due:
                execution, place = map(int, key.split("/")[3:])
                done = progress.get(partition, [0, 0])
                if execution <= cursor[partition] or (execution == done[0] and place < done[1]):
                    note(key in settled, f"{caller} has stored a position past {key}")
        self.counters["positions"] += 1
        self.counters["positions in executions"] += bool(progress)

    def _judge(self) -> None:
        self._raise_violations()
        for (channel, broker), partitions in self.journal.due.items():
            ledger = self._ledgers[channel, broker]
            known = {key: rest for due in partitions.values() for key, *rest in due}
            for key, subscription, number in ledger.accepted:
                demand(known.get(key) == [subscription, number], f"{key} is not of this broker")
            firsts = list(dict.fromkeys(key for key, *_ in ledger.accepted))
            for partition, due in partitions.items():
                order = [key for key in firsts if int(key.split("/")[2]) == partition]
                wanted = [key for key, *_ in due if key in ledger.payloads]
                demand(order == wanted, f"{channel}/{broker}/{partition} is out of order")
            letters = self.journal.rows[f"{channel}.dead-letters"].values()
            for row in letters:
                name = json.loads(row["notification"])["subscription"]
                demand(name.startswith("poison"), f"{row['id']} is no poison")
            self.counters["accepted"] += len(ledger.accepted)
            self.counters["repeated"] += len(ledger.accepted) - len(ledger.payloads)
            self.counters["dead letters"] += len(letters)


async def _sleep(delay_s: float) -> None:
    """In place of `asyncio.sleep`: what a process has waited for comes when it is not stopped."""
    await _real_sleep(delay_s)
    if (client := _CLIENT.get(None)) is not None:
        await client.alive()


async def at_once(call: Callable[..., Any], *arguments: Any) -> Any:
    """In place of a thread, which real time would pass in."""
    return call(*arguments)


def run_deliveries(
    seed: int,
    variant: str = "production",
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
) -> Counter[str]:
    """Plays one world; raises Violation."""

    delivery = DELIVERY_MUTANTS.get(variant, PairDelivery)
    names = map("w{}".format, itertools.count())  # Those of production are of host and chance.
    with (
        patch.object(asyncio, "sleep", _sleep),
        patch.object(async_channels, "in_thread", at_once),
        patch.object(stored_rows, "in_thread", at_once),
        patch.object(galileo.worker.worker, "_fresh_name", lambda: next(names)),
        patch.object(galileo.worker.delivery, "in_thread", at_once),
        patch.object(galileo.worker.worker, "PairDelivery", delivery),
    ):
        counters = run_simulated(
            seed, lambda loop: DeliveryWorld(seed, loop=loop, without=without).run()
        )
    if trace is not None:
        trace(f"{seed}: {dict(counters)}")
    return counters
