"""Checks of tables that nodes, workers and clients read themselves, before their rows are stored.

These are the tables of brokers, workers and readers, and each channel's table of positions. But for
that of workers, their rows are numbered (`galileo.client.numbered_rows`): each is changed alone, by
the batch of its revision, and never deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from galileo.errors import GalileoError, InvalidObservations, InvalidSchema
from galileo.model.broker import BROKERS, HOLD_MAX_S, NAME, WORKERS, Broker
from galileo.model.channel import BROKER, PROGRESS, TOKEN, Channel, reader_of
from galileo.model.reader import READERS
from galileo.model.schema import INTERNAL_PREFIX, StoredSchema
from galileo.model.table import DELETED, Table, is_of_row
from galileo.model.times import MICROS
from galileo.wire import token as tokens
from galileo.wire.reader_rows import progress_of

SYSTEM_TABLES = {table.name: table for table in (BROKERS, READERS, WORKERS)}


def check_reserved(schema: StoredSchema) -> None:
    """Raises InvalidSchema if a name is Galileo's own, and the schema is not Galileo's."""
    if not schema.name.startswith(INTERNAL_PREFIX):
        return
    table = SYSTEM_TABLES.get(schema.name)
    columns = (schema.columns, schema.key_columns) if isinstance(schema, Table) else None
    if table is None or columns != (table.columns, table.key_columns):
        raise InvalidSchema(
            f"expected a name that does not begin with {INTERNAL_PREFIX!r}, which Galileo uses for "
            f"tables of its own, got {schema.name!r}; choose another name",
            expected="free_name",
        )


def is_numbered(table: Table, channel: Channel | None) -> bool:
    """Whether Galileo reads the rows of a table, and they are numbered.

    Args:
        table: any.
        channel: that the table belongs to; None if it belongs to none.
    """
    of_channel = "" if channel is None else channel.position_table
    return table.name in (BROKERS.name, READERS.name, of_channel)


def check_numbered(
    table: Table, channel: Channel | None, rows: pa.Table, *, producer: str, batch: int
) -> None:
    """Raises InvalidObservations unless rows are one change of a numbered row that can be read."""
    row = rows.slice(0, 1).to_pylist()[0] if rows.num_rows else {DELETED: True}
    if row[DELETED] or not is_of_row(table, rows, producer) or batch != row["revision"]:
        raise InvalidObservations(
            f"expected one changed row of {table.name!r} as the batch of its revision, none that "
            "is deleted; change it by the calls for brokers, readers and positions, such as "
            "create_broker and drop_broker",
            expected="numbered_row",
        )
    if fault := _fault(table, channel, row):
        words = f"expected a row of {table.name!r} that can be read: {fault}"
        raise InvalidObservations(words, expected="readable_row")


def _fault(table: Table, channel: Channel | None, row: Mapping[str, Any]) -> str:
    """Why programs cannot read a numbered row; "" if they can."""
    try:
        if table.name == BROKERS.name:  # One of any name can be dropped.
            is_of_name = (
                not (text := row["definition"]) or Broker.from_json(text).name == row["name"]
            )
            return "" if is_of_name else "its definition has another name"
        if table.name == READERS.name:
            dataset, _, name = row["reader"].partition("/")
            is_held = 0 <= (row["hold_us"] or 0) <= HOLD_MAX_S * MICROS
            if not dataset or not is_held or row["stored_at"] is None:
                return "expected a dataset, a hold of at most 90 days, and when it was stored"
            reader = row["reader"]
        else:
            assert channel is not None, "a numbered table of nothing"
            name, reader = row[BROKER], reader_of(channel, row[BROKER])
            progress_of(row[PROGRESS])
        if row[TOKEN]:
            tokens.decode(row[TOKEN], ccq_id=reader)
    except GalileoError as error:
        return error.message
    return "" if NAME.fullmatch(name) else f"{name!r:.200} is no name"
