"""A node process: builds all components and serves until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from galileo.ccq import events as ccq
from galileo.ccq.machine import Continuous
from galileo.ccq.options import ContinuousOptions
from galileo.clock import Clock, SystemClock
from galileo.config import Config, StorageSection
from galileo.dht import membership, topology_changes
from galileo.dht.membership import Membership, MembershipOptions
from galileo.dht.node_states import RUN_BITS
from galileo.dht.topology import Topology
from galileo.dht.topology_state import TopologyState
from galileo.election.ranking import MEMORY_RESERVE_BYTES
from galileo.errors import ConfigError, GalileoError
from galileo.histogram import LOOP_BOUNDS_S, DurationHistogram
from galileo.node.compaction_runner import CompactionRunnerOptions
from galileo.node.retention_plan import ReaderProgress
from galileo.node.retention_runner import RetentionRunnerOptions
from galileo.node.scrub_runner import CALM_S, ScrubOptions
from galileo.node.shard import PublishedCommits
from galileo.node.storage_node import NodeCallbacks, NodeOptions, StorageNode
from galileo.rpc.access import Principal
from galileo.rpc.admission import BULK_BYTES_MAX, Admission
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
from galileo.server.cgroup_memory import memory
from galileo.server.cluster_nodes import ClusterNodes
from galileo.server.continuous import ContinuousQueries
from galileo.server.driver import Driver
from galileo.server.effect_executor import EffectExecutor
from galileo.server.elections import Elections
from galileo.server.health import NOT_SERVING, HealthMonitor
from galileo.server.joining import mark_removed, resolve_topology
from galileo.server.malloc_tuning import freeze_modules, trim_when_idle
from galileo.server.metric_source import NodeView
from galileo.server.peer_messaging import PeerMessenger
from galileo.server.range_changes import RangeChanges
from galileo.server.security import Security
from galileo.server.spill_files import SpillFiles
from galileo.server.topology_register import TopologyRegister
from galileo.server.usage import Usage
from galileo.spark.launcher import EvaluatorClient
from galileo.storage.compaction import CompactionOptions
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions
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
PARENT_CHECK_S = 1.0
IDENTIFY_RETRY_S = 0.2
FOUNDING_WAIT_S = 10.0
"""The longest that a node of a new cluster waits for the others before it founds partitions."""
GARBAGE_THRESHOLDS = (10_000, 20, 50)
"""Of Python's collector. Cycles of very many CCQs make objects by the hundred
thousand, none of which is garbage that it would find: it would look through all that lives, some
hundred milliseconds each time, several times in each cycle. By these it does so once in ten million
objects."""
RESERVED_PART = 4
"""Divisor of the cache budget: the free memory that another CCQ requires at most."""
BULK_PART = 4
"""Divisor of the memory: the part for bulk requests."""

log = logging.getLogger(__name__)


class NodeProcess:
    """The components of one node and their lifecycle."""

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
        self._members = _members(config, run=run)
        live.relocate(name, config.node.address, epoch=run)
        self._peers = GrpcPeers(live, is_dead=self._is_dead, keys=config.keys)
        self._topology_changed = asyncio.Event()
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
            store=self._store,
            peers=self._peers,
            options=_node_options(config),
            callbacks=NodeCallbacks(
                on_committed=lambda: self.driver.wake(),
                on_led=lambda: self.mail.broadcast_heartbeat(),
                on_dropped=self._on_dropped,
                on_revoked=self._fail_revoked,
            ),
            clock=clock,
        )
        self.machine = self._make_machine()
        self.node.retain(self._readers, _retaining(config.storage, clock))
        config.spark.read_secret()  # Refuses a wrong one now, not in the first cycle.
        self._evaluator = EvaluatorClient(config.evaluator_options)
        self._spills = SpillFiles(Path(config.node.directory), schema=self.node.catalog.narrowed)
        self._work = work = self._make_work()
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
            new_commits=self._new_commits,
            drop_spills=self._spills.drop,
            has_readers=lambda: bool(self.node.catalog.channels),
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
        self.node.begin_scrub(_scrubbing(config.storage, clock))
        self._records = self._make_records(clock)
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
        self._usage = Usage(clock, cache_bytes_max=config.limits.cache_bytes_max)
        self._watch = self._make_watch()
        self._published: dict[str, PublishedCommits] = {}
        self._take_changed = self.node.catalog.watch()

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
        introducing = asyncio.create_task(self._introduce())
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
        interceptor = self._security.interceptor(_admission())
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
            ccqs_of=self._ccqs_of,
            describe=CallerDescriptions(self._security.metering, owned_by=self._owned_by).describe,
            allowances=allowances,
        )
        samplers = SamplersServicer(
            self.node.samplers, in_use=self._samplers_in_use, identify=identify
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

    async def _introduce(self) -> None:
        """Records in the register the directory of this node, and the rack that its file names.

        A command may have the partitions of this node begin anew (`topology_changes.found_anew`).
        """
        if self.node.replicas.restored:
            await self._hear_others(self.mail.has_told_moves)
            self.node.replicas.lead_restored()
        while True:
            self._topology_changed.clear()
            await self._identify()
            await self._record_rack()
            await self._topology_changed.wait()

    async def _record_rack(self) -> None:
        name, rack = self.node.name, self._config.node.rack
        while rack and name in (topology := self.node.topology).by_name:
            if topology.founding is not None and topology.by_name[name].rack == rack:
                return
            try:
                await self._register.change(
                    partial(topology_changes.set_rack, name=name, rack=rack)
                )
            except GalileoError as error:
                log.info("cannot record the rack of this node yet: %s", error)
                await asyncio.sleep(IDENTIFY_RETRY_S)

    async def _identify(self) -> None:
        """Records with which directory this node has begun, if it founds partitions.

        A node on an empty directory takes part in the register by its file. The others may know
        that it has founded its partitions before, so it hears them first.
        """
        if self.node.topology.founding is None:
            await self._hear_others(self.mail.has_answered)
        name, identity = self.node.name, self._store.identity
        while True:
            topology, owned = self.node.topology, self.node.replicas.may_found
            node = topology.by_name.get(name)
            if node is None or node.identity not in ("", identity):
                return
            if node.identity and not topology_changes.unfounded(topology, owned):
                return
            try:
                await self._register.change(
                    partial(topology_changes.identify, name=name, identity=identity, owned=owned)
                )
            except GalileoError as error:
                log.info("cannot record the identity of this node yet: %s", error)
                await asyncio.sleep(IDENTIFY_RETRY_S)

    async def _hear_others(self, is_heard: Callable[[str], bool]) -> None:
        """Returns when all other nodes have been heard, or may be down."""
        deadline = self._clock.monotonic() + FOUNDING_WAIT_S
        while self._clock.monotonic() < deadline:
            others = [one.name for one in self.node.topology.nodes if one.name != self.node.name]
            silent = [name for name in others if not is_heard(name)]
            if not silent:
                return
            for name in silent:
                self.mail.send_heartbeat(name)
            await asyncio.sleep(IDENTIFY_RETRY_S)

    def _make_machine(self) -> Continuous:
        topology, limits = self._config.topology, self._config.limits
        return Continuous(
            self.node.name,
            options=ContinuousOptions(
                groups=_names_by_group(topology),
                racks=topology.fault_domains,
                cycle_timeout_s=self._config.evaluator.cycle_timeout_s,
                cache_bytes_max=limits.cache_bytes_max,
                spill_bytes_max=limits.spill_bytes_max,
                labels_max=limits.answer_labels_max,
            ),
            wall=self._clock.wall(),
        )

    def _make_records(self, clock: Clock) -> CcqRecords:
        cache_bytes_max = self._config.limits.cache_bytes_max
        elections = Elections(
            self.node.name,
            self.node.live,
            ask=self._peers.usage,
            own=lambda: self.machine.usage,
            dead=lambda: self._members.dead,
            reserve_bytes=min(MEMORY_RESERVE_BYTES, cache_bytes_max // RESERVED_PART),
            counts=self.machine.state.counts,
            clock=clock,
        )
        return CcqRecords(
            self.node,
            self._peers,
            elections=elections,
            feed=self.driver.feed,
            known=lambda: self.machine.state.records,
            is_gone=self.machine.state.is_gone,
            clock=clock,
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

    def _make_work(self) -> EffectExecutor:
        return EffectExecutor(
            self.node,
            self._peers,
            evaluate=partial(
                self._evaluator.evaluate, timeout_s=self._config.evaluator.cycle_timeout_s
            ),
            is_dead=self._is_dead,
            spills=self._spills,
            records=lambda: self._records,
        )

    def _readers(self, dataset: str) -> list[ReaderProgress] | None:
        """The progress of readers that retention must respect; called from its thread."""
        return self._records.progress_from_thread(dataset)

    def _follow_topology(self) -> None:
        """Tells all parts that nodes were added or removed; stops if this one was removed."""
        topology, name = self.node.topology, self.node.name
        self._topology_changed.set()
        self.mail.update_peers()
        if name not in topology.by_name:
            self._stop_removed()
            return
        peers = tuple(node.name for node in topology.nodes if node.name != name)
        self._members.step(membership.PeersChanged(peers), self._clock.monotonic())
        groups, racks = _names_by_group(topology), topology.fault_domains
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

    async def _samplers_in_use(self, caller: Principal) -> dict[str, list[str]]:
        """The CCQs of a caller that use each uploaded sampler, by its digest."""
        ccqs_of: dict[str, list[str]] = {}
        for one in await self._records.all():
            is_shown = caller.owns(one.owner) and caller.may_use(one.dataset)
            if is_shown and one.sampler is not None and one.sampler.archive:
                ccqs_of.setdefault(one.sampler.archive, []).append(one.id)
        return ccqs_of

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
        for dataset in keys:
            self._published.pop(dataset, None)
        self.driver.feed(ccq.DatasetDropped(name, generations))

    async def _owned_by(self, principal: str) -> dict[str, int]:
        """What a principal owns, by quota."""
        names = self.node.system.total(principal)
        return {"ccqs_max": await self._records.owned_by(principal), "datasets_max": names}

    async def _ccqs_of(self, dataset: str) -> int:
        """The number of running CCQs of a dataset."""
        return len(await self._records.all(dataset))

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

    def _new_commits(self) -> list[ccq.ContinuousEvent]:
        """Events for the datasets with commits since the last call."""
        news: list[ccq.ContinuousEvent] = []
        for dataset, shard in self._take_changed():
            published, before = shard.own_published(), self._published.get(dataset)
            if published is before:
                continue
            self._published[dataset] = published
            if (table := self.node.system_tables.get(dataset)) is not None:
                table.wake()
            if before is None or published.sequences != before.sequences:
                self.node.view.update_sequences(dataset, published.sequences)
                self.node.view.update_event_clock(dataset, published.clock)
                news.append(self._commits_observed(dataset))
        return news

    def _observe_commits(self, datasets: Iterable[str]) -> None:
        for dataset in datasets:
            if (table := self.node.system_tables.get(dataset)) is not None:
                table.wake()
            self.driver.feed(self._commits_observed(dataset))

    def _commits_observed(self, dataset: str) -> ccq.CommitsObserved:
        view = self.node.view
        return ccq.CommitsObserved(dataset, view.sequences(dataset), view.event_clock(dataset))


def _admission() -> Admission:
    bulk_bytes_max = min(BULK_BYTES_MAX, memory().total // BULK_PART)
    return Admission(bulk_bytes_max=bulk_bytes_max)


def _members(config: Config, *, run: int) -> Membership:
    names = [node.name for node in config.topology.nodes if node.name != config.node.name]
    options = MembershipOptions(
        heartbeat_interval_s=config.membership.heartbeat_interval_s,
        failure_timeout_s=config.membership.failure_timeout_s,
    )
    return Membership(config.node.name, names, run=run, options=options)


def _names_by_group(topology: Topology) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(node.name for node in group.nodes) for group in topology.groups)


def open_store(config: Config, clock: Clock) -> Store:
    """Opens the directory of a node; errors as `Store.open`."""
    return Store.open(
        Path(config.node.directory),
        JournalOptions(
            segment_bytes_max=config.storage.segment_bytes_max,
            durability="none" if config.storage.durability == "none" else "fsync",
        ),
        wall=clock.wall,
    )


def _node_options(config: Config) -> NodeOptions:
    return NodeOptions(
        batch_rows_max=config.limits.batch_rows_max,
        commit_queue_max=config.limits.commit_queue_max,
        merging=_merging(config.storage),
        samplers_are_allowed=config.samplers.uploads == "sandboxed",
    )


def _merging(storage: StorageSection) -> CompactionRunnerOptions | None:
    if not storage.compaction:
        return None
    return CompactionRunnerOptions(
        CompactionOptions(
            bytes_min=storage.compaction_bytes_min, bytes_max=storage.compaction_bytes_max
        ),
        bytes_per_s=storage.compaction_bytes_per_s,
        interval_s=storage.compaction_interval_s,
    )


def _retaining(storage: StorageSection, clock: Clock) -> RetentionRunnerOptions:
    return RetentionRunnerOptions(
        check_s=storage.retention_check_s,
        min_age_s=storage.retention_min_age_s,
        wall=clock.wall,
        monotonic=clock.monotonic,
    )


def _scrubbing(storage: StorageSection, clock: Clock) -> ScrubOptions:
    """With an interval of less than some minutes, for trials, the first read waits less, too."""
    period_s = storage.scrub_days * 86_400 or math.inf
    return ScrubOptions(
        period_s=period_s,
        calm_s=min(CALM_S, period_s / 10),
        wall=clock.wall,
        monotonic=clock.monotonic,
    )


def serve(config: Config, *, parent: int = 0) -> None:
    """Runs a node until SIGTERM or SIGINT, or until the process `parent` has ended."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    freeze_modules()
    asyncio.run(_serve(config, parent=parent))


async def _serve(config: Config, *, parent: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watching = loop.create_task(_watch_parent(parent, stop)) if parent else None
    clock = SystemClock()
    store = open_store(config, clock)
    try:
        resolved = await _unless_stopped(resolve_topology(config, store), stop)
        if resolved is None:
            store.close()
        else:
            await NodeProcess(resolved, store=store, clock=clock).run(stop)
    finally:
        if watching is not None:
            watching.cancel()


async def _unless_stopped(
    resolving: Coroutine[Any, Any, Config], stop: asyncio.Event
) -> Config | None:
    """The result, or None if the node is stopped before it is there."""
    task, stopped = asyncio.create_task(resolving), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def _watch_parent(parent: int, stop: asyncio.Event) -> None:
    """A node of a local cluster does not outlive the process that started it."""
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(PARENT_CHECK_S)
    stop.set()
