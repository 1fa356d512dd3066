"""What changes the records of continuous queries: pure rules, which the leader of the system
partition applies to all rows.

Each change may be repeated: it names the CCQ, which is unique for ever, and the revision that its
sender knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from galileo.ccq.model import Holder, Record, end_reason, unknown_failure
from galileo.ccq.records import ALL, NOTHING, encode, owned
from galileo.errors import InputError, Overloaded, QuotaExceeded
from galileo.model.system_rows import Draft

FULL_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class PlaceCcq:
    """Adds a CCQ, which the nodes that were elected run.

    Attributes:
        name: of the CCQ.
        data: its record of revision 1, as of `records.encode`.
        total_max: CCQs that may live in the cluster.
        owned_max: of them those of one owner.

    Raises:
        InputError: another CCQ has the id.
        CcqCancelled, CcqExpired, CcqDropped: it has ended.
        QuotaExceeded, Overloaded: as many live as may.
    """

    name: str
    data: str
    total_max: int
    owned_max: int

    def begun(self, present: Record) -> PlaceCcq:
        return self

    def apply(self, draft: Draft[Record]) -> None:
        present, record = draft[self.name], draft.kind.value(self.data)
        if present == NOTHING:
            self._check_room(draft, record.ccq.owner)
            draft.put(self.name, record)
        elif present.ended is not None:
            raise end_reason(present).to_error()
        elif not present.ccq.asks_the_same(record.ccq):
            raise InputError(
                f"the id {self.name!r} belongs to another continuous query; submit this one with "
                "its own"
            )

    def _check_room(self, draft: Draft[Record], owner: str) -> None:
        free = self.total_max - draft.total(ALL)
        if free <= 0:
            raise Overloaded(
                f"the limit of {self.total_max} continuous queries is reached; cancel some",
                after_s=FULL_AFTER_S,
            )
        bound = owned_max(owner, self.owned_max, free=free)
        if draft.total(owned(owner)) >= bound:
            raise QuotaExceeded(
                f"expected at most {bound:,} continuous queries alive of one owner (quota "
                "ccqs_max, or as many as are free in the cluster), got one more; cancel some, let "
                "them expire, or ask an administrator for a higher quota",
                quota="ccqs_max",
                bound=bound,
            )


def owned_max(owner: str, quota: int, *, free: int) -> int:
    """The most continuous queries of an owner: its quota, and no more than are free.

    So one caller cannot have all that the cluster may have: alone it gets half. Callers without a
    name, as all are without authentication, have their quota alone.
    """
    return min(quota, free) if owner else quota


@dataclass(frozen=True, slots=True)
class EndCcq:
    """Ends a CCQ; repeating it changes nothing.

    Attributes:
        name: its id.
        ending: why.
        ended_at: wall time.

    Raises:
        UnknownCcq: there is none.
    """

    name: str
    ending: str
    ended_at: float

    def begun(self, present: Record) -> EndCcq:
        return self

    def apply(self, draft: Draft[Record]) -> None:
        present = draft[self.name]
        if present == NOTHING:
            raise unknown_failure(self.name).to_error()
        if present.ended is None:
            ending: Any = self.ending
            draft.put(self.name, replace(present, ended=ending, ended_at=self.ended_at))


@dataclass(frozen=True, slots=True)
class MoveCcq:
    """Names other nodes, unless the record is of another revision by now, or has ended.

    Attributes:
        name: of the CCQ.
        data: its record of the next revision, as of `records.encode`.
    """

    name: str
    data: str

    def begun(self, present: Record) -> MoveCcq:
        return self

    def apply(self, draft: Draft[Record]) -> None:
        present, moved = draft[self.name], draft.kind.value(self.data)
        if present.ended is None and present.revision == moved.revision - 1:
            draft.add(self.name, moved)


@dataclass(frozen=True, slots=True)
class SaveProgress:
    """Keeps what clients have retrieved, and which holders are still needed.

    Attributes:
        name: of the CCQ.
        data: its record as the coordinator knows it, as of `records.encode`.
    """

    name: str
    data: str

    def begun(self, present: Record) -> SaveProgress:
        return self

    def apply(self, draft: Draft[Record]) -> None:
        present, known = draft[self.name], draft.kind.value(self.data)
        if present.revision >= known.revision:
            draft.add(self.name, known)


@dataclass(frozen=True, slots=True)
class ForgetCcq:
    """Removes the record of a CCQ that has ended."""

    name: str

    def begun(self, present: Record) -> ForgetCcq:
        return self

    def apply(self, draft: Draft[Record]) -> None:
        if draft[self.name].ended is not None:
            draft.put(self.name, NOTHING)


CcqChange: TypeAlias = PlaceCcq | EndCcq | MoveCcq | SaveProgress | ForgetCcq


def moved_to(record: Record, nodes: tuple[str, ...], *, holders: tuple[Holder, ...] = ()) -> Record:
    """The next revision of a record, with other nodes and further holders."""
    kept = (*record.holders, *holders)
    return replace(record, revision=record.revision + 1, nodes=nodes, holders=kept)


def move(record: Record) -> MoveCcq:
    """The change to the next revision of a record."""
    return MoveCcq(record.id, encode(record))


# --- what the leader looks for -----------------------------------------------------------------

EXPIRED_S = 600.0
"""So long past its expiry the leader ends a CCQ. Its node does so at once, but may be dead, or cut
off until it has forgotten the end."""
FORGOTTEN_S = 86_400.0
"""So long past its expiry an end is removed: no node offers the record any more."""
ENDED_S = 7 * 86_400.0
"""So long past the end of a CCQ its end is removed, also where it would expire later."""
ENDED_MAX = 100_000
"""Ends that are remembered; of others, the oldest are removed."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A CCQ that no node runs that lives."""

    record: Record


def due_change(
    record: Record, *, is_gone: Callable[[str], bool], wall: float
) -> CcqChange | Lost | None:
    """What the leader has to do with a record; None: nothing.

    Args:
        record: of any CCQ.
        is_gone: whether a node is dead, or not of the cluster.
        wall: seconds since 1970-01-01 UTC.
    """
    past_s = wall - record.ccq.expires_at
    if record.ended is not None:
        is_over = past_s > FORGOTTEN_S or wall - record.ended_at > ENDED_S
        return ForgetCcq(record.id) if is_over else None
    if past_s > EXPIRED_S:
        return EndCcq(record.id, "expired", wall)
    return None if record.acting(is_gone) else Lost(record)


def excess_ends(ends: Iterable[tuple[float, str]], *, wall: float) -> list[str]:
    """The CCQs whose ends are removed since more than `ENDED_MAX` are remembered, the oldest first.

    Args:
        ends: wall time and name of each.
        wall: the time; of what has ended within `EXPIRED_S`, submissions may still be repeated.
    """
    oldest = sorted(ends)
    more = oldest[: max(0, len(oldest) - ENDED_MAX)]
    return [name for ended_at, name in more if wall - ended_at > EXPIRED_S]
