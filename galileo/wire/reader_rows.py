"""Positions of readers and brokers as they are in rows of tables: tokens, which hold a cursor."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import InvalidObservations, InvalidToken
from galileo.wire import token as tokens

log = logging.getLogger(__name__)


def position_of(reader: str, token: str | None) -> Cursor:
    """What a reader has handled; nothing by a token that another program has damaged."""
    if not token:
        return EMPTY_CURSOR
    try:
        return tokens.decode(token, ccq_id=reader)
    except InvalidToken as error:
        log.warning("the position of reader %s: %s", reader, error)
        return EMPTY_CURSOR


def progress_of(text: str | None) -> dict[int, tuple[int, int]]:
    """The execution that is being delivered, and how much of it is, by partition.

    Raises:
        InvalidObservations: the text is no progress.
    """
    try:
        raw = json.loads(text or "{}")
        return {int(p): (int(execution), int(done)) for p, (execution, done) in raw.items()}
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidObservations(f"expected progress in JSON, got {text!r:.200}") from error


def advance(
    reader: str, token: str | None, cursor: Cursor, *, hold_us: int, now: dt.datetime
) -> dict[str, Any]:
    """What changes in the row of a named reader when it has processed all up to a cursor.

    The position never goes back: of two streams with one name, the one that is further counts.
    """
    joined = position_of(reader, token).join(cursor)
    return {
        "token": tokens.encode(reader, joined),
        "hold_us": hold_us,
        "stored_at": now,
    }
