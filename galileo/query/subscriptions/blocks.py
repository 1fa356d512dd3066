"""The subscriptions of a partition, in columns: who belongs to which group.

Each call adds a block, as in an LSM tree; `FAN` blocks of about one size are merged, so that a
subscription is copied a few times only. In a block the subscriptions are sorted by group and
broker, of which it keeps the runs, and an index of hashes finds their ids. An id is alive in one
block at most; those that are replaced or deleted are removed by a merge.

A subscription takes 17 bytes and its id, and a run 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array, within
from galileo.geo.geohash import Cells
from galileo.geo.regions import Mask
from galileo.hashing import hash128
from galileo.model.sort_keys import differs, merge_order, sort_order
from galileo.query.index.prefixes import Places
from galileo.query.subscriptions.hash_index import HashIndex

Numbers: TypeAlias = npt.NDArray[np.int32]

FAN = 8
"""Blocks of about one size that are merged."""
SMALL = 4_096
"""Subscriptions of a block up to which it is as small as any."""
DEAD_MAX = 0.5
"""Share of dead subscriptions above which a block is written anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Subscriptions:
    """Some subscriptions; arrays of one length.

    Attributes:
        ids: their keys.
        hashes: of the ids.
        groups: numbers of the groups that they belong to.
        brokers: numbers of their brokers.
    """

    ids: pa.Array
    hashes: Cells
    groups: Numbers
    brokers: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Subscriptions of one group and broker, again and again, sorted by both.

    Attributes:
        groups: position of the group of each run among those that were asked for.
        brokers: numbers of the brokers.
        counts: subscriptions of each run, at least one.
        ids: of all, those of one run after those of another.
    """

    groups: Places
    brokers: Numbers
    counts: Places
    ids: pa.Array


class _Block:
    """Sorted subscriptions, of which some may be dead.

    Args:
        subscriptions: in any order; several sorted pieces are merged faster.
    """

    __slots__ = ("_brokers", "_groups", "_index", "_starts", "alive", "ids")

    def __init__(self, subscriptions: Subscriptions) -> None:
        groups, brokers = subscriptions.groups, subscriptions.brokers
        order = merge_order([groups, brokers])
        groups, brokers = groups[order], brokers[order]
        self.ids = subscriptions.ids.take(pa.array(order))
        self._index = HashIndex(subscriptions.hashes[order])
        starts = np.flatnonzero(differs(groups) | differs(brokers))
        self._groups, self._brokers = groups[starts], brokers[starts]
        self._starts = np.append(starts, len(order)).astype(np.int32)
        self.alive = np.ones(len(order), dtype=np.bool_)

    @property
    def nbytes(self) -> int:
        arrays = (self.alive, self._groups, self._brokers, self._starts)
        return sum(array.nbytes for array in arrays) + self._index.nbytes + int(self.ids.nbytes)

    def remove(self, ids: pa.Array, hashes: Cells) -> Numbers:
        """Remove those that are there and alive; returns their groups; as of `rows_of`."""
        rows = self.rows_of(ids, hashes)
        self.alive[rows] = False
        return self._groups[self._runs_of(rows)]

    def find(self, ids: pa.Array, hashes: Cells) -> Subscriptions:
        """Those that are there and alive; as of `rows_of`."""
        rows = self.rows_of(ids, hashes)
        found = self.ids.take(pa.array(rows))
        runs = self._runs_of(rows)
        return Subscriptions(found, hash128([found])[:, 0], self._groups[runs], self._brokers[runs])

    def _runs_of(self, rows: Places) -> Places:
        runs: Places = np.searchsorted(self._starts, rows, side="right") - 1
        return runs

    def rows_of(self, ids: pa.Array, hashes: Cells) -> Places:
        """The rows of those that are there and alive.

        Args:
            ids: of the subscriptions.
            hashes: of the ids, sorted.
        """
        asked, rows = self._index.find(hashes)
        is_alive = self.alive[rows]
        asked, rows = asked[is_alive], rows[is_alive]
        found: Places = rows[_equal(ids.take(pa.array(asked)), self.ids.take(pa.array(rows)))]
        return found

    def renumber(self, numbers: Numbers) -> None:
        """As of `SubscriptionBlocks`; dead subscriptions may come to another group."""
        self._groups = numbers[self._groups]

    def runs_of(self, groups: Numbers) -> tuple[Places, Numbers, Places, Places]:
        """Of each run of these groups the group's position, the broker and the count; all rows."""
        first = np.searchsorted(self._groups, groups, side="left")
        counts = np.searchsorted(self._groups, groups, side="right") - first
        runs = np.repeat(first, counts) + within(counts)
        positions, brokers = np.repeat(np.arange(len(groups)), counts), self._brokers[runs]
        starts = self._starts[runs].astype(np.intp)
        sizes = self._starts[runs + 1] - starts
        rows = np.repeat(starts, sizes) + within(sizes)
        is_alive = self.alive[rows]
        if is_alive.all():
            return positions, brokers, sizes, rows
        alive_before = np.append(0, np.cumsum(is_alive))
        ends = np.cumsum(sizes)
        sizes = alive_before[ends] - alive_before[ends - sizes]
        full = sizes > 0
        return positions[full], brokers[full], sizes[full], rows[is_alive]

    def living(self) -> Subscriptions:
        """Those that are alive."""
        sizes = np.diff(self._starts)
        return Subscriptions(
            self.ids.filter(pa.array(self.alive)),
            self._index.hashes[self.alive],
            np.repeat(self._groups, sizes)[self.alive],
            np.repeat(self._brokers, sizes)[self.alive],
        )


class SubscriptionBlocks:
    """Subscriptions by their ids and by their groups; not thread-safe."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return sum(map(_living, self._blocks))

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def remove(self, ids: pa.Array, hashes: Cells) -> Numbers:
        """Remove subscriptions if they are there; returns the groups that they belonged to.

        Args:
            ids: each once.
            hashes: of the ids.
        """
        order = np.argsort(hashes)
        ids, hashes = ids.take(pa.array(order)), hashes[order]
        groups = [block.remove(ids, hashes) for block in self._blocks]
        return np.concatenate([np.empty(0, dtype=np.int32), *groups])

    def find(self, ids: pa.Array, hashes: Cells) -> Subscriptions:
        """The subscriptions with some ids, as far as they are there; as of `remove`."""
        order = np.argsort(hashes)
        ids, hashes = ids.take(pa.array(order)), hashes[order]
        none = Subscriptions(ids[:0], hashes[:0], *np.empty((2, 0), dtype=np.int32))
        return _concatenated([none, *(block.find(ids, hashes) for block in self._blocks)])

    def add(self, subscriptions: Subscriptions) -> None:
        """Add subscriptions, of which none is there."""
        if len(subscriptions.ids):
            self._blocks.append(_Block(subscriptions))
        self._merge()

    def renumber(self, numbers: Numbers) -> None:
        """Give the groups other numbers.

        Args:
            numbers: the new number of each old one, in their order; of a group without
                subscriptions that of the one before, or -1.
        """
        for block in self._blocks:
            block.renumber(numbers)

    def runs_of(self, groups: Numbers) -> Runs:
        """The subscriptions of groups, by group and broker.

        Args:
            groups: sorted and distinct.
        """
        parts = [block.runs_of(groups) for block in self._blocks]
        offsets = np.cumsum([0, *(len(block.ids) for block in self._blocks)])
        none = np.empty(0, dtype=np.intp)
        positions = np.concatenate([none, *(part[0] for part in parts)])
        brokers = np.concatenate([none.astype(np.int32), *(part[1] for part in parts)])
        counts = np.concatenate([none, *(part[2] for part in parts)])
        rows = np.concatenate(
            [none, *(part[3] + offset for part, offset in zip(parts, offsets, strict=False))]
        )
        order = sort_order([positions, brokers])
        starts = (np.cumsum(counts) - counts)[order]
        positions, brokers, counts = positions[order], brokers[order], counts[order]
        if len(parts) > 1:
            rows = rows[np.repeat(starts, counts) + within(counts)]
        first = np.flatnonzero(differs(positions) | differs(brokers))
        sums = np.add.reduceat(counts, first) if len(first) else counts
        return Runs(positions[first], brokers[first], sums, self._ids(rows))

    def _ids(self, rows: Places) -> pa.Array:
        chunks = [block.ids for block in self._blocks]
        if len(chunks) == 1:
            return chunks[0].take(pa.array(rows))
        return one_array(pa.chunked_array(chunks, type=pa.string()).take(pa.array(rows)))

    def _merge(self) -> None:
        """Write blocks anew of which there are many of one size, or which are half dead."""
        sizes = [_living(block) for block in self._blocks]
        dying = [
            number
            for number, (block, size) in enumerate(zip(self._blocks, sizes, strict=True))
            if size < (1 - DEAD_MAX) * len(block.ids)
        ]
        chosen = dying or _of_one_size(sizes)
        if not chosen:
            return
        parts = [self._blocks[number].living() for number in chosen]
        rest = [block for number, block in enumerate(self._blocks) if number not in chosen]
        self._blocks = rest
        merged = _concatenated(parts)
        if len(merged.ids):
            self._blocks.append(_Block(merged))
        self._merge()


def _living(block: _Block) -> int:
    return int(np.count_nonzero(block.alive))


def _of_one_size(sizes: Sequence[int]) -> list[int]:
    """The numbers of blocks of one size, if there are enough to merge them."""
    levels = np.floor(np.log(np.maximum(sizes, SMALL)) / np.log(FAN)).astype(np.int64)
    for level in np.unique(levels).tolist():
        numbers: list[int] = np.flatnonzero(levels == level).tolist()
        if len(numbers) >= FAN:
            return numbers
    return []


def _concatenated(parts: Sequence[Subscriptions]) -> Subscriptions:
    return Subscriptions(
        pa.concat_arrays([part.ids for part in parts]),
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.groups for part in parts]),
        np.concatenate([part.brokers for part in parts]),
    )


def _equal(left: pa.Array, right: pa.Array) -> Mask:
    return np.asarray(pc.equal(left, right).to_numpy(zero_copy_only=False), dtype=np.bool_)
