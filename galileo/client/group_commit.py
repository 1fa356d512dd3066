"""Calls that store a few rows of the same table at the same time are sent together.

So a program that stores rows one by one, many calls at a time, is not bound by the time of each
call; see `galileo.grouped_calls`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa

from galileo.client.results import Receipt
from galileo.errors import GalileoError
from galileo.grouped_calls import GroupedCalls
from galileo.model.table import Table

CALL_ROWS_MAX = 1_000
"""Calls with more rows are sent alone."""
GROUP_ROWS_MAX = 16_384


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Call:
    table: Table
    rows: pa.Table


class GroupCommit:
    """Groups calls of one client.

    Args:
        send: checks rows of a table, and stores them under a producer of their own. Rows of one
            piece have the same columns.
    """

    def __init__(self, send: Callable[[Table, Sequence[pa.Table]], Awaitable[Receipt]]) -> None:
        self._send = send
        self._groups: dict[str, GroupedCalls[_Call, Receipt | None]] = {}

    async def store(self, table: Table, rows: pa.Table) -> Receipt:
        """Stores rows, in the order of the calls; durable when it returns.

        If a group is refused, or not all of it may be stored, each of its calls is sent once more,
        alone, and raises what is wrong with its own rows. That stores the same rows again, which
        changes nothing.

        Raises:
            GalileoError: as `send`.
        """
        if table.key not in self._groups:
            self._groups[table.key] = GroupedCalls(
                self._store_group,
                wait_s=None,
                items_max=GROUP_ROWS_MAX,
                weight=lambda call: call.rows.num_rows,
            )
        receipt = await self._groups[table.key].call(_Call(table, rows))
        return receipt or await self._send(table, [rows])

    async def _store_group(self, calls: tuple[_Call, ...]) -> Sequence[Receipt | None]:
        """The receipt of each call; None if the group was refused."""
        try:
            receipt = await self._send(calls[-1].table, _pieces([call.rows for call in calls]))
        except GalileoError:
            if len(calls) == 1:
                raise
            return [None] * len(calls)
        keys = receipt.keys if len(calls) == 1 else None
        return [dataclasses.replace(receipt, rows=call.rows.num_rows, keys=keys) for call in calls]


def _pieces(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The rows of the tables in their order; those with the same columns are one piece."""
    same = itertools.groupby(tables, key=lambda table: table.schema)
    return [pa.concat_tables(list(some)) for _, some in same]
