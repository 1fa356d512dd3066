"""The parts of a node, how they know each other, and how they start and stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from galileo.ccq import events as ccq
from galileo.ccq.machine import Continuous
from galileo.clock import Clock
from galileo.config import Config
from galileo.dht.membership import PeersChanged
from galileo.dht.node_states import RUN_BITS
from galileo.dht.topology_state import TopologyState
from galileo.errors import ConfigError
from galileo.histogram import LOOP_BOUNDS_S, DurationHistogram
from galileo.node.retention_plan import Hold
from galileo.node.storage_node import NodeCallbacks, StorageNode
from galileo.rpc.analytics import AnalyticsServicer
from galileo.rpc.channels import ChannelsServicer
from galileo.rpc.cluster import ClusterServicer
from galileo.rpc.continuous import ContinuousServicer
from galileo.rpc.internal import Internal, add_internal
from galileo.rpc.ownership import Ownership
from galileo.rpc.peers import GrpcPeers
from galileo.rpc.query import QueryServicer
from galileo.rpc.rate_limit import CallerDescriptions
from galileo.rpc.replication import GrpcReplicaLink
from galileo.rpc.samplers import SamplersServicer
from galileo.rpc.storage import StorageServicer
from galileo.server.ccq_records import CcqRecords
from galileo.server.cluster_nodes import ClusterNodes
from galileo.server.commit_news import CommitNews
from galileo.server.continuous import ContinuousQueries
from galileo.server.driver import Driver
from galileo.server.effect_executor import EffectExecutor
from galileo.server.elections import Elections
from galileo.server.health import NOT_SERVING, HealthMonitor
from galileo.server.introduction import Introduction
from galileo.server.joining import mark_removed
from galileo.server.malloc_tuning import trim_when_idle
from galileo.server.metric_source import NodeView
from galileo.server.node_options import (
    admission,
    machine_options,
    membership,
    memory_reserve_bytes,
    names_by_group,
    node_options,
    open_store,
    retention_options,
    scrub_options,
)
from galileo.server.peer_messaging import PeerMessenger
from galileo.server.range_changes import RangeChanges
from galileo.server.security import Security
from galileo.server.spill_files import SpillFiles
from galileo.server.topology_register import TopologyRegister
from galileo.server.usage import Usage
from galileo.spark.launcher import EvaluatorClient
from galileo.storage.store import Store
from galileo.version import VERSION
from galileo.wire.channel import node_server_options
from galileo.wire.services import (
    ANALYTICS,
    CHANNELS,
    CLUSTER,
    CONTINUOUS,
    HEALTH,
    NODE_SERVICES,
    PARTITIONS,
    QUERY,
    SAMPLERS,
    STORAGE,
    add_service,
)
from galileo.wire.v1 import (
    cluster_pb2,
)

USAGE_INTERVAL_S = 1.0
NO_CYCLE = 0
"""Cycles are numbered from 1 on."""
HAND_OVER_S = 1.0
"""The longest that a node which stops waits for other leaders of its partitions."""
GRACE_S = 2.0
REMOVED_STOP_S = 6.0
"""Seconds that a removed node goes on answering; clients read the addresses every five."""

log = logging.getLogger(__name__)


class NodeProcess:
    """The parts of one node and their lifecycle.

    - `StorageNode` stores commits and answers queries; replicas of its partitions are on others.
    - `Membership` decides which nodes live, the `TopologyRegister` which there are. The
      `PeerMessenger` exchanges the messages of both, and news of commits, with the other nodes.
    - `Continuous` is the machine of continuous queries. The `Driver` feeds it events, and an
      `EffectExecutor` carries out its long effects: cycles of the evaluator, changes of
      `CcqRecords`, spill files.
    - The servicers of `_servicers` answer calls, after `Security` has admitted them.

    They know each other in circles. So a part gets those that are made later as functions.

    Args:
        config: of the node; its topology is resolved.
        clock: wall and monotonic time.
        store: the open directory of the node; None: it is opened.
    """

    def __init__(self, config: Config, *, clock: Clock, store: Store | None = None) -> None:
        self._config = config
        self._clock = clock
        self._stop = asyncio.Event()
        self._is_removed = False
        name, topology = config.node.name, config.topology
        self._security = Security(config, clock=clock, owner_of=self._owner_of)
        self._store = store = store or open_store(config, clock)

        live = TopologyState(topology)
        run = store.epoch << RUN_BITS | secrets.randbits(RUN_BITS)
        self._members = membership(config, run=run)
        live.relocate(name, config.node.address, epoch=run)
        self._peers = GrpcPeers(live, is_dead=self._is_dead, keys=config.keys)
        self._register = TopologyRegister(
            name,
            live,
            store=store,
            clock=clock,
            send=lambda node, message: self.mail.send(node, message),
            on_changed=self._follow_topology,
        )
        self.node = StorageNode(
            name,
            live,
            store=store,
            peers=self._peers,
            options=node_options(config),
            callbacks=NodeCallbacks(
                on_committed=lambda: self.driver.wake(),
                on_led=lambda: self.mail.broadcast_heartbeat(),
                on_dropped=self._on_dropped,
                on_revoked=self._fail_revoked,
            ),
            clock=clock,
        )
        self._news = CommitNews(self.node)

        self.machine = Continuous(name, machine_options(config), wall=clock.wall())
        config.spark.read_secret()  # Refuses a wrong one now, not in the first cycle.
        self._evaluator = EvaluatorClient(config.evaluator_options)
        self._spills = SpillFiles(Path(config.node.directory), schema=self.node.catalog.narrowed)
        self._work = work = EffectExecutor(
            self.node,
            self._peers,
            evaluate=partial(self._evaluator.evaluate, timeout_s=config.evaluator.cycle_timeout_s),
            is_dead=self._is_dead,
            spills=self._spills,
            records=lambda: self._records,
        )
        self.mail = PeerMessenger(
            self.node,
            self._peers,
            register=self._register,
            members=self._members,
            on_gossip=lambda event: self.driver.gossip(event),
            on_news=self._observe_commits,
            has_ccqs=lambda: bool(self.machine.coordinated),
        )
        self.driver = Driver(
            self.machine,
            self._members,
            mail=self.mail,
            clock=clock,
            work=work,
            new_commits=self._news.own,
            drop_spills=self._spills.drop,
            has_readers=lambda: bool(self.node.catalog.channels),
        )
        self._records = self._make_records()
        self._queries = ContinuousQueries(
            self.node,
            self.driver,
            records=self._records,
            work=work,
            peers=self._peers,
            clock=clock,
            limits=config.limits,
            warm=self._evaluator.warm,
        )

        self._introduction = Introduction(
            self.node, self._register, mail=self.mail, rack=config.node.rack, clock=clock
        )
        self._nodes = ClusterNodes(
            self.node,
            self._register,
            peers=self._peers,
            mail=self.mail,
            drain=lambda is_on: self.driver.feed(ccq.DrainRequested(is_on)),
            coordinated=lambda: len(self.machine.coordinated),
            is_alive=self._is_alive,
            on_removed=self._stop_removed,
        )
        self._replicas = self.node.connect_replicas(
            GrpcReplicaLink(self._peers),
            identity_of=self.mail.identity_of,
            is_alive=self._is_alive,
        )
        self.node.retain(self._readers, retention_options(config.storage, clock))
        self.node.begin_scrub(scrub_options(config.storage, clock))
        self._usage = Usage(clock, cache_bytes_max=config.limits.cache_bytes_max)
        self._watch = self._make_watch()

    def _is_alive(self, node: str) -> bool:
        return node not in self._members.dead

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, then lets calls finish for a moment and closes."""
        self._end_dropped()
        self._records.start()
        server, healthy = await self._open()
        monitoring = self._watch.serve()
        log.info("node %s serves at %s", self.node.name, self._config.listen)
        self._security.note("start")
        running = [
            asyncio.create_task(self.driver.run()),
            asyncio.create_task(self._measure()),
            asyncio.create_task(self._watch.run(healthy)),
            asyncio.create_task(trim_when_idle()),
            asyncio.create_task(self._evaluator.keep(lambda: self.machine.state.is_named)),
            asyncio.create_task(self._register.run()),
            *(asyncio.create_task(table.run()) for table in self.node.system_tables.values()),
            asyncio.create_task(self._records.sweep()),
            asyncio.create_task(self.node.channels.run()),
        ]
        introducing = asyncio.create_task(self._introduction.run())
        running.append(asyncio.create_task(self._replicas.run()))
        self._stop = stop
        self._nodes.resume()
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([*running, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            await self._replicas.hand_over(HAND_OVER_S)
            await healthy.enter_graceful_shutdown()
            if monitoring is not None:
                await asyncio.to_thread(monitoring.close)
            await server.stop(GRACE_S)
            await self._nodes.close()
            ended = [*running, stopped, introducing]
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)
            await self._peers.close()
            await self._evaluator.close()
            await asyncio.to_thread(self._spills.close)
            await self.node.close()
            self._security.close()

    async def _open(self) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
        interceptor = self._security.interceptor(admission())
        server = grpc.aio.server(options=node_server_options(), interceptors=[interceptor])
        healthy = health.aio.HealthServicer()
        add_service(HEALTH, healthy, server)
        servicers = self._servicers()
        for service in NODE_SERVICES:
            add_service(service, servicers[service], server)
        internal = Internal(
            self.node,
            lambda: self.machine.usage,
            ccqs=self._queries,
            inbox=self.mail,
            nodes=self._nodes,
        )
        add_internal(internal, server)
        names = [service.full_name for service in (*NODE_SERVICES, HEALTH)]
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
        keys = self._config.keys
        try:
            if keys.is_tls:
                server.add_secure_port(self._config.listen, self._security.credentials())
            else:
                server.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise ConfigError(
                f"expected a free port to listen on, got {self._config.listen}: {error}"
            ) from error
        await healthy.set("", NOT_SERVING)
        await server.start()
        return server, healthy

    def _servicers(self) -> Mapping[ServiceDescriptor, object]:
        """The objects that answer the calls of each service of `NODE_SERVICES`."""
        allowances, identify = self._security.allowances, self._security.identify
        storage = StorageServicer(self.node, allowances)
        ownership = Ownership(identify, self._queries.find)
        continuous = ContinuousServicer(self._queries, ownership, allowances)
        cluster = ClusterServicer(
            self.node,
            peers=self._peers,
            nodes=self._nodes,
            ranges=RangeChanges(
                self.node, register=self._register, peers=self._peers, mail=self.mail
            ),
            own_status=self._status,
            drain=lambda is_on: self.driver.feed(ccq.DrainRequested(is_on)),
            identify=identify,
            condition=self._watch.conditions.ask,
            ccqs_of=self._records.count,
            describe=CallerDescriptions(self._security.metering, owned_by=self._owned_by).describe,
            allowances=allowances,
        )
        samplers = SamplersServicer(
            self.node.samplers, in_use=self._records.samplers_in_use, identify=identify
        )
        return {
            STORAGE: storage,
            QUERY: QueryServicer(self.node, allowances),
            ANALYTICS: AnalyticsServicer(self.node, allowances),
            CONTINUOUS: continuous,
            CLUSTER: cluster,
            PARTITIONS: cluster,
            CHANNELS: ChannelsServicer(self.node, self._peers),
            SAMPLERS: samplers,
        }

    def _owner_of(self, ccq_id: str) -> str | None:
        record = self.machine.state.records.get(ccq_id)
        return None if record is None else record.ccq.owner

    def _make_records(self) -> CcqRecords:
        elections = Elections(
            self.node.name,
            self.node.live,
            ask=self._peers.usage,
            own=lambda: self.machine.usage,
            dead=lambda: self._members.dead,
            reserve_bytes=memory_reserve_bytes(self._config),
            counts=self.machine.state.counts,
            clock=self._clock,
        )
        return CcqRecords(
            self.node,
            self._peers,
            elections=elections,
            feed=self.driver.feed,
            known=lambda: self.machine.state.records,
            is_gone=self.machine.state.is_gone,
            clock=self._clock,
        )

    def _make_watch(self) -> HealthMonitor:
        parts = NodeView(
            config=self._config,
            node=self.node,
            machine=self.machine,
            driver=self.driver,
            calls=self._security.calls,
            loop_lag=DurationHistogram(LOOP_BOUNDS_S),
            audit=self._security.audit,
            ccqs=self._records,
            version=VERSION,
        )
        return HealthMonitor(parts, mail=self.mail, clock=self._clock)

    def _readers(self, dataset: str) -> list[Hold] | None:
        """The continuous queries that retention must respect; called from its thread."""
        return self._records.holds_from_thread(dataset)

    def _follow_topology(self) -> None:
        """Tells all parts that nodes were added or removed; stops if this one was removed."""
        topology, name = self.node.topology, self.node.name
        self._introduction.wake()
        self.mail.update_peers()
        if name not in topology.by_name:
            self._stop_removed()
            return
        peers = tuple(node.name for node in topology.nodes if node.name != name)
        self._members.step(PeersChanged(peers), self._clock.monotonic())
        groups, racks = names_by_group(topology), topology.fault_domains
        self.driver.feed(ccq.MembersChanged(groups, racks))

    def _stop_removed(self) -> None:
        """Stops a little later: a client that knows this node alone reads the other addresses."""
        if not self._is_removed:
            self._is_removed = True
            log.warning("node %s was removed from the cluster; it stops soon", self.node.name)
            mark_removed(self._store)
            asyncio.get_running_loop().call_later(REMOVED_STOP_S, self._stop.set)

    def _is_dead(self, node: str) -> bool:
        """Whether a node counts as dead; a removed node gets no beats, and calls all others."""
        now = self._clock.monotonic()
        return not self._is_removed and self._members.is_unreachable(node, now)

    def _fail_revoked(self, digests: frozenset[str]) -> None:
        """Fails the CCQs of revoked samplers that are coordinated here."""
        items = [
            ccq.CycleItem(led.ccq, led.term, led.evaluated, ())
            for led in self.machine.coordinated.values()
            if led.ccq.sampler is not None and led.ccq.sampler.archive in digests
        ]
        failed, _ = self._work.refused(items)
        self.driver.feed(ccq.CycleFinished(NO_CYCLE, tuple(failed)))

    def _on_dropped(self, name: str, generations: int, keys: Sequence[str]) -> None:
        """Ends the CCQs of dropped datasets."""
        self._news.forget(keys)
        self.driver.feed(ccq.DatasetDropped(name, generations))

    async def _owned_by(self, principal: str) -> dict[str, int]:
        """What a principal owns, by quota."""
        names = self.node.system.total(principal)
        return {"ccqs_max": await self._records.owned_by(principal), "datasets_max": names}

    def _end_dropped(self) -> None:
        """Tells the machine of all datasets that were dropped before the start."""
        for name, generations in self._store.generations.items():
            self.driver.feed(ccq.DatasetDropped(name, generations))

    async def _status(self) -> cluster_pb2.NodeStatus:
        status = self._usage.status(self.node, self.machine)
        status.evaluator_problem = self._evaluator.problem
        status.calls.update(self._security.calls.counts())
        return status

    async def _measure(self) -> None:
        while True:
            self.driver.feed(ccq.UsageMeasured(self._usage.measure(self.machine)))
            self._security.flush()
            await asyncio.sleep(USAGE_INTERVAL_S)

    def _observe_commits(self, datasets: Iterable[str]) -> None:
        for event in self._news.reported(datasets):
            self.driver.feed(event)
