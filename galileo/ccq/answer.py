"""Answers to fetches as pure functions: what is in them, and which cursor they amount to.

An answer to the cursor `after` holds every sampled match in (after, cursor] and nothing else.
It is cut between commits only, evenly over the partitions, so that none is starved.
"""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.cache import Selection
from galileo.cursor import Cursor
from galileo.labels import LabelSet, first_commits


@dataclass(frozen=True, slots=True)
class Answer:
    labels: LabelSet | None
    cursor: Cursor
    is_cut: bool


def compose(backfilled: LabelSet | None, selection: Selection, *, labels_max: int) -> Answer:
    """Joins what a rescan and what the cache found, and cuts it to size.

    Args:
        backfilled: matches before those of the selection, partition by partition; None: none.
        selection: of the cache, past what the rescan reached.
        labels_max: bound of the answer; its first commit may exceed it.
    """
    parts = [part for part in (backfilled, selection.labels) if part is not None and len(part)]
    if not parts:
        return Answer(None, selection.covered, is_cut=False)
    found = LabelSet.concat(parts[0].schema, parts)
    labels, cursor = first_commits(found, reached=selection.covered, labels_max=labels_max)
    return Answer(labels, cursor, is_cut=cursor != selection.covered)
