"""Named readers as rows of their table."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

import galileo
from galileo.model.broker import HOLD_MAX_S
from galileo.model.reader import READERS, readers_of
from galileo.model.times import MICROS

NOW = dt.datetime(2026, 5, 2, tzinfo=dt.UTC)


def test_readers_of_a_dataset_are_those_rows_that_can_be_read() -> None:
    rows = [
        {"reader": "air/nightly", "hold_us": 5, "stored_at": NOW},
        {"reader": "air/dropped", "hold_us": 0, "stored_at": NOW},
        {"reader": "air/empty"},
        {"reader": "air/endless", "hold_us": 2**62, "token": "damaged"},
        {"reader": "air/before", "hold_us": -1, "stored_at": NOW},
        {"reader": "air/", "hold_us": 5, "stored_at": NOW},
        {"reader": "air/a/b", "hold_us": 5, "stored_at": NOW},
        {"reader": "air@1/later", "hold_us": 5, "stored_at": NOW},
        {"reader": "air", "hold_us": 5, "stored_at": NOW},
    ]
    readers = readers_of(
        galileo.Schema("air", [galileo.Feature("pm10")]),
        pa.Table.from_pylist(rows, schema=READERS.arrow_schema),
    )
    assert {one.name: one.hold_us for one in readers} == {
        "nightly": 5,
        "endless": HOLD_MAX_S * MICROS,
    }
    assert {one.stored_at.year for one in readers} == {1970, 2026}
