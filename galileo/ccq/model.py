"""A cached continuous query, and what the cluster keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Failure
from galileo.model.schema import name_of_key
from galileo.model.windows import Window
from galileo.packing import Compression
from galileo.samplers import SamplerSpec

RETRY_S = 0.5
"""Pause before a request is repeated; also the advice to clients."""
HOLD_S = 7 * 86_400.0
"""Hold of a query, if its submission names none."""
HOLD_PARTS = 8
"""A later fetch is noted once a part of the hold has passed."""

Ending: TypeAlias = Literal["cancelled", "expired", "dropped"]


@dataclass(frozen=True, slots=True)
class CcqDefinition:
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
        hold_s: how long what its readers may still need is kept while none of them fetches.
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
    hold_s: float = HOLD_S

    def __post_init__(self) -> None:
        object.__setattr__(self, "compression", Compression(self.compression))  # Of JSON: a text.

    def asks_the_same(self, other: CcqDefinition) -> bool:
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
    """What the cluster keeps of a CCQ (paper, IV.H: coordinator, query, time of retrieval).

    Attributes:
        revision: counts the changes of `nodes`.
        nodes: the coordinator, then its standbys. The first one that lives runs the CCQ.
        retrieved: the join of cursors that clients have acknowledged.
        ended: why it ended; once set, for ever.
        ended_at: wall time of the end, 0 while it lives.
        holders: nodes that keep ranges before the cache of the coordinator, oldest first.
        fetched_at: wall time of a fetch; later ones within a part of the hold may not be noted.
    """

    ccq: CcqDefinition
    revision: int = 0
    nodes: tuple[str, ...] = ()
    retrieved: Cursor = EMPTY_CURSOR
    ended: Ending | None = None
    ended_at: float = 0.0
    holders: tuple[Holder, ...] = ()
    fetched_at: float = 0.0

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
    def coordinator(self) -> str:
        return self.nodes[0] if self.nodes else ""

    @property
    def participants(self) -> tuple[str, ...]:
        """The nodes that need the record: those that may run the CCQ, and the holders."""
        return (*self.nodes, *(holder.node for holder in self.holders))

    def acting(self, is_gone: Callable[[str], bool]) -> str:
        """The node that runs the CCQ, where these count as gone; empty: none."""
        return next((node for node in self.nodes if not is_gone(node)), "")


def dropped_failure(ccq: CcqDefinition) -> Failure:
    """The error for a CCQ of a dropped dataset."""
    return Failure(
        "ccq_dropped",
        f"the continuous query {ccq.id!r} ended when its dataset {name_of_key(ccq.dataset)!r} was "
        "dropped; a dataset that is created under this name is another one",
    )


def end_reason(record: Record) -> Failure:
    """The error for an ended CCQ."""
    ccq_id = record.ccq.id
    if record.ended == "dropped":
        return dropped_failure(record.ccq)
    if record.ended == "cancelled":
        return Failure(
            "ccq_cancelled",
            f"the continuous query {ccq_id!r} was cancelled; submit it again to go on",
        )
    return Failure(
        "ccq_expired", f"the continuous query {ccq_id!r} has expired; submit it again to go on"
    )


def unknown_failure(ccq_id: str) -> Failure:
    """The error for an id under which no CCQ lives or lived lately."""
    message = f"continuous query {ccq_id!r} does not exist"
    return Failure("unknown_ccq", message, (("remedy", "list_ccqs"),))
