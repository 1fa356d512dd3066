"""Updates that many readers of a BulkFetch share: built and encoded once."""

from __future__ import annotations

from collections.abc import Sequence

from galileo.ccq.events import AnswerFetch
from galileo.cursor import Cursor
from galileo.rpc.bulk_codec import Sheet

CURSORS_KEPT = 1_024
"""Cursors given out of which the objects are remembered."""


class SharedUpdates:
    """The sheets of one answer."""

    def __init__(self) -> None:
        self._sheets: dict[tuple[int, int, float, float, str], Sheet] = {}

    def of(self, answer: AnswerFetch, schema_json: str) -> Sheet:
        """The one that an answer belongs to; it keeps the cursors by which it is known."""
        cursor, frontier = answer.cursor, answer.frontier
        age_s, interval_s = answer.frontier_age_s, answer.interval_s
        key = (id(cursor), id(frontier), age_s, interval_s, schema_json)
        found = self._sheets.get(key)
        if found is None:
            found = self._sheets[key] = Sheet(cursor, frontier, age_s, interval_s, schema_json)
        return found

    def all(self) -> tuple[Sheet, ...]:
        return tuple(self._sheets.values())


class CursorInterner:
    """Cursors that readers bring back, as the objects that they were when they were given out.

    Equal cursors that are one object are compared in no time.
    """

    def __init__(self) -> None:
        self._kept: dict[Cursor, Cursor] = {}
        self._last: Cursor | None = None

    def keep(self, cursor: Cursor) -> None:
        if cursor is self._last:
            return
        self._last = cursor
        if len(self._kept) >= CURSORS_KEPT:
            self._kept.clear()
        self._kept[cursor] = self._kept.get(cursor, cursor)

    def same(self, given: Sequence[str | Cursor]) -> list[str | Cursor]:
        """What was given, with those that are known in the place of their equals."""
        known: dict[int, Cursor] = {}
        found: list[str | Cursor] = []
        for one in given:
            if isinstance(one, Cursor):
                same = known.get(id(one))
                if same is None:
                    same = known[id(one)] = self._kept.get(one, one)
                found.append(same)
            else:
                found.append(one)
        return found
