"""Strategies of small logs with three partitions, and scans of them."""

from __future__ import annotations

from hypothesis import strategies as st
from simulator.logs import Path

from galileo.cursor import Cursor

PARTITIONS = (0, 1, 4)
cursors = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 12), max_size=3).map(Cursor)
logs = st.fixed_dictionaries(
    {p: st.lists(st.integers(0, 3), min_size=12, max_size=12) for p in PARTITIONS}
)


def paths_of(log, after: Cursor, until: Cursor) -> list[Path]:
    """The log's paths in (after, until]."""
    return [
        (p, sequence, row, row * 7)
        for p in PARTITIONS
        for sequence in range(after[p] + 1, until[p] + 1)
        for row in range(log[p][sequence - 1])
    ]
