"""Rows of a table that several programs change, each change by compare-and-set.

A row has a column `revision`, a number that each change increases by one. A change is batch
`revision` of a producer that belongs to the row alone, for all principals, and a partition takes
each batch once. So of
two changes that began with the same row, the first one counts, and the other one raises
BatchConflict. A row is never deleted, since a new one would begin with the same numbers.

A partition forgets the numbers of batches that cleaning has dropped, at the earliest five minutes
after they were replaced. So a program that has not read a row for that long reads it anew before it
changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from galileo.errors import BatchConflict
from galileo.model.table import Table, row_producer

if TYPE_CHECKING:
    from galileo.client.stored_rows import StoredRows

REVISION = "revision"


async def read_row(client: StoredRows, table: Table, key: str) -> dict[str, Any]:
    """The row with a key; one with revision 0 and no values if there is none."""
    stored = await client._read_rows(table.name, keys=[key])
    row = stored.rows.to_pylist()[0] if len(stored) else {table.key_columns[0]: key}
    return row | {REVISION: row.get(REVISION) or 0}


async def replace_row(
    client: StoredRows, table: Table, row: dict[str, Any], **changes: Any
) -> dict[str, Any]:
    """Stores a changed row in place of the one that was read; the changed row.

    Raises:
        BatchConflict: the row was changed since.
    """
    changed = row | changes | {REVISION: row[REVISION] + 1}
    rows = pa.Table.from_pylist([changed], schema=table.arrow_schema)
    await client._store(
        table.name, rows, producer=row_producer(table, rows), first_batch=changed[REVISION]
    )
    return changed


async def change_row(client: StoredRows, table: Table, key: str, **changes: Any) -> None:
    """Changes some values of a row, whatever the others are by then.

    Raises:
        BatchConflict: others change the row until the patience of the client ends.
    """
    await update_row(client, table, key, lambda _: changes)


async def update_row(
    client: StoredRows,
    table: Table,
    key: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """Changes some values of a row to what `change` makes of the row; errors as `change_row`.

    Args:
        client: of the cluster.
        table: with numbered rows.
        key: of the row.
        change: called with the row, perhaps more than once; what it raises ends this call.
    """
    backoff = client._caller.backoff()
    while True:
        row = await read_row(client, table, key)
        try:
            await replace_row(client, table, row, **change(row))
        except BatchConflict as error:
            await backoff.after(error)
        else:
            return
