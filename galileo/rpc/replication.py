"""The replication service, and its client for calls between nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from galileo.errors import InputError
from galileo.node.replication.protocol import CommitRange, Envelope, RangeDigest
from galileo.node.storage_node import StorageNode
from galileo.replication import messages
from galileo.replication.messages import Message
from galileo.replication.values import Epochs, Member, ReplicaSet
from galileo.rpc.error_mapping import Context, unary
from galileo.rpc.peers import GrpcPeers
from galileo.wire.internal.v1 import replication_pb2 as pb

SMALL_BYTES = 1 << 20
"""A request up to this size needs no memory set aside."""


class ReplicationServicer:
    def __init__(self, node: StorageNode) -> None:
        self._node = node

    @unary
    async def Replicate(  # noqa: N802
        self, request: pb.ReplicateRequest, context: Context
    ) -> pb.ReplicateReply:
        if self._node.replicas is not None:
            await self._node.replicas.receive(envelopes_from_pb(request, to=self._node.name))
        return pb.ReplicateReply()

    ReplicateFrames = Replicate

    @unary
    async def Digest(  # noqa: N802
        self, request: pb.DigestRequest, context: Context
    ) -> pb.DigestReply:
        replicas = self._node.replicas
        ranges = [CommitRange(r.partition, r.dataset, r.after, r.until) for r in request.ranges]
        digests: list[RangeDigest | None] = [None] * len(ranges)
        if replicas is not None and request.disk == replicas.me.disk:
            digests = replicas.comparison.digests(ranges)
        return pb.DigestReply(digests=map(_digest_to_pb, digests))


class GrpcReplicaLink:
    """Implements `node.replication.protocol.ReplicaLink` over gRPC."""

    def __init__(self, peers: GrpcPeers) -> None:
        self._peers = peers

    async def send(self, node: str, envelopes: Sequence[Envelope]) -> None:
        frames_bytes = sum(envelope.frames_bytes for envelope in envelopes)
        for request in envelopes_to_pb(envelopes):
            # `ByteSize` encodes the request, which costs as much as a copy of all frames.
            is_large = frames_bytes > SMALL_BYTES or request.ByteSize() > SMALL_BYTES
            method = "ReplicateFrames" if is_large else "Replicate"
            await self._peers.replicating(node, method, request)

    async def digests(
        self, member: Member, ranges: Sequence[CommitRange]
    ) -> list[RangeDigest | None]:
        parts = [
            pb.CommitRange(partition=r.partition, dataset=r.dataset, after=r.after, until=r.until)
            for r in ranges
        ]
        request = pb.DigestRequest(disk=member.disk, ranges=parts)
        reply: pb.DigestReply = await self._peers.replicating(member.node, "Digest", request)
        known = [RangeDigest(d.after, d.digest) if d.is_known else None for d in reply.digests]
        return known[: len(ranges)] + [None] * (len(ranges) - len(known))


def _digest_to_pb(digest: RangeDigest | None) -> pb.RangeDigest:
    if digest is None:
        return pb.RangeDigest()
    return pb.RangeDigest(is_known=True, after=digest.after, digest=digest.digest)


def _has_frames(message: pb.ReplicaMessage) -> bool:
    return message.WhichOneof("message") in ("append", "fetched")


def envelopes_to_pb(envelopes: Sequence[Envelope]) -> list[pb.ReplicateRequest]:
    """One request for each directory of the receiving node, which is one but after a loss."""
    by_disk = defaultdict[str, list[Envelope]](list)
    for envelope in envelopes:
        by_disk[envelope.to.disk].append(envelope)
    requests = []
    for disk, of_disk in by_disk.items():
        sender = of_disk[0].sender
        request = pb.ReplicateRequest(node=sender.node, disk=sender.disk, to_disk=disk)
        requests.append(request)
        for envelope in of_disk:
            _write(envelope, request.messages.add())
    return requests


def envelopes_from_pb(request: pb.ReplicateRequest, *, to: str) -> list[Envelope]:
    """The messages of a request to node `to`.

    Raises:
        InputError: a message is of no known kind.
    """
    sender, receiver = Member(request.node, request.disk), Member(to, request.to_disk)
    envelopes = []
    for one in request.messages:
        kind = one.WhichOneof("message")
        if kind is None:
            raise InputError(f"expected a message of a replica, got another one of {sender.node!r}")
        value = getattr(one, kind)
        message, frames, log_start, added = _READ[kind](value), None, b"", 0
        if _has_frames(one):
            frames, log_start, added = value.frames, value.log_start, value.added
        envelope = Envelope(one.partition, sender, receiver, message, frames, log_start, added)
        envelopes.append(envelope)
    return envelopes


def _write(envelope: Envelope, to: pb.ReplicaMessage) -> None:
    """Writes a message in place: one that is assigned as a whole is encoded and decoded again."""
    kind, encode = _WRITE[type(envelope.message)]
    to.partition = envelope.partition
    value = getattr(to, kind)
    value.CopyFrom(encode(envelope.message))
    if envelope.frames is not None:
        value.frames = bytes(envelope.frames)
    if envelope.log_start:
        value.log_start = envelope.log_start
    if envelope.added:
        value.added = envelope.added


# --- values ------------------------------------------------------------------------------------


def _member_to_pb(member: Member) -> pb.ReplicaMember:
    return pb.ReplicaMember(node=member.node, disk=member.disk)


def _member(value: pb.ReplicaMember) -> Member:
    return Member(value.node, value.disk)


def _set_to_pb(value: ReplicaSet) -> pb.ReplicaSet:
    return pb.ReplicaSet(
        term=value.term,
        number=value.number,
        voters=[_member_to_pb(member) for member in sorted(value.voters)],
        learners=[_member_to_pb(member) for member in sorted(value.learners)],
    )


def _set(value: pb.ReplicaSet) -> ReplicaSet:
    return ReplicaSet(
        value.term,
        value.number,
        frozenset(map(_member, value.voters)),
        frozenset(map(_member, value.learners)),
    )


def _epochs_to_pb(epochs: Epochs) -> pb.LogEpochs:
    return pb.LogEpochs(
        firsts=[first for first, _ in epochs.runs],
        epochs=[epoch for _, epoch in epochs.runs],
        end=epochs.end,
        start=epochs.start,
    )


def _epochs(value: pb.LogEpochs) -> Epochs:
    if len(value.firsts) != len(value.epochs):
        raise InputError("expected as many epochs as runs of frames in a message of a replica")
    return Epochs(tuple(zip(value.firsts, value.epochs, strict=True)), value.end, value.start)


def _logs_to_pb(logs: Mapping[str, Epochs]) -> dict[str, pb.LogEpochs]:
    return {name: _epochs_to_pb(epochs) for name, epochs in logs.items()}


def _logs(values: Mapping[str, pb.LogEpochs]) -> dict[str, Epochs]:
    return {name: _epochs(value) for name, value in values.items()}


def _request_to_pb(message: Any) -> pb.CandidateRequest:
    return pb.CandidateRequest(
        term=message.term, set=_set_to_pb(message.set), resigned=message.resigned
    )


def _resigned_to_pb(message: messages.Resigned) -> pb.Resigned:
    successor = message.successor
    return pb.Resigned(
        term=message.term, successor=None if successor is None else _member_to_pb(successor)
    )


_WRITE: dict[type, tuple[str, Callable[[Any], Any]]] = {
    messages.RequestPreVote: ("request_pre_vote", _request_to_pb),
    messages.PreVote: ("pre_vote", lambda m: pb.TermOnly(term=m.term)),
    messages.RequestVote: ("request_vote", _request_to_pb),
    messages.Vote: (
        "vote",
        lambda m: pb.VoteReply(
            term=m.term, joined=m.joined, logs=_logs_to_pb(m.logs), suspect=m.suspect
        ),
    ),
    messages.Refused: ("refused", lambda m: pb.TermOnly(term=m.promised)),
    messages.NewerSet: ("newer_set", lambda m: _set_to_pb(m.set)),
    messages.Fetch: (
        "fetch",
        lambda m: pb.FetchFrames(term=m.term, log=m.log, after=m.after, until=m.until),
    ),
    messages.Fetched: (
        "fetched",
        lambda m: pb.FetchedFrames(
            term=m.term, log=m.log, after=m.after, epochs=_epochs_to_pb(m.epochs), start=m.start
        ),
    ),
    messages.StartTerm: (
        "start_term",
        lambda m: pb.StartTerm(
            term=m.term, set=_set_to_pb(m.set), starts=m.starts, logs=_logs_to_pb(m.logs)
        ),
    ),
    messages.Append: (
        "append",
        lambda m: pb.AppendFrames(
            term=m.term,
            log=m.log,
            after=m.after,
            after_epoch=m.after_epoch,
            epochs=_epochs_to_pb(m.epochs),
            match=m.match,
            committed=m.committed,
            start=m.start,
        ),
    ),
    messages.Acknowledged: (
        "acknowledged",
        lambda m: pb.Acknowledged(
            term=m.term,
            set_term=m.set_version[0],
            set_number=m.set_version[1],
            has_joined=m.has_joined,
            is_complete=m.is_complete,
            matches=m.matches,
            committed=m.committed,
        ),
    ),
    messages.NotFollowing: ("not_following", lambda m: pb.TermOnly(term=m.term)),
    messages.Beat: ("beat", lambda m: pb.Beat(term=m.term, sent_at=m.sent_at)),
    messages.Support: ("support", lambda m: pb.Beat(term=m.term, sent_at=m.sent_at)),
    messages.Resigned: ("resigned", _resigned_to_pb),
}
_READ: dict[str, Callable[[Any], Message]] = {
    "request_pre_vote": lambda v: messages.RequestPreVote(v.term, _set(v.set), v.resigned),
    "pre_vote": lambda v: messages.PreVote(v.term),
    "request_vote": lambda v: messages.RequestVote(v.term, _set(v.set), v.resigned),
    "vote": lambda v: messages.Vote(v.term, v.joined, _logs(v.logs), dict(v.suspect)),
    "refused": lambda v: messages.Refused(v.term),
    "newer_set": lambda v: messages.NewerSet(_set(v)),
    "fetch": lambda v: messages.Fetch(v.term, v.log, v.after, v.until),
    "fetched": lambda v: messages.Fetched(v.term, v.log, v.after, _epochs(v.epochs), v.start),
    "start_term": lambda v: messages.StartTerm(v.term, _set(v.set), dict(v.starts), _logs(v.logs)),
    "append": lambda v: messages.Append(
        v.term, v.log, v.after, v.after_epoch, _epochs(v.epochs), v.match, v.committed, v.start
    ),
    "acknowledged": lambda v: messages.Acknowledged(
        v.term,
        (v.set_term, v.set_number),
        v.has_joined,
        v.is_complete,
        dict(v.matches),
        dict(v.committed),
    ),
    "not_following": lambda v: messages.NotFollowing(v.term),
    "beat": lambda v: messages.Beat(v.term, v.sent_at),
    "support": lambda v: messages.Support(v.term, v.sent_at),
    "resigned": lambda v: messages.Resigned(
        v.term, _member(v.successor) if v.HasField("successor") else None
    ),
}
