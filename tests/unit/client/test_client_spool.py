"""What a spool finds again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_ccq import SCHEMA, labels_of

from galileo.client.results import Labels, Update
from galileo.client.spool import Spool, SpooledWindow
from galileo.model.times import times_from_micros

HOUR_US = 3_600_000_000


def update(number: int, *hours: int) -> Update:
    """An update with labels of the buckets that begin at some hours."""
    table = labels_of([(0, number)] * len(hours)).table
    at = table.schema.get_field_index("bucket")
    buckets = times_from_micros(np.array([hour * HOUR_US for hour in hours]))
    table = table.set_column(at, table.schema.field(at), buckets)
    return Update(Labels(SCHEMA, table), f"token-{number}")


@pytest.mark.parametrize(("start", "end"), [(2, 3), (2, 4), (0, 1), (3, 9), (5, 9)])
def test_labels_of_a_window_are_those_that_begin_in_it(
    tmp_path: Path, start: int, end: int
) -> None:
    """An update counts, too, if its first or last bucket begins where the window begins."""
    updates = [(0, 2), (2,), (2, 3), (1, 4), (4,)]
    with Spool(tmp_path / "x.spool") as spool:
        for number, hours in enumerate(updates, start=1):
            spool.store("q", update(number, *hours))
        window = SpooledWindow(start * HOUR_US, end * HOUR_US, 0, True)
        found = spool.labels(window).buckets // HOUR_US
    assert sorted(found.tolist()) == sorted(
        hour for hours in updates for hour in hours if start <= hour < end
    )
