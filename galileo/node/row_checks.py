"""Checks of tables that nodes, workers and clients read themselves, before their rows are stored.

These are the tables of brokers, workers and positions. But for that of workers, each of their rows
is changed alone, by a conditional write (`galileo.client.row_changes`), and never deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from galileo.errors import GalileoError, InvalidObservations, InvalidSchema
from galileo.model.broker import BROKERS, HOLD_MAX_S, WORKERS, Broker
from galileo.model.reader import (
    OF_READER,
    POSITIONS,
    PROGRESS,
    READER,
    TOKEN,
    split_readers,
)
from galileo.model.schema import DELETED, INTERNAL_PREFIX, StoredSchema
from galileo.model.table import Table
from galileo.model.times import MICROS
from galileo.wire import token as tokens
from galileo.wire.reader_rows import progress_of


def check_reserved(schema: StoredSchema) -> None:
    """Raises InvalidSchema if a name or a place is Galileo's own, and the schema is not Galileo's.

    System tables exist from the start, so no call creates one.
    """
    if schema == WORKERS:
        return
    if schema.name.startswith(INTERNAL_PREFIX):
        raise InvalidSchema(
            f"expected a name that does not begin with {INTERNAL_PREFIX!r}, which Galileo uses for "
            f"tables of its own and creates itself, got {schema.name!r}; choose another name",
            expected="free_name",
        )
    if isinstance(schema, Table) and schema.first_partition:
        raise InvalidSchema(
            "expected a table without a first partition, which only tables of Galileo's own have, "
            f"got {schema.first_partition}; leave it out",
            expected="no_first_partition",
        )


def has_states(table: StoredSchema) -> bool:
    """Whether Galileo keeps the states of brokers or readers in the rows of a table."""
    return table.key in (BROKERS.key, POSITIONS.key)


def check_state(table: Table, rows: pa.Table, *, is_conditional: bool) -> None:
    """Raises InvalidObservations unless rows are a conditional change of one row that is valid."""
    row = rows.slice(0, 1).to_pylist()[0] if rows.num_rows == 1 else {DELETED: True}
    if row[DELETED] or not is_conditional:
        raise InvalidObservations(
            f"expected one changed row of {table.name!r} under the condition unchanged_since, none "
            "that is deleted; change it by the calls for brokers, readers and positions, such as "
            "create_broker and drop_broker",
            expected="conditional_row",
        )
    if fault := _fault_of_broker(row) if table.key == BROKERS.key else _fault_of_reader(row):
        words = f"expected a row of {table.name!r} that can be read: {fault}"
        raise InvalidObservations(words, expected="readable_row")


def _fault_of_broker(row: Mapping[str, Any]) -> str:
    """Why programs cannot read a row of `BROKERS`; "" if they can."""
    try:  # One of any name can be dropped.
        is_of_name = not (text := row["definition"]) or Broker.from_json(text).name == row["name"]
    except GalileoError as error:
        return error.message
    return "" if is_of_name else "its definition has another name"


def _fault_of_reader(row: Mapping[str, Any]) -> str:
    """Why programs cannot read a row of `POSITIONS`; "" if they can."""
    [parts] = split_readers(pa.chunked_array([[row[READER]]])).to_pylist()
    if parts["kind"] is None:
        return f"{row[READER]!r:.200} is no key of a named reader or a broker"
    if parts["kind"] == OF_READER and (row["hold_us"] is None or row["stored_at"] is None):
        return "expected a hold, and when it was stored"
    if not 0 <= (row["hold_us"] or 0) <= HOLD_MAX_S * MICROS:
        return "expected a hold of at most 90 days"
    try:
        progress_of(row[PROGRESS])
        if row[TOKEN]:
            tokens.decode(row[TOKEN], ccq_id=row[READER])
    except GalileoError as error:
        return error.message
    return ""
