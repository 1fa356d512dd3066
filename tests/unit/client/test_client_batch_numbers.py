"""Batches of one call are numbered from the number that its caller names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import galileo
from galileo.client.ingestion import OneRequest, Sending, send_all
from galileo.errors import BatchConflict, InputError

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


class Recording:
    """A router that keeps what is said of each batch."""

    def __init__(self) -> None:
        self.said: list[tuple[bool, bool]] = []
        self.recorded: list[tuple[int, bool]] = []

    async def record(self, *_: Any, batch: int, is_last: bool, **__: Any) -> None:
        if batch == 2:
            raise BatchConflict("used")
        self.recorded.append((batch, is_last))

    async def ingest(self, *_: Any, is_new: bool, is_named: bool, **__: Any) -> list[Any]:
        self.said.append((is_new, is_named))
        return []


@pytest.mark.parametrize(
    ("producer", "is_file", "said"),
    [
        (None, False, (True, False)),
        ("buoys", False, (False, True)),
        (None, True, (False, False)),
        ("buoys", True, (False, True)),
    ],
)
async def test_batches_are_new_under_generated_names_alone(
    tmp_path: Path, producer: str | None, is_file: bool, said: tuple[bool, bool]
) -> None:
    """A file is named by its content: it may have been sent before, under its own numbers."""
    data: Any = table(5)
    if is_file:
        data = tmp_path / "rain.parquet"
        pyarrow.parquet.write_table(table(5), data)
    router = Recording()
    await send_all(router, Sending(SCHEMA, producer, batch_rows=2), data=data, progress=None)  # type: ignore[arg-type]
    assert router.said == [said] * 3


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5])
async def test_batches_of_a_request_are_recorded_in_order_and_the_last_one_as_such(
    rows: int,
) -> None:
    async def tables() -> AsyncIterator[pa.Table]:
        for start in range(0, rows, 2):
            yield table(rows).slice(start, 2)

    router, sending = Recording(), Sending(SCHEMA, "http")
    sent = send_all(router, sending, data=OneRequest(tables()), progress=None)  # type: ignore[arg-type]
    if rows > 4:
        with pytest.raises(BatchConflict):
            await sent
    else:
        await sent
    count = -(-rows // 2)
    expected = [(number, number == count - 1) for number in range(count)]
    assert router.recorded == expected[:2]
    assert router.said == [(False, False)] * len(router.said)
    assert len(router.said) == count or rows > 4
