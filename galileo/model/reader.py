"""Readers: up to where each has processed a dataset, or the results of a channel.

They are the rows of the table `POSITIONS`, of which a named reader has one for each dataset, and a
broker one for each channel. Keys have the generation of the dataset or channel, so rows of one that
was dropped never count again. A row of a named reader whose hold is 0 is of one that was dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.model.broker import HOLD_MAX_S, NAME
from galileo.model.channel import Channel
from galileo.model.schema import INTERNAL_PREFIX, StoredSchema, absence
from galileo.model.table import Table, in_system
from galileo.model.times import MICROS, Duration, seconds

READER, TOKEN = "reader", "token"
"""The columns of the key, as `reader_key` and `reader_of` make it, and of the position."""
WORKER, FAILURE = "worker", "failure"
"""The columns of which worker pushes for a broker, and why its endpoint takes nothing now."""
FAILED_AT, RETRY_AT = "failed_at", "retry_at"
"""The columns of when the endpoint failed, and until when the worker waits."""
PROGRESS, ACKNOWLEDGED, GONE = "progress", "acknowledged", "gone"
"""The columns of how far executions behind the token are delivered, as JSON; of how often
`acknowledge` has set the token; and of how many executions were deleted before delivery."""
POSITIONS = in_system(
    Table(
        f"{INTERNAL_PREFIX}positions",
        {
            READER: "text",
            TOKEN: "text",
            "hold_us": "int",
            "stored_at": "time",
            WORKER: "text",
            FAILURE: "text",
            FAILED_AT: "time",
            RETRY_AT: "time",
            PROGRESS: "text",
            ACKNOWLEDGED: "int",
            GONE: "int",
        },
        key=READER,
    )
)
"""`stored_at`: when the position of a named reader was stored."""
OF_READER, OF_BROKER = "reader", "broker"
"""The kinds of keys."""
_KEY = rf"\A(?P<kind>{OF_READER}|{OF_BROKER})/(?P<owner>[^/]+)/(?P<name>{NAME.pattern})\z"


def reader_key(dataset: StoredSchema, name: str) -> str:
    """The key of the row of a named reader, which is also the reader to whom its tokens belong.

    Raises:
        InputError: the name is none.
    """
    return f"{OF_READER}/{dataset.key}/{check_reader_name(name)}"


def reader_of(channel: Channel, broker: str) -> str:
    """The key of the row of a broker, which is also the reader to whom its tokens belong."""
    return f"{OF_BROKER}/{channel.key}/{broker}"


def split_readers(keys: pa.ChunkedArray) -> pa.Table:
    """The `kind`, `owner` (key of the dataset or channel) and `name` of keys; null of others."""
    found = pc.extract_regex(keys.combine_chunks(), _KEY)
    parts = pc.struct_field(found, "kind"), pc.struct_field(found, "owner")
    return pa.table([*parts, pc.struct_field(found, "name")], names=["kind", "owner", "name"])


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


def readers_of(dataset: StoredSchema, rows: pa.Table) -> dict[str, dict[str, Any]]:
    """The rows of the named readers of a dataset, by name; `hold_us` is at most 90 days.

    Args:
        dataset: of this generation.
        rows: of `POSITIONS`.
    """
    hold_max_us = round(HOLD_MAX_S * MICROS)
    return {
        name: row | {"hold_us": min(row["hold_us"], hold_max_us)}
        for name, row in _rows_of(f"{OF_READER}/{dataset.key}/", rows).items()
        if (row["hold_us"] or 0) > 0
    }


def positions_of(channel: Channel, rows: pa.Table) -> dict[str, dict[str, Any]]:
    """The rows of the brokers that have a position in a channel, by broker."""
    return _rows_of(f"{OF_BROKER}/{channel.key}/", rows)


def _rows_of(before: str, rows: pa.Table) -> dict[str, dict[str, Any]]:
    """The rows with a prefix of their key, by the name behind it."""
    found = rows.filter(pc.starts_with(rows.column(READER), before)).to_pylist()
    named = {row[READER].removeprefix(before): row for row in found}
    return {name: named[name] for name in sorted(named) if NAME.fullmatch(name)}


def unknown_reader(name: str, names: Sequence[str]) -> InputError:
    """The error about an unknown reader; it suggests the nearest of `names`."""
    words, close = absence("reader", name, names)
    return InputError(words, reader=name, nearest=close)
