"""A cached continuous query, and the record of it on every node of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError, InternalError, by_kind
from galileo.model.windows import Window
from galileo.packing import Compression
from galileo.samplers import SamplerSpec

NODES_MAX = 4096
"""Nodes that may start elections in a cluster; a term is `round * NODES_MAX + ordinal`."""

Ending: TypeAlias = Literal["cancelled", "expired", "dropped"]


@dataclass(frozen=True, slots=True)
class Ccq:
    """A cached continuous query as it was submitted; immutable.

    Attributes:
        id: unique for ever, drawn at random by the client. Two queries that are submitted under one
            id at two nodes at one time cannot be distinguished.
        dataset: key of the dataset.
        query: canonical CQL2 JSON, empty for "everything".
        interval_s: update interval.
        expires_at: wall time, seconds since 1970-01-01 UTC.
        sampler: reduces every commit's labels before they are cached.
        compression: of the cache.
        window: windows of its labels, reported to readers.
        owner: name of the submitter, who alone may fetch and cancel it; "" without authentication.
    """

    id: str
    dataset: str
    query: str
    interval_s: float
    expires_at: float
    sampler: SamplerSpec | None = None
    compression: Compression = Compression.NONE
    window: Window | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "compression", Compression(self.compression))  # Of JSON: a text.

    def asks_the_same(self, other: Ccq) -> bool:
        """Whether `other` is this CCQ, submitted again (perhaps with a later expiry)."""
        return replace(self, expires_at=other.expires_at) == other


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that keeps its cache of a CCQ from the time when it was the coordinator.

    Attributes:
        node: its name.
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

    Records of one CCQ form a semilattice under `merge`: nodes that receive the same records, in any
    order and number, have the same one.

    Attributes:
        term: of the coordinator; different initiators never use equal terms, and an initiator never
            uses one twice, so a term names one coordinator for ever.
        coordinator: the node that runs the CCQ.
        retrieved: the join of all cursors that clients have acknowledged.
        ended: why the CCQ ended; once set, for ever.
        ended_at: wall time of the end, 0 while it lives.
        holders: nodes that keep ranges before the cache of the coordinator, oldest first. A term
            begins with all of them; within it they are only removed.
    """

    ccq: Ccq
    term: int
    coordinator: str
    retrieved: Cursor = EMPTY_CURSOR
    ended: Ending | None = None
    ended_at: float = 0.0
    holders: tuple[Holder, ...] = ()

    def __post_init__(self) -> None:
        """Remove holders whose range clients have, or all if the CCQ ended."""
        if self.holders:
            is_over = self.ended is not None
            holders = () if is_over else self.holders
            holders = tuple(holder for holder in holders if not self.retrieved.covers(holder.until))
            object.__setattr__(self, "holders", holders)

    def merge(self, other: Record) -> Record:
        """The newest of both: the higher term, any end, the later retrieved cursor.

        In the same term, the holders that both name.
        """
        newer = max(self, other, key=_tenure)
        holders = newer.holders
        if holders and _tenure(self) == _tenure(other):
            holders = tuple(holder for holder in self.holders if holder in other.holders)
        ends = [(r.ended_at, r.ended) for r in (self, other) if r.ended is not None]
        ended_at, ended = min(ends) if ends else (0.0, None)
        retrieved = self.retrieved.join(other.retrieved)
        return replace(newer, retrieved=retrieved, ended=ended, ended_at=ended_at, holders=holders)


def _tenure(record: Record) -> tuple[int, str]:
    return (record.term, record.coordinator)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a value: a `kind` of `galileo.errors`, a message, and details."""

    kind: str
    message: str
    details: tuple[tuple[str, str | int | float], ...] = ()

    def to_error(self) -> GalileoError:
        return by_kind().get(self.kind, InternalError)(self.message, **dict(self.details))
