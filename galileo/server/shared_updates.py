"""Updates that many readers of a bulk fetch share: built and encoded once."""

from __future__ import annotations

from collections.abc import Sequence

from galileo.ccq.events import AnswerFetch
from galileo.cursor import Cursor
from galileo.rpc.bulk_codec import Sheet

CURSORS_KEPT = 1_024
"""Interned cursors."""


class SharedUpdates:
    """The shared updates of one answer."""

    def __init__(self) -> None:
        self._sheets: dict[tuple[int, int, float, float, str], Sheet] = {}

    def of(self, answer: AnswerFetch, schema_json: str) -> Sheet:
        """The shared update of an answer; keeps its cursors alive, which identify it."""
        cursor, frontier = answer.cursor, answer.frontier
        age_s, interval_s = answer.frontier_age_s, answer.interval_s
        key = (id(cursor), id(frontier), age_s, interval_s, schema_json)
        sheet = self._sheets.get(key)
        if sheet is None:
            sheet = self._sheets[key] = Sheet(cursor, frontier, age_s, interval_s, schema_json)
        return sheet

    def all(self) -> tuple[Sheet, ...]:
        return tuple(self._sheets.values())


class CursorInterner:
    """Interns cursors that were issued, so that cursors of readers compare by identity."""

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
        """Replaces known cursors by the interned objects."""
        known: dict[int, Cursor] = {}
        interned: list[str | Cursor] = []
        for one in given:
            if isinstance(one, Cursor):
                same = known.get(id(one))
                if same is None:
                    same = known[id(one)] = self._kept.get(one, one)
                interned.append(same)
            else:
                interned.append(one)
        return interned
