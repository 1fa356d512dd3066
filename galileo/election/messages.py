"""What nodes tell each other in an election poll (paper, IV.B), and the election's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsageStatistics:
    """How busy a node is, by its own measurement.

    Attributes:
        cpu_share: of all its cores that was in use lately, 0 to 1.
        memory_free_bytes: that it could still give to caches.
        load: runnable threads per core, averaged over a minute.
        ccq_count: CCQs that it coordinates.
        cache_bytes: that those hold.
        is_draining: whether it gives away what it coordinates and takes nothing on.
    """

    cpu_share: float = 0.0
    memory_free_bytes: int = 0
    load: float = 0.0
    ccq_count: int = 0
    cache_bytes: int = 0
    is_draining: bool = False


# --- messages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Poll:
    """Asks a node for its usage statistics; `election` comes back with the answer."""

    election: str


@dataclass(frozen=True, slots=True)
class PollAnswer:
    election: str
    usage: UsageStatistics


# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """Begins the election.

    Attributes:
        need_bytes: cache that the CCQ is expected to need.
        groups: node names by group, in the order in which they are to be polled.
        only_suitable: no node rather than one that is not suitable.
    """

    need_bytes: int
    groups: tuple[tuple[str, ...], ...]
    only_suitable: bool = False


@dataclass(frozen=True, slots=True)
class PollAnswered:
    node: str
    usage: UsageStatistics


@dataclass(frozen=True, slots=True)
class OfferAccepted:
    node: str


@dataclass(frozen=True, slots=True)
class OfferRefused:
    node: str


@dataclass(frozen=True, slots=True)
class ElectionTicked:
    """Time has passed."""


ElectionEvent = Started | PollAnswered | OfferAccepted | OfferRefused | ElectionTicked


# --- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendPoll:
    to: str


@dataclass(frozen=True, slots=True)
class OfferAssignment:
    """Offer the CCQ to this node, in a term of its own."""

    node: str


@dataclass(frozen=True, slots=True)
class Decided:
    node: str


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


ElectionEffect = SendPoll | OfferAssignment | Decided | Failed
