"""The messages of gossip: a heartbeat with the states of nodes, and messages about the topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa

from galileo.dht.membership import Gossip
from galileo.dht.topology import PARTITIONS_MAX, Move
from galileo.graph.synopsis import SynopsisVersion
from galileo.wire.attachments import AtMost

MOVES_MAX = PARTITIONS_MAX + 1
"""The last moves of all partitions, that of the system tables included."""
MESSAGES_MAX = 1_000
"""Messages of one request."""


@dataclass(frozen=True, slots=True)
class SynopsisChange:
    """What has changed of the synopsis of a partition.

    Attributes:
        dataset: its key.
        delta: as of `SynopsisDelta`.
        added: how many of the features that were added to the dataset it summarises.
    """

    dataset: str
    delta: pa.Buffer
    added: int


@dataclass(frozen=True, slots=True)
class HeldSynopsis:
    """The version of a synopsis that a node holds, so that the next change continues there."""

    dataset: str
    partition: int
    version: SynopsisVersion


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a node says of itself.

    Attributes:
        synopses: changes that the receiver has not acknowledged.
        moves: the last one of each partition, as far as the sender knows.
    """

    synopses: tuple[SynopsisChange, ...] = ()
    moves: Annotated[tuple[Move, ...], AtMost(MOVES_MAX)] = ()


@dataclass(frozen=True, slots=True)
class GossipRequest:
    """One heartbeat, messages about the topology, or both; it may be lost or repeated.

    Attributes:
        sender: its name.
        run: of the sender's life.
        topology_fingerprint: of the sender's; the receiver refuses another.
        topology_version: of the sender's; 1 is that of the files.
        topology: that version, encoded, if the receiver may not have it; else empty.
        heartbeat: None: there is none.
        states: with a heartbeat, or alone to complete an exchange.
        messages: about the topology, encoded.
    """

    sender: str
    run: int
    topology_fingerprint: int
    topology_version: int
    topology: pa.Buffer = b""
    heartbeat: Heartbeat | None = None
    states: Gossip | None = None
    messages: Annotated[tuple[pa.Buffer, ...], AtMost(MESSAGES_MAX)] = ()


@dataclass(frozen=True, slots=True)
class GossipReply:
    """The answer.

    Attributes:
        run: of the receiver's life.
        topology_version: of the receiver's.
        topology: encoded, if that of the sender is older; else empty.
        synopses: what the receiver holds of those that came.
        states: of the receiver, if the request had some.
        is_behind: the receiver has taken nothing, because its topology is older.
    """

    run: int
    topology_version: int
    topology: pa.Buffer = b""
    synopses: tuple[HeldSynopsis, ...] = ()
    states: Gossip | None = None
    is_behind: bool = False
