"""Labels, windows and shared updates of a response to a fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from galileo.ccq.events import AnswerFetch
from galileo.ccq.model import Ccq
from galileo.ccq.packs import PackedLabels, Piece
from galileo.cursor import Cursor
from galileo.errors import InvalidToken
from galileo.model.windows import Window, WindowChanges, WindowProgress, advance_windows
from galileo.packing import Compression
from galileo.rpc.bulk_codec import Sheet

CURSORS_KEPT = 1_024
"""Interned cursors."""


async def pieces_of(labels: PackedLabels | None, compression: Compression) -> list[Piece]:
    """The packs of the cache; those with too many labels of others are packed anew in a thread."""
    if labels is None:
        return []
    if labels.is_quick:
        return labels.pieces()
    return await asyncio.to_thread(labels.pieces, compression.for_reply)


def check_progress(window: Window, progress: WindowProgress) -> None:
    """Raises InvalidToken if the progress is impossible for these windows."""
    if not window.is_reachable(progress):
        raise InvalidToken("the resume token has impossible windows")


def apply_windows(
    made: Ccq, progress: WindowProgress, answer: AnswerFetch
) -> tuple[WindowProgress, WindowChanges | None]:
    """Advances the windows of a reader by an answer; no changes if the query has no windows.

    Takes time in proportion to the labels.

    Raises:
        InvalidToken: the progress in the token is impossible.
    """
    if made.window is None:
        return progress, None
    check_progress(made.window, progress)
    buckets = answer.labels.labels().buckets if answer.labels else np.zeros(0, dtype=np.int64)
    return advance_windows(
        made.window, progress, buckets=buckets, clock_us=answer.clock_us, more=answer.more
    )


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
