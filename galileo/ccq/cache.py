"""The cache of one CCQ: all its labels in the range (base, until], in chunks.

A label is in the cache exactly when it matches and its commit lies past `base` and not past
`until`; each method keeps that so. Chunk k covers the range between the `until` of chunk k-1 and
its own. Nothing here depends on time: a cache is a function of the log between two cursors.

Chunks are kept packed (`packs`), and questions are answered from the lists of their commits.
Nothing is packed or unpacked here: where cycles have left many small chunks, `compact` returns them
to be packed as one elsewhere, and `apply_compacted` stores the result. `compact_at_rest` does it
sooner.

A chunk is in memory, in a file, or in both; never in neither. `spill` returns the oldest ones to be
written, `apply_spilled` puts the file in their place, `apply_loaded` brings a file's labels back to
memory, until `unload`. If a file is lost, the cache forgets what lies before its end, and a rescan
finds it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from galileo.ccq.dropped_ranges import DroppedRanges
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.packs import PackedLabels

CHUNK_LABELS = 65_536
"""Small chunks are compacted into one of at most so many labels."""
CHUNKS_COMPACTED = 16
"""Small chunks are compacted as soon as there are so many."""
LABELS_FEW, CHUNKS_COMPACTED_SOON = 1_024, 4
"""With more than `LABELS_FEW` labels, `CHUNKS_COMPACTED_SOON` chunks suffice, since readers unpack
each one, and a cache at rest is compacted.
"""
GROWTH = 4
"""A chunk stays as it is while it is so many times as large as the chunks after it; else it would
be packed anew with every few labels.
"""
GROWTH_AT_REST = 16
"""`GROWTH` of a CCQ that rests: there is time, and readers unpack less."""
SPILL_LABELS = 262_144
"""Most labels of one spill file; a single chunk may hold more."""


@dataclass(slots=True)
class CacheUsage:
    """What the caches of a node take up in total; each cache updates it.

    Attributes:
        bytes: of packs in memory.
        spilled_bytes: of files.
        discarded: numbers of files that can be deleted.
    """

    bytes: int = 0
    spilled_bytes: int = 0
    discarded: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CachedLabels:
    """Labels past a cursor.

    Attributes:
        labels: None where there are none.
        covered: up to here the labels are complete; at or past the requested cursor.
        whole: whether `covered` is the end of the cache.
        missing_spill: the file to load first; then there are no labels.
    """

    labels: PackedLabels | None
    covered: Cursor
    whole: bool
    missing_spill: int | None = None


@dataclass(frozen=True, slots=True)
class Spill:
    """A file of packs.

    Attributes:
        number: its name.
        bytes: its size.
        loaded_bytes: size of its packs in memory.
    """

    number: int
    bytes: int
    loaded_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Labels past `after`, up to `until`; `packed` is None where they are only in the file."""

    packed: PackedLabels | None
    until: Cursor
    labels: int
    spill: Spill | None = None
    after: Cursor = EMPTY_CURSOR

    @property
    def bytes(self) -> int:
        return self.packed.size if self.packed is not None else 0

    @property
    def spilled_bytes(self) -> int:
        return self.spill.bytes if self.spill is not None else 0


class LabelCache:
    """The labels of one CCQ between two cursors.

    Args:
        base: where the cache begins, empty.

    Attributes:
        gone: what retention dropped between `base` and `until` before it was evaluated.
        cache_usage: of all caches of the node.
        bytes: of its packs in memory.
        spilled_bytes: of its files.
    """

    def __init__(self, base: Cursor) -> None:
        self.base = base
        self.until = base
        self.gone = DroppedRanges()
        self.cache_usage = CacheUsage()
        self.bytes = 0
        self.spilled_bytes = 0
        self._chunks: list[_Chunk] = []
        self._compacting: tuple[_Chunk, ...] = ()
        self._spilling: dict[int, tuple[_Chunk, ...]] = {}
        self._loading: set[int] = set()

    def __len__(self) -> int:
        """Labels in the cache, before the base too as long as their chunk is kept."""
        return sum(chunk.labels for chunk in self._chunks)

    def append(
        self,
        labels: PackedLabels | None,
        *,
        reached: Cursor,
        gone: Cursor = EMPTY_CURSOR,
        after: Cursor | None = None,
    ) -> int:
        """Add all labels up to `reached`; known ones are skipped.

        Args:
            labels: at least all matches past `until` and at or before `reached`.
            reached: how far those go, per partition; absent partitions are unchanged.
            gone: up to where retention dropped commits.
            after: if given, the labels are exactly those past it, and not past `reached`.

        Returns:
            How many labels were new.
        """
        before, fresh = self.until, labels
        # If the cache did not change since the cycle started, all labels are fresh.
        if labels is not None and after is not before:
            fresh = labels.after(before).until(reached)
        if gone:
            self.gone.add(before, gone.meet(reached))
        self.until = before.join(reached)
        if fresh is None or not fresh.packs:
            return 0
        return self._add(fresh, after=before)

    def advance(self, cursor: Cursor) -> None:
        """Drop everything up to `cursor` as delivered, also beyond `until`."""
        self.until = self.until.join(cursor)
        self.drop(cursor)

    def drop(self, cursor: Cursor) -> None:
        """Drop the labels at or before `cursor`, as far as the cache reaches."""
        # Keep equal cursors one object: caches share them, and identity is cheap.
        reached = cursor if self.until.covers(cursor) else cursor.meet(self.until)
        if reached is not self.until and reached.covers(self.until):
            reached = self.until
        self.base = self.base.join(reached)
        if self._chunks:
            self._keep([c for c in self._chunks if not self.base.covers(c.until)])
        self.gone.discard_before(self.base)

    def clear(self) -> None:
        """Drop all labels and files."""
        self.drop(self.until)
        self._compacting = ()

    def select(self, after: Cursor, *, labels_max: int) -> CachedLabels:
        """The labels past `after`, oldest chunks first, until about `labels_max` are found.

        Partitions in which `after` lies before the base contribute nothing; `covered` stays at
        `after` there.
        """
        past = after if after.covers(self.base) else self._past(after)
        parts: list[PackedLabels] = []
        covered, labels_selected = after, 0
        for number, chunk in enumerate(self._chunks):
            if labels_selected >= labels_max:
                covered = self._covered(after, self._chunks[number - 1].until)
                return CachedLabels(PackedLabels.concat(parts), covered, whole=False)
            if after.covers(chunk.until):
                continue
            if chunk.packed is None:
                return self._cut_before(number, after, parts)
            is_all = chunk.after.covers(past)
            parts.append(chunk.packed if is_all else chunk.packed.after(past))
            labels_selected += chunk.labels if is_all else len(parts[-1])
        covered = self._covered(after, self.until)
        return CachedLabels(PackedLabels.concat(parts), covered, whole=True)

    def shrink(self) -> bool:
        """Drop the oldest chunk that is only in memory, and what lies before it.

        A rescan finds the labels again. Chunks that are being written stay: they take memory until
        they are written in any case.

        Returns:
            Whether there was such a chunk.
        """
        oldest = next((chunk for chunk in self._chunks if self._is_in_memory_alone(chunk)), None)
        if oldest is None:
            return False
        self.drop(oldest.until)
        return True

    # --- files -------------------------------------------------------------------------------

    def spill(self, number: int) -> PackedLabels | None:
        """The oldest chunks without a file, to be written to file `number`; None if there are none.

        They stay in memory until `apply_spilled`.
        """
        chunks: list[_Chunk] = []
        for chunk in self._chunks:
            may_go = self._is_in_memory_alone(chunk) and not self._is_compacting(chunk)
            labels = sum(chosen.labels for chosen in chunks) + chunk.labels
            # A file has consecutive chunks, so one that may not go ends it.
            if chunks and (not may_go or labels > SPILL_LABELS):
                break
            if may_go:
                chunks.append(chunk)
        if not chunks:
            return None
        self._spilling[number] = tuple(chunks)
        return PackedLabels.concat(chunk.packed for chunk in chunks)

    def apply_spilled(self, number: int, size: int | None) -> None:
        """Replace the chunks of a spill by their file of `size` bytes; None: it was not written.

        Some of the chunks may have been dropped since; the oldest go first.
        """
        written = self._spilling.pop(number, ())
        if size is None:
            return
        left = [chunk for chunk in self._chunks if any(chunk is spilled for spilled in written)]
        if not left:
            self.cache_usage.discarded.append(number)
            return
        spill = Spill(number, size, sum(chunk.bytes for chunk in written))
        labels = sum(chunk.labels for chunk in left)
        # The file also has the chunks that were dropped since.
        merged = _Chunk(None, left[-1].until, labels, spill, written[0].after)
        at = next(i for i, chunk in enumerate(self._chunks) if chunk is left[0])
        self._keep([*self._chunks[:at], merged, *self._chunks[at + len(left) :]])

    def load(self, number: int) -> bool:
        """Mark a file as being loaded; return whether it was not already."""
        is_new = number not in self._loading
        self._loading.add(number)
        return is_new

    def apply_loaded(self, number: int, labels: PackedLabels | None) -> None:
        """Store the labels of a file; None: it is lost, so drop everything up to its end."""
        self._loading.discard(number)
        for at, chunk in enumerate(self._chunks):
            if chunk.spill is None or chunk.spill.number != number:
                continue
            if labels is None:
                self.drop(chunk.until)
            else:
                loaded = replace(chunk, packed=labels)
                self._keep([*self._chunks[:at], loaded, *self._chunks[at + 1 :]])
            return

    def unload(self) -> None:
        """Remove from memory what files have, too."""
        if any(chunk.spill is not None and chunk.packed is not None for chunk in self._chunks):
            self._keep([replace(c, packed=None) if c.spill else c for c in self._chunks])

    def missing_spills(self) -> list[Spill]:
        """The files whose labels are not in memory, oldest first."""
        return [
            chunk.spill
            for chunk in self._chunks
            if chunk.spill is not None and chunk.packed is None
        ]

    @property
    def spilling(self) -> tuple[int, ...]:
        """The files that are being written."""
        return tuple(self._spilling)

    @property
    def spilling_bytes(self) -> int:
        """Memory of chunks that are being written."""
        if not self._spilling:
            return 0
        alone = [chunk for chunk in self._chunks if chunk.spill is None]
        return sum(chunk.bytes for chunk in alone if not self._is_in_memory_alone(chunk))

    # --- small chunks ------------------------------------------------------------------------

    def compact(self) -> PackedLabels | None:
        """The newest chunks, where they are many and small, to be packed as one.

        None otherwise, and while an earlier compaction runs.
        """
        newest, count = self._small_newest_chunks(growth=GROWTH)
        is_few = count <= LABELS_FEW
        least = CHUNKS_COMPACTED if is_few else CHUNKS_COMPACTED_SOON
        if self._compacting or len(newest) < min(least, CHUNKS_COMPACTED):
            return None
        return self._start_compaction(newest)

    def compact_at_rest(self) -> PackedLabels | None:
        """The newest chunks, if readers gain from one pack; None if they do not, or a compaction
        runs.

        Readers gain if there are several chunks, or one whose pack holds labels of other CCQs. Few
        labels are left as they are.
        """
        newest, count = self._small_newest_chunks(growth=GROWTH_AT_REST)
        if self._compacting or count <= LABELS_FEW:
            return None
        alone = newest[0].packed if len(newest) == 1 else None
        if alone is not None and alone.is_quick:
            return None
        return self._start_compaction(newest)

    def apply_compacted(self, labels: PackedLabels | None) -> None:
        """Replace the chunks of `compact` by one; None leaves them as they are.

        Some of them may have been dropped since; the oldest go first.
        """
        compacted, self._compacting = self._compacting, ()
        others = [chunk for chunk in self._chunks if not any(chunk is old for old in compacted)]
        if labels is None or len(others) == len(self._chunks):
            return
        start = next(
            i for i, chunk in enumerate(self._chunks) if any(chunk is g for g in compacted)
        )
        left = labels.after(self.base)
        begin = compacted[0].after.join(self.base)
        merged = [_Chunk(left, compacted[-1].until, len(left), after=begin)] if left.packs else []
        self._keep([*others[:start], *merged, *others[start:]])

    def check(self) -> None:
        assert self.until.covers(self.base), f"base {self.base} past {self.until}"
        self.gone.check(self.base, self.until)
        before = Cursor()
        for chunk in self._chunks:
            assert self.until.covers(chunk.until), "a chunk past the cache"
            assert chunk.until.covers(before), "chunks out of order"
            past = chunk.packed.after(chunk.after) if chunk.packed is not None else None
            assert past is chunk.packed, "labels before their chunk"
            assert chunk.packed is not None or chunk.spill is not None, (
                "labels are neither in memory nor in a file"
            )
            before = chunk.until
        assert self.bytes == sum(chunk.bytes for chunk in self._chunks), "bytes miscounted"
        assert self.spilled_bytes == sum(chunk.spilled_bytes for chunk in self._chunks)

    def _add(self, labels: PackedLabels, *, after: Cursor) -> int:
        chunk = _Chunk(labels, self.until, len(labels), after=after)
        self._chunks = [*self._chunks, chunk]
        size = chunk.bytes
        self.bytes += size
        self.cache_usage.bytes += size
        return chunk.labels

    def _keep(self, chunks: list[_Chunk]) -> None:
        """Replace the chunks; discard the files of removed ones and update the byte counts."""
        numbers = {chunk.spill.number for chunk in chunks if chunk.spill is not None}
        spills = [chunk.spill.number for chunk in self._chunks if chunk.spill is not None]
        self.cache_usage.discarded += [number for number in spills if number not in numbers]
        self._chunks = chunks
        size = sum(chunk.bytes for chunk in chunks)
        spilled = sum(chunk.spilled_bytes for chunk in chunks)
        self.cache_usage.bytes += size - self.bytes
        self.cache_usage.spilled_bytes += spilled - self.spilled_bytes
        self.bytes, self.spilled_bytes = size, spilled

    def _cut_before(self, number: int, after: Cursor, parts: list[PackedLabels]) -> CachedLabels:
        """What was found before a chunk that is not in memory; if nothing, its file."""
        spill = self._chunks[number].spill
        labels = PackedLabels.concat(parts)
        if labels is None or spill is None:
            return CachedLabels(
                None, after, whole=False, missing_spill=spill.number if spill else None
            )
        covered = self._covered(after, self._chunks[number - 1].until)
        return CachedLabels(labels, covered, whole=False)

    def _is_in_memory_alone(self, chunk: _Chunk) -> bool:
        spilling = (other for chunks in self._spilling.values() for other in chunks)
        return chunk.spill is None and not any(chunk is other for other in spilling)

    def _is_compacting(self, chunk: _Chunk) -> bool:
        return any(chunk is other for other in self._compacting)

    def _start_compaction(self, chunks: list[_Chunk]) -> PackedLabels | None:
        self._compacting = tuple(chunks)
        return PackedLabels.concat(chunk.packed for chunk in chunks)

    def _small_newest_chunks(self, *, growth: int) -> tuple[list[_Chunk], int]:
        """The newest chunks that are worth compacting, and their number of labels."""
        chunks: list[_Chunk] = []
        count = 0
        for chunk in reversed(self._chunks):
            size = chunk.labels
            is_large = chunks and size > growth * count
            if is_large or count + size > CHUNK_LABELS or not self._is_in_memory_alone(chunk):
                break
            chunks.append(chunk)
            count += size
        return chunks[::-1], count

    def _past(self, after: Cursor) -> Cursor:
        """`after`, moved to the end of the cache where it lies before the base."""
        behind = {p: self.until[p] for p in self.base if after[p] < self.base[p]}
        return Cursor({**after, **behind})

    def _covered(self, after: Cursor, until: Cursor) -> Cursor:
        if after.covers(self.base):
            return after.join(until)
        known = {p: s for p, s in until.items() if after[p] >= self.base[p]}
        return after.join(known)
