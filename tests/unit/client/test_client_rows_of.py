"""Rows for terminals: 32-bit floats are as short as they were written."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from galileo.client.table_formats import rows_of


@given(st.lists(st.none() | st.floats(width=32), max_size=9))
def test_rows_have_the_shortest_doubles_of_32_bit_floats(values: list[float | None]) -> None:
    table = pa.table({"t": pa.array(values, pa.float32()), "n": range(len(values))})
    rows = rows_of(table)
    assert [row["n"] for row in rows] == list(range(len(values)))
    for row, value in zip(rows, values, strict=True):
        if value is None or math.isnan(value):
            assert row["t"] is None or math.isnan(row["t"])
        else:
            assert np.float32(row["t"]) == np.float32(value)
            assert row["t"] == float(str(np.float32(value)))


def test_row_of_a_decimal_is_that_decimal() -> None:
    assert rows_of(pa.table({"t": pa.array([4.3], pa.float32())})) == [{"t": 4.3}]
