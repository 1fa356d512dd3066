"""What of a node's answer counts, and how much of it a task hands back.

A task returns whole commits, as many as its room holds. Where there are more, items share the
room: those with few labels get all of theirs, and the others as many whole commits as the rest
holds, or nothing until the next tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from galileo.cursor import ORIGIN, Cursor
from galileo.labels import LabelSet, first_commits
from galileo.matches import PAIR_BYTES, Answered, Matches
from galileo.model.schema import Schema
from galileo.spark.tick import Ask, Group

CUTS_MAX = 64
"""Items of one answer that are cut; others that do not fit are left for the next tick."""

Mask = npt.NDArray[np.bool_]


def vouched(part: Answered, ask: Ask, group: Group) -> Answered:
    """What of a part is of partitions that were asked about, new, and not said to be gone."""
    asked = group.partitions[ask.columns]
    reached = restricted(part.reached, asked)
    dropped = restricted(part.dropped, asked)
    part = replace(part, reached=reached, dropped=dropped)
    if len(part.matches) == 0:
        return part
    matches, labels = part.matches, _commits(part.matches)
    last = len(group.partitions) - 1
    column = np.minimum(np.searchsorted(group.partitions, labels.partition), last)
    known = group.partitions[column] == labels.partition
    known &= dropped.past(labels.partition, labels.sequence)
    known &= ~reached.past(labels.partition, labels.sequence)
    after = group.after[group.cursors[matches.items], column[matches.places]]
    new = labels.sequence[matches.places] > after
    return replace(part, matches=matches.where(known[matches.places] & new))


@dataclass(frozen=True, slots=True, eq=False)
class _Commits:
    partition: npt.NDArray[np.int32]
    sequence: npt.NDArray[np.int64]


def _commits(matches: Matches) -> _Commits:
    partition, sequence = (matches.rows.column(name) for name in ("partition", "sequence"))
    return _Commits(
        np.asarray(partition.to_numpy(), dtype=np.int32),
        np.asarray(sequence.to_numpy(), dtype=np.int64),
    )


def restricted(cursor: Cursor, partitions: npt.NDArray[np.int32]) -> Cursor:
    """The cursor as far as it concerns some partitions."""
    return Cursor({p: cursor[p] for p in partitions.tolist()}) if cursor else ORIGIN


def fair_share(sizes: npt.ArrayLike, *, room: int) -> int:
    """The largest bound such that sizes cut to it fit the room together (max-min fairness)."""
    ordered = np.sort(np.asarray(sizes, dtype=np.int64))
    if int(ordered.sum()) <= room:
        return room
    # With everything below position i whole, the others share what is left equally.
    whole = np.concatenate(([0], np.cumsum(ordered)[:-1]))
    others = np.arange(len(ordered), 0, -1)
    first = np.argmax(room - whole <= ordered * others)
    return int((room - whole[first]) // others[first])


def fitted(
    parts: Sequence[tuple[Answered, Schema]], *, bytes_max: int, turn: int
) -> Iterator[list[Answered]]:
    """For each part what of it fits the room, in one or more parts.

    Args:
        parts: with the schemas of their datasets.
        bytes_max: of what is kept of all parts, approximately; one commit may exceed it.
        turn: differs from tick to tick; it is not always the same items that are cut.
    """
    if sum(part.matches.nbytes for part, _ in parts) <= bytes_max:
        yield from ([part] for part, _ in parts)
        return
    costs = [PAIR_BYTES + _row_bytes(part.matches) for part, _ in parts]
    sizes = [
        cost * part.matches.counts(_end(part)) for cost, (part, _) in zip(costs, parts, strict=True)
    ]
    share = fair_share(np.concatenate(sizes), room=bytes_max)
    for cost, size, (part, schema) in zip(costs, sizes, parts, strict=True):
        heavy = np.flatnonzero(size > share)
        yield [
            _without(part, heavy),
            *(
                _cut(part, item, schema=schema, labels_max=max(1, share // cost))
                for item in np.roll(heavy, -turn * CUTS_MAX)[:CUTS_MAX].tolist()
            ),
        ]


def _row_bytes(matches: Matches) -> int:
    rows = max(1, int(matches.rows.num_rows))
    return -(-int(matches.rows.nbytes) // rows)


def _end(part: Answered) -> int:
    return int(part.items[-1]) + 1 if len(part.items) else 0


def _without(part: Answered, items: npt.NDArray[np.intp]) -> Answered:
    matches = part.matches.where(~np.isin(part.matches.items, items))
    kept = part.items[~np.isin(part.items, items)]
    return replace(part, items=kept, matches=matches)


def _cut(part: Answered, item: int, *, schema: Schema, labels_max: int) -> Answered:
    """The first whole commits of one item, and how far they reach."""
    mine = part.matches.where(part.matches.items == item)
    labels = LabelSet(schema, mine.rows)
    kept, reached = first_commits(labels, reached=part.reached, labels_max=labels_max)
    return alone(item, kept, like=replace(part, reached=reached))


def alone(item: int, labels: LabelSet, *, like: Answered) -> Answered:
    """A part of one item."""
    items = np.full(len(labels), item, dtype=np.uint32)
    matches = Matches(items, np.arange(len(labels), dtype=np.uint32), labels.table)
    return replace(like, items=np.array([item], dtype=np.uint32), matches=matches)
