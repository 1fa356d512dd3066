"""Named readers of datasets: up to where each has processed one, and for how long it is waited for.

They are the rows of the table `READERS`, of which a reader has one for each dataset. A row whose
hold is 0 is of a reader that was dropped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from galileo.errors import InputError
from galileo.model.broker import HOLD_MAX_S, NAME
from galileo.model.schema import StoredSchema, absence
from galileo.model.table import Table
from galileo.model.times import MICROS, Duration, seconds

READERS = Table(
    "galileo.readers",
    {
        "reader": "text",
        "token": "text",
        "hold_us": "int",
        "stored_at": "time",
        "revision": "int",
    },
    key="reader",
)
"""`reader`: as `reader_key` makes it; `token`: its position; `stored_at`: when that was stored."""


@dataclass(frozen=True, slots=True)
class StoredReader:
    """A row of `READERS`.

    Attributes:
        name: of the reader.
        token: its position; "" if it has none.
        hold_us: for how long it is waited for beyond the age of the policy, microseconds.
        stored_at: when the position was stored, by the clock of who did.
    """

    name: str
    token: str
    hold_us: int
    stored_at: dt.datetime


def reader_key(dataset: StoredSchema, name: str) -> str:
    """The key of the row of a reader, which is also the reader to whom its tokens belong.

    Raises:
        InputError: the name is none.
    """
    return f"{dataset.key}/{check_reader_name(name)}"


def check_reader_name(name: Any) -> str:
    """The name of a reader; errors as `reader_key`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"expected a name of at most 200 characters without '/', got {name!r:.200}",
            expected="reader_name",
        )
    return name


def reader_hold_us(hold: Duration) -> int:
    """Microseconds of the hold of a reader.

    Raises:
        InputError: it is no duration, or too long.
    """
    hold_s = seconds(hold)
    if hold_s > HOLD_MAX_S:
        raise InputError(
            f"expected a hold of at most 90 days, such as '7d', got {hold!r}",
            expected="hold",
            bound=HOLD_MAX_S,
        )
    return max(1, round(hold_s * MICROS))


def readers_of(dataset: StoredSchema, rows: pa.Table) -> list[StoredReader]:
    """The readers of a dataset, by name.

    Args:
        dataset: of this generation.
        rows: of `READERS`.
    """
    before = f"{dataset.key}/"
    found = [
        StoredReader(
            row["reader"].removeprefix(before),
            row["token"] or "",
            min(row["hold_us"], round(HOLD_MAX_S * MICROS)),
            row["stored_at"] or dt.datetime.fromtimestamp(0, dt.UTC),
        )
        for row in rows.to_pylist()
        if row["reader"].startswith(before)
        and NAME.fullmatch(row["reader"].removeprefix(before))
        and (row["hold_us"] or 0) > 0
    ]
    return sorted(found, key=lambda reader: reader.name)


def unknown_reader(name: str, names: Sequence[str]) -> InputError:
    """The error about an unknown reader; it suggests the nearest of `names`."""
    words, close = absence("reader", name, names)
    return InputError(words, reader=name, nearest=close)
