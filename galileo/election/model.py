"""Duties and their records.

A *duty* is work that one node of the cluster does at a time: its *coordinator*, in a *term*. A node
that is elected in a higher term takes it over. Each duty has a record, which names its coordinator.
What else is in a record is of no concern here: a package that has duties defines it.
"""

from __future__ import annotations

from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

NODES_MAX = 4096
"""Nodes that may start elections in a cluster; a term is `round * NODES_MAX + ordinal`."""


class Record(Protocol):
    """What nodes keep of a duty: a frozen dataclass.

    Records of one duty form a semilattice under `merge`: nodes that receive the same records, in
    any order and number, have the same one.

    Attributes:
        id: of the duty, unique for ever.
        expires_at: wall time of its end at the latest, seconds since 1970-01-01 UTC.
        term: of the coordinator; different initiators never use equal terms, and an initiator never
            uses one twice, so a term names one coordinator for ever.
        coordinator: the node that has the duty.
        ended: why the duty ended; once set, for ever.
        ended_at: wall time of the end, 0 while it lives.
        participants: the nodes that need the record for their work, the coordinator among them.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> str: ...
    @property
    def expires_at(self) -> float: ...
    @property
    def term(self) -> int: ...
    @property
    def coordinator(self) -> str: ...
    @property
    def ended(self) -> str | None: ...
    @property
    def ended_at(self) -> float: ...
    @property
    def participants(self) -> tuple[str, ...]: ...

    def merge(self: R, other: R) -> R:
        """The newest of both: `merge_terms`, and the later of what else is in them."""
        ...

    def is_same_duty(self: R, other: R) -> bool:
        """Whether `other` is this duty, submitted again (perhaps with a later expiry)."""
        ...


R = TypeVar("R", bound=Record)


def tenure(record: Record) -> tuple[int, str]:
    return (record.term, record.coordinator)


def merge_terms(one: R, other: R) -> R:
    """The record with the higher term, with the end of either."""
    newer = max(one, other, key=tenure)
    ends = [(r.ended_at, r.ended) for r in (one, other) if r.ended is not None]
    ended_at, ended = min(ends) if ends else (0.0, None)
    if (ended_at, ended) == (newer.ended_at, newer.ended):
        return newer
    return replace(newer, ended=ended, ended_at=ended_at)
