"""What a cached continuous query is, and what every node of the cluster remembers of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from galileo.cursor import ORIGIN, Cursor
from galileo.errors import Bug, GalileoError, by_kind
from galileo.samplers import SamplerSpec

NODES_MAX = 4096
"""Initiators of elections per cluster; a term is `round * NODES_MAX + ordinal`."""

Ending: TypeAlias = Literal["cancelled", "expired"]
Compression: TypeAlias = Literal["", "lz4"]


@dataclass(frozen=True, slots=True)
class Ccq:
    """A cached continuous query as it was submitted; it never changes.

    Attributes:
        id: unique for ever; never used again for another query. Whoever submits draws it at
            random: two queries that are submitted under one id at two nodes at one time cannot
            be told apart.
        dataset: name of the dataset it asks about.
        query: canonical CQL2 JSON, empty for "everything".
        interval_s: update interval.
        expires_at: wall time, seconds since 1970-01-01 UTC.
        sampler: thins every commit's labels before they are cached.
        compression: of the cache.
    """

    id: str
    dataset: str
    query: str
    interval_s: float
    expires_at: float
    sampler: SamplerSpec | None = None
    compression: Compression = ""

    def asks_the_same(self, other: Ccq) -> bool:
        """Whether `other` is this one, submitted again (and perhaps later)."""
        return replace(self, expires_at=other.expires_at) == other


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
    """

    ccq: Ccq
    term: int
    coordinator: str
    retrieved: Cursor = ORIGIN
    ended: Ending | None = None
    ended_at: float = 0.0

    def merge(self, other: Record) -> Record:
        """The newest of both: the higher term, any end, the later retrieved position."""
        newer = max(self, other, key=lambda record: (record.term, record.coordinator))
        ends = [(r.ended_at, r.ended) for r in (self, other) if r.ended is not None]
        ended_at, ended = min(ends) if ends else (0.0, None)
        retrieved = self.retrieved.join(other.retrieved)
        return replace(newer, retrieved=retrieved, ended=ended, ended_at=ended_at)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a value: a `kind` of `galileo.errors`, what to tell, facts to act on."""

    kind: str
    message: str
    details: tuple[tuple[str, str | int | float], ...] = ()

    def to_error(self) -> GalileoError:
        return by_kind().get(self.kind, Bug)(self.message, **dict(self.details))
