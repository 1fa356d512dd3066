"""The cache of one CCQ: all its labels in the stretch (base, until], in chunks.

The two cursors say what the cache *knows*, the chunks what it found there. A label is in the
cache exactly when it matches and its commit lies past `base` and not past `until`; each method
keeps that so. Chunk k knows the stretch between the `until` of chunk k-1 and its own.
Nothing here depends on time: a cache is a function of the log between two cursors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from galileo.ccq.packing import PackedTable, pack, unpack
from galileo.cursor import Cursor
from galileo.labels import LabelSet
from galileo.model.schema import Schema

CHUNK_LABELS = 4096
"""Cycles are gathered into one chunk up to about so many labels."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Labels past a cursor.

    Attributes:
        labels: None where there are none.
        covered: the labels are all there are up to here; at or past the cursor asked for.
        whole: whether that is as far as the cache knows.
    """

    labels: LabelSet | None
    covered: Cursor
    whole: bool


@dataclass(frozen=True, slots=True)
class _Chunk:
    schema: Schema
    packed: PackedTable
    until: Cursor

    def labels(self) -> LabelSet:
        return LabelSet(self.schema, unpack(self.packed))


class LabelCache:
    """See the module.

    Args:
        base: where the cache begins, empty.
        compressed: whether chunks are compressed with LZ4.
    """

    def __init__(self, base: Cursor, *, compressed: bool = False) -> None:
        self.base = base
        self.until = base
        self._compressed = compressed
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        """Labels held, some of which a later `append` may find to be dropped."""
        return sum(chunk.packed.rows for chunk in self._chunks)

    @property
    def bytes(self) -> int:
        return sum(chunk.packed.bytes for chunk in self._chunks)

    def append(self, labels: LabelSet | None, *, reached: Cursor) -> int:
        """Learns all labels up to `reached`; what is known already is skipped.

        Args:
            labels: at least all matches past `until` and at or before `reached`.
            reached: how far those go, per partition; others are left alone.

        Returns:
            How many labels were new.
        """
        fresh = labels.after(self.until).until(reached) if labels is not None else None
        self.until = self.until.join(reached)
        if fresh is None or len(fresh) == 0:
            return 0
        parts = [fresh]
        last = self._chunks[-1] if self._chunks else None
        if last is not None and last.packed.rows + len(fresh) <= CHUNK_LABELS:
            parts.insert(0, self._chunks.pop().labels().after(self.base))
        self._add(LabelSet.concat(fresh.schema, parts).in_commit_order())
        return len(fresh)

    def advance(self, cursor: Cursor) -> None:
        """Takes everything up to `cursor` as known and dropped: a client has it."""
        self.until = self.until.join(cursor)
        self.drop(cursor)

    def drop(self, cursor: Cursor) -> None:
        """Forgets the labels at or before `cursor`, as far as the cache reaches."""
        self.base = self.base.join(cursor.meet(self.until))
        self._chunks = [c for c in self._chunks if not self.base.covers(c.until)]

    def select(self, after: Cursor, *, labels_max: int) -> Selection:
        """The labels past `after`, oldest chunks first, until about `labels_max` are found.

        In partitions where `after` lies before the base the cache knows nothing of use; they
        contribute nothing and `covered` stays at `after`.
        """
        behind = [p for p in self.base if after[p] < self.base[p]]
        parts: list[LabelSet] = []
        covered, found = after, 0
        for number, chunk in enumerate(self._chunks):
            if found >= labels_max:
                return self._selection(parts, self._covered(after, self._chunks[number - 1].until))
            if after.covers(chunk.until):
                continue
            part = _past(chunk.labels(), after, behind=behind)
            parts.append(part)
            found += len(part)
        covered = self._covered(after, self.until)
        return self._selection(parts, covered, whole=True)

    def shrink(self) -> bool:
        """Forgets the oldest chunk, to save memory; a later rescan finds its labels again.

        Returns:
            Whether there was one.
        """
        if not self._chunks:
            return False
        self.drop(self._chunks[0].until)
        return True

    def check(self) -> None:
        assert self.until.covers(self.base), f"base {self.base} past {self.until}"
        before = Cursor()
        for chunk in self._chunks:
            assert self.until.covers(chunk.until), "a chunk past the cache"
            assert chunk.until.covers(before), "chunks out of order"
            before = chunk.until

    def _add(self, labels: LabelSet) -> None:
        packed = pack(labels.table, compressed=self._compressed)
        self._chunks.append(_Chunk(labels.schema, packed, self.until))

    def _covered(self, after: Cursor, until: Cursor) -> Cursor:
        known = {p: s for p, s in until.items() if after[p] >= self.base[p]}
        return after.join(known)

    @staticmethod
    def _selection(parts: list[LabelSet], covered: Cursor, *, whole: bool = False) -> Selection:
        parts = [part for part in parts if len(part)]
        if not parts:
            return Selection(None, covered, whole)
        return Selection(LabelSet.concat(parts[0].schema, parts), covered, whole)


def _past(labels: LabelSet, after: Cursor, *, behind: list[int]) -> LabelSet:
    mask = after.past(labels.partitions, labels.sequences)
    if behind:
        mask &= ~np.isin(labels.partitions, behind)
    return labels.where(mask)
