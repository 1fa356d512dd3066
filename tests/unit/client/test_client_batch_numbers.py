"""Batches of one call are numbered from the number that its caller names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import galileo
from galileo.client.ingestion import Sending
from galileo.errors import InputError

SCHEMA = galileo.Schema("rain", [galileo.Feature("amount")])


def table(rows: int) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "latitude": [40.0],
        "longitude": [8.0],
        "time": ["2014-03-01"],
        "amount": [1.0],
    }
    return pa.table({name: values * rows for name, values in columns.items()})


async def test_batches_are_numbered_from_the_first() -> None:
    sending = Sending(SCHEMA, "buoys", first_batch=7, batch_rows=2)
    numbers = [(batch.producer, batch.number) async for batch in sending.batches(table(5))]
    assert numbers == [("buoys", 7), ("buoys", 8), ("buoys", 9)]


@pytest.mark.parametrize("number", [-1, "1", 1.0, None])
def test_first_batch_of_another_kind_is_refused(number: Any) -> None:
    with pytest.raises(InputError):
        Sending(SCHEMA, "buoys", first_batch=number)
