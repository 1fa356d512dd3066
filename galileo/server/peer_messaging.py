"""Messages between nodes: heartbeats, gossip and the messages of the machines.

There is one sender per peer, so that a peer that hangs does not delay others. A heartbeat carries
the names of the sender's datasets, and those of its commit sequences, synopses and uploaded
samplers that the peer has not acknowledged. The synopses of a dataset are brought up to date, in a
thread, at the first commit after a pause, every five seconds in a stream of commits, and a second
after its last one. The changes are encoded once for all peers that know the same
version. Until then peers scan the newest commits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, get_args

from galileo.ccq import messages, model
from galileo.cursor import Cursor
from galileo.dht.register import Ballot, Entry
from galileo.dht.topology import Move
from galileo.election.messages import UsageStatistics
from galileo.errors import ConfigError, GalileoError, InputError
from galileo.graph.synopsis import Synopsis, SynopsisDelta, Version
from galileo.model.retention import VersionedRetention
from galileo.model.windows import Window
from galileo.node.shard import PublishedCommits
from galileo.node.storage_node import StorageNode
from galileo.rpc.peers import GrpcPeers
from galileo.server.topology_register import MESSAGES as REGISTER_MESSAGES
from galileo.server.topology_register import TopologyRegister
from galileo.wire.codec import (
    cursor_from_pb,
    cursor_to_pb,
    event_clock_from_pb,
    event_clock_to_pb,
)
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.tagged_json import TaggedJson

PROTOCOL = 4
"""Version of the messages; raised when older versions would misinterpret a message."""
PROTOCOLS_UNDERSTOOD = (4,)
"""Versions that are accepted from other nodes, for rolling upgrades."""

_NOT_URGENT = (messages.Digest,)

log = logging.getLogger(__name__)

TAGGED = TaggedJson(
    [
        *REGISTER_MESSAGES,
        Ballot,
        Entry,
        *get_args(messages.Message),
        model.Ccq,
        model.Record,
        model.Holder,
        Window,
        UsageStatistics,
    ],
    tags=messages.TAGS,
)


@dataclass(frozen=True, slots=True)
class MessagingOptions:
    """Limits of what goes to one peer.

    Attributes:
        outbox_max: messages that wait; beyond it the oldest are lost.
        messages_together_max: messages of one request.
        messages_bytes_max: their size; a single message may exceed it.
        synopsis_look_s: between two looks for datasets whose synopses are due.
        synopsis_interval_s: between two updates of the synopses of a dataset with a stream of
            commits.
        synopsis_quiet_s: after the last commit, the synopses are updated in any case.
        synopsis_bytes_max: changes of synopses in one heartbeat; the last may exceed it.
        samplers_together_max: uploaded samplers announced in one heartbeat; the receiver may have
            to fetch their code.
        dropped_together_max: names of dropped datasets in one heartbeat.
    """

    outbox_max: int = 10_000
    messages_together_max: int = 1_000
    messages_bytes_max: int = 2 << 20
    synopsis_look_s: float = 0.25
    synopsis_interval_s: float = 5.0
    synopsis_quiet_s: float = 1.0
    synopsis_bytes_max: int = 4 << 20
    samplers_together_max: int = 16
    dropped_together_max: int = 1_000


class _Peer:
    """The outbox of one peer, and the state that it has acknowledged."""

    def __init__(self, name: str, *, outbox_max: int) -> None:
        self.name = name
        self.heartbeat_due = False
        self.outbox: deque[bytes] = deque(maxlen=outbox_max)
        self.wake = asyncio.Event()
        self.run = 0
        self.number = 0
        self.topology_version = 0
        self.sent: dict[str, PublishedCommits] = {}
        self.published: dict[str, PublishedCommits] = {}
        self.acknowledged: dict[tuple[str, int], Version] = {}
        self.up_to_date: dict[str, PublishedCommits] = {}
        self.retentions: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.samplers: dict[str, float] = {}

    def record_reply(self, request: peers_pb2.GossipRequest, reply: peers_pb2.GossipReply) -> None:
        """Records what the peer has acknowledged; forgets it after a restart of the peer."""
        self.topology_version = reply.topology_version
        is_another = reply.run != self.run
        if is_another:
            self.run, self.retentions, self.dropped, self.samplers = reply.run, {}, {}, {}
            self.published, self.acknowledged, self.up_to_date = {}, {}, {}
        for held in reply.synopses:
            version = Version(held.epoch, held.version)
            self.acknowledged[held.dataset, held.partition] = version
        if is_another or reply.is_behind:
            return
        if request.HasField("heartbeat"):
            self.published = {} if reply.wants_full else self.sent
        self.dropped |= {one.name: one.generations for one in request.heartbeat.dropped}
        for one in request.heartbeat.retentions:
            numbered = VersionedRetention.from_json(one.numbered_json)
            self.retentions[one.dataset] = numbered.version
        revocations = {one.digest: one.revoked_at for one in request.heartbeat.samplers}
        self.samplers |= {
            digest: revocations[digest] for digest in reply.samplers if digest in revocations
        }


@dataclass(slots=True)
class _Sender:
    """What a peer has reported in its present run.

    Attributes:
        run: the random number of that run.
        number: of the last heartbeat.
        is_complete: a heartbeat had the sequences of all datasets.
        sequences: its last commits, by dataset.
    """

    run: int = 0
    number: int = 0
    is_complete: bool = False
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
    deltas: dict[tuple[int, Version | None, Version], bytes] = field(default_factory=dict)

    def delta(self, partition: int, known: Version | None) -> bytes:
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
        run: a random number above zero of this run of the node. The epoch does not do: it begins
            anew when a disk is lost.
        on_heartbeat: called with (node, epoch).
        on_message: called with (node, message).
        on_news: called with the datasets of which new commits were reported.
        options: limits.
        monotonic: clock in seconds.
    """

    def __init__(
        self,
        node: StorageNode,
        peers: GrpcPeers,
        *,
        register: TopologyRegister,
        run: int,
        on_heartbeat: Callable[[str, int], None],
        on_message: Callable[[str, Any], None],
        on_news: Callable[[Iterable[str]], None],
        options: MessagingOptions | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._options = options = options or MessagingOptions()
        self._node = node
        self._peers = peers
        self._run = run
        self._on_heartbeat = on_heartbeat
        self._on_message = on_message
        self._on_news = on_news
        self._register = register
        self._boxes: dict[str, _Peer] = {}
        self._senders: dict[str, _Sender] = {}
        self._delivering: dict[str, asyncio.Task[None]] = {}
        self._is_running = False
        self._encoded: tuple[Any, bytes] = (None, b"")
        self._sequences: dict[str, tuple[PublishedCommits, peers_pb2.DatasetSequences]] = {}
        self._summaries: dict[str, _Summary] = {}
        self._unsummarised: dict[str, tuple[PublishedCommits, float]] = {}
        self.update_peers()

    def update_peers(self) -> None:
        """Follows the topology: sends to nodes that were added, and forgets removed ones.

        A node that was removed itself sends nothing more.
        """
        nodes, name = self._node.topology.by_name, self._node.name
        names = nodes.keys() - {name} if name in nodes else set()
        for name in names - self._boxes.keys():
            self._boxes[name] = _Peer(name, outbox_max=self._options.outbox_max)
            self._senders[name] = _Sender()
        for name in self._boxes.keys() - names:
            del self._boxes[name], self._senders[name]
            if name in self._delivering:
                self._delivering.pop(name).cancel()
        if self._is_running:
            self._start_delivery()

    def _start_delivery(self) -> None:
        for name in self._boxes.keys() - self._delivering.keys():
            task = asyncio.create_task(self._deliver(self._boxes[name]))
            self._delivering[name] = task

    def send(self, to: str, message: Any) -> None:
        """Queues a message; one that is not urgent goes with the next heartbeat.

        A message to a node that was removed is dropped.
        """
        box = self._boxes.get(to)
        if box is None:
            return
        if self._encoded[0] is not message:  # A message to all peers is encoded once.
            self._encoded = message, TAGGED.encode(message)
        box.outbox.append(self._encoded[1])
        if not isinstance(message, _NOT_URGENT):
            box.wake.set()

    def send_heartbeat(self, to: str) -> None:
        box = self._boxes.get(to)
        if box is None:
            return
        box.heartbeat_due = True
        box.wake.set()

    def broadcast_heartbeat(self) -> None:
        """Sends a heartbeat to every peer now."""
        for name in self._boxes:
            self.send_heartbeat(name)

    def has_answered(self, node: str) -> bool:
        """Whether the node has replied since this one was started."""
        box = self._boxes.get(node)
        return box is not None and box.run != 0

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
            await asyncio.sleep(self._options.synopsis_look_s)

    async def update_synopses(self) -> None:
        """Brings synopses up to date that are due, and sends them to all peers."""
        is_news = False
        for dataset, shard in list(self._node.catalog.shards.items()):
            published, known = shard.own_published(), self._summaries.get(dataset)
            if known is not None and known.published is published:
                continue
            now = self._monotonic()
            seen, since = self._unsummarised.get(dataset, (None, now))
            if seen is not published:
                since = now
                self._unsummarised[dataset] = published, since
            age_s = now - known.at if known and known.published.sequences else inf
            is_quiet = now >= since + self._options.synopsis_quiet_s
            if is_quiet or age_s >= self._options.synopsis_interval_s:
                synopses = await asyncio.to_thread(shard.synopses)
                self._summaries[dataset] = _Summary(published, now, synopses)
                self._unsummarised.pop(dataset, None)
                is_news |= bool(published.sequences)
        if is_news:
            self.broadcast_heartbeat()
        for encoded in (self._summaries, self._sequences, self._unsummarised):
            for dataset in encoded.keys() - self._node.catalog.shards.keys():
                del encoded[dataset]

    async def _deliver(self, box: _Peer) -> None:
        while True:
            await box.wake.wait()
            box.wake.clear()
            while box.outbox or box.heartbeat_due:
                try:
                    await self._exchange(box)
                except ConfigError as error:
                    log.error("%s rejected gossip: %s", box.name, error)
                except GalileoError as error:
                    log.debug("could not send gossip to %s: %s", box.name, error)
                except Exception:
                    log.exception("a message to %s failed", box.name)

    async def _exchange(self, box: _Peer) -> peers_pb2.GossipReply:
        request = self._request(box)
        reply = await self._peers.exchange(box.name, request)
        box.record_reply(request, reply)
        if not request.topology and reply.topology_version < self._register.version:
            box.heartbeat_due = True
            box.wake.set()
        return reply

    async def hand_over_datasets(self, to: str) -> None:
        """Sends a node all that this one knows of datasets, until it has acknowledged it.

        Raises:
            GalileoError: it cannot be reached, or its disk refuses.
        """
        box = _Peer(to, outbox_max=0)
        known = self._boxes[to]
        box.number, box.run, box.topology_version = known.number, known.run, known.topology_version
        while True:
            box.heartbeat_due = True
            reply = await self._exchange(box)
            known.number = box.number = max(known.number, box.number)
            if not reply.is_behind and not self._dropped(box) and not self._retentions(box):
                return

    def _request(self, box: _Peer) -> peers_pb2.GossipRequest:
        heartbeat = self._heartbeat(box) if box.heartbeat_due else None
        box.heartbeat_due = False
        version = self._register.version
        return peers_pb2.GossipRequest(
            sender=self._node.name,
            epoch=self._node.store.epoch,
            run=self._run,
            topology_fingerprint=self._node.topology.fingerprint,
            heartbeat=heartbeat,
            messages=_take_batch(box.outbox, self._options),
            protocol=PROTOCOL,
            address=self._node.topology.by_name[self._node.name].address,
            topology_version=version,
            topology=self._register.encoded if box.topology_version < version else b"",
        )

    def _heartbeat(self, box: _Peer) -> peers_pb2.Heartbeat:
        box.number += 1
        return peers_pb2.Heartbeat(
            sequences=self._news(box),
            is_full=not box.published,
            number=box.number,
            synopses=self._changes(box),
            datasets=list(self._node.catalog.shards),
            dropped=self._dropped(box),
            retentions=self._retentions(box),
            samplers=self._sampler_news(box),
            moves=[
                peers_pb2.PartitionMove(partition=one.partition, number=one.number, node=one.node)
                for one in self._node.moves.known
            ],
        )

    def _retentions(self, box: _Peer) -> list[peers_pb2.DatasetRetention]:
        return [
            peers_pb2.DatasetRetention(dataset=dataset, numbered_json=numbered.to_json())
            for dataset, numbered in self._node.catalog.retentions.items()
            if numbered.version > box.retentions.get(dataset, 0)
        ]

    def _news(self, box: _Peer) -> list[peers_pb2.DatasetSequences]:
        """The commits of each dataset with some that the peer has not acknowledged."""
        shards = self._node.catalog.shards
        box.sent = {dataset: shard.own_published() for dataset, shard in shards.items()}
        return [
            self._encode_sequences(dataset, published)
            for dataset, published in box.sent.items()
            if box.published.get(dataset) is not published
        ]

    def _encode_sequences(
        self, dataset: str, published: PublishedCommits
    ) -> peers_pb2.DatasetSequences:
        """Encoded once for all peers."""
        known = self._sequences.get(dataset)
        if known is None or known[0] is not published:
            known = self._sequences[dataset] = published, _sequences_to_pb(dataset, published)
        return known[1]

    def _dropped(self, box: _Peer) -> list[peers_pb2.DroppedGenerations]:
        """Dropped datasets, latest first, so that the receiver does not miss their commits."""
        unheard = [
            peers_pb2.DroppedGenerations(name=name, generations=generations)
            for name, generations in reversed(self._node.catalog.generations.items())
            if generations > box.dropped.get(name, 0)
        ]
        return unheard[: self._options.dropped_together_max]

    def _sampler_news(self, box: _Peer) -> list[peers_pb2.SamplerNotice]:
        news = self._node.samplers.news()
        unheard = [(d, at) for d, at in news.items() if box.samplers.get(d, -1.0) != at]
        return [
            peers_pb2.SamplerNotice(digest=digest, revoked_at=at)
            for digest, at in unheard[: self._options.samplers_together_max]
        ]

    def _changes(self, box: _Peer) -> list[peers_pb2.SynopsisChange]:
        changes, size = [], 0
        for dataset, summary in self._summaries.items():
            if box.up_to_date.get(dataset) is summary.published:
                continue
            is_up_to_date = True
            for partition, synopsis in sorted(summary.synopses.items()):
                known = box.acknowledged.get((dataset, partition))
                if known == synopsis.version:
                    continue
                is_up_to_date = False
                if size > self._options.synopsis_bytes_max:
                    continue
                delta = summary.delta(partition, known)
                size += len(delta)
                changes.append(peers_pb2.SynopsisChange(dataset=dataset, delta=delta))
            if is_up_to_date:
                box.up_to_date[dataset] = summary.published
        return changes

    # --- what arrives ------------------------------------------------------------------------

    async def receive(self, request: peers_pb2.GossipRequest) -> peers_pb2.GossipReply:
        """Applies a request of another node.

        Raises:
            InputError: the sender is not a node of this cluster.
            ConfigError: its topology or its version of the messages differs.
        """
        if request.topology_fingerprint != self._node.topology.fingerprint:
            raise ConfigError(
                f"node {request.sender!r} has another topology than node "
                f"{self._node.name!r}; give all nodes the same [cluster] table: groups, ranges, "
                "partitions_per_group and placement",
                node=request.sender,
                key="cluster",
            )
        _check_protocol(request)
        if request.topology and request.topology_version > self._register.version:
            await self._register.learn(request.sender, request.topology)
        if request.topology_version > self._register.version:
            return self._reply([], is_behind=True)
        if request.sender not in self._boxes:
            raise InputError(
                f"expected a sender of {sorted(self._boxes)}, got {request.sender!r}; it was "
                "removed from the cluster, or its [cluster] table differs",
                node=request.sender,
            )
        box = self._boxes[request.sender]
        box.topology_version = min(box.topology_version, request.topology_version)
        held: list[peers_pb2.SynopsisVersion] = []
        refused: GalileoError | None = None
        if self._node.live.relocate(request.sender, request.address, epoch=request.epoch):
            log.info("node %s has moved to %s", request.sender, request.address)
        if request.HasField("heartbeat"):
            self._on_heartbeat(request.sender, request.epoch)
            refused = await self._sync_datasets(request)
            moves = request.heartbeat.moves
            received = [Move(one.partition, one.number, one.node) for one in moves]
            self._node.moves.receive(request.sender, received)
            held = self._take_heartbeat(request)
        for data in request.messages:
            message = TAGGED.decode(data)
            if isinstance(message, REGISTER_MESSAGES):
                await self._register.receive(request.sender, message)
            else:
                self._on_message(request.sender, message)
        for one in request.heartbeat.retentions:  # last: if the disk refuses, they are sent again
            numbered = VersionedRetention.from_json(one.numbered_json)
            self._node.catalog.adopt_retention(one.dataset, numbered)
        if refused is not None:
            raise refused
        adopted = [
            one.digest
            for one in request.heartbeat.samplers
            if await self._node.samplers.apply_news(
                request.sender, one.digest, revoked_at=one.revoked_at
            )
        ]
        sender = self._senders.get(request.sender)
        return self._reply(held, samplers=adopted, wants_full=not (sender and sender.is_complete))

    def _reply(
        self,
        held: Sequence[peers_pb2.SynopsisVersion],
        *,
        samplers: Sequence[str] = (),
        wants_full: bool = True,
        is_behind: bool = False,
    ) -> peers_pb2.GossipReply:
        return peers_pb2.GossipReply(
            run=self._run,
            synopses=held,
            samplers=samplers,
            wants_full=wants_full,
            topology_version=self._register.version,
            is_behind=is_behind,
        )

    async def _sync_datasets(self, request: peers_pb2.GossipRequest) -> GalileoError | None:
        """Adopts created and dropped datasets.

        Returns:
            An error of the disk about dropped datasets, which the sender then announces again.
        """
        dropped = {one.name: one.generations for one in request.heartbeat.dropped}
        try:
            await self._node.learn_generations(dropped)
        except GalileoError as error:
            log.error("cannot drop the datasets that %s dropped: %s", request.sender, error)
            return error
        try:
            await self._node.sync_datasets(request.sender, list(request.heartbeat.datasets))
        except GalileoError as error:
            log.warning("cannot adopt the datasets of %s: %s", request.sender, error)
        return None

    def _take_heartbeat(self, request: peers_pb2.GossipRequest) -> list[peers_pb2.SynopsisVersion]:
        heartbeat, sender = request.heartbeat, self._senders.get(request.sender)
        if sender is None:
            return []  # It was removed meanwhile.
        if request.run != sender.run:
            sender = self._senders[request.sender] = _Sender(request.run)
        elif heartbeat.number <= sender.number:
            return []  # Late: a later one was taken already.
        sender.number = heartbeat.number
        sender.is_complete |= heartbeat.is_full
        self._take_sequences(heartbeat, sender)
        if sender.is_complete:
            self._check_report(request.sender, heartbeat.moves)
        return self._take_synopses(heartbeat)

    def _take_sequences(self, heartbeat: peers_pb2.Heartbeat, sender: _Sender) -> None:
        view, catalog, news = self._node.view, self._node.catalog, []
        for one in heartbeat.sequences:
            if catalog.is_dropped(one.dataset):
                continue  # The sender may not know yet.
            published = _sequences_from_pb(one)
            sender.sequences[one.dataset] = published.sequences
            view.update_event_clock(one.dataset, published.clock)
            if view.update_sequences(one.dataset, published.sequences):
                news.append(one.dataset)
        for dataset in sender.sequences.keys() - set(heartbeat.datasets):
            del sender.sequences[dataset]
        if news:
            self._on_news(news)

    def _check_report(self, sender: str, moves: Iterable[peers_pb2.PartitionMove]) -> None:
        """Compares all commits that a node has reported with those that it once had.

        Partitions that it has given away may be its own still in the topology here.
        """
        view = self._node.view
        given = {one.partition for one in moves if one.node != sender}
        view.losses.check_report(
            sender,
            self._node.live.partitions(sender) - given,
            reported=self._senders[sender].sequences,
            expected=view.all_sequences,
        )
        view.record_report(sender)

    def _take_synopses(self, heartbeat: peers_pb2.Heartbeat) -> list[peers_pb2.SynopsisVersion]:
        view, catalog = self._node.view, self._node.catalog
        held = []
        for change in heartbeat.synopses:
            if not catalog.knows(change.dataset):
                continue  # Dropped, or not adopted yet; the change is sent again.
            schema = catalog.schema(change.dataset)
            delta = SynopsisDelta.from_bytes(schema, change.delta)
            version = view.apply_synopsis(schema, delta)
            held.append(
                peers_pb2.SynopsisVersion(
                    dataset=change.dataset,
                    partition=delta.partition,
                    epoch=version.epoch,
                    version=version.sequence,
                )
            )
        return held


def _sequences_to_pb(dataset: str, published: PublishedCommits) -> peers_pb2.DatasetSequences:
    return peers_pb2.DatasetSequences(
        dataset=dataset,
        sequences=cursor_to_pb(published.sequences),
        clock=event_clock_to_pb(published.clock),
    )


def _sequences_from_pb(message: peers_pb2.DatasetSequences) -> PublishedCommits:
    return PublishedCommits(cursor_from_pb(message.sequences), event_clock_from_pb(message.clock))


def _check_protocol(request: peers_pb2.GossipRequest) -> None:
    if request.protocol not in PROTOCOLS_UNDERSTOOD:
        understood = ", ".join(map(str, PROTOCOLS_UNDERSTOOD))
        raise ConfigError(
            f"expected gossip of protocol {understood}, got protocol {request.protocol} of node "
            f"{request.sender!r}; run compatible versions of Galileo on all nodes",
            node=request.sender,
            expected=sorted(PROTOCOLS_UNDERSTOOD),
        )


def _take_batch(outbox: deque[bytes], options: MessagingOptions) -> list[bytes]:
    """Removes the oldest messages of an outbox, up to the limits of one request."""
    batch: list[bytes] = []
    size, count_max, bytes_max = 0, options.messages_together_max, options.messages_bytes_max
    while outbox and len(batch) < count_max and size < bytes_max:
        batch.append(outbox.popleft())
        size += len(batch[-1])
    return batch
