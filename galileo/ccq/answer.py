"""Answers to fetches as pure functions: what is in them, and which cursor they amount to.

An answer to the cursor `after` holds every sampled match in (after, cursor] and nothing else.
It is cut between commits only, evenly over the partitions, so that none is starved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from galileo.ccq.cache import Selection
from galileo.cursor import Cursor
from galileo.labels import LabelSet


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
    labels = LabelSet.concat(parts[0].schema, parts).in_commit_order()
    labels, left = cut(labels, labels_max=labels_max)
    covered = {p: left.get(p, s + 1) - 1 for p, s in selection.covered.items()}
    return Answer(labels, Cursor(covered), is_cut=bool(left))


def cut(labels: LabelSet, *, labels_max: int) -> tuple[LabelSet, dict[int, int]]:
    """The first whole commits of each partition, at most `labels_max` labels but one commit.

    Args:
        labels: in commit order.
        labels_max: at least 1.

    Returns:
        What is kept, and the first commit of each partition that was not.
    """
    if len(labels) <= labels_max:
        return labels, {}
    partitions, sequences = labels.partitions, labels.sequences
    differs = (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
    starts = np.flatnonzero(np.concatenate(([True], differs)))
    sizes = np.diff(np.append(starts, len(labels)))
    kept = _kept(partitions[starts], sizes, labels_max=labels_max)
    left_partitions, first = np.unique(partitions[starts][~kept], return_index=True)
    left_sequences = sequences[starts][~kept][first]
    left = dict(zip(left_partitions.tolist(), left_sequences.tolist(), strict=True))
    return labels.where(np.repeat(kept, sizes)), left


def _kept(partitions: np.ndarray, sizes: np.ndarray, *, labels_max: int) -> np.ndarray:
    """Which commits fit, taken in turns from all partitions, each from its oldest on."""
    ends = np.cumsum(sizes)
    first_of_partition = np.flatnonzero(np.concatenate(([True], np.diff(partitions) != 0)))
    before = (ends - sizes)[first_of_partition]
    counts = np.diff(np.append(first_of_partition, len(partitions)))
    depth = ends - np.repeat(before, counts)
    order = np.lexsort((partitions, depth))
    fits = np.cumsum(sizes[order]) <= labels_max
    fits[0] = True
    kept = np.zeros(len(sizes), dtype=np.bool_)
    kept[order[fits]] = True
    return kept
