"""Random histories of producers and readers while the ranges of a cluster are cut anew.

The nodes, their journals and the router of the client are the real ones. The network between them
loses requests and answers, and brings some requests a second time, much later. Nodes learn of each
topology at different moments and restart, and producers give up amid a batch and send it again
later, also when it was stored long before. `CopiesHistory` is the same with copies, of which nodes
crash, lose their directories and are cut off.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from node_cluster import make_observations
from replica_nodes import await_whole

from galileo.client.routing import Router
from galileo.dht import topology_changes
from galileo.dht.topology import RangeMap, Topology
from galileo.errors import GalileoError, TransientError, Unavailable, UnknownDataset
from galileo.node.peers import CommitAnswer
from galileo.node.storage_node import StorageNode
from galileo.packing.arrow_streams import read_stream
from galileo.query import parse
from galileo.storage.journal import PartitionJournal
from galileo.wire.caller import CallOptions
from galileo.wire.v1 import cluster_pb2, storage_pb2

ROWS = 24
NAMED, FRESH, BATCHES = 2, 3, 4
CUTS = 3
LOST = 0.12
"""The share of requests, and of answers, that the network loses."""
LATE = 0.08
"""The share of requests that come again, later."""
PAUSE_S = 0.002
DEADLINE_S, LOOK_S = 5.0, 0.05
"""Of a call, and between two looks at it; a node that is closed amid one may never answer."""
WEST, EAST = 0, 1
MAPS: tuple[RangeMap, ...] = (
    (("", WEST), ("8", EAST)),
    (("", EAST),),
    (("", WEST), ("d", EAST), ("s", WEST)),
    (("", EAST), ("8", WEST), ("u", EAST)),
    (("", WEST),),
)


class Violation(AssertionError):
    """What a history must never show."""


def named_rows(count: int, name: str) -> pa.Table:
    """A table of which each row names its station."""
    table = make_observations(count, zlib.crc32(name.encode()))
    place = table.schema.get_field_index("station")
    stations = pa.array([f"{name}-{number}" for number in range(count)])
    return table.set_column(place, table.schema.field("station"), stations)


@dataclass
class History:
    """One history.

    Args:
        cluster: nodes in two groups, with the dataset "nam".
        random: decides everything but the threads of the nodes.

    Attributes:
        late_s: how much later requests come again at most.
    """

    late_s: ClassVar[float] = 0.2

    cluster: Any
    random: random.Random
    acknowledged: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    duplicates: int = 0
    late: list[asyncio.Task[Any]] = field(default_factory=list)

    async def play(self) -> None:
        """Plays the history to its end and judges it."""
        self.topology = self.cluster.topology
        self.names = sorted(self.topology.by_name)
        self._is_over = asyncio.Event()
        named = [self._produce(f"named-{number}", is_fresh=False) for number in range(NAMED)]
        fresh = [self._produce(f"fresh-{number}", is_fresh=True) for number in range(FRESH)]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read())
                group.create_task(self._hurt())
                await asyncio.gather(*named, *fresh, self._cut())
                self._is_over.set()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        await asyncio.gather(*self.late, return_exceptions=True)
        await self._settle()
        self._judge()

    async def _settle(self) -> None:
        """Returns when nothing goes on any more."""

    def _judge(self) -> None:
        stored = Counter(self._stored_stations())
        twice = [station for station, count in stored.items() if count > 1]
        lost = self.acknowledged - stored.keys()
        if twice or lost:
            raise Violation(f"{len(twice)} rows stored twice, {len(lost)} lost")
        if stored.keys() - self.sent:
            raise Violation("rows that no producer has sent")

    def _stored_stations(self) -> Iterator[str]:
        for journal in self._journals():
            for sequence in range(1, journal.last_sequence + 1):
                yield from journal.read(sequence).column("station").to_pylist()

    def _journals(self) -> Iterator[PartitionJournal]:
        """The log of each partition."""
        for node in self.cluster.nodes:
            for partition, journal in node.catalog.shard("nam").journals.items():
                assert partition in node.partitions
                yield journal

    # --- parties -------------------------------------------------------------------------------

    async def _produce(self, producer: str, *, is_fresh: bool) -> None:
        """Sends batches; a named producer gives up now and then, and repeats some of them."""
        router = self._router()
        tables = [named_rows(ROWS, f"{producer}-{number}") for number in range(BATCHES)]
        for number, table in enumerate(tables):
            await self._pause(20)
            stations = set(table.column("station").to_pylist())
            self.sent |= stations
            while not await self._send(router, table, producer, number, is_fresh=is_fresh):
                router = self._router()
            self.acknowledged |= stations
            if not is_fresh and self.random.random() < 0.5:
                again = self.random.randrange(number + 1)
                await self._send(self._router(), tables[again], producer, again, is_fresh=False)

    async def _send(
        self, router: Router, table: pa.Table, producer: str, number: int, *, is_fresh: bool
    ) -> bool:
        """Whether a batch was acknowledged."""
        schema = self.cluster.schema
        call = router.ingest(schema, table, producer=producer, batch=number, is_new=is_fresh)
        limit_s = None if is_fresh or self.random.random() < 0.5 else self.random.uniform(0, 0.03)
        try:
            async with asyncio.timeout(limit_s):
                replies = await call
        except (TimeoutError, TransientError):
            return False
        if sum(reply.rows for reply in replies) != table.num_rows:
            raise Violation("an acknowledgement of too few rows")
        self.duplicates += sum(reply.duplicate_rows for reply in replies)
        return True

    async def _read(self) -> None:
        """Asks nodes; an answer has what was acknowledged before the question."""
        while not self._is_over.is_set():
            await self._pause(10)
            node, before = self.random.choice(self.names), set(self.acknowledged)
            if node not in self.cluster.network.nodes or node in self.cluster.network.away:
                continue
            with suppress(GalileoError, RuntimeError, KeyError):  # A node was closed meanwhile.
                answer = await self.cluster.ask(at=node)
                rows = await self.cluster.read(answer, at=node)
                lacking = before.difference(rows.column("station").to_pylist())
                if lacking and not answer.missing:
                    raise Violation(f"an answer without {len(lacking)} acknowledged rows")

    async def _hurt(self) -> None:
        """Restarts nodes, with the topology that each has."""
        while not self._is_over.is_set():
            await self._pause(60)
            name = self.random.choice(self.names)
            network = self.cluster.network
            network.away.add(name)
            self.cluster.topology = network.nodes[name].topology
            await self.cluster.restart(name)
            network.away.discard(name)

    async def _cut(self) -> None:
        """Cuts the ranges a few times; each node learns of each step when it happens to."""
        for _ in range(CUTS):
            await self._pause(40)
            present = self.topology.ranges
            ranges = self.random.choice([one for one in MAPS if one != present])
            await self._change(topology_changes.propose_ranges(self.topology, ranges))
            await self._spread(self.topology)
            version = self.topology.version
            await self._change(
                topology_changes.activate_ranges(self.topology, ranges, known_version=version)
            )
        await self._spread(self.topology)

    async def _change(self, topology: Topology) -> None:
        self.topology = replace(topology, version=self.topology.version + 1)
        self._spreading = asyncio.create_task(self._spread(self.topology))

    async def _spread(self, topology: Topology) -> None:
        for name in self.random.sample(self.names, len(self.names)):
            await self._pause(50)
            while True:
                node = self.cluster.network.nodes.get(name)
                if node is not None and name not in self.cluster.network.away:
                    if node.topology.version < topology.version:
                        node.live.replace_nodes(topology)
                    break
                await asyncio.sleep(PAUSE_S)

    async def _pause(self, times: int) -> None:
        await asyncio.sleep(PAUSE_S * self.random.random() * times)

    # --- the client's side of the network ----------------------------------------------------

    def _router(self) -> Router:
        return Router(_Caller(self))


class CopiesHistory(History):
    """A history of a `replica_nodes.World`."""

    late_s = 1.0
    spare: set[str]
    """Nodes that began on an empty directory, and do not know the present topology yet."""

    async def play(self) -> None:
        self.spare, gossip = set(), asyncio.create_task(self._spread_leaders())
        try:
            await super().play()
        finally:
            gossip.cancel()
            await asyncio.gather(gossip, *self.late, return_exceptions=True)

    async def _spread_leaders(self) -> None:
        while True:
            self.cluster.spread_leaders()
            await asyncio.sleep(0.02)

    async def _settle(self) -> None:
        await self.cluster.settle()

    def _journals(self) -> Iterator[PartitionJournal]:
        for partition in self.topology.partitions:
            hosts = self.cluster.group_of(partition)
            if len({tuple(self.cluster.batches(host, partition)) for host in hosts}) > 1:
                raise Violation("replicas differ")
            journal = hosts[0].node.catalog.shard("nam").journals.get(partition)
            if journal is not None:
                yield journal

    async def _read(self) -> None:
        """Asks nodes; a complete answer has what was acknowledged before the question."""
        while not self._is_over.is_set():
            await self._pause(10)
            name, before = self.random.choice(self.names), set(self.acknowledged)
            host = self.cluster.hosts.get(name)
            if host is None or name in self.spare:
                continue
            with suppress(GalileoError, RuntimeError):
                query = parse("", self.cluster.schema)
                tables = [table async for table in host.node.selection.select(query)]
                stations = [table.column("station").to_pylist() for table in tables]
                lacking = before.difference(*stations)
                if lacking:
                    raise Violation(f"an answer without {len(lacking)} acknowledged rows")

    async def _hurt(self) -> None:
        """One fault after the other; a directory is lost while the others have everything."""
        world = self.cluster
        while not self._is_over.is_set():
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
            name, pause_s = self.random.choice(self.names), self.random.uniform(0.05, 0.9)
            fault = self.random.choice(("crash", "crash", "cut", "cut", "disk"))
            if fault == "disk":
                world.is_calm = True
                await await_whole(world)
                world.is_calm = False
            if fault == "cut":
                world.cut.add(name)
                await asyncio.sleep(pause_s)
                world.cut.clear()
                continue
            if fault == "disk":
                self.spare.add(name)
            await world.crash(name, is_lost=fault == "disk")
            await asyncio.sleep(pause_s)
            world.start(name)
            if fault == "disk":
                self.late.append(asyncio.create_task(self._learn(name)))

    async def _learn(self, name: str) -> None:
        """Has a node on an empty directory learn the topology a little later."""
        await asyncio.sleep(self.random.random())
        host = self.cluster.hosts.get(name)
        if host is not None:
            if host.live.current.version < self.topology.version:
                host.live.replace_nodes(self.topology)
            self.spare.discard(name)


@dataclass
class _Caller:
    """Stands for `galileo.wire.caller.Caller`."""

    history: History
    options: CallOptions = field(default_factory=CallOptions)
    avoided: set[str] = field(default_factory=set)

    def backoff(self, patience_s: float | None = None) -> Any:
        return _Backoff()

    async def call(self, attempt: Callable[[Any], Awaitable[Any]], **_: Any) -> Any:
        return await self.call_owner("", attempt)

    async def call_owner(
        self, owner: str, attempt: Callable[[Any], Awaitable[Any]], **_: Any
    ) -> Any:
        names = {node.address: node.name for node in self.history.cluster.topology.nodes}
        name = names.get(owner)
        while True:
            name = name or self.history.random.choice(self.history.names)
            try:
                return await attempt(_Connection(self.history, name))
            except TransientError:
                await asyncio.sleep(PAUSE_S)
                name = None if self.history.random.random() < 0.3 else name


class _Backoff:
    left_s = 60.0

    async def after(self, error: GalileoError) -> None:
        await asyncio.sleep(PAUSE_S)


@dataclass
class _Connection:
    """Stands for `galileo.wire.caller.Connection`."""

    history: History
    name: str
    options: CallOptions = field(default_factory=CallOptions)

    async def unary(self, stub: Any, method: str, request: Any, **_: Any) -> Any:
        history, network = self.history, self.history.cluster.network
        await history._pause(3)
        if history.random.random() < LOST or self.name in network.away:
            raise Unavailable("the request was lost")
        node = network.nodes.get(self.name)
        if node is None:
            raise Unavailable("the node restarts")
        if method == "Topology":
            return cluster_pb2.TopologyReply(topology_json=node.topology.to_json())
        head = storage_pb2.IngestRequest()
        head.CopyFrom(request.head)
        ingesting = _ingesting(node, head, request.observations)
        if history.random.random() < LATE:
            again = self._come_again(head, request.observations)
            history.late.append(asyncio.create_task(again))
        answer = await self._answer(node, ingesting)
        await history._pause(3)
        if history.random.random() < LOST:
            raise Unavailable("the answer was lost")
        return storage_pb2.IngestReply(
            rows=answer.rows,
            duplicate_rows=answer.duplicate_rows,
            forwarded_rows=answer.forwarded_rows,
        )

    async def _answer(
        self, node: StorageNode, ingesting: asyncio.Task[CommitAnswer]
    ) -> CommitAnswer:
        """What a node answers, unless it is closed amid the call."""
        nodes = self.history.cluster.network.nodes
        for _ in range(round(DEADLINE_S / LOOK_S)):
            done, _ = await asyncio.wait([ingesting], timeout=LOOK_S)
            if done or nodes.get(self.name) is not node:
                break
        if not ingesting.done():
            raise Unavailable("the node restarts")
        try:
            return ingesting.result()
        except (RuntimeError, UnknownDataset) as error:  # It began on an empty directory.
            raise Unavailable("the node restarts") from error

    async def _come_again(self, head: Any, observations: Any) -> None:
        """Brings a request a second time; its answer is not waited for."""
        await asyncio.sleep(self.history.late_s * self.history.random.random())
        node = self.history.cluster.network.nodes.get(self.name)
        if node is not None:
            with suppress(GalileoError):
                await self._answer(node, _ingesting(node, head, observations))


def _ingesting(node: StorageNode, head: Any, observations: Any) -> asyncio.Task[CommitAnswer]:
    """A node's work on a request, which goes on when no one waits for it."""
    task = asyncio.create_task(_ingest(node, head, observations))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _ingest(node: StorageNode, head: Any, observations: Any) -> CommitAnswer:
    await node.schema(head.dataset)
    return await node.ingest.ingest(
        head.dataset,
        read_stream(observations),
        producer=head.producer,
        batch=head.batch,
        range_epoch=head.range_epoch,
        first_epoch=head.first_epoch,
    )
