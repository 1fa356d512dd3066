"""Rows of system tables: values by name, what changes them, and how nodes follow them.

A row has a name and a value, which one table encodes in its way (`RowKind`). Values only grow: two
values of one name that were agreed on at any time merge in any order, so a node may learn them from
any other one.

A row whose value is `RowKind.nothing` is deleted. Followers do not hear of it: they forget such a
value by themselves.

A change takes effect at most once. Before the first attempt its caller asks the leader for the
value as it is (`begun`), and each attempt names what was found. `apply` makes the change, unless an
earlier attempt has made it. Both raise a GalileoError if the change cannot be made.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from galileo.errors import Failure, GalileoError
from galileo.model.table import Table

PAGE_BYTES_MAX = 1 << 20
"""Bytes of the values of a page, of one commit, or of one call, unless one has more."""
CHANGES_SLACK = 64
"""Replaced changes that are kept beside as many as there are rows."""
CALL_CHANGES_MAX = 256
"""Changes of one call to the leader."""

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Row:
    """A name, and its value as of `RowKind.encode`."""

    name: str
    data: str


@dataclass(frozen=True, slots=True)
class RowKind(Generic[V]):
    """The rows of one table.

    Attributes:
        table: has the name, the value, and perhaps the attachment of each row.
        nothing: the value of a name without a row.
        encode: a value for its row.
        decode: the inverse of `encode`; raises CorruptData.
        merged: all that is in one or the other of two values of a name.
        totals: what is counted over all rows.
        changes_max: of one commit.
        topics: what readers of a part of the table name, such as the nodes that follow a row; None:
            all read all rows.
    """

    table: Table
    nothing: V
    encode: Callable[[V], str]
    decode: Callable[[str], V]
    merged: Callable[[V, V], V]
    totals: Callable[[V], Mapping[str, int]]
    changes_max: int
    topics: Callable[[V], Collection[str]] | None = None

    def row(self, name: str, value: V) -> Row:
        return Row(name, "" if value == self.nothing else self.encode(value))

    def value(self, data: str | None) -> V:
        """The inverse of `row`; raises CorruptData."""
        return self.decode(data) if data else self.nothing

    def values(self, rows: Iterable[Row]) -> dict[str, V]:
        """Their values by name."""
        return {row.name: self.value(row.data) for row in rows}


class Rows(Generic[V]):
    """The values of all names, in the order of their last changes.

    Attributes:
        sequences: the commit of the last change of each name.
        totals: what is counted over all values.
    """

    def __init__(self, kind: RowKind[V], *, slack: int = CHANGES_SLACK) -> None:
        self.kind = kind
        self._slack = slack
        self.sequences: dict[str, int] = {}
        self.totals = Counter[str]()
        self._by_name: dict[str, V] = {}
        self._topics: dict[str, frozenset[str]] = {}
        self._changes: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def __getitem__(self, name: str) -> V:
        return self._by_name.get(name, self.kind.nothing)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def put(self, name: str, value: V, sequence: int) -> None:
        if name in self._by_name:
            self.totals.subtract(self.kind.totals(self._by_name.pop(name)))
            del self.sequences[name]
        if value == self.kind.nothing:
            self._topics.pop(name, None)
            return
        self.totals.update(self.kind.totals(value))
        self._by_name[name] = value
        self.sequences[name] = sequence
        self._log_change(sequence, name)
        if self.kind.topics is not None:
            # A node that a row names no more has to hear so.
            before = self._topics.get(name, frozenset())
            self._topics[name] = before.union(self.kind.topics(value))

    def put_all(self, values: Mapping[str, V], sequence: int) -> None:
        for name in sorted(values):
            self.put(name, values[name], sequence)

    def _log_change(self, sequence: int, name: str) -> None:
        """Adds to the changes in order; those that later ones have replaced are removed late."""
        if len(self._changes) > 2 * len(self.sequences) + self._slack:
            self._changes = sorted((at, other) for other, at in self.sequences.items())
        at = bisect_left(self._changes, (sequence, name))
        if self._changes[at : at + 1] != [(sequence, name)]:
            self._changes.insert(at, (sequence, name))

    def is_of(self, name: str, topic: str) -> bool:
        """Whether a row has a topic, or once had."""
        return not topic or topic in self._topics.get(name, ())

    def after(self, sequence: int, name: str) -> Iterator[tuple[int, str]]:
        """The changes after a commit, or behind a name in that commit, in order."""
        start = bisect_right(self._changes, (sequence, name))
        for number in range(start, len(self._changes)):
            at, other = change = self._changes[number]
            if self.sequences.get(other) == at:
                yield change

    def page(self, after: Position, topic: str, *, until: int, term: int) -> RowPage:
        """The rows of a topic that were changed after a position, as many as fit into one page.

        Args:
            after: the position of a node that follows.
            topic: empty: of all rows.
            until: the commit up to which all changes are here.
            term: of the leader that has these rows.
        """
        is_anew = after.term != term
        start = Position() if is_anew else after
        names = self._named(topic, start.sequence, start.name)
        rows = first_rows(self.kind.row(name, self[name]) for name in names)
        # What this commit changes is not sent again.
        reached = Position(until, ALL_NAMES, term)
        if rows:
            last = Position(self.sequences[rows[-1].name], rows[-1].name, term)
            if any(self._named(topic, last.sequence, last.name)):
                return RowPage(tuple(rows), last, is_last=False, is_anew=is_anew)
        return RowPage(tuple(rows), reached, is_last=True, is_anew=is_anew)

    def _named(self, topic: str, sequence: int, name: str) -> Iterator[str]:
        return (other for _, other in self.after(sequence, name) if self.is_of(other, topic))


class Draft(Generic[V]):
    """Rows with changes that are not committed yet.

    Attributes:
        changed: the values that differ.
        attached: the attachments of some of them.
    """

    def __init__(self, rows: Rows[V]) -> None:
        self.changed: dict[str, V] = {}
        self.attached: dict[str, pa.Buffer] = {}
        self.kind = rows.kind
        self._before = rows
        self._totals = Counter[str]()

    def __len__(self) -> int:
        there = sum(value != self.kind.nothing for value in self.changed.values())
        return len(self._before) + there - sum(name in self._before for name in self.changed)

    def __getitem__(self, name: str) -> V:
        return self.changed[name] if name in self.changed else self._before[name]

    def total(self, key: str) -> int:
        """What is counted under a key over all values."""
        return self._before.totals[key] + self._totals[key]

    def put(self, name: str, value: V, *, attachment: pa.Buffer | None = None) -> None:
        present = self[name]
        if value != present:
            self._totals.subtract(self.kind.totals(present))
            self._totals.update(self.kind.totals(value))
            self.changed[name] = value
            if attachment is not None:
                self.attached[name] = attachment

    def add(self, name: str, value: V) -> None:
        """Merges a value that was agreed on earlier."""
        self.put(name, self.kind.merged(self[name], value))


class RowChange(Protocol):
    """Changes the value of one name."""

    @property
    def name(self) -> str: ...

    def begun(self, present: Any) -> RowChange:
        """The change as each attempt names it; raises a GalileoError if it cannot be made."""
        ...

    def apply(self, draft: Draft[Any]) -> None:
        """Makes the change; raises a GalileoError if it cannot be made."""
        ...


@dataclass(frozen=True, slots=True)
class OfferRow:
    """Adds what a node knows of a name and the leader does not, as after a recovery."""

    name: str
    data: str

    def begun(self, present: Any) -> OfferRow:
        return self

    def apply(self, draft: Draft[Any]) -> None:
        draft.add(self.name, draft.kind.value(self.data))


@dataclass(frozen=True, slots=True)
class LookUp:
    """Changes nothing: asks the leader for a value."""

    name: str

    def begun(self, present: Any) -> LookUp:
        return self

    def apply(self, draft: Draft[Any]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one change of several: the value of its row, or why it was not made.

    Attributes:
        data: as of `Row`.
        failure: kind, message and details as JSON; empty: it was made.
    """

    data: str
    failure: str = ""

    @staticmethod
    def of(row: Row | GalileoError) -> Outcome:
        if isinstance(row, Row):
            return Outcome(row.data)
        details = {k: v for k, v in row.details.items() if isinstance(v, str | int | float)}
        return Outcome("", json.dumps([row.kind, row.message, details]))

    @property
    def error(self) -> GalileoError | None:
        if not self.failure:
            return None
        kind, message, details = json.loads(self.failure)
        return Failure(kind, message, tuple(details.items())).to_error()


# --- following ---------------------------------------------------------------------------------


ALL_NAMES = "~"
"""No name sorts behind it."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a node has followed a table.

    Attributes:
        sequence: it has the changes of all commits before this one,
        name: and those of this commit up to this name, in the order of names.
        term: of the leader. Another one is read from the first name, since its log may lack commits
            that were lost.
    """

    sequence: int = 0
    name: str = ""
    term: int = 0


@dataclass(frozen=True, slots=True)
class RowPage:
    """Rows that were changed after a position.

    Attributes:
        rows: in the order of their changes.
        reached: the position behind them.
        is_last: whether there are no others for now.
        is_anew: whether they begin at the first one, since the position is of another leader.
    """

    rows: tuple[Row, ...]
    reached: Position
    is_last: bool
    is_anew: bool = False


def first_rows(rows: Iterable[Row]) -> list[Row]:
    """As many as fit into one page."""
    return _first(rows, lambda row: len(row.data))


def first_changes(changes: Sequence[RowChange]) -> list[RowChange]:
    """As many as fit into one call to the leader."""
    return _first(changes[:CALL_CHANGES_MAX], lambda change: len(getattr(change, "data", "")))


def _first(items: Iterable[T], size_of: Callable[[T], int]) -> list[T]:
    taken, size = list[T](), 0
    for item in items:
        size += size_of(item)
        if taken and size > PAGE_BYTES_MAX:
            break
        taken.append(item)
    return taken


@dataclass(slots=True)
class Listing(Generic[V]):
    """What a node has heard since it began to read all rows: what it should offer."""

    kind: RowKind[V]
    heard: dict[str, V] = field(default_factory=dict)

    def missing(self, own: Mapping[str, V]) -> list[OfferRow]:
        """What of the own values was not heard."""
        heard = {name: self.heard.get(name, self.kind.nothing) for name in own}
        return [
            OfferRow(name, self.kind.encode(known))
            for name, known in own.items()
            if self.kind.merged(heard[name], known) != heard[name]
        ]
