"""Named readers as rows of their table."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

import galileo
from galileo.model.broker import HOLD_MAX_S
from galileo.model.reader import POSITIONS, readers_of
from galileo.model.times import MICROS

NOW = dt.datetime(2026, 5, 2, tzinfo=dt.UTC)


def test_readers_of_a_dataset_are_those_rows_that_can_be_read() -> None:
    rows = [
        {"reader": "reader/air/nightly", "hold_us": 5, "stored_at": NOW},
        {"reader": "reader/air/dropped", "hold_us": 0, "stored_at": NOW},
        {"reader": "reader/air/empty"},
        {"reader": "reader/air/endless", "hold_us": 2**62, "token": "damaged"},
        {"reader": "reader/air/before", "hold_us": -1, "stored_at": NOW},
        {"reader": "reader/air/", "hold_us": 5, "stored_at": NOW},
        {"reader": "reader/air/a/b", "hold_us": 5, "stored_at": NOW},
        {"reader": "reader/air@1/later", "hold_us": 5, "stored_at": NOW},
        {"reader": "broker/air/mail", "hold_us": 5, "stored_at": NOW},
        {"reader": "reader/air", "hold_us": 5, "stored_at": NOW},
    ]
    readers = readers_of(
        galileo.Schema("air", [galileo.Feature("pm10")]),
        pa.Table.from_pylist(rows, schema=POSITIONS.arrow_schema),
    )
    assert {name: row["hold_us"] for name, row in readers.items()} == {
        "nightly": 5,
        "endless": HOLD_MAX_S * MICROS,
    }
