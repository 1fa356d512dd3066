"""Positions of readers in rows of tables."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.wire.reader_rows import advance, position_of

READER, NOW = "nam/nightly", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def test_position_of_a_reader_never_goes_back() -> None:
    row: dict[str, Any] = {}
    for cursor, position in (
        (Cursor({0: 5, 1: 2}), Cursor({0: 5, 1: 2})),
        (Cursor({0: 3, 1: 4}), Cursor({0: 5, 1: 4})),
        (EMPTY_CURSOR, Cursor({0: 5, 1: 4})),
    ):
        row |= advance(READER, row.get("token"), cursor, hold_us=7, now=NOW)
        assert position_of(READER, row["token"]) == position
        assert (row["hold_us"], row["stored_at"]) == (7, NOW)
    assert position_of("nam/hourly", row["token"]) == EMPTY_CURSOR, "the token of another reader"


@pytest.mark.parametrize("token", [None, "", "damaged"])
def test_reader_without_a_readable_token_begins_anew(token: str | None) -> None:
    changed = advance(READER, token, Cursor({0: 3}), hold_us=7, now=NOW)
    assert position_of(READER, changed["token"]) == Cursor({0: 3})
