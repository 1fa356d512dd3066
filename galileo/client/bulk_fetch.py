"""Reading many continuous queries together.

Each coordinator is asked about all of its queries with one call. A node that does not coordinate a
query says who does; that is remembered, and who knows nothing asks anybody. Labels that nodes
have packed together cross the network together, and are unpacked once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import grpc.aio
import numpy as np
import pyarrow as pa

from galileo.client import decode
from galileo.client.concurrency import cancel_all, gather_or_cancel
from galileo.client.decode import ANSWER_TIMEOUT_S
from galileo.client.read_positions import Stand, encode_positions
from galileo.client.results import Labels, Update
from galileo.client.transport import PAUSE_S, Transport
from galileo.cursor import Cursor
from galileo.errors import GalileoError, InputError, NotOwner, TransientError
from galileo.model.schema import Schema
from galileo.packing import FORMAT_VERSION, unpack
from galileo.wire import token as resume
from galileo.wire.codec import cursor_from_pb, kept_rows, stretches_from_pb
from galileo.wire.status import error_from_pb
from galileo.wire.v1 import continuous_pb2, continuous_pb2_grpc

COORDINATORS_MAX = 200_000
"""Continuous queries of which coordinator and text are remembered."""
FAR_S = 60.0

Parts = Sequence[continuous_pb2.FetchManyPart]


class _Answer:
    """What one node said, with the tables of its packs, each unpacked once."""

    def __init__(self, parts: Parts) -> None:
        self._packs = [data for part in parts for data in part.packed]
        self._cursors = [value for part in parts for value in part.cursors]
        self._schemas = [text for part in parts for text in part.schemas_json]
        self._tables: dict[int, pa.Table] = {}
        self._given: dict[int, Cursor] = {}

    def cursor(self, number: int) -> Cursor:
        """Always the same object for a number."""
        found = self._given.get(number)
        if found is None:
            found = self._given[number] = cursor_from_pb(self._cursors[number])
        return found

    def schema(self, number: int) -> Schema:
        return decode.schema_of(self._schemas[number])

    def schemas(self) -> dict[str, Schema]:
        """Of all datasets of which something is said, by name."""
        return {one.name: one for one in map(decode.schema_of, self._schemas)}

    def table(self, pack: int, schema: Schema) -> pa.Table:
        found = self._tables.get(pack)
        if found is None:
            found = self._tables[pack] = unpack(self._packs[pack], schema.label_schema)
        return found


@dataclass(frozen=True, slots=True)
class _Found:
    """One query's part of an answer."""

    value: continuous_pb2.ManyUpdate
    answer: _Answer
    query: str


class _SharedUpdate:
    """Queries of one answer that have all but their labels in common."""

    def __init__(
        self, value: continuous_pb2.SharedUpdate, ccq_ids: Sequence[str], answer: _Answer
    ) -> None:
        self.answer = answer
        self.schema = answer.schema(value.schema)
        self.cursor, self.frontier = answer.cursor(value.cursor), answer.cursor(value.frontier)
        columns = (value.ccqs, value.packs, value.starts, value.counts)
        if len({len(column) for column in columns}) > 1:
            raise InputError("expected a sheet with columns of one length, got others")
        self.ccq_ids = [ccq_ids[place] for place in value.ccqs]
        packs, starts, counts = (np.array(column, dtype=np.int64) for column in columns[1:])
        self._value = value
        self._packs, self._ranges = packs, np.stack([np.arange(len(packs)), starts, counts], axis=1)
        self._has_labels = counts > 0

    def with_labels(self) -> dict[str, tuple[_SharedUpdate, int]]:
        """Itself, and the place in its columns, for each query that has some."""
        places = np.flatnonzero(self._has_labels).tolist()
        return {self.ccq_ids[at]: (self, at) for at in places}

    def found(self, at: int, query: str) -> _Found:
        """One query's part, as it comes outside of sheets."""
        sheet, ccq_id = self._value, self.ccq_ids[at]
        value = continuous_pb2.ManyUpdate(
            ccq=sheet.ccqs[at],
            token=resume.encode(ccq_id, self.cursor),
            cursor=sheet.cursor,
            frontier=sheet.frontier,
            age_s=sheet.age_s,
            interval_s=sheet.interval_s,
            schema=sheet.schema,
        )
        value.kept.add(pack=sheet.packs[at], starts=[sheet.starts[at]], counts=[sheet.counts[at]])
        return _Found(value, self.answer, query)

    def tables(self) -> Iterator[pa.Table]:
        """The labels, pack by pack, with a column `ccq`."""
        ids = pa.array(self.ccq_ids, pa.string())
        for number in np.unique(self._packs[self._has_labels]).tolist():
            ranges = self._ranges[self._has_labels & (self._packs == number)]
            yield _rows(self.answer.table(number, self.schema), ranges, ids)


class UpdateBatch(Mapping[str, Update]):
    """What is new for many queries: an `Update` for each query that has some, by id.

    Updates are made when they are asked for; `to_arrow` has all labels at once.

    Attributes:
        stands: what the tokens are made of.
        frontiers: how far each query is evaluated, by id, where that was answered: those whose
            tokens have moved are among them, though nothing matched.
        errors: why queries are not answered, by id: `CcqExpired` for instance.
        more: whether the next fetch has more at once.
        rest: those that the answers had no room to look at.
    """

    def __init__(
        self,
        found: Mapping[str, _Found],
        *,
        stands: Mapping[str, Stand],
        frontiers: Mapping[str, Cursor],
        errors: dict[str, GalileoError],
        more: bool,
        rest: Sequence[str] = (),
        sheets: Sequence[_SharedUpdate] = (),
        queries: Mapping[str, str] | None = None,
        schemas: Mapping[str, Schema] | None = None,
    ) -> None:
        self._found = dict(found)
        self._sheets = sheets
        self._queries = queries or {}
        self._schemas = schemas or {}
        self.stands, self.frontiers = stands, frontiers
        self.errors = errors
        self.more = more
        self.rest = rest

    @cached_property
    def tokens(self) -> dict[str, str]:
        """To store with the labels, and to ask with next: all that were asked with, the new ones in
        place of the old.
        """
        encoder = resume.Encoder()
        return {
            ccq_id: stand
            if isinstance(stand, str)
            else encoder.encode(ccq_id, stand, resume.NO_PROGRESS)
            for ccq_id, stand in self.stands.items()
        }

    @cached_property
    def _in_sheets(self) -> dict[str, tuple[_SharedUpdate, int]]:
        return {i: place for sheet in self._sheets for i, place in sheet.with_labels().items()}

    def __getitem__(self, ccq_id: str) -> Update:
        found = self._found.get(ccq_id)
        if found is None:
            sheet, at = self._in_sheets[ccq_id]
            found = sheet.found(at, self._queries.get(ccq_id, ""))
        return _update(found)

    def __iter__(self) -> Iterator[str]:
        yield from self._found
        yield from self._in_sheets

    def __len__(self) -> int:
        return len(self._found) + len(self._in_sheets)

    def __repr__(self) -> str:
        return f"<UpdateBatch: news for {len(self):,} continuous queries>"

    @property
    def is_news(self) -> bool:
        """Whether it has labels or anything else that is new."""
        return bool(self._found or self._sheets or self.errors)

    def to_arrow(self, dataset: str | None = None) -> pa.Table:
        """The labels of all queries: a column `ccq` with the id, then those of the labels.

        Where there are no labels, and nothing was said of any query, there are no other columns.

        Args:
            dataset: whose queries; may be left out where all are of one dataset.

        Raises:
            InputError: there are several datasets, and none was named.

        Example:
            >>> client.fetch_many({ccq.id: ""}).to_arrow().num_rows
            2
        """
        found = [(i, one, one.answer.schema(one.value.schema)) for i, one in self._found.items()]
        schemas = {schema.name: schema for _, _, schema in found}
        schemas |= {sheet.schema.name: sheet.schema for sheet in self._sheets}
        names = sorted(schemas)
        if dataset is None and len(names) > 1:
            raise InputError(f"expected the name of one of the datasets {', '.join(names)}")
        chosen = [one for one in found if dataset in (None, one[2].name)]
        sheets = [sheet for sheet in self._sheets if dataset in (None, sheet.schema.name)]
        tables = [*_tables(chosen), *(table for sheet in sheets for table in sheet.tables())]
        if tables:
            return pa.concat_tables(tables)
        known = {**self._schemas, **schemas} if dataset else schemas or self._schemas
        name = dataset or (next(iter(known)) if len(known) == 1 else "")
        empty = known[name].label_schema.empty_table() if name in known else pa.table({})
        return empty.add_column(0, "ccq", pa.array([], pa.string()))


def _tables(chosen: Sequence[tuple[str, _Found, Schema]]) -> list[pa.Table]:
    """The rows of each pack that count, pack by pack."""
    ids = pa.array([ccq_id for ccq_id, _, _ in chosen], pa.string())
    ranges: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    tables: dict[tuple[int, int], pa.Table] = {}
    for place, (_, one, schema) in enumerate(chosen):
        for kept in one.value.kept:
            key = (id(one.answer), kept.pack)
            if key not in tables:
                tables[key] = one.answer.table(kept.pack, schema)
                ranges[key] = []
            starts, counts = kept.starts, kept.counts
            if not starts:
                ranges[key].append((place, 0, tables[key].num_rows))
            for start, count in zip(starts, counts, strict=True):
                ranges[key].append((place, start, count))
    return [_rows(table, np.array(ranges[key]), ids) for key, table in tables.items()]


def _rows(table: pa.Table, ranges: Any, ids: pa.Array) -> pa.Table:
    """The rows of ranges, of shape (n, 3): place of the id, first row, number of rows."""
    places, starts, counts = ranges.T
    if (starts + counts > table.num_rows).any():
        raise InputError(f"expected rows within {table.num_rows} labels, got some past them")
    before = np.cumsum(counts) - counts
    at = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    taken = table.take(pa.array(at))
    return taken.add_column(0, "ccq", ids.take(pa.array(np.repeat(places, counts))))


def _update(found: _Found) -> Update:
    value, answer = found.value, found.answer
    schema = answer.schema(value.schema)
    tables = []
    for kept in value.kept:
        rows = (kept.starts, kept.counts) if kept.starts else None
        tables.append(kept_rows(answer.table(kept.pack, schema), rows))
    windows, clock_us = decode.windows_of(value)
    return Update(
        labels=Labels(
            schema,
            pa.concat_tables(tables) if tables else schema.label_schema.empty_table(),
            frontier=answer.cursor(value.cursor),
            missing=value.missing,
            query=found.query,
        ),
        token=value.token,
        frontier=answer.cursor(value.frontier),
        age_s=value.age_s,
        interval_s=value.interval_s,
        more=value.more,
        gone=stretches_from_pb(value.gone),
        windows=windows,
        clock_us=clock_us,
    )


@dataclass(frozen=True, slots=True)
class _Reply:
    """What a node answered about some queries, or why it did not."""

    ccq_ids: Sequence[str]
    address: str
    parts: Parts = ()
    error: GalileoError | None = None


class _Reading:
    """One fetch of many: what has been found so far, and who is to be asked about the rest."""

    def __init__(self, stands: Mapping[str, Stand], queries: Mapping[str, str]) -> None:
        self.stands, self.frontiers = dict(stands), dict[str, Cursor]()
        self.left = list(stands)
        self.queries = queries
        self.found: dict[str, _Found] = {}
        self.sheets: list[_SharedUpdate] = []
        self.schemas: dict[str, Schema] = {}
        self.errors: dict[str, GalileoError] = {}
        self.more = False
        self.rest: list[str] = []

    def result(self) -> UpdateBatch:
        return UpdateBatch(
            self.found,
            stands=self.stands,
            frontiers=self.frontiers,
            errors=self.errors,
            more=self.more,
            rest=self.rest,
            sheets=self.sheets,
            queries=self.queries,
            schemas=self.schemas,
        )


class BulkFetcher:
    """Fetches for many queries through a transport; remembers who coordinates which."""

    def __init__(
        self, transport: Transport, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._transport = transport
        self._monotonic = monotonic
        self._coordinators: dict[str, str] = {}
        self._queries: dict[str, str] = {}
        self._send_sheets: set[str] = set()

    def learn(self, ccq_id: str, address: str) -> None:
        """Caches the "host:port" of a continuous query's coordinator; ignores an empty one."""
        if not address:
            return
        if len(self._coordinators) >= COORDINATORS_MAX:
            self._coordinators.clear()
        self._coordinators[ccq_id] = address

    async def fetch(
        self, stands: Mapping[str, Stand], *, wait_s: float, labels_max: int
    ) -> UpdateBatch:
        """See `AsyncClient.fetch_many`."""
        reading = _Reading(stands, self._queries)
        await self._read(reading, labels_max)
        deadline = self._monotonic() + wait_s
        while not reading.result().is_news and not reading.more and reading.stands:
            left_s = min(deadline - self._monotonic(), FAR_S)
            if left_s <= 0:
                break
            await self._wait(reading, left_s, labels_max)
        return reading.result()

    async def _read(self, reading: _Reading, labels_max: int) -> None:
        """Asks about all, until each is answered or the transport's timeout has passed."""
        deadline = self._monotonic() + self._transport.patience_s
        while True:
            groups = self._groups(reading.left)
            reading.left = []
            calls = [self._ask(reading, *one, labels_max=labels_max) for one in groups.items()]
            for reply in await gather_or_cancel(calls):
                await asyncio.to_thread(self._take, reading, reply)
            if not reading.left or self._monotonic() + PAUSE_S > deadline:
                return
            for ccq_id in reading.left:
                reading.errors.pop(ccq_id, None)
            await asyncio.sleep(PAUSE_S)

    async def _wait(self, reading: _Reading, wait_s: float, labels_max: int) -> None:
        """Waits at all coordinators until one has news; the others lose nothing by it."""
        calls = [
            asyncio.ensure_future(self._ask(reading, *one, labels_max=labels_max, wait_s=wait_s))
            for one in self._groups(reading.stands).items()
        ]
        try:
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(calls)
        # What others have answered meanwhile is left: it comes again, since its tokens stand.
        for call in done:
            await asyncio.to_thread(self._take, reading, call.result())
        if reading.left:
            await self._read(reading, labels_max)

    def _groups(self, ccq_ids: Iterable[str]) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        anybody = self._transport.addresses[0]
        for ccq_id in ccq_ids:
            groups.setdefault(self._coordinators.get(ccq_id, anybody), []).append(ccq_id)
        return groups

    async def _ask(
        self,
        reading: _Reading,
        address: str,
        ccq_ids: Sequence[str],
        *,
        labels_max: int,
        wait_s: float = 0.0,
    ) -> _Reply:
        request = continuous_pb2.FetchManyRequest(
            ccq_ids=ccq_ids,
            wait_s=wait_s,
            labels_max=labels_max,
            packing=FORMAT_VERSION,
            include_query=any(ccq_id not in self._queries for ccq_id in ccq_ids),
            accept_shared_updates=True,
        )
        # A node that has sent none may not know how to read cursors in place of tokens.
        encode_positions(request, reading.stands, spelled_out=address not in self._send_sheets)

        async def attempt(channel: grpc.aio.Channel) -> Parts:
            timeout_s = ANSWER_TIMEOUT_S + wait_s
            stub = continuous_pb2_grpc.ContinuousStub(channel)
            return [part async for part in stub.FetchMany(request, timeout=timeout_s)]

        try:
            return _Reply(ccq_ids, address, await self._transport.ask(address, attempt))
        except (TransientError, NotOwner) as error:
            self._transport.deprioritise(address)
            return _Reply(ccq_ids, address, error=error)

    def _take(self, reading: _Reading, reply: _Reply) -> None:
        """Takes over a whole reply, tokens and labels together; to be run to its end."""
        if reply.error is not None:
            for ccq_id in reply.ccq_ids:
                self._coordinators.pop(ccq_id, None)
                reading.errors[ccq_id] = reply.error
            reading.left += reply.ccq_ids
            return
        parts, answer = reply.parts, _Answer(reply.parts)
        reading.schemas |= answer.schemas()
        for value in (value for part in parts for value in part.updates):
            ccq_id = reply.ccq_ids[value.ccq]
            if value.coordinator:
                self.learn(ccq_id, value.coordinator)
                reading.left.append(ccq_id)
            elif value.HasField("error"):
                self._refused(reading, ccq_id, error_from_pb(value.error))
            else:
                self._found(reading, ccq_id, value, answer)
        for sheet in (sheet for part in parts for sheet in part.sheets):
            self._send_sheets.add(reply.address)
            read = _SharedUpdate(sheet, reply.ccq_ids, answer)
            reading.stands.update(dict.fromkeys(read.ccq_ids, read.cursor))
            reading.frontiers.update(dict.fromkeys(read.ccq_ids, read.frontier))
            if any(sheet.counts):
                reading.sheets.append(read)
        if any(part.is_cut for part in parts):
            reading.more = True
            reading.rest += reply.ccq_ids[_last_answered(parts) + 1 :]

    def _refused(self, reading: _Reading, ccq_id: str, error: GalileoError) -> None:
        reading.errors[ccq_id] = error
        if isinstance(error, TransientError):
            self._coordinators.pop(ccq_id, None)
            reading.left.append(ccq_id)

    def _found(
        self,
        reading: _Reading,
        ccq_id: str,
        value: continuous_pb2.ManyUpdate,
        answer: _Answer,
    ) -> None:
        if value.query_json or ccq_id not in self._queries:
            if len(self._queries) >= COORDINATORS_MAX:
                self._queries.clear()
            self._queries[ccq_id] = value.query_json
        reading.stands[ccq_id] = value.token
        reading.frontiers[ccq_id] = answer.cursor(value.frontier)
        reading.more |= value.more
        if value.kept or value.gone or value.missing or value.windows.states:
            reading.found[ccq_id] = _Found(value, answer, self._queries[ccq_id])


def _last_answered(parts: Parts) -> int:
    """The place of the last query that a node came to; those that are wrong it names anyway."""
    places = [one.ccq for part in parts for one in part.updates if not one.HasField("error")]
    places += [place for part in parts for sheet in part.sheets for place in sheet.ccqs]
    return max(places, default=-1)
