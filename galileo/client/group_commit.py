"""Calls that store a few rows of the same table at the same time are sent together.

While one batch is under way, the rows of further calls wait, and are the next batch. So a program
that stores rows one by one, many calls at a time, is not bound by the time of each call. A call
that finds none under way is sent at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa

from galileo.client.results import Receipt
from galileo.errors import GalileoError
from galileo.model.table import Table

CALL_ROWS_MAX = 1_000
"""Calls with more rows are sent alone."""
GROUP_ROWS_MAX = 16_384


@dataclasses.dataclass(slots=True, eq=False)
class _Call:
    rows: pa.Table
    receipt: Receipt | None = None


class GroupCommit:
    """Groups calls of one client.

    Args:
        send: checks rows of a table, and stores them under a producer of their own. Rows of one
            piece have the same columns.
    """

    def __init__(self, send: Callable[[Table, Sequence[pa.Table]], Awaitable[Receipt]]) -> None:
        self._send = send
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: defaultdict[str, dict[_Call, None]] = defaultdict(dict)

    async def store(self, table: Table, rows: pa.Table) -> Receipt:
        """Stores rows, in the order of the calls; durable when it returns.

        If a group is refused, or not all of it may be stored, each of its calls is sent once more,
        alone, and raises what is wrong with its own rows. That stores the same rows again, which
        changes nothing.

        Raises:
            GalileoError: as `send`.
        """
        call, waiting = _Call(rows), self._waiting[table.key]
        waiting[call] = None
        try:
            async with self._locks[table.key]:
                if call in waiting:
                    await self._store_group(table, waiting)
        finally:
            waiting.pop(call, None)
        return call.receipt or await self._send(table, [rows])

    async def _store_group(self, table: Table, waiting: dict[_Call, None]) -> None:
        """Stores what waits; the first call of it is that of the caller."""
        group, count = list[_Call](), 0
        for call in waiting:
            count += call.rows.num_rows
            if group and count > GROUP_ROWS_MAX:
                break
            group.append(call)
        try:
            receipt = await self._send(table, _pieces([call.rows for call in group]))
        except GalileoError:
            if len(group) == 1:
                raise
            receipt = None
        for call in group:
            waiting.pop(call, None)
            if receipt is not None:
                keys = receipt.keys if len(group) == 1 else None
                rows = call.rows.num_rows
                call.receipt = dataclasses.replace(receipt, rows=rows, keys=keys)


def _pieces(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The rows of the tables in their order; those with the same columns are one piece."""
    same = itertools.groupby(tables, key=lambda table: table.schema)
    return [pa.concat_tables(list(some)) for _, some in same]
