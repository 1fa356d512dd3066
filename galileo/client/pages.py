"""Pages of observations by id, and observations by their ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
from galileo.dht import placement
from galileo.errors import HistoryChanged, InputError
from galileo.model.feature_metadata import described
from galileo.model.keyed import ids_of, keys_of_ids
from galileo.model.rows import RowOptions
from galileo.model.schema import COORDINATES, Schema
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
    options = RowOptions(columns)
    options.check(schema)
    names = options.names(schema)
    key = (*COORDINATES, *schema.key_features) if schema.is_keyed else ()
    request = storage_pb2.PageRequest(
        dataset=schema.key,
        query=query,
        columns=dict.fromkeys((*names, *key)) if columns else (),
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
        found = [described(_with_id(schema, table, names), schema.features) for table in tables]
        table = pa.concat_tables(found) if found else _empty(options, schema)
        return Page(table, following, tuple(part.missing))

    try:
        return await caller.call(attempt)
    except HistoryChanged as error:
        start = page_start_to_pb(page_start_from_pb(request.start).continued(error))
        token = page_token.encode(start, dataset=schema.key, query=query)
        error.details |= {"token": token, "remedy": "lost_token"}
        raise


def _empty(options: RowOptions, schema: Schema) -> pa.Table:
    observations = options.described_schema(schema).empty_table()
    return observations.add_column(0, ID, pa.array([], pa.string()))


def _with_id(schema: Schema, table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Columns of observations behind a first one of ids, which are their keys or their places."""
    columns = table.select(list(names))
    if schema.is_keyed:
        return columns.add_column(0, ID, ids_of(schema, table.column("partition"), table))
    places = [pc.cast(table.column(name), pa.string()) for name in _PLACE]
    ids = pc.binary_join_element_wise("p", pc.binary_join_element_wise(*places, "."), "")
    return columns.add_column(0, ID, ids)


async def by_ids(
    router: Router, schema: Schema, ids: Sequence[str], *, columns: tuple[str, ...]
) -> pa.Table:
    """Observations by their ids; see `AsyncClient.read_ids`."""
    options = RowOptions(columns)
    options.check(schema)
    places = _places(ids)
    order = np.lexsort(places.T[::-1])
    names = options.described_schema(schema)
    tables = [names.empty_table()]
    if len(order):
        request = storage_pb2.ReadRequest(dataset=schema.key, columns=columns, added=schema.added)
        pieces = read_parts(router, request, _parts(places[order], schema), columns=names)
        tables += [table async for table in pieces]
    given = np.empty(len(order), dtype=np.int64)
    given[order] = np.arange(len(order))
    table = pa.concat_tables(tables).take(pa.array(given))
    return table.add_column(0, ID, pa.array(list(ids), pa.string()))


def sought_keys(ids: Sequence[str]) -> pa.Table:
    """The keys of ids of a keyed dataset, to be sought. Raises InputError if one is none."""
    _check_ids(ids)
    found = keys_of_ids(ids)
    if found is None:
        raise InputError(
            "expected ids of observations of a keyed dataset, such as "
            f"'p3.1f0c9a2b7d4e88c60a51b3f2e97d6c04', got {list(ids)!r:.200}",
            parameter="ids",
        )
    return found


async def by_keys(
    router: Router, schema: Schema, ids: Sequence[str], *, rows: pa.Table, columns: tuple[str, ...]
) -> pa.Table:
    """Rows that were found by the keys of ids, in the order of the ids, behind a column `id`."""
    partitions = placement.partitions_of_rows(await router.topology(), schema, rows)
    wanted = pa.array(list(ids), pa.string())
    places = pc.index_in(wanted, value_set=ids_of(schema, partitions, rows))
    is_there = pc.is_valid(places)
    names = RowOptions(columns).names(schema)
    table = rows.select(list(names)).take(places.filter(is_there))
    return table.add_column(0, ID, wanted.filter(is_there))


def _parts(places: Places, schema: Schema) -> pa.Table:
    """Each place as a part of one row."""
    columns = [*places.T, np.ones(len(places), dtype=np.int64)]
    fields = [schema.label_schema.field(name) for name in (*_PLACE, "rows")]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)]
    return pa.table(arrays, schema=pa.schema(fields))


def _places(ids: Sequence[str]) -> Places:
    """Partition, sequence and row of ids, shape (k, 3)."""
    _check_ids(ids)
    found = [_ID.fullmatch(text) if isinstance(text, str) else None for text in ids]
    wrong = next((text for text, match in zip(ids, found, strict=True) if match is None), None)
    if None in found:
        raise InputError(
            f"expected ids of observations, such as 'p3.17.42', got {wrong!r}", parameter="ids"
        )
    places = [tuple(map(int, match.groups())) for match in found if match is not None]
    return np.array(places, dtype=np.int64).reshape(-1, len(_PLACE))


def _check_ids(ids: Sequence[str]) -> None:
    """Raises InputError if they are too many, or one text."""
    if isinstance(ids, str) or len(ids) > IDS_MAX:
        raise InputError(
            f"expected a list of at most {IDS_MAX:,} ids, got {ids!r:.40}",
            parameter="ids",
            bound=IDS_MAX,
        )
