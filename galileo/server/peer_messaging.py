"""Messages between nodes: heartbeats with gossip, and those of the topology register.

There is one sender per peer, so that a peer that hangs does not delay others. `dht.membership`
decides when a heartbeat goes to which peer. It brings two kinds of facts.

- States (`dht.node_states`): the address and the directory of each node, the partitions that it
  leads, whether it coordinates continuous queries, and its last commits. They go both ways, and
  nodes pass on what they know of third ones.
- What the peer has not acknowledged: moves of partitions, and the sender's synopses. These go from
  node to node, as the ring of membership brings them together; what a node adopts, it announces
  itself.

The synopses of a dataset are brought up to date, in a thread, at the first commit after a pause,
every five seconds in a stream of commits, and a second after its last one. The changes are encoded
once for all peers that know the same version. Until then peers scan the newest commits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from galileo.cursor import Cursor
from galileo.dht.membership import (
    AnswerGossip,
    ExchangeFailed,
    Gossip,
    GossipArrived,
    Membership,
    MembershipEffect,
    MembershipEvent,
    NodesHeard,
    ReplyArrived,
    SendGossip,
    StateChanged,
)
from galileo.dht.node_states import StateEntry
from galileo.dht.register import Ballot, Entry
from galileo.errors import ConfigError, GalileoError, InputError
from galileo.graph.synopsis import Synopsis, SynopsisDelta, SynopsisVersion
from galileo.node.catalog import AnyShard
from galileo.node.dataset_shard import DatasetShard
from galileo.node.shard import PublishedCommits
from galileo.node.storage_node import StorageNode
from galileo.rpc.gossip import (
    MESSAGES_MAX,
    GossipReply,
    GossipRequest,
    Heartbeat,
    HeldSynopsis,
    SynopsisChange,
)
from galileo.rpc.peers import GrpcPeers
from galileo.server.gossip_codec import (
    decode_commits,
    decode_partitions,
    encode_commits,
    encode_partitions,
)
from galileo.server.topology_register import MESSAGES as REGISTER_MESSAGES
from galileo.server.topology_register import TopologyRegister
from galileo.wire.tagged_json import TaggedJson

OUTBOX_MAX = 10_000
"""Messages that wait for one peer; beyond it the oldest are lost."""
MESSAGES_BYTES_MAX = 2 << 20
"""Size of the messages of one request; a single message may exceed it."""
SYNOPSIS_LOOK_S = 0.5
"""Pause between two looks for datasets whose synopses are due."""
SYNOPSIS_INTERVAL_S = 5.0
"""Interval of updates of the synopses of a dataset with a stream of commits."""
SYNOPSIS_QUIET_S = 1.0
"""Time after the last commit after which the synopses are updated in any case."""
SYNOPSIS_BYTES_MAX = 4 << 20
"""Size of the changes of synopses in one heartbeat; the last may exceed it."""
_ADDRESS, _DISK, _LONE, _CCQS, _COMMITS = "address", "disk", "lone", "ccqs", "commits/"
"""Keys of entries of a node's state; `_COMMITS` is followed by the key of a dataset."""

log = logging.getLogger(__name__)

TAGGED = TaggedJson([*REGISTER_MESSAGES, Ballot, Entry])


class _Peer:
    """The outbox of one peer, and the state that it has acknowledged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heartbeat_due = False
        self.outbox: deque[bytes] = deque(maxlen=OUTBOX_MAX)
        self.missing: Gossip | None = None
        self.wake = asyncio.Event()
        self.run = 0
        self.has_sent_heartbeat = False
        self.topology_version = 1
        self.acknowledged: dict[tuple[str, int], SynopsisVersion] = {}
        self.outdated: set[str] = set()

    @property
    def is_due(self) -> bool:
        """Whether anything is to be sent now."""
        return bool(self.outbox) or self.heartbeat_due or self.missing is not None

    def record_reply(self, reply: GossipReply) -> bool:
        """Records what the peer has acknowledged; forgets it after a restart of the peer.

        Returns:
            Whether the peer has restarted.
        """
        self.topology_version = reply.topology_version
        is_another = reply.run != self.run
        if is_another:
            self.run, self.acknowledged = reply.run, {}
        for held in reply.synopses:
            self.acknowledged[held.dataset, held.partition] = held.version
        return is_another


@dataclass(slots=True)
class _Report:
    """What a node has reported in its present run.

    Attributes:
        run: that run.
        identity: of its directory.
        lone: the partitions that the node leads in a set without other members.
        has_ccqs: whether the node coordinates continuous queries.
        sequences: its last commits, by dataset.
    """

    run: int = 0
    identity: str = ""
    lone: frozenset[int] = frozenset()
    has_ccqs: bool = False
    sequences: dict[str, Cursor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Summary:
    """The synopses of a dataset, as of some commits.

    Attributes:
        published: those commits.
        at: when they were made, by the monotonic clock.
        synopses: of the partitions.
        deltas: encoded changes by partition, known version and present version.
    """

    published: PublishedCommits
    at: float
    synopses: dict[int, Synopsis]
    deltas: dict[tuple[int, SynopsisVersion | None, SynopsisVersion], bytes] = field(
        default_factory=dict
    )

    def delta(self, partition: int, known: SynopsisVersion | None) -> bytes:
        """The encoded changes of a synopsis since a known version."""
        synopsis = self.synopses[partition]
        key = partition, known, synopsis.version
        if key not in self.deltas:
            self.deltas[key] = synopsis.changes_since(known).to_bytes(synopsis.schema)
        return self.deltas[key]


class PeerMessenger:
    """Exchanges heartbeats and messages with the other nodes.

    Args:
        node: the node whose state the heartbeats report.
        peers: the clients of the other nodes.
        register: the topology, and the messages about it.
        members: the states of all nodes.
        on_gossip: steps `members`, and carries out the effects that are not about messages.
        on_news: called with the datasets of which new commits were reported.
        has_ccqs: whether this node coordinates continuous queries.
        monotonic: clock in seconds.
    """

    def __init__(
        self,
        node: StorageNode,
        peers: GrpcPeers,
        *,
        register: TopologyRegister,
        members: Membership,
        on_gossip: Callable[[MembershipEvent], list[MembershipEffect]],
        on_news: Callable[[Iterable[str]], None],
        has_ccqs: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._node = node
        self._peers = peers
        self._members = members
        self._on_gossip = on_gossip
        self._on_news = on_news
        self._has_ccqs = has_ccqs
        self._register = register
        self._boxes: dict[str, _Peer] = {}
        self._reports: dict[str, _Report] = {}
        self._delivering: dict[str, asyncio.Task[None]] = {}
        self._is_running = False
        self._encoded: tuple[Any, bytes] = (None, b"")
        self._written: dict[str, PublishedCommits] = {}
        self._take_unwritten, self._take_unsummarised = node.catalog.watch(), node.catalog.watch()
        self._shards: Mapping[str, AnyShard] = {}
        self._summarised: Mapping[str, DatasetShard] = {}
        self._lone: frozenset[int] | None = None
        self._had_ccqs = False
        self._summaries: dict[str, _Summary] = {}
        self._unsummarised: dict[str, tuple[PublishedCommits | None, float]] = {}
        self.update_peers()

    def update_peers(self) -> None:
        """Follows the topology: sends to nodes that were added, and forgets removed ones.

        A node that was removed itself sends nothing more.
        """
        nodes, name = self._node.topology.by_name, self._node.name
        names = nodes.keys() - {name} if name in nodes else set()
        for name in names - self._boxes.keys():
            self._boxes[name] = box = _Peer(name)
            box.outdated.update(self._summaries)
            self._reports[name] = _Report()
        for name in self._boxes.keys() - names:
            del self._boxes[name], self._reports[name]
            if name in self._delivering:
                self._delivering.pop(name).cancel()
        if self._is_running:
            self._start_delivery()

    def _start_delivery(self) -> None:
        for name in self._boxes.keys() - self._delivering.keys():
            task = asyncio.create_task(self._deliver(self._boxes[name]))
            self._delivering[name] = task

    def send(self, to: str, message: Any) -> None:
        """Queues a message; one to a node that was removed is dropped."""
        box = self._boxes.get(to)
        if box is None:
            return
        if self._encoded[0] is not message:  # A message to all peers is encoded once.
            self._encoded = message, TAGGED.encode(message)
        box.outbox.append(self._encoded[1])
        box.wake.set()

    def send_heartbeat(self, to: str) -> None:
        box = self._boxes.get(to)
        if box is None:
            return
        box.heartbeat_due = True
        box.wake.set()

    def broadcast_heartbeat(self) -> None:
        """Sends a heartbeat to every peer now; for rare events, such as moves of partitions."""
        for name in self._boxes:
            self.send_heartbeat(name)

    def has_answered(self, node: str) -> bool:
        """Whether the node has replied since this one was started."""
        box = self._boxes.get(node)
        return box is not None and box.run != 0

    def coordinates(self, node: str) -> bool:
        """Whether a node has said that it coordinates continuous queries."""
        report = self._reports.get(node)
        return report is not None and report.has_ccqs

    def has_told_moves(self, node: str) -> bool:
        """Whether the node has said which partitions it leads since this one was started."""
        box = self._boxes.get(node)
        return box is not None and box.has_sent_heartbeat

    def identity_of(self, node: str) -> str:
        """The identity of a node's directory; "" while it is not known."""
        if node == self._node.name:
            return self._node.store.identity
        report = self._reports.get(node)
        return "" if report is None else report.identity

    async def run(self) -> None:
        """Sends until it is cancelled."""
        self._is_running = True
        self._start_delivery()
        try:
            await self._update_synopses()
        finally:
            self._is_running = False
            running = list(self._delivering.values())
            self._delivering.clear()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _update_synopses(self) -> None:
        while True:
            await self.update_synopses()
            await asyncio.sleep(SYNOPSIS_LOOK_S)

    async def update_synopses(self) -> None:
        """Brings synopses up to date that are due; the next heartbeats bring them to the peers."""
        for dataset, _ in self._take_unsummarised():
            self._unsummarised.setdefault(dataset, (None, self._monotonic()))
        shards = self._node.catalog.dataset_shards  # Read last: a shard may be new.
        for dataset, (seen, since) in list(self._unsummarised.items()):
            shard = shards.get(dataset)
            if shard is None:  # It has no synopses, or was dropped.
                self._unsummarised.pop(dataset, None)
                continue
            published, known = shard.own_published(), self._summaries.get(dataset)
            if known is not None and known.published is published:
                self._unsummarised.pop(dataset, None)
                continue
            now = self._monotonic()
            if seen is not published:
                since = now
                self._unsummarised[dataset] = published, since
            age_s = now - known.at if known and known.published.sequences else inf
            is_quiet = now >= since + SYNOPSIS_QUIET_S
            if is_quiet or age_s >= SYNOPSIS_INTERVAL_S:
                self._unsummarised.pop(dataset, None)  # A change from now on counts anew.
                synopses = await asyncio.to_thread(shard.synopses)
                self._summaries[dataset] = _Summary(published, now, synopses)
                for box in self._boxes.values():
                    box.outdated.add(dataset)
        if shards is not self._summarised:
            self._summarised = shards
            for dataset in self._summaries.keys() - shards.keys():
                del self._summaries[dataset]

    async def _deliver(self, box: _Peer) -> None:
        while True:
            await box.wake.wait()
            box.wake.clear()
            while box.is_due:
                try:
                    await self._exchange(box)
                    continue
                except ConfigError as error:
                    log.error("%s rejected gossip: %s", box.name, error)
                except GalileoError as error:
                    log.debug("could not send gossip to %s: %s", box.name, error)
                except Exception:
                    log.exception("a message to %s failed", box.name)
                self._on_gossip(ExchangeFailed(box.name))

    async def _exchange(self, box: _Peer) -> GossipReply:
        request = self._request(box)
        reply = await self._peers.exchange(box.name, request)
        if box.record_reply(reply):
            box.outdated.update(self._summaries)
        if reply.topology.size:
            await self._register.learn(box.name, reply.topology.to_pybytes())
        if reply.states is not None:
            _check(reply.states)
            is_last = request.heartbeat is None
            arrived = ReplyArrived(box.name, reply.states, is_last=is_last)
            effects = self._on_gossip(arrived)
            for effect in effects:
                if isinstance(effect, SendGossip):
                    box.missing = effect.gossip
                    box.wake.set()
            self._take_states(effects)
        if reply.is_behind and not request.topology:
            box.heartbeat_due = True
            box.wake.set()
        return reply

    def _request(self, box: _Peer) -> GossipRequest:
        heartbeat, gossip, box.missing = None, box.missing, None
        if box.heartbeat_due:
            box.heartbeat_due = False
            self._write_state()
            heartbeat, gossip = self._heartbeat(box), self._members.heartbeat(box.name)
        version = self._register.version
        return GossipRequest(
            self._node.name,
            self._members.states.run,
            self._node.topology.fingerprint,
            version,
            topology=self._register.encoded if box.topology_version < version else b"",
            heartbeat=heartbeat,
            states=gossip,
            messages=tuple(_take_batch(box.outbox)),
        )

    def _heartbeat(self, box: _Peer) -> Heartbeat:
        return Heartbeat(tuple(self._changes(box)), tuple(self._node.topology.moved))

    def _write_state(self) -> None:
        """Brings the entries of this node up to date; encodes what has changed."""
        states, node = self._members.states, self._node
        states.write(_ADDRESS, node.topology.by_name[node.name].address.encode())
        states.write(_DISK, node.store.identity.encode())
        lone = node.replicas.lone
        if lone is not self._lone:
            self._lone = lone
            states.write(_LONE, encode_partitions(lone))
        if self._has_ccqs() is not self._had_ccqs:
            self._had_ccqs = not self._had_ccqs
            states.write(_CCQS, b"1" if self._had_ccqs else b"")
        for dataset, shard in self._take_unwritten():
            published = shard.own_published()
            if self._written.get(dataset) is not published:
                self._written[dataset] = published
                states.write(_COMMITS + dataset, encode_commits(published))
        shards = node.catalog.shards
        if shards is self._shards:
            return
        self._shards = shards
        for dataset in self._written.keys() - shards.keys():
            del self._written[dataset]
            states.write(_COMMITS + dataset, b"")

    def _changes(self, box: _Peer) -> list[SynopsisChange]:
        changes, size, shards = [], 0, self._node.catalog.shards
        for dataset in list(box.outdated):
            summary = self._summaries.get(dataset)
            if summary is None or dataset not in shards:
                box.outdated.discard(dataset)
                continue
            is_up_to_date = True
            for partition, synopsis in sorted(summary.synopses.items()):
                known = box.acknowledged.get((dataset, partition))
                if known == synopsis.version:
                    continue
                is_up_to_date = False
                if size > SYNOPSIS_BYTES_MAX:
                    continue
                delta = summary.delta(partition, known)
                size += len(delta)
                changes.append(SynopsisChange(dataset, delta, synopsis.schema.added))
            if is_up_to_date:
                box.outdated.discard(dataset)
        return changes

    # --- what arrives ------------------------------------------------------------------------

    async def receive(self, request: GossipRequest) -> GossipReply:
        """Applies a request of another node.

        Raises:
            InputError: the sender is not a node of this cluster.
            ConfigError: its topology differs.
        """
        if request.topology_fingerprint != self._node.topology.fingerprint:
            raise ConfigError(
                f"node {request.sender!r} has another topology than node "
                f"{self._node.name!r}; give all nodes the same [cluster] table: groups, ranges "
                "and partitions_per_group",
                node=request.sender,
                key="cluster",
            )
        if request.topology.size and request.topology_version > self._register.version:
            await self._register.learn(request.sender, request.topology.to_pybytes())
        if request.topology_version > self._register.version:
            return self._reply(request, is_behind=True)
        if request.sender not in self._boxes:
            raise InputError(
                f"expected a sender of {sorted(self._boxes)}, got {request.sender!r}; it was "
                "removed from the cluster, or its [cluster] table differs",
                node=request.sender,
            )
        box = self._boxes[request.sender]
        box.topology_version = min(box.topology_version, request.topology_version)
        held: list[HeldSynopsis] = []
        states: Gossip | None = None
        if request.heartbeat is not None:
            self._node.live.adopt(request.heartbeat.moves)
            box.has_sent_heartbeat = True
            held = self._take_synopses(request.heartbeat)
        if request.states is not None:
            _check(request.states)
            states = self._answer_gossip(request.sender, request.states)
        for data in request.messages:
            await self._register.receive(request.sender, TAGGED.decode(data.to_pybytes()))
        return self._reply(request, held=held, states=states)

    def _reply(
        self,
        request: GossipRequest,
        *,
        held: Sequence[HeldSynopsis] = (),
        states: Gossip | None = None,
        is_behind: bool = False,
    ) -> GossipReply:
        version = self._register.version
        return GossipReply(
            self._members.states.run,
            version,
            topology=self._register.encoded if request.topology_version < version else b"",
            synopses=tuple(held),
            states=states,
            is_behind=is_behind,
        )

    def _answer_gossip(self, sender: str, gossip: Gossip) -> Gossip | None:
        self._write_state()
        effects = self._on_gossip(GossipArrived(sender, gossip))
        self._take_states(effects)
        answers = [effect.gossip for effect in effects if isinstance(effect, AnswerGossip)]
        return answers[0] if answers else None

    def _take_states(self, effects: Iterable[MembershipEffect]) -> None:
        """Takes entries over; compares the commits of nodes with those that they once had."""
        changed: set[str] = set()
        behind = self._node.view.losses.behind
        for effect in effects:
            if isinstance(effect, StateChanged):
                self._take_entries(effect)
                changed.add(effect.node)
            elif isinstance(effect, NodesHeard):
                changed |= behind.intersection(effect.nodes)
        for node in changed & self._reports.keys():
            self._check_report(node)

    def _take_entries(self, effect: StateChanged) -> None:
        report = self._reports.get(effect.node)
        if report is None:
            return  # It was removed meanwhile.
        if report.run != effect.run:
            report = self._reports[effect.node] = _Report(effect.run)
        commits = [entry for entry in effect.entries if entry.key.startswith(_COMMITS)]
        for entry in effect.entries:
            if entry.key == _ADDRESS:
                self._relocate(effect.node, entry.value.decode(), run=effect.run)
            elif entry.key == _DISK:
                report.identity = entry.value.decode()
            elif entry.key == _LONE:
                report.lone = decode_partitions(entry.value)
            elif entry.key == _CCQS:
                report.has_ccqs = bool(entry.value)
        self._take_commits(commits, report)

    def _relocate(self, node: str, address: str, *, run: int) -> None:
        if self._node.live.relocate(node, address, epoch=run):
            log.info("node %s has moved to %s", node, address)

    def _take_commits(self, entries: Iterable[StateEntry], report: _Report) -> None:
        view, catalog, news = self._node.view, self._node.catalog, []
        for entry in entries:
            dataset = entry.key.removeprefix(_COMMITS)
            if not entry.value:
                report.sequences.pop(dataset, None)
            if not entry.value or catalog.is_dropped(dataset):
                continue  # The node may not know yet.
            published = decode_commits(entry.value)
            report.sequences[dataset] = published.sequences
            view.update_event_clock(dataset, published.clock)
            sequences, deletions = published.sequences, published.deletions
            if view.update_sequences(dataset, sequences, deletions=deletions):
                news.append(dataset)
        if news:
            self._on_news(news)

    def _check_report(self, node: str) -> None:
        """Compares all commits that a node has reported with those that it once had.

        Only commits of a set of one can be lost unnoticed by its members. In a larger set, also one
        that is yet to become a set of one, a leader that was replaced reports less. Partitions that
        a node has handed over are its own in the topology here until the next leader is known.
        """
        view, report = self._node.view, self._reports[node]
        if not self._node.topology.is_replicated:
            view.losses.check_report(
                node,
                self._node.live.partitions(node) & report.lone,
                reported=report.sequences,
                expected=view.all_sequences,
            )
        view.record_report(node)

    def _take_synopses(self, heartbeat: Heartbeat) -> list[HeldSynopsis]:
        view, catalog, held = self._node.view, self._node.catalog, []
        for change in heartbeat.synopses:
            if not catalog.knows(change.dataset) or catalog.lacks(change.dataset, change.added):
                self._node.system.wake()
                continue  # Dropped, or not known yet; the change is sent again.
            schema = catalog.schema(change.dataset)
            delta = SynopsisDelta.from_bytes(schema, change.delta.to_pybytes())
            version = view.apply_synopsis(schema, delta)
            held.append(HeldSynopsis(change.dataset, delta.partition, version))
        return held


def _check(gossip: Gossip) -> None:
    if gossip.digest is not None:
        gossip.digest.check()


def _take_batch(outbox: deque[bytes]) -> list[bytes]:
    """Removes the oldest messages of an outbox, up to the limits of one request."""
    batch: list[bytes] = []
    size = 0
    while outbox and len(batch) < MESSAGES_MAX and size < MESSAGES_BYTES_MAX:
        batch.append(outbox.popleft())
        size += len(batch[-1])
    return batch
