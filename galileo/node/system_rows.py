"""Rows of system tables: values by name, what changes them, and how nodes follow them.

A row has a name and a value, which one table encodes in its way (`RowKind`). Values only grow: two
values of one name that were agreed on at any time merge in any order, so a node may learn them from
any other one.

A change takes effect at most once. Before the first attempt its caller asks the leader for the
value as it is (`begun`), and each attempt names what was found. `apply` makes the change, unless an
earlier attempt has made it. Both raise a GalileoError if the change cannot be made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from galileo.model.table import Table

PAGE_BYTES_MAX = 1 << 20
"""Bytes of the values of a page, or of one commit, unless one has more."""

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
    """

    table: Table
    nothing: V
    encode: Callable[[V], str]
    decode: Callable[[str], V]
    merged: Callable[[V, V], V]
    totals: Callable[[V], Mapping[str, int]]
    changes_max: int

    def row(self, name: str, value: V) -> Row:
        return Row(name, self.encode(value))

    def values(self, rows: Iterable[Row]) -> dict[str, V]:
        """Their values by name."""
        return {row.name: self.decode(row.data) for row in rows}


class Rows(Generic[V]):
    """The values of all names, in the order of their last changes.

    Attributes:
        sequences: the commit of the last change of each name.
        totals: what is counted over all values.
    """

    def __init__(self, kind: RowKind[V]) -> None:
        self.kind = kind
        self.sequences: dict[str, int] = {}
        self.totals = Counter[str]()
        self._by_name: dict[str, V] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __getitem__(self, name: str) -> V:
        return self._by_name.get(name, self.kind.nothing)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def put(self, name: str, value: V, sequence: int) -> None:
        if name in self._by_name:
            self.totals.subtract(self.kind.totals(self._by_name[name]))
        self.totals.update(self.kind.totals(value))
        self._by_name[name] = value
        self.sequences.pop(name, None)
        self.sequences[name] = sequence

    def after(self, sequence: int, name: str) -> list[tuple[int, str]]:
        """The changes after a commit, or behind a name in that commit, in order."""
        changed = []
        for other, at in reversed(self.sequences.items()):
            if at < sequence:
                break
            changed.append((at, other))
        return sorted(one for one in changed if one > (sequence, name))


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

    def __len__(self) -> int:
        return len(self._before) + sum(name not in self._before for name in self.changed)

    def __getitem__(self, name: str) -> V:
        return self.changed.get(name) or self._before[name]

    def total(self, key: str) -> int:
        """What is counted under a key over all values."""
        totals = self.kind.totals
        more = sum(
            totals(one).get(key, 0) - totals(self._before[name]).get(key, 0)
            for name, one in self.changed.items()
        )
        return self._before.totals[key] + more

    def put(self, name: str, value: V, *, attachment: pa.Buffer | None = None) -> None:
        if value != self[name]:
            self.changed[name] = value
            if attachment is not None:
                self.attached[name] = attachment

    def add(self, name: str, value: V) -> None:
        """Merges a value that was agreed on earlier."""
        self.put(name, self.kind.merged(self[name], value))


@dataclass(frozen=True, slots=True)
class OfferRow:
    """Adds what a node knows of a name and the leader does not, as after a recovery."""

    name: str
    data: str

    def begun(self, present: Any) -> OfferRow:
        return self

    def apply(self, draft: Draft[Any]) -> None:
        draft.add(self.name, draft.kind.decode(self.data))


@dataclass(frozen=True, slots=True)
class LookUp:
    """Changes nothing: asks the leader for a value."""

    name: str

    def begun(self, present: Any) -> LookUp:
        return self

    def apply(self, draft: Draft[Any]) -> None:
        pass


# --- following ---------------------------------------------------------------------------------


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
class Page:
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
    taken, size = list[Row](), 0
    for row in rows:
        size += len(row.data)
        if taken and size > PAGE_BYTES_MAX:
            break
        taken.append(row)
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
