"""Positions of readers and brokers as they are in rows of tables: tokens, which hold a cursor."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import InvalidToken
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


def advance(row: Mapping[str, Any], reader: str, cursor: Cursor, *, hold_us: int) -> dict[str, Any]:
    """What changes in a row of `READERS` when its reader has processed all up to a cursor.

    The position never goes back: of two streams with one name, the one that is further counts.
    """
    joined = position_of(reader, row.get("token")).join(cursor)
    return {
        "token": tokens.encode(reader, joined),
        "hold_us": hold_us,
        "stored_at": dt.datetime.now(dt.UTC),
    }
