"""Messages, events and effects of an election (paper, IV.B)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsageStatistics:
    """The load of a node, by its own measurement.

    Attributes:
        cpu_share: recently used share of all its cores, 0 to 1.
        memory_free_bytes: free memory that caches could use.
        load: runnable threads per core, averaged over a minute.
        ccq_count: CCQs that it coordinates.
        cache_bytes: size of their caches.
        is_draining: whether it hands off its CCQs and accepts no others.
    """

    cpu_share: float = 0.0
    memory_free_bytes: int = 0
    load: float = 0.0
    ccq_count: int = 0
    cache_bytes: int = 0
    is_draining: bool = False


# --- messages ----------------------------------------------------------------------------------

UNASKED = ""
"""The election of a PollAnswer that goes with the acceptance of a CCQ."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Requests the usage statistics of a node; `election` is repeated in the answer."""

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
        need_bytes: expected cache size of the CCQ.
        rounds: the nodes that are polled together, in the order of polling.
        only_suitable: fail rather than offer to an unsuitable node.
    """

    need_bytes: int
    rounds: tuple[tuple[str, ...], ...]
    only_suitable: bool = False


@dataclass(frozen=True, slots=True)
class PollAnswered:
    node: str
    usage: UsageStatistics
    round_trip_s: float = 0.0


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
    """Offer the CCQ to this node, in a new term."""

    node: str


@dataclass(frozen=True, slots=True)
class Decided:
    node: str


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


ElectionEffect = SendPoll | OfferAssignment | Decided | Failed
