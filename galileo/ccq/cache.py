"""The cache of one CCQ: all its labels in the stretch (base, until], in chunks.

The two cursors say what the cache *knows*, the chunks what it found there. A label is in the
cache exactly when it matches and its commit lies past `base` and not past `until`; each method
keeps that so. Chunk k knows the stretch between the `until` of chunk k-1 and its own.
Nothing here depends on time: a cache is a function of the log between two cursors.

Chunks are kept packed (`packs`), and what is asked of them is answered from the lists of their
commits. Nothing is packed or unpacked here: where cycles have left many small chunks, `gather`
hands them out to be put together elsewhere, and `take_gathered` takes them back.
"""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.gone import GoneStretches
from galileo.ccq.packs import PackedLabels
from galileo.cursor import ORIGIN, Cursor

CHUNK_LABELS = 65_536
"""Small chunks are gathered into one of at most so many labels."""
CHUNKS_GATHERED = 16
"""As soon as there are so many of them;"""
LABELS_FEW, CHUNKS_GATHERED_SOON = 1_024, 4
"""as soon as there are four, where they hold more than a few labels: readers unpack each one."""
GROWTH = 4
"""A chunk is left alone while it is so many times what came after it, lest it be packed anew
with every few labels."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Labels past a cursor.

    Attributes:
        labels: None where there are none.
        covered: the labels are all there are up to here; at or past the cursor asked for.
        whole: whether that is as far as the cache knows.
    """

    labels: PackedLabels | None
    covered: Cursor
    whole: bool


@dataclass(frozen=True, slots=True)
class _Chunk:
    packed: PackedLabels
    until: Cursor


class LabelCache:
    """See the module.

    Args:
        base: where the cache begins, empty.
        chunks_gathered: how many small chunks are put together.

    Attributes:
        gone: what retention dropped between `base` and `until` before it was evaluated.
    """

    def __init__(self, base: Cursor, *, chunks_gathered: int = CHUNKS_GATHERED) -> None:
        self.base = base
        self.until = base
        self.gone = GoneStretches()
        self._chunks_gathered = chunks_gathered
        self._chunks: list[_Chunk] = []
        self._gathering: tuple[_Chunk, ...] = ()

    def __len__(self) -> int:
        """Labels held, some of which a later `append` may find to be dropped."""
        return sum(len(chunk.packed) for chunk in self._chunks)

    @property
    def bytes(self) -> int:
        return sum(chunk.packed.size for chunk in self._chunks)

    def append(self, labels: PackedLabels | None, *, reached: Cursor, gone: Cursor = ORIGIN) -> int:
        """Learns all labels up to `reached`; what is known already is skipped.

        Args:
            labels: at least all matches past `until` and at or before `reached`.
            reached: how far those go, per partition; others are left alone.
            gone: up to where they are not there any more.

        Returns:
            How many labels were new.
        """
        fresh = labels.after(self.until).until(reached) if labels is not None else None
        self.gone.add(self.until, gone.meet(reached))
        self.until = self.until.join(reached)
        if fresh is None or not fresh.packs:
            return 0
        self._add(fresh)
        return len(fresh)

    def advance(self, cursor: Cursor) -> None:
        """Takes everything up to `cursor` as known and dropped: a client has it."""
        self.until = self.until.join(cursor)
        self.drop(cursor)

    def drop(self, cursor: Cursor) -> None:
        """Forgets the labels at or before `cursor`, as far as the cache reaches."""
        self.base = self.base.join(cursor.meet(self.until))
        self._chunks = [c for c in self._chunks if not self.base.covers(c.until)]
        self.gone.forget(self.base)

    def select(self, after: Cursor, *, labels_max: int) -> Selection:
        """The labels past `after`, oldest chunks first, until about `labels_max` are found.

        In partitions where `after` lies before the base the cache knows nothing of use; they
        contribute nothing and `covered` stays at `after`.
        """
        behind = {p: self.until[p] for p in self.base if after[p] < self.base[p]}
        past = Cursor({**after, **behind})
        parts: list[PackedLabels] = []
        covered, found = after, 0
        for number, chunk in enumerate(self._chunks):
            if found >= labels_max:
                covered = self._covered(after, self._chunks[number - 1].until)
                return Selection(PackedLabels.concat(parts), covered, whole=False)
            if not after.covers(chunk.until):
                parts.append(chunk.packed.after(past))
                found += len(parts[-1])
        covered = self._covered(after, self.until)
        return Selection(PackedLabels.concat(parts), covered, whole=True)

    def shrink(self) -> bool:
        """Forgets the oldest chunk, to save memory; a later rescan finds its labels again.

        Returns:
            Whether there was one.
        """
        if not self._chunks:
            return False
        self.drop(self._chunks[0].until)
        return True

    def gather(self) -> PackedLabels | None:
        """The newest chunks, where they are many and small, to be packed as one.

        None where they are not, and until the last ones handed out are back.
        """
        newest, count = self._crowd()
        is_few = count <= LABELS_FEW
        least = self._chunks_gathered if is_few else CHUNKS_GATHERED_SOON
        if self._gathering or len(newest) < min(least, self._chunks_gathered):
            return None
        self._gathering = tuple(newest)
        return PackedLabels.concat(chunk.packed for chunk in newest)

    def take_gathered(self, labels: PackedLabels | None) -> None:
        """Takes back what `gather` handed out, packed as one; None leaves the chunks as they are.

        Some of them may have been dropped since; chunks go oldest first and come last.
        """
        gathered, self._gathering = self._gathering, ()
        kept = [chunk for chunk in self._chunks if not any(chunk is one for one in gathered)]
        if labels is None or len(kept) == len(self._chunks):
            return
        start = next(i for i, chunk in enumerate(self._chunks) if any(chunk is g for g in gathered))
        left = labels.after(self.base)
        together = [_Chunk(left, gathered[-1].until)] if left.packs else []
        self._chunks = [*kept[:start], *together, *kept[start:]]

    def check(self) -> None:
        assert self.until.covers(self.base), f"base {self.base} past {self.until}"
        self.gone.check(self.base, self.until)
        before = Cursor()
        for chunk in self._chunks:
            assert self.until.covers(chunk.until), "a chunk past the cache"
            assert chunk.until.covers(before), "chunks out of order"
            before = chunk.until

    def _add(self, labels: PackedLabels) -> None:
        self._chunks.append(_Chunk(labels, self.until))

    def _crowd(self) -> tuple[list[_Chunk], int]:
        """The newest chunks that are worth putting together, and how many labels they hold."""
        crowd: list[_Chunk] = []
        count = 0
        for chunk in reversed(self._chunks):
            size = len(chunk.packed)
            is_large = crowd and size > GROWTH * count
            if is_large or count + size > CHUNK_LABELS:
                break
            crowd.append(chunk)
            count += size
        return crowd[::-1], count

    def _covered(self, after: Cursor, until: Cursor) -> Cursor:
        known = {p: s for p, s in until.items() if after[p] >= self.base[p]}
        return after.join(known)
