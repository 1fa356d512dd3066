"""Messages between nodes: heartbeats, gossip and the messages of the machines.

There is one sender per peer, so that a peer that hangs does not delay others. A heartbeat carries
the sender's commit sequences, the names of its datasets, and the changes of its synopses and
uploaded samplers that the peer has not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from galileo.ccq import messages, model
from galileo.dht.topology import Move
from galileo.election.messages import UsageStatistics
from galileo.errors import ConfigError, GalileoError, InputError
from galileo.graph.synopsis import SynopsisDelta, Version
from galileo.model.retention import VersionedRetention
from galileo.model.windows import Window
from galileo.node.shard import PublishedCommits
from galileo.node.storage_node import StorageNode
from galileo.rpc.peers import GrpcPeers
from galileo.wire.codec import (
    cursor_from_pb,
    cursor_to_pb,
    event_clock_from_pb,
    event_clock_to_pb,
)
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.tagged_json import TaggedJson

PROTOCOL = 3
"""Version of the messages; raised when older versions would misinterpret a message."""
PROTOCOLS_UNDERSTOOD = (3,)
"""Versions that are accepted from other nodes, for rolling upgrades."""

_NOT_URGENT = (messages.Digest,)

log = logging.getLogger(__name__)

TAGGED = TaggedJson(
    [
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
        synopsis_bytes_max: changes of synopses in one heartbeat; the last may exceed it.
        samplers_together_max: uploaded samplers announced in one heartbeat; the receiver may have
            to fetch their code.
        dropped_together_max: names of dropped datasets in one heartbeat.
    """

    outbox_max: int = 10_000
    messages_together_max: int = 1_000
    messages_bytes_max: int = 2 << 20
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
        self.acknowledged: dict[tuple[str, int], Version] = {}
        self.up_to_date: dict[str, PublishedCommits] = {}
        self.epoch = 0
        self.retentions: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.samplers: dict[str, float] = {}

    def record_reply(self, request: peers_pb2.GossipRequest, reply: peers_pb2.GossipReply) -> None:
        """Records what the peer has acknowledged; forgets it after a restart of the peer."""
        is_another = reply.epoch != self.epoch
        if is_another:
            self.epoch, self.retentions, self.dropped, self.samplers = reply.epoch, {}, {}, {}
            self.acknowledged, self.up_to_date = {}, {}
        for held in reply.synopses:
            version = Version(held.epoch, held.version)
            self.acknowledged[held.dataset, held.partition] = version
        if is_another:
            return
        self.dropped |= {one.name: one.generations for one in request.heartbeat.dropped}
        for one in request.heartbeat.retentions:
            numbered = VersionedRetention.from_json(one.numbered_json)
            self.retentions[one.dataset] = numbered.version
        revocations = {one.digest: one.revoked_at for one in request.heartbeat.samplers}
        self.samplers |= {
            digest: revocations[digest] for digest in reply.samplers if digest in revocations
        }


class _Received(NamedTuple):
    """The commits of a dataset that a peer announced, encoded and decoded."""

    encoded: bytes
    published: PublishedCommits


class PeerMessenger:
    """Exchanges heartbeats and messages with the other nodes.

    Args:
        node: the node whose state the heartbeats report.
        peers: the clients of the other nodes.
        on_heartbeat: called with (node, epoch).
        on_message: called with (node, message).
        on_news: called with the datasets of which new commits were reported.
        options: limits.
    """

    def __init__(
        self,
        node: StorageNode,
        peers: GrpcPeers,
        *,
        on_heartbeat: Callable[[str, int], None],
        on_message: Callable[[str, Any], None],
        on_news: Callable[[Iterable[str]], None],
        options: MessagingOptions | None = None,
    ) -> None:
        self._options = options = options or MessagingOptions()
        self._node = node
        self._peers = peers
        self._on_heartbeat = on_heartbeat
        self._on_message = on_message
        self._on_news = on_news
        others = [other.name for other in node.topology.nodes if other.name != node.name]
        self._boxes = {name: _Peer(name, outbox_max=options.outbox_max) for name in others}
        self._encoded: tuple[Any, bytes] = (None, b"")
        self._sent: dict[str, tuple[PublishedCommits, peers_pb2.DatasetSequences]] = {}
        self._received: dict[str, dict[str, _Received]] = {name: {} for name in others}

    def send(self, to: str, message: Any) -> None:
        """Queues a message; one that is not urgent goes with the next heartbeat."""
        box = self._boxes[to]
        if self._encoded[0] is not message:  # A message to all peers is encoded once.
            self._encoded = message, TAGGED.encode(message)
        box.outbox.append(self._encoded[1])
        if not isinstance(message, _NOT_URGENT):
            box.wake.set()

    def send_heartbeat(self, to: str) -> None:
        box = self._boxes[to]
        box.heartbeat_due = True
        box.wake.set()

    def broadcast_heartbeat(self) -> None:
        """Sends a heartbeat to every peer now."""
        for name in self._boxes:
            self.send_heartbeat(name)

    def has_answered(self, node: str) -> bool:
        """Whether the node has replied since this one was started."""
        return self._boxes[node].epoch > 0

    async def run(self) -> None:
        """Sends until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for box in self._boxes.values():
                group.create_task(self._deliver(box))

    async def _deliver(self, box: _Peer) -> None:
        while True:
            await box.wake.wait()
            box.wake.clear()
            while box.outbox or box.heartbeat_due:
                request = self._request(box)
                try:
                    reply = await self._peers.exchange(box.name, request)
                except ConfigError as error:
                    log.error("%s rejected gossip: %s", box.name, error)
                    continue
                except GalileoError as error:
                    log.debug("could not send gossip to %s: %s", box.name, error)
                    continue
                box.record_reply(request, reply)

    def _request(self, box: _Peer) -> peers_pb2.GossipRequest:
        heartbeat = self._heartbeat(box) if box.heartbeat_due else None
        box.heartbeat_due = False
        return peers_pb2.GossipRequest(
            sender=self._node.name,
            epoch=self._node.store.epoch,
            topology_fingerprint=self._node.topology.fingerprint,
            heartbeat=heartbeat,
            messages=_take_batch(box.outbox, self._options),
            protocol=PROTOCOL,
            address=self._node.topology.by_name[self._node.name].address,
        )

    def _heartbeat(self, box: _Peer) -> peers_pb2.Heartbeat:
        shards = self._node.catalog.shards
        retentions = [
            peers_pb2.DatasetRetention(dataset=dataset, numbered_json=numbered.to_json())
            for dataset, numbered in self._node.catalog.retentions.items()
            if numbered.version > box.retentions.get(dataset, 0)
        ]
        return peers_pb2.Heartbeat(
            sequences=self._sequences(),
            synopses=self._changes(box),
            datasets=list(shards),
            dropped=self._dropped(box),
            retentions=retentions,
            samplers=self._sampler_news(box),
            moves=[
                peers_pb2.PartitionMove(partition=one.partition, number=one.number, node=one.node)
                for one in self._node.moves.known
            ],
        )

    def _sequences(self) -> list[peers_pb2.DatasetSequences]:
        """The commits of each dataset, encoded once for all peers and heartbeats."""
        encoded: dict[str, tuple[PublishedCommits, peers_pb2.DatasetSequences]] = {}
        for dataset, shard in self._node.catalog.shards.items():
            published, known = shard.own_published(), self._sent.get(dataset)
            if known is None or known[0] is not published:
                known = published, _sequences_to_pb(dataset, published)
            encoded[dataset] = known
        self._sent = encoded
        return [message for _, message in encoded.values()]

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
        for dataset, shard in self._node.catalog.shards.items():
            published = shard.own_published()
            if box.up_to_date.get(dataset) is published:
                continue
            is_up_to_date = True
            for partition, synopsis in sorted(shard.synopses().items()):
                known = box.acknowledged.get((dataset, partition))
                if known == synopsis.version:
                    continue
                is_up_to_date = False
                if size > self._options.synopsis_bytes_max:
                    continue
                delta = synopsis.changes_since(known).to_bytes(shard.schema)
                size += len(delta)
                changes.append(peers_pb2.SynopsisChange(dataset=dataset, delta=delta))
            if is_up_to_date:
                box.up_to_date[dataset] = published
        return changes

    # --- what arrives ------------------------------------------------------------------------

    async def receive(self, request: peers_pb2.GossipRequest) -> peers_pb2.GossipReply:
        """Applies a request of another node.

        Raises:
            InputError: the sender is not a node of this cluster.
            ConfigError: its topology or its version of the messages differs.
        """
        if request.sender not in self._boxes:
            raise InputError(
                f"expected a sender of {sorted(self._boxes)}, got {request.sender!r}; "
                "check that all nodes have one topology"
            )
        if request.topology_fingerprint != self._node.topology.fingerprint:
            raise ConfigError(
                f"node {request.sender!r} has another topology than node "
                f"{self._node.name!r}; give all nodes the same [cluster] table"
            )
        _check_protocol(request)
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
            held = self._take_heartbeat(request.heartbeat, sender=request.sender)
            self._node.view.record_report(request.sender)
        for data in request.messages:
            self._on_message(request.sender, TAGGED.decode(data))
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
        return peers_pb2.GossipReply(epoch=self._node.store.epoch, synopses=held, samplers=adopted)

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

    def _take_heartbeat(
        self, heartbeat: peers_pb2.Heartbeat, *, sender: str
    ) -> list[peers_pb2.SynopsisVersion]:
        view, catalog = self._node.view, self._node.catalog
        # The sender may not know yet that a dataset was dropped.
        living = [one for one in heartbeat.sequences if not catalog.is_dropped(one.dataset)]
        received = self._decode(living, sender=sender)
        for dataset, one in received.items():
            view.update_event_clock(dataset, one.published.clock)
        sequences = {dataset: one.published.sequences for dataset, one in received.items()}
        news = [
            dataset for dataset in sequences if view.update_sequences(dataset, sequences[dataset])
        ]
        own = self._node.live.partitions(sender)
        view.losses.check_report(sender, own, reported=sequences, expected=view.all_sequences)
        if news:
            self._on_news(news)
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

    def _decode(
        self, sequences: Iterable[peers_pb2.DatasetSequences], *, sender: str
    ) -> dict[str, _Received]:
        """Decodes the commits of each dataset; reuses the result for unchanged ones."""
        decoded: dict[str, _Received] = {}
        for message in sequences:
            # The message itself would keep the memory of the whole request.
            encoded = message.SerializeToString()
            known = self._received[sender].get(message.dataset)
            if known is None or known.encoded != encoded:
                known = _Received(encoded, _sequences_from_pb(message))
            decoded[message.dataset] = known
        self._received[sender] = decoded
        return decoded


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
            f"{request.sender!r}; run compatible versions of Galileo on all nodes"
        )


def _take_batch(outbox: deque[bytes], options: MessagingOptions) -> list[bytes]:
    """Removes the oldest messages of an outbox, up to the limits of one request."""
    batch: list[bytes] = []
    size, count_max, bytes_max = 0, options.messages_together_max, options.messages_bytes_max
    while outbox and len(batch) < count_max and size < bytes_max:
        batch.append(outbox.popleft())
        size += len(batch[-1])
    return batch
