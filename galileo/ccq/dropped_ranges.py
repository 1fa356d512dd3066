"""Ranges of commits that retention dropped before a CCQ evaluated them.

An answer is "all labels in (after, cursor]" but for the stretches that it names as gone. They are
kept beside the cache's labels, in the same stretch (base, until]: what lies in one of them was not
there to be looked at; everything else was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from galileo.cursor import Cursor, Stretch


def ranges_between(after: Mapping[int, int], until: Mapping[int, int]) -> tuple[Stretch, ...]:
    """What lies past one cursor and not past another, by partition."""
    return tuple(
        Stretch(partition, after[partition] + 1, last)
        for partition, last in sorted(until.items())
        if last > after[partition]
    )


def within(
    gone: Iterable[Stretch], *, after: Cursor, until: Cursor | None = None
) -> tuple[Stretch, ...]:
    """The parts of stretches that lie past `after` and not past `until`; None: all past it."""
    cut = (
        Stretch(
            one.partition,
            max(one.first, after[one.partition] + 1),
            one.last if until is None else min(one.last, until[one.partition]),
        )
        for one in gone
    )
    return tuple(one for one in cut if one.first <= one.last)


class DroppedRanges:
    """The stretches within a cache, by partition and ascending; neighbours are one."""

    __slots__ = ("_stretches",)

    def __init__(self) -> None:
        self._stretches: tuple[Stretch, ...] = ()

    def add(self, after: Cursor, gone: Cursor) -> None:
        """Learns that the commits past `after`, up to `gone`, were dropped.

        In each partition it follows what was added before.
        """
        joined: list[Stretch] = []
        for one in sorted((*self._stretches, *ranges_between(after, gone))):
            last = joined[-1] if joined else None
            if last is not None and last.partition == one.partition and last.last + 1 == one.first:
                joined[-1] = Stretch(last.partition, last.first, one.last)
            else:
                joined.append(one)
        self._stretches = tuple(joined)

    def discard_before(self, base: Cursor) -> None:
        """Drops what lies at or before a cursor."""
        if self._stretches:
            self._stretches = within(self._stretches, after=base)

    def between(self, after: Cursor, until: Cursor) -> tuple[Stretch, ...]:
        """What is gone past `after` and not past `until`."""
        return () if not self._stretches else within(self._stretches, after=after, until=until)

    def check(self, base: Cursor, until: Cursor) -> None:
        inside = within(self._stretches, after=base, until=until)
        assert inside == self._stretches, "a stretch outside the cache"
        assert list(self._stretches) == sorted(self._stretches), "stretches out of order"
