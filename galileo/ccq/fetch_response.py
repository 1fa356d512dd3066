"""Answers to fetches as pure functions: what is in them, and which cursor they amount to.

An answer to the cursor `after` holds every sampled match in (after, cursor] and nothing else.
It is cut between commits only, evenly over the partitions, so that none is starved.
"""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.cache import Selection
from galileo.ccq.packs import PackedLabels
from galileo.cursor import Cursor


@dataclass(frozen=True, slots=True)
class FetchResponse:
    labels: PackedLabels | None
    cursor: Cursor
    is_cut: bool


def compose(
    backfilled: PackedLabels | None, selection: Selection, *, labels_max: int
) -> FetchResponse:
    """Joins what a rescan and what the cache found, and cuts it to size.

    Args:
        backfilled: matches before those of the selection, partition by partition; None: none.
        selection: of the cache, past what the rescan reached.
        labels_max: bound of the answer; its first commit may exceed it.
    """
    found = selection.labels
    if backfilled is not None:
        found = PackedLabels.concat([backfilled, found])
    if found is None:
        return FetchResponse(None, selection.covered, is_cut=False)
    labels, cursor = found.cut(reached=selection.covered, labels_max=labels_max)
    return FetchResponse(labels, cursor, is_cut=cursor != selection.covered)
