"""Pages of observations by id, and observations by their ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.client import notebook_repr
from galileo.client.cluster_caller import ANSWER_S
from galileo.client.reading import read_parts
from galileo.client.routing import Router
from galileo.cursor import Cursor
from galileo.errors import HistoryChanged, InputError
from galileo.model.rows import RowOptions
from galileo.model.schema import Schema
from galileo.optional_imports import to_pandas
from galileo.packing.arrow_streams import read_stream
from galileo.wire import page_token
from galileo.wire.caller import Caller, Connection
from galileo.wire.codec import page_start_from_pb, page_start_to_pb
from galileo.wire.services import STORAGE
from galileo.wire.v1 import storage_pb2

if TYPE_CHECKING:
    import pandas as pd

ID = "id"
LIMIT_MAX = 2**32 - 1
"""The greatest limit that a request can name; nodes have a lower one."""
IDS_MAX = 10_000
"""Observations that are read by their ids in one call."""
_ID = re.compile(r"p([0-9]{1,9})\.([0-9]{1,18})\.([0-9]{1,9})")
_PLACE = ("partition", "sequence", "row")
Places: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Some of the observations that match a query, in the order of their ids.

    Attributes:
        table: a column `id`, then those of the observations.
        next: the token of the next page; None if this is the last one.
        missing: of the first page: partitions that could not be asked; no page has their
            observations.
    """

    table: pa.Table
    next: str | None
    missing: tuple[int, ...]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def complete(self) -> bool:
        """Whether every partition that could hold a match was asked."""
        return not self.missing

    def to_arrow(self) -> pa.Table:
        """The observations, with a first column `id`.

        Example:
            >>> client.select_page("weather", limit=3).to_arrow().num_rows
            3
        """
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a DataFrame.

        Example:
            >>> page = client.select_page("weather", columns=["station"])
            >>> page.to_pandas().columns.to_list()
            ['id', 'station']
        """
        return to_pandas(self.table)

    def _repr_html_(self) -> str:
        rows = self.table.slice(0, notebook_repr.ROWS_SHOWN).to_pylist()
        facts = {"missing": self.missing, "more": self.next is not None}
        return notebook_repr.card(f"{len(self):,} observations", facts, rows=rows, of=len(self))

    def __repr__(self) -> str:
        more = " and more" if self.next is not None else ""
        lacks = f", partitions {list(self.missing)} missing" if self.missing else ""
        return f"<Page: {len(self):,} observations{more}{lacks}>"


async def page(
    caller: Caller,
    schema: Schema,
    query: str,
    *,
    columns: tuple[str, ...],
    limit: int,
    after: str | None,
    require_complete: bool,
) -> Page:
    """A page; see `AsyncClient.select_page`."""
    RowOptions(columns).check(schema)
    request = storage_pb2.PageRequest(
        dataset=schema.key,
        query=query,
        columns=columns,
        limit=limit,
        partial=not require_complete,
        added=schema.added,
    )
    if after is not None:
        request.start.CopyFrom(page_token.decode(after, dataset=schema.key, query=query))

    async def attempt(node: Connection) -> Page:
        tables = list[pa.Table]()
        with node.stream(STORAGE, "Page", request, timeout_s=ANSWER_S) as stream:
            while not (part := await stream.next()).last:
                tables.append(read_stream(part.rows))
        following = None
        if part.HasField("following"):
            following = page_token.encode(part.following, dataset=schema.key, query=query)
        found = [_with_id(table) for table in tables]
        table = pa.concat_tables(found) if found else _empty(RowOptions(columns), schema)
        return Page(table, following, tuple(part.missing))

    try:
        return await caller.call(attempt)
    except HistoryChanged as error:
        start = page_start_to_pb(page_start_from_pb(request.start).continued(error))
        token = page_token.encode(start, dataset=schema.key, query=query)
        error.details |= {"token": token, "remedy": "lost_token"}
        raise


def _empty(options: RowOptions, schema: Schema) -> pa.Table:
    observations = options.arrow_schema(schema).empty_table()
    return observations.add_column(0, ID, pa.array([], pa.string()))


def _with_id(table: pa.Table) -> pa.Table:
    """The place of each observation as its id, in a first column."""
    places = [pc.cast(table.column(name), pa.string()) for name in _PLACE]
    ids = pc.binary_join_element_wise("p", pc.binary_join_element_wise(*places, "."), "")
    return table.drop_columns(list(_PLACE)).add_column(0, ID, ids)


async def by_ids(
    router: Router, schema: Schema, ids: Sequence[str], *, columns: tuple[str, ...]
) -> pa.Table:
    """Observations by their ids; see `AsyncClient.read_ids`."""
    options = RowOptions(columns)
    options.check(schema)
    places = _places(ids)
    order = np.lexsort(places.T[::-1])
    names = options.arrow_schema(schema)
    tables = [names.empty_table()]
    if len(order):
        request = storage_pb2.ReadRequest(dataset=schema.key, columns=columns, added=schema.added)
        pieces = read_parts(router, request, _parts(places[order], schema), columns=names)
        tables += [table async for table in pieces]
    given = np.empty(len(order), dtype=np.int64)
    given[order] = np.arange(len(order))
    table = pa.concat_tables(tables).take(pa.array(given))
    return table.add_column(0, ID, pa.array(list(ids), pa.string()))


def cursor_of_id(name: str) -> Cursor:
    """The commit of the observation of an id. Raises InputError if it is none."""
    [(partition, sequence, _)] = _places([name]).tolist()
    return Cursor({partition: sequence})


def _parts(places: Places, schema: Schema) -> pa.Table:
    """Each place as a part of one row."""
    columns = [*places.T, np.ones(len(places), dtype=np.int64)]
    fields = [schema.label_schema.field(name) for name in (*_PLACE, "rows")]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)]
    return pa.table(arrays, schema=pa.schema(fields))


def _places(ids: Sequence[str]) -> Places:
    """Partition, sequence and row of ids, shape (k, 3)."""
    if isinstance(ids, str) or len(ids) > IDS_MAX:
        raise InputError(
            f"expected a list of at most {IDS_MAX:,} ids, got {ids!r:.40}",
            parameter="ids",
            bound=IDS_MAX,
        )
    found = [_ID.fullmatch(text) if isinstance(text, str) else None for text in ids]
    wrong = next((text for text, match in zip(ids, found, strict=True) if match is None), None)
    if None in found:
        raise InputError(
            f"expected ids of observations, such as 'p3.17.42', got {wrong!r}", parameter="ids"
        )
    places = [tuple(map(int, match.groups())) for match in found if match is not None]
    return np.array(places, dtype=np.int64).reshape(-1, len(_PLACE))
