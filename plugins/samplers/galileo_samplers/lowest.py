"""The labels with the smallest priorities of each group: what fixed-size samples are made of.

Each label gets a priority that depends on itself and the seed alone, and the n smallest are the
sample (bottom-k sampling; Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC
2007). The n smallest of a union are among the n smallest of its parts, so parts may be thinned
first, wherever they lie and however often, and the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from galileo.labels import LabelSet

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Key = npt.NDArray[Any]

_CODES_MAX = 1 << 24
"""So that many bits of a priority are left next to the number of a group."""
_SPAN_MAX = 1 << 62


def lowest(labels: LabelSet, priorities: Key, *, groups: Sequence[Key], quotas: Ints | int) -> Mask:
    """Which labels are among the first of their group.

    Args:
        labels: in any order.
        priorities: of each label; the smallest go first, the label's identity breaks ties.
        groups: keys, each of one value per label; labels that agree in all are one group.
        quotas: how many of its group may be kept; for each label, or one number for all.
    """
    if not groups and isinstance(quotas, int) and quotas < len(labels):
        return _lowest_of_all(labels, priorities, quotas)
    order, starts = ordered(labels, priorities, groups=groups)
    sizes = np.diff(np.append(starts, len(order)))
    mask = np.zeros(len(order), dtype=np.bool_)
    allowed = quotas if isinstance(quotas, int) else quotas[order]
    mask[order] = ranks(sizes) < allowed
    return mask


def ordered(labels: LabelSet, priorities: Key, *, groups: Sequence[Key]) -> tuple[Ints, Ints]:
    """The labels sorted by group, then priority; and where in that order each group starts.

    Args:
        labels: in any order.
        priorities: none of them negative; the label's identity breaks ties.
        groups: as in `lowest`.
    """
    codes = codes_of(groups, size=len(labels))
    order = _sorted_at_once(codes, priorities)
    if order is None:
        identity = (labels.rows, labels.sequences, labels.partitions)
        order = np.lexsort((*identity, priorities, codes)).astype(np.int64)
    return order, np.flatnonzero(starts_run([codes[order]])).astype(np.int64)


def codes_of(groups: Sequence[Key], *, size: int) -> Ints:
    """A small number per label from 0 on, equal within a group."""
    codes = np.zeros(size, dtype=np.int64)
    if not size:
        return codes
    count = 1
    for group in groups:
        numbers, width = _from_zero(group)
        if count * width > _CODES_MAX:
            codes, count = _dense(codes)
            numbers, width = _dense(numbers)
        codes, count = codes * width + numbers, count * width
    return codes if count <= _CODES_MAX else _dense(codes)[0]


def _from_zero(group: Key) -> tuple[Ints, int]:
    low, high = int(group.min()), int(group.max())
    if high - low >= _SPAN_MAX:
        return _dense(group)
    return group.astype(np.int64) - low, high - low + 1


def _dense(values: Key) -> tuple[Ints, int]:
    known, numbers = np.unique(values, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64), len(known)


def _sorted_at_once(codes: Ints, priorities: Key) -> Ints | None:
    """By code and priority as one number of 64 bits each; None where that is too few for them."""
    bits = int(codes.max(initial=0)).bit_length()
    # Floats that are not negative sort as their bits do.
    low = priorities.view(np.uint64) >> np.uint64(bits)
    keys = low | (codes.astype(np.uint64) << np.uint64(64 - bits)) if bits else low
    order = np.argsort(keys).astype(np.int64)
    found = keys[order]
    return None if bool((found[1:] == found[:-1]).any()) else order


def ranks(sizes: Ints) -> Ints:
    """0, 1, 2 … within each of groups that lie one behind the other."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def starts_run(keys: Sequence[Key]) -> Mask:
    """Where a run of equal keys begins, in keys of equal length."""
    changed = np.zeros(len(keys[0]), dtype=np.bool_)
    changed[:1] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return changed


def _lowest_of_all(labels: LabelSet, priorities: Key, quota: int) -> Mask:
    """The same of one group; what lies above the quota's priority need not be sorted."""
    possible = np.flatnonzero(priorities <= np.partition(priorities, quota - 1)[quota - 1])
    mask = np.zeros(len(labels), dtype=np.bool_)
    if len(possible) > quota:
        identity = (labels.rows, labels.sequences, labels.partitions)
        keys = (*(part[possible] for part in identity), priorities[possible])
        possible = possible[np.lexsort(keys)[:quota]]
    mask[possible] = True
    return mask
