"""A node process: everything wired, served until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from galileo.ccq import events as ccq
from galileo.ccq.machine import Continuous
from galileo.ccq.options import ContinuousOptions
from galileo.clock import Clock, SystemClock
from galileo.config import Config, LimitsSection, StorageSection
from galileo.cursor import Cursor
from galileo.dht.membership import Membership, MembershipOptions
from galileo.dht.topology import Topology
from galileo.election.machine import ElectionOptions
from galileo.election.ranking import Suitability
from galileo.errors import ConfigError
from galileo.node.exploration import Exploration
from galileo.node.merging import MergingOptions
from galileo.node.retaining import RetainingOptions
from galileo.node.retention import Reader
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.rpc.cluster import ClusterServicer
from galileo.rpc.continuous import ContinuousServicer
from galileo.rpc.exploration import ExploreServicer
from galileo.rpc.explorers import GrpcExplorers
from galileo.rpc.peers import GrpcPeers
from galileo.rpc.query import QueryServicer
from galileo.rpc.storage import StorageServicer, add_storage
from galileo.server.continuous import ContinuousQueries
from galileo.server.driver import Driver
from galileo.server.evaluation import Evaluation
from galileo.server.mail import MailRoom
from galileo.server.spills import SpillDirectory
from galileo.server.usage import Usage
from galileo.server.work import ContinuousWork
from galileo.storage.merging import MergeOptions
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions
from galileo.wire.channel import server_options
from galileo.wire.pb import (
    cluster_pb2,
    cluster_pb2_grpc,
    continuous_pb2,
    continuous_pb2_grpc,
    query_pb2,
    query_pb2_grpc,
    storage_pb2,
)

USAGE_INTERVAL_S = 1.0
GRACE_S = 2.0
PARENT_CHECK_S = 1.0
RESERVED_PART = 4
"""Of its caches' budget at most a quarter has to be free where a node is to take one more CCQ."""
TOPOLOGY_KIND = "topology"
PLACEMENT = "placement"

log = logging.getLogger(__name__)


class NodeProcess:
    """One node, from its configuration to its open port."""

    def __init__(self, config: Config, *, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        name, topology = config.node.name, config.topology
        others = [node.name for node in topology.nodes if node.name != name]
        self._members = Membership(
            name,
            others,
            options=MembershipOptions(
                heartbeat_interval_s=config.membership.heartbeat_interval_s,
                dead_after_s=config.membership.dead_after_s,
            ),
        )
        self._peers = GrpcPeers(topology, is_dead=self._is_dead)
        self._store = Store.open(
            Path(config.node.directory),
            JournalOptions(
                segment_bytes_max=config.storage.segment_bytes_max,
                durability="none" if config.storage.durability == "none" else "fsync",
            ),
            wall=clock.wall,
        )
        _keep_placement(self._store, topology)
        self.node = StorageNode(
            name,
            topology,
            store=self._store,
            peers=self._peers,
            options=NodeOptions(
                batch_rows_max=config.limits.batch_rows_max,
                commits_waiting_max=config.limits.commits_waiting_max,
                merging=_merging(config.storage),
            ),
        )
        self._exploration = Exploration(self.node, peers=GrpcExplorers(self._peers))
        self.machine = self._make_machine()
        self.node.retain(self._readers, _retaining(config.storage, clock))
        self._evaluation = Evaluation(config)
        self._spills = SpillDirectory(Path(config.node.directory), schema=self.node.catalog.schema)
        work = self._make_work()
        self.driver = Driver(
            self.machine,
            self._members,
            store=self._store,
            clock=clock,
            work=work,
            own_news=self._own_news,
            drop_spills=self._spills.drop,
        )
        self.mail = MailRoom(
            self.node,
            self._peers,
            on_heartbeat=self.driver.heartbeat_arrived,
            on_message=lambda node, message: self.driver.feed(ccq.MessageArrived(node, message)),
            on_news=self._tell_sequences,
        )
        self.driver.mail = self.mail
        self._queries = ContinuousQueries(
            self.node,
            self.driver,
            work=work,
            peers=self._peers,
            clock=clock,
            limits=config.limits,
            warm=self._evaluation.warm,
        )
        self._usage = Usage(clock, cache_bytes_max=config.limits.cache_bytes_max)
        self._told: dict[str, Cursor] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, then lets calls finish for a moment and closes."""
        await self.driver.restore()
        server, healthy = await self._open()
        log.info("node %s serves at %s", self.node.name, self._config.listen)
        running = [
            asyncio.create_task(self.driver.run()),
            asyncio.create_task(self._measure()),
            asyncio.create_task(self._evaluation.keep(lambda: bool(self.machine.coordinated))),
        ]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([*running, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            await healthy.enter_graceful_shutdown()
            await server.stop(GRACE_S)
            for task in [*running, stopped]:
                task.cancel()
            await asyncio.gather(*running, stopped, return_exceptions=True)
            await self._peers.close()
            await self._evaluation.close()
            await self._exploration.close()
            await asyncio.to_thread(self._spills.close)
            await self.node.close()

    async def _open(self) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
        server = grpc.aio.server(options=server_options())
        healthy = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
        add_storage(StorageServicer(self.node), server)
        query_pb2_grpc.add_QueryServicer_to_server(QueryServicer(self.node), server)
        query_pb2_grpc.add_ExploreServicer_to_server(
            ExploreServicer(self.node, self._exploration), server
        )
        continuous_pb2_grpc.add_ContinuousServicer_to_server(
            ContinuousServicer(self._queries), server
        )
        cluster_pb2_grpc.add_ClusterServicer_to_server(
            ClusterServicer(
                self.node,
                peers=self._peers,
                mail=self.mail,
                own_status=self._status,
                drain=lambda is_on: self.driver.feed(ccq.DrainRequested(is_on)),
            ),
            server,
        )
        reflection.enable_server_reflection(_service_names(), server)
        try:
            server.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise ConfigError(
                f"expected a free port to listen on, got {self._config.listen}: {error}"
            ) from error
        await server.start()
        await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
        return server, healthy

    def _make_machine(self) -> Continuous:
        topology, limits = self._config.topology, self._config.limits
        return Continuous(
            self.node.name,
            options=ContinuousOptions(
                ordinal=topology.ordinals[self.node.name],
                groups=tuple(
                    tuple(member.name for member in group.nodes) for group in topology.groups
                ),
                cycle_timeout_s=self._config.evaluator.cycle_timeout_s,
                election=_election(limits),
                cache_bytes_max=limits.cache_bytes_max,
                spill_bytes_max=limits.spill_bytes_max,
                records_max=limits.ccqs_max,
                labels_max=limits.answer_labels_max,
            ),
        )

    def _make_work(self) -> ContinuousWork:
        return ContinuousWork(
            self.node,
            self._peers,
            evaluate=self._evaluation.evaluate,
            is_dead=self._is_dead,
            spills=self._spills,
        )

    def _readers(self, dataset: str) -> list[Reader] | None:
        """Whom retention must not pass; called from its thread."""
        records = self.machine.live_records(dataset, self._clock.monotonic())
        if records is None:
            return None
        return [Reader(record.ccq.id, record.retrieved) for record in records]

    def _is_dead(self, node: str) -> bool:
        return node in self._members.dead

    async def _status(self) -> cluster_pb2.NodeStatus:
        return self._usage.status(self.node, self.machine)

    async def _measure(self) -> None:
        while True:
            self.driver.feed(ccq.UsageMeasured(self._usage.measure(self.machine)))
            await asyncio.sleep(USAGE_INTERVAL_S)

    def _own_news(self) -> list[ccq.ContinuousEvent]:
        """The datasets in which this node has committed since it was last asked."""
        news: list[ccq.ContinuousEvent] = []
        for dataset, shard in self.node.catalog.shards.items():
            published = shard.published()
            if self._told.get(dataset) != published:
                self._told[dataset] = published
                self.node.view.hear_sequences(dataset, published)
                self.node.view.hear_event_clock(dataset, shard.event_clock())
                news.append(self._seen(dataset))
        return news

    def _tell_sequences(self, datasets: Iterable[str]) -> None:
        for dataset in datasets:
            self.driver.feed(self._seen(dataset))

    def _seen(self, dataset: str) -> ccq.SequencesSeen:
        view = self.node.view
        return ccq.SequencesSeen(dataset, view.sequences(dataset), view.event_clock(dataset))


def _keep_placement(store: Store, topology: Topology) -> None:
    """Remembers by which topology blocks were placed.

    Raises:
        ConfigError: it is another one now, which would look for them in the wrong places.
    """
    kept = store.load_records(TOPOLOGY_KIND).get(PLACEMENT)
    now = topology.placement_json.encode()
    if kept == now:
        return
    if kept is not None and store.schemas():
        raise ConfigError(
            "expected the [cluster] table by which this node's data was placed: the groups, their "
            "nodes with names, weights and ordinals, the ranges and partitions_per_group must not "
            f"change once there is data. It was {kept.decode()}, it is {now.decode()}"
        )
    store.save_record(TOPOLOGY_KIND, PLACEMENT, now)


def _merging(storage: StorageSection) -> MergingOptions | None:
    if not storage.merge:
        return None
    return MergingOptions(
        MergeOptions(bytes_min=storage.merge_bytes_min, bytes_max=storage.merge_bytes_max),
        bytes_per_s=storage.merge_bytes_per_s,
        interval_s=storage.merge_interval_s,
    )


def _election(limits: LimitsSection) -> ElectionOptions:
    """A node whose caches may only be small keeps only a part of that free to be suitable."""
    usual = Suitability()
    reserve = min(usual.memory_reserve_bytes, limits.cache_bytes_max // RESERVED_PART)
    return ElectionOptions(limits=replace(usual, memory_reserve_bytes=reserve))


def _retaining(storage: StorageSection, clock: Clock) -> RetainingOptions:
    return RetainingOptions(
        check_s=storage.retention_check_s,
        settle_s=storage.retention_settle_s,
        wall=clock.wall,
        monotonic=clock.monotonic,
    )


def serve(config: Config, *, parent: int = 0) -> None:
    """Runs a node until SIGTERM or SIGINT, or until `parent` (a process id) is gone."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    asyncio.run(_serve(config, parent=parent))


async def _serve(config: Config, *, parent: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    process = NodeProcess(config, clock=SystemClock())
    watching = loop.create_task(_watch_parent(parent, stop)) if parent else None
    try:
        await process.run(stop)
    finally:
        if watching is not None:
            watching.cancel()


async def _watch_parent(parent: int, stop: asyncio.Event) -> None:
    """A node of a local cluster does not outlive the process that started it."""
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(PARENT_CHECK_S)
    stop.set()


def _service_names() -> list[str]:
    files = (storage_pb2, query_pb2, continuous_pb2, cluster_pb2)
    names = [
        service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values()
    ]
    return [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]
