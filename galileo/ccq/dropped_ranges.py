"""Ranges of commits that retention dropped before a CCQ evaluated them.

An answer is "all labels in (after, cursor]" except for the ranges that it reports as gone. A cache
keeps them next to its labels, for the same range (base, until].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from galileo.cursor import CommitRange, Cursor


def ranges_between(after: Mapping[int, int], until: Mapping[int, int]) -> tuple[CommitRange, ...]:
    """The commits past one cursor and not past another, by partition."""
    return tuple(
        CommitRange(partition, after[partition] + 1, last)
        for partition, last in sorted(until.items())
        if last > after[partition]
    )


def within(
    gone: Iterable[CommitRange], *, after: Cursor, until: Cursor | None = None
) -> tuple[CommitRange, ...]:
    """The parts of ranges that lie past `after` and not past `until`; None: no upper bound."""
    cut = (
        CommitRange(
            dropped.partition,
            max(dropped.first, after[dropped.partition] + 1),
            dropped.last if until is None else min(dropped.last, until[dropped.partition]),
        )
        for dropped in gone
    )
    return tuple(dropped for dropped in cut if dropped.first <= dropped.last)


class DroppedRanges:
    """The dropped ranges within a cache, by partition, ascending; adjacent ones are merged."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: tuple[CommitRange, ...] = ()

    def add(self, after: Cursor, gone: Cursor) -> None:
        """Add the commits past `after`, up to `gone`.

        In each partition they follow what was added before.
        """
        merged: list[CommitRange] = []
        for following in sorted((*self._ranges, *ranges_between(after, gone))):
            last = merged[-1] if merged else None
            if (
                last is not None
                and last.partition == following.partition
                and last.last + 1 == following.first
            ):
                merged[-1] = CommitRange(last.partition, last.first, following.last)
            else:
                merged.append(following)
        self._ranges = tuple(merged)

    def discard_before(self, base: Cursor) -> None:
        """Remove ranges at or before a cursor."""
        if self._ranges:
            self._ranges = within(self._ranges, after=base)

    def between(self, after: Cursor, until: Cursor) -> tuple[CommitRange, ...]:
        """Dropped ranges past `after` and not past `until`."""
        return () if not self._ranges else within(self._ranges, after=after, until=until)

    def check(self, base: Cursor, until: Cursor) -> None:
        inside = within(self._ranges, after=base, until=until)
        assert inside == self._ranges, "a range outside the cache"
        assert list(self._ranges) == sorted(self._ranges), "ranges out of order"
