"""Calls that store a few rows at the same time, and are sent together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from galileo.client.group_commit import GROUP_ROWS_MAX, GroupCommit
from galileo.client.results import Receipt
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import InvalidObservations
from galileo.model.table import Table

TABLE = Table("shelters", {"id": "text", "beds": "int"}, key="id")
BAD = -1


class Store:
    """Stores rows; a batch with a bad row is refused as a whole.

    Attributes:
        rows: by key.
        batches: the number of rows of each batch that was sent.
        is_sending: set when the first batch is being sent.
    """

    def __init__(self) -> None:
        self.rows: dict[str, int | None] = {}
        self.batches: list[int] = []
        self.is_sending = asyncio.Event()

    async def send(self, table: Table, pieces: Sequence[pa.Table]) -> Receipt:
        assert table is TABLE
        rows = pa.concat_tables(pieces, promote_options="permissive")
        self.batches.append(rows.num_rows)
        self.is_sending.set()
        await asyncio.sleep(0.001)
        for row in rows.to_pylist():
            if row["beds"] == BAD:
                raise InvalidObservations(f"{row['id']} has {BAD} beds")
        self.rows |= {row["id"]: row["beds"] for row in rows.to_pylist()}
        count = rows.num_rows
        return Receipt(
            rows=count, paths=0, batches=1, duplicate_rows=0, reached=EMPTY_CURSOR, producer="some"
        )


def rows(*beds: tuple[str, int]) -> pa.Table:
    keys, values = zip(*beds, strict=True)
    return pa.table({"id": list(keys), "beds": list(values)})


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def calls(store: Store) -> GroupCommit:
    return GroupCommit(store.send)


async def test_calls_at_the_same_time_are_sent_together(store: Store, calls: GroupCommit) -> None:
    first = asyncio.create_task(calls.store(TABLE, rows(("k0", 0))))
    await store.is_sending.wait()
    receipts = await asyncio.gather(
        first, *(calls.store(TABLE, rows((f"k{number}", number))) for number in range(1, 100))
    )
    assert store.batches == [1, 99]
    assert store.rows == {f"k{number}": number for number in range(100)}
    assert [receipt.rows for receipt in receipts] == [1] * 100


async def test_calls_one_after_the_other_are_sent_alone(store: Store, calls: GroupCommit) -> None:
    for number in range(3):
        await calls.store(TABLE, rows(("a", number)))
        assert store.rows == {"a": number}
    assert store.batches == [1, 1, 1]


async def test_of_one_key_the_last_call_counts(store: Store, calls: GroupCommit) -> None:
    chance, expected = random.Random(3), dict[str, int]()
    running = []
    for number in range(500):
        key = f"k{chance.randrange(20)}"
        expected[key] = number
        running.append(asyncio.create_task(calls.store(TABLE, rows((key, number)))))
        if chance.random() < 0.2:
            await asyncio.sleep(chance.random() * 0.004)
    await asyncio.gather(*running)
    assert store.rows == expected
    assert len(store.batches) < 250


async def test_refused_call_fails_alone(store: Store, calls: GroupCommit) -> None:
    beds = [BAD if number % 10 == 9 else number for number in range(50)]
    outcomes: list[Any] = await asyncio.gather(
        *(calls.store(TABLE, rows((f"k{number}", value))) for number, value in enumerate(beds)),
        return_exceptions=True,
    )
    for number, (value, outcome) in enumerate(zip(beds, outcomes, strict=True)):
        if value == BAD:
            assert isinstance(outcome, InvalidObservations)
            assert f"k{number} " in outcome.message
        else:
            assert outcome.rows == 1
    assert store.rows == {f"k{n}": value for n, value in enumerate(beds) if value != BAD}


async def test_calls_that_are_cancelled_leave_the_others(store: Store, calls: GroupCommit) -> None:
    def begin(number: int) -> asyncio.Task[Receipt]:
        return asyncio.create_task(calls.store(TABLE, rows((f"k{number}", number))))

    running = [begin(0)]
    await store.is_sending.wait()
    running += [begin(number) for number in range(1, 20)]
    await asyncio.sleep(0)
    for number in (0, 5, 7):  # The first one is being sent, and is stored.
        running[number].cancel()
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    cancelled = [n for n, one in enumerate(outcomes) if isinstance(one, asyncio.CancelledError)]
    assert cancelled == [0, 5, 7]
    assert store.rows == {f"k{n}": n for n in range(20) if n not in (5, 7)}
    assert store.batches == [1, 17]


async def test_rows_of_other_columns_are_pieces_of_their_own(
    store: Store, calls: GroupCommit
) -> None:
    await asyncio.gather(
        *(
            calls.store(TABLE, rows((f"k{number}", number)).select(names))
            for number, names in enumerate([["id", "beds"]] * 3 + [["id"]] * 2 + [["beds", "id"]])
        )
    )
    assert store.rows == {"k0": 0, "k1": 1, "k2": 2, "k3": None, "k4": None, "k5": 5}
    assert store.batches == [6]


async def test_group_rows_are_bounded(store: Store, calls: GroupCommit) -> None:
    many = rows(*((f"k{number}", number) for number in range(1000)))
    await asyncio.gather(*(calls.store(TABLE, many) for _ in range(40)))
    assert max(store.batches) <= GROUP_ROWS_MAX
    assert sum(store.batches) == 40_000
