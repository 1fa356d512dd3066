"""The records of continuous queries, as rows of a system table.

Records of one CCQ form a semilattice under `merged`: nodes that learn the same records, in any
order and number, have the same one. A row is named by the id of the CCQ. The nodes that it names
follow it (`topic_of`), and so it is found by its dataset and its owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from galileo.ccq.model import CcqDefinition, Holder, Record
from galileo.errors import CorruptData, InputError
from galileo.model.system import CCQS
from galileo.model.system_rows import RowKind
from galileo.model.windows import Window
from galileo.wire.tagged_json import TaggedJson

CHANGES_MAX = 1_024
"""Changes of one commit."""
NODES_MAX = 3
"""Nodes that a record names: a coordinator and its standbys, as far as there are so many nodes."""

NOTHING = Record(CcqDefinition("", "", "", 0.0, 0.0))
"""The record of an id under which no CCQ was submitted, or whose record was removed."""
ALL = "all"
"""Counts the CCQs that live."""

_CODEC = TaggedJson([CcqDefinition, Record, Holder, Window])


def encode(record: Record) -> str:
    return _CODEC.encode(record).decode()


def decode(data: str) -> Record:
    """The inverse of `encode`.

    Raises:
        CorruptData: it was not written by `encode`.
    """
    try:
        record = _CODEC.decode(data.encode())
        if not isinstance(record, Record):
            raise InputError(f"expected a record, got a {type(record).__name__}")
    except InputError as error:
        raise CorruptData(f"expected the record of a CCQ, got {data!r:.200}") from error
    return record


def merged(one: Record, other: Record) -> Record:
    """The newer of both: the later revision, any end, the later retrieved cursor and fetch.

    In the same revision, the holders that both name.
    """
    if NOTHING in (one, other):
        return other if one == NOTHING else one
    newer = max(one, other, key=_age)
    holders = newer.holders
    if holders and one.revision == other.revision:
        holders = tuple(holder for holder in one.holders if holder in other.holders)
    ends = [(record.ended_at, record.ended) for record in (one, other) if record.ended]
    ended_at, ended = min(ends, default=(0.0, None))
    retrieved = one.retrieved.join(other.retrieved)
    return replace(
        newer,
        retrieved=retrieved,
        ended=ended,
        ended_at=ended_at,
        holders=holders,
        fetched_at=max(one.fetched_at, other.fetched_at),
    )


def _age(record: Record) -> tuple[int, tuple[str, ...], float, int]:
    """Orders records of one CCQ, those of one revision in the same way everywhere.

    A CCQ that was submitted again after its record was lost may have another expiry.
    """
    return record.revision, record.nodes, record.ccq.expires_at, record.ccq.added


def topic_of(*, node: str = "", dataset: str = "", owner: str = "") -> str:
    """The topic of the rows that name a node, or of a dataset, or of an owner; else of all."""
    kinds = {"node": node, "dataset": dataset, "owner": owner}
    return next((f"{kind}/{name}" for kind, name in kinds.items() if name), "")


def owned(owner: str) -> str:
    """Counts the CCQs of an owner that live."""
    return f"owner/{owner}"


def _topics(record: Record) -> Collection[str]:
    if record == NOTHING:
        return ()
    named = [topic_of(node=node) for node in record.participants]
    ccq = record.ccq
    return [*named, topic_of(dataset=ccq.dataset), *filter(None, [topic_of(owner=ccq.owner)])]


def _totals(record: Record) -> Mapping[str, int]:
    is_alive = record != NOTHING and record.ended is None
    return {ALL: 1, owned(record.ccq.owner): 1} if is_alive else {}


CCQ_ROWS = RowKind(
    CCQS,
    NOTHING,
    encode=encode,
    decode=decode,
    merged=merged,
    totals=_totals,
    changes_max=CHANGES_MAX,
    topics=_topics,
)
