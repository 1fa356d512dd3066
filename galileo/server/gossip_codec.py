"""Gossip and the entries of node states on the wire."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from galileo.dht.membership import Gossip
from galileo.dht.node_states import Digest, StateDelta, StateEntry
from galileo.errors import InputError
from galileo.node.shard import PublishedCommits
from galileo.wire.codec import (
    cursor_from_pb,
    cursor_to_pb,
    event_clock_from_pb,
    event_clock_to_pb,
)
from galileo.wire.internal.v1 import peers_pb2

_RUN, _COUNT = np.dtype("<u8"), np.dtype("<u4")


def gossip_to_pb(gossip: Gossip) -> peers_pb2.NodeStates:
    digest = gossip.digest
    return peers_pb2.NodeStates(
        digest=None if digest is None else _digest_to_pb(digest),
        deltas=[_delta_to_pb(delta) for delta in gossip.deltas],
    )


def gossip_from_pb(message: peers_pb2.NodeStates) -> Gossip:
    """The inverse of `gossip_to_pb`.

    Raises:
        InputError: the columns of the digest have different lengths.
    """
    digest = _digest_from_pb(message.digest) if message.HasField("digest") else None
    return Gossip(digest, tuple(_delta_from_pb(delta) for delta in message.deltas))


def encode_commits(published: PublishedCommits) -> bytes:
    """The last commits of a dataset, as an entry."""
    message = peers_pb2.PublishedCommits(
        sequences=cursor_to_pb(published.sequences), clock=event_clock_to_pb(published.clock)
    )
    return message.SerializeToString()


def decode_commits(value: bytes) -> PublishedCommits:
    message = peers_pb2.PublishedCommits.FromString(value)
    return PublishedCommits(cursor_from_pb(message.sequences), event_clock_from_pb(message.clock))


def encode_led(partitions: Iterable[int]) -> bytes:
    """The partitions that a node leads, as an entry."""
    return np.array(sorted(partitions), dtype=_COUNT).tobytes()


def decode_led(value: bytes) -> frozenset[int]:
    return frozenset(np.frombuffer(value, dtype=_COUNT).tolist())


def _digest_to_pb(digest: Digest) -> peers_pb2.NodeDigest:
    return peers_pb2.NodeDigest(
        names="\n".join(digest.names).encode(),
        runs=digest.runs.astype(_RUN).tobytes(),
        beats=digest.beats.astype(_COUNT).tobytes(),
        versions=digest.versions.astype(_COUNT).tobytes(),
    )


def _digest_from_pb(message: peers_pb2.NodeDigest) -> Digest:
    names = tuple(message.names.decode().split("\n"))
    sizes = [len(message.runs) / 8, len(message.beats) / 4, len(message.versions) / 4]
    if sizes != [len(names)] * 3:
        raise InputError(
            f"expected a digest with {len(names)} rows, got columns of {sizes}",
            expected=len(names),
        )
    return Digest(
        names,
        np.frombuffer(message.runs, dtype=_RUN),
        np.frombuffer(message.beats, dtype=_COUNT),
        np.frombuffer(message.versions, dtype=_COUNT),
    )


def _delta_to_pb(delta: StateDelta) -> peers_pb2.StateDelta:
    return peers_pb2.StateDelta(
        node=delta.node,
        run=delta.run,
        base=delta.base,
        version=delta.version,
        entries=[
            peers_pb2.StateEntry(key=entry.key, version=entry.version, value=entry.value)
            for entry in delta.entries
        ],
    )


def _delta_from_pb(message: peers_pb2.StateDelta) -> StateDelta:
    entries = (StateEntry(one.key, one.version, one.value) for one in message.entries)
    return StateDelta(message.node, message.run, message.base, message.version, tuple(entries))
