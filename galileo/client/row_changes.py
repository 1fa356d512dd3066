"""Changes of single rows of a table that several programs change.

`read_row` gives a row with the cursor up to which it was read, and `replace_row` stores the changed
row unless the row has changed since (`unchanged_since`). So of two changes that began with the same
row, the first one counts, and the other one raises Conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import Conflict
from galileo.model.table import Table

if TYPE_CHECKING:
    from galileo.client.stored_rows import StoredRows


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A row as it was read or stored.

    Attributes:
        values: by column; all but the key are None if there is no row.
        cursor: up to which its partition was read.
        is_stored: whether there is a row.
    """

    values: Mapping[str, Any]
    cursor: Cursor
    is_stored: bool = True

    def __getitem__(self, column: str) -> Any:
        return self.values[column]

    def is_changed(self, before: KnownRow) -> bool:
        """Whether the row has other values than before."""
        return (self.is_stored, self.values) != (before.is_stored, before.values)


async def read_row(client: StoredRows, table: Table, key: str) -> KnownRow:
    """The row with a key, as it is."""
    answer = await client._read_rows(table.name, keys=[key])
    nothing = dict.fromkeys(table.arrow_schema.names) | {table.key_columns[0]: key}
    rows = answer.rows.to_pylist()
    return KnownRow(rows[0] if rows else nothing, answer.cursor, bool(rows))


async def replace_row(client: StoredRows, table: Table, row: KnownRow, **changes: Any) -> KnownRow:
    """Stores a changed row in place of the one that was read; the changed row.

    Raises:
        Conflict: the row was changed since.
    """
    rows = pa.Table.from_pylist([{**row.values, **changes}], schema=table.arrow_schema)
    receipt = await client._store(table.name, rows, unchanged_since=row.cursor)
    return KnownRow(rows.to_pylist()[0], row.cursor.join(receipt.reached))


async def change_row(
    client: StoredRows,
    table: Table,
    key: str,
    change: Callable[[KnownRow], Mapping[str, Any]],
) -> None:
    """Changes some values of a row to what `change` makes of the row.

    Args:
        client: of the cluster.
        table: with a key of one column.
        key: of the row.
        change: called with the row, perhaps more than once; what it raises ends this call.

    Raises:
        Conflict: others change the row until the patience of the client ends.
    """
    backoff = client._caller.backoff()
    while True:
        row = await read_row(client, table, key)
        try:
            await replace_row(client, table, row, **change(row))
        except Conflict as error:
            await backoff.after(error)
        else:
            return
