"""A cached continuous query, and the record of it on every node of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.election.model import merge_terms, tenure
from galileo.model.windows import Window
from galileo.packing import Compression
from galileo.samplers import SamplerSpec

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
        added: how many features had been added to the dataset; labels have those and no later ones.
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
    added: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "compression", Compression(self.compression))  # Of JSON: a text.

    def asks_the_same(self, other: Ccq) -> bool:
        """Whether `other` is this CCQ, submitted again (perhaps with a later expiry).

        Features may have been added to the dataset between the two.
        """
        return replace(self, expires_at=other.expires_at, added=other.added) == other


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
    """What nodes keep of a CCQ (paper, IV.E: coordinator, query, time of retrieval); the record
    of a duty (`galileo.election.model.Record`).

    Attributes:
        retrieved: the join of all cursors that clients have acknowledged.
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

    @property
    def id(self) -> str:
        return self.ccq.id

    @property
    def expires_at(self) -> float:
        return self.ccq.expires_at

    @property
    def participants(self) -> tuple[str, ...]:
        """The coordinator and the holders."""
        return (self.coordinator, *(holder.node for holder in self.holders))

    def is_same_duty(self, other: Record) -> bool:
        return self.ccq.asks_the_same(other.ccq)

    def merge(self, other: Record) -> Record:
        """The newest of both: the higher term, any end, the later retrieved cursor.

        In the same term, the holders that both name.
        """
        newer = merge_terms(self, other)
        holders = newer.holders
        if holders and tenure(self) == tenure(other):
            holders = tuple(holder for holder in self.holders if holder in other.holders)
        return replace(newer, retrieved=self.retrieved.join(other.retrieved), holders=holders)
