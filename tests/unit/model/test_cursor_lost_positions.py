"""What readers do with the error that names positions whose commits were lost."""

from __future__ import annotations

from galileo.cursor import (
    ALL_ROWS,
    LOST_MAX,
    Cursor,
    LostPosition,
    PageStart,
    continued,
    history_changed,
    joined_changes,
    lost_positions,
)
from galileo.errors import DataExpired, HistoryChanged
from galileo.wire.status import ERROR_BYTES_MAX, error_from_pb, error_to_pb

LOST = [LostPosition(1, 9, 5, 100), LostPosition(2, 8, 0, 0)]


def test_continued_replaces_lost_positions_alone() -> None:
    error = history_changed("nam", LOST)
    assert isinstance(error, DataExpired)
    assert continued(Cursor({0: 3, 1: 9, 2: 8}), error) == Cursor({0: 3, 1: 100})
    assert continued(Cursor({1: 8, 2: 9}), error) == Cursor({1: 8, 2: 9})


def test_joined_changes_have_the_positions_of_all_nodes() -> None:
    errors = [history_changed("nam", [one]) for one in reversed(LOST)]
    joined = joined_changes([*errors, errors[0]])
    assert lost_positions(joined) == LOST
    assert joined.details["dataset"] == "nam"


def test_error_about_many_partitions_can_be_sent() -> None:
    """Positions of a history of today, whose sequences are as long as those in a hundred years."""
    base = 60_000_000 << 32
    many = [
        LostPosition(4 * p, base + p * 7_919 % 99_991, p * 7_907 % 99_991, base + (p % 5 + 1 << 32))
        for p in range(3 * LOST_MAX)
    ]
    error = history_changed("nam", many)
    sent = error_to_pb(error)
    assert len(sent.SerializeToString()) <= ERROR_BYTES_MAX
    received = error_from_pb(sent)
    assert isinstance(received, HistoryChanged)
    assert lost_positions(received) == many[:LOST_MAX]


def test_page_start_continues_without_lost_commits() -> None:
    frontier = Cursor({0: 3, 1: 9, 2: 4})
    error = history_changed("nam", [*LOST, LostPosition(1, 7, 5, 100)])
    start = PageStart(frontier, Cursor(), 1, 7, 12).continued(error)
    assert start == PageStart(Cursor({0: 3, 1: 100, 2: 4}), Cursor(), 1, 100, ALL_ROWS)
    kept = PageStart(frontier, Cursor(), 1, 4, 12).continued(error)
    assert (kept.sequence, kept.row) == (4, 12)
