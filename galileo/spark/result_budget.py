"""The budget of a task's results: which labels it returns now, and which are left for later.

A task returns whole commits up to a number of bytes. Where there are more, items share the budget:
those with few labels return all, the others as many whole commits as the rest holds, or nothing
until the next job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from galileo.cycle import PAIR_BYTES, MatchBatch, MatchedPartitions
from galileo.labels import LabelSet, first_commits
from galileo.model.schema import Schema


def fair_share(sizes: npt.ArrayLike, *, room: int) -> int:
    """The largest bound such that the sizes, each cut to it, fit the room (max-min fairness)."""
    ordered = np.sort(np.asarray(sizes, dtype=np.int64))
    if int(ordered.sum()) <= room:
        return room
    # At position i, all smaller sizes stay whole and the others share the rest equally.
    whole = np.concatenate(([0], np.cumsum(ordered)[:-1]))
    others = np.arange(len(ordered), 0, -1)
    first = np.argmax(room - whole <= ordered * others)
    return int((room - whole[first]) // others[first])


def fit_to_budget(
    parts: Sequence[tuple[MatchedPartitions, Schema]],
    *,
    bytes_max: int,
    turn: int,
    cuts_max: int = 64,
) -> Iterator[list[MatchedPartitions]]:
    """For each part, the parts of it that fit the budget.

    Args:
        parts: with the schemas of their datasets.
        bytes_max: of all results together, approximately; one commit can exceed it.
        turn: number of the job; rotates which items are cut.
        cuts_max: items of one part that are cut; others that do not fit are left for the next job.
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
                for item in np.roll(heavy, -turn * cuts_max)[:cuts_max].tolist()
            ),
        ]


def _row_bytes(matches: MatchBatch) -> int:
    rows = max(1, int(matches.rows.num_rows))
    return -(-int(matches.rows.nbytes) // rows)


def _end(part: MatchedPartitions) -> int:
    return int(part.items[-1]) + 1 if len(part.items) else 0


def _without(part: MatchedPartitions, items: npt.NDArray[np.intp]) -> MatchedPartitions:
    matches = part.matches.where(~np.isin(part.matches.items, items))
    others = part.items[~np.isin(part.items, items)]
    return replace(part, items=others, matches=matches)


def _cut(
    part: MatchedPartitions, item: int, *, schema: Schema, labels_max: int
) -> MatchedPartitions:
    """The first whole commits of one item, and the cursor up to which they are complete."""
    matches = part.matches.where(part.matches.items == item)
    labels, reached = first_commits(
        LabelSet(schema, matches.rows), reached=part.reached, labels_max=labels_max
    )
    return single_query_part(item, labels, like=replace(part, reached=reached))


def single_query_part(item: int, labels: LabelSet, *, like: MatchedPartitions) -> MatchedPartitions:
    """A part with the labels of one item, and the cursors of another part."""
    items = np.full(len(labels), item, dtype=np.uint32)
    matches = MatchBatch(items, np.arange(len(labels), dtype=np.uint32), labels.table)
    return replace(like, items=np.array([item], dtype=np.uint32), matches=matches)
