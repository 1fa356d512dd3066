"""Sorts rows by several keys; used on the ingest path.

The result equals that of `numpy.lexsort`. Instead of a stable sort for every key, it sorts 64-bit
numbers, which need not be stable and for which NumPy has vector instructions: adjacent integer keys
are packed into one number, and a key is read only in rows that are equal in all keys before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Key: TypeAlias = npt.NDArray[Any]
_WORD_BITS = 64


def sort_order(keys: Sequence[Key]) -> Ints:
    """Where each row of the sorted order comes from; rows equal in all keys stay in theirs.

    Args:
        keys: most significant first, at least one; integers, booleans or floats, each of shape
            (n,). NaN is equal to NaN and greater than all else, 0.0 is equal to -0.0.
    """
    return _order(keys, np.argsort)


def merge_order(keys: Sequence[Key]) -> Ints:
    """The result of `sort_order` for rows in a few sorted pieces, one behind the other.

    These are merged, which takes a third of the time of a sort.

    Args:
        keys: as of `sort_order`.
    """
    return _order(keys, partial(np.argsort, kind="stable"))


def _order(keys: Sequence[Key], sort_first: Callable[[Key], Ints]) -> Ints:
    first, *others = _pack_keys(keys)
    order = sort_first(first)
    changed = differs(first[order])
    for key in [*others, np.arange(len(order))]:
        tied = _tied_rows(changed)
        if len(tied) == 0:
            break
        rows, starts = order[tied], changed[tied]
        values = key[rows]
        if not (differs(values) & ~starts).any():
            continue
        within = _combine_with_groups(np.cumsum(starts) - 1, values)
        by = np.argsort(within)
        order[tied] = rows[by]
        changed[tied] |= differs(within[by])
    return order


def differs(key: Key) -> npt.NDArray[np.bool_]:
    """Mask of elements that differ from the one before; the first one is True."""
    changed = np.ones(len(key), dtype=np.bool_)
    np.not_equal(key[1:], key[:-1], out=changed[1:])
    if key.dtype.kind == "f":
        changed[1:] &= ~(np.isnan(key[1:]) & np.isnan(key[:-1]))
    return changed


def _tied_rows(changed: npt.NDArray[np.bool_]) -> Ints:
    """The positions of rows that are equal to a neighbour, where `changed` starts groups."""
    ends = np.ones(len(changed), dtype=np.bool_)
    ends[:-1] = changed[1:]
    return np.flatnonzero(~(changed & ends))


def _combine_with_groups(groups: Ints, key: Key) -> Key:
    """Numbers that sort and compare as (group, key) does."""
    codes = _offsets_to_least(key)
    if codes is None or int(groups[-1] + 1) * (int(codes.max()) + 1) >= 1 << _WORD_BITS:
        codes = _ranks(key)
    numbers: Key = groups.astype(np.uint64) * (codes.max() + np.uint64(1)) + codes
    return numbers


def _ranks(key: Key) -> npt.NDArray[np.uint64]:
    """0, 1, 2 … for the distinct values in ascending order."""
    order = np.argsort(key)
    ranks = np.empty(len(key), dtype=np.uint64)
    ranks[order] = np.cumsum(differs(key[order])) - 1
    return ranks


def _pack_keys(keys: Sequence[Key]) -> list[Key]:
    """Fewer keys with the same order: adjacent integer keys share a word if they fit."""
    packed: list[Key] = []
    room = 0
    for key in keys:
        codes = _offsets_to_least(key)
        bits = _WORD_BITS + 1 if codes is None else int(codes.max(initial=0)).bit_length()
        if packed and bits <= room and codes is not None:
            packed[-1] = (packed[-1] << np.uint64(bits)) | codes
            room -= bits
        else:
            packed.append(key if codes is None else codes)
            room = _WORD_BITS - bits
    return packed


def _offsets_to_least(key: Key) -> npt.NDArray[np.uint64] | None:
    """Numbers that sort as integers do and begin at 0; None if the key has others.

    Bits that are 0 in all of them are left out at the end: times are often multiples of an hour.
    """
    if key.dtype.kind == "f":
        return None
    if len(key) == 0 or key.dtype.kind == "b":
        return key.astype(np.uint64)
    # Differences of 64-bit integers are right modulo 2^64, even where they leave the signed range.
    words = key.astype(np.uint64) if key.dtype.kind == "u" else key.astype(np.int64).view(np.uint64)
    counted: npt.NDArray[np.uint64] = words - words[np.argmin(key)]
    bits = int(np.bitwise_or.reduce(counted))
    zeros = (bits & -bits).bit_length() - 1
    return counted >> np.uint64(zeros) if zeros > 0 else counted
