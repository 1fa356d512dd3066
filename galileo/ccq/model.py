"""What a cached continuous query is, and what every node of the cluster remembers of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from galileo.cursor import ORIGIN, Cursor
from galileo.errors import GalileoError, InternalError, by_kind
from galileo.model.windows import Window
from galileo.samplers import SamplerSpec

NODES_MAX = 4096
"""Initiators of elections per cluster; a term is `round * NODES_MAX + ordinal`."""

Ending: TypeAlias = Literal["cancelled", "expired", "dropped"]
Compression: TypeAlias = Literal["", "lz4"]


@dataclass(frozen=True, slots=True)
class Ccq:
    """A cached continuous query as it was submitted; it never changes.

    Attributes:
        id: unique for ever; never used again for another query. The submitter draws it at
            random: two queries that are submitted under one id at two nodes at one time cannot
            be distinguished.
        dataset: key of the dataset it asks about.
        query: canonical CQL2 JSON, empty for "everything".
        interval_s: update interval.
        expires_at: wall time, seconds since 1970-01-01 UTC.
        sampler: thins every commit's labels before they are cached.
        compression: of the cache.
        window: the windows of its labels, whose changes readers get.
        owner: name of who submitted it, and alone may fetch and cancel it; "" where the cluster
            asked for no proof.
    """

    id: str
    dataset: str
    query: str
    interval_s: float
    expires_at: float
    sampler: SamplerSpec | None = None
    compression: Compression = ""
    window: Window | None = None
    owner: str = ""

    def asks_the_same(self, other: Ccq) -> bool:
        """Whether `other` is this one, submitted again (and perhaps later)."""
        return replace(self, expires_at=other.expires_at) == other


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that keeps what it cached of a CCQ while it was the coordinator.

    Attributes:
        node: which.
        term: in which it coordinated.
        after: it keeps the labels past this cursor,
        until: and not past this one.
    """

    node: str
    term: int
    after: Cursor
    until: Cursor


@dataclass(frozen=True, slots=True)
class Record:
    """What every node keeps of a CCQ (paper, IV.E: coordinator, query, time of retrieval).

    Records of one CCQ form a semilattice under `merge`, so that nodes that hear the same
    records, in whatever order and however often, hold the same one.

    Attributes:
        term: of the coordinator; terms of different initiators are never equal, and an
            initiator never uses one twice, so a term names one coordinator for good.
        coordinator: the node that is to run the CCQ; naming it is its appointment.
        retrieved: the join of all cursors that clients have acknowledged.
        ended: why the CCQ is over; once set, for ever.
        ended_at: wall time of the end, 0 while it lives.
        holders: nodes that keep stretches before those of the coordinator, oldest first. As with
            the coordinator, being named is what makes a node one. A term begins with all of
            them; within it they only become fewer.
    """

    ccq: Ccq
    term: int
    coordinator: str
    retrieved: Cursor = ORIGIN
    ended: Ending | None = None
    ended_at: float = 0.0
    holders: tuple[Holder, ...] = ()

    def __post_init__(self) -> None:
        """No holder is named once clients have all that it keeps, or the CCQ is over."""
        if self.holders:
            is_over = self.ended is not None
            kept = () if is_over else self.holders
            kept = tuple(one for one in kept if not self.retrieved.covers(one.until))
            object.__setattr__(self, "holders", kept)

    def merge(self, other: Record) -> Record:
        """The newest of both: the higher term, any end, the later retrieved position.

        Of one term, the fewer holders: one that was given up stays so.
        """
        newer = max(self, other, key=_tenure)
        holders = newer.holders
        if holders and _tenure(self) == _tenure(other):
            holders = tuple(one for one in self.holders if one in other.holders)
        ends = [(r.ended_at, r.ended) for r in (self, other) if r.ended is not None]
        ended_at, ended = min(ends) if ends else (0.0, None)
        retrieved = self.retrieved.join(other.retrieved)
        return replace(newer, retrieved=retrieved, ended=ended, ended_at=ended_at, holders=holders)


def _tenure(record: Record) -> tuple[int, str]:
    return (record.term, record.coordinator)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a value: a `kind` of `galileo.errors`, what to tell, facts to act on."""

    kind: str
    message: str
    details: tuple[tuple[str, str | int | float], ...] = ()

    def to_error(self) -> GalileoError:
        return by_kind().get(self.kind, InternalError)(self.message, **dict(self.details))
