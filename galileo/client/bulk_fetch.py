"""Fetches many continuous queries together.

One FetchMany call asks a coordinator about all of its queries. A node that does not coordinate a
query answers with the coordinator's address, which the client caches; without a cached address it
asks the first node. Labels that nodes packed together are sent together, and unpacked once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from galileo.client import decode
from galileo.client.results import Labels, Update
from galileo.cursor import Cursor
from galileo.errors import GalileoError, InputError, NotOwner, TransientError
from galileo.model.schema import Schema
from galileo.packing import FORMAT_VERSION, unpack
from galileo.wire import token as resume
from galileo.wire.caller import Caller, Connection
from galileo.wire.codec import commit_ranges_from_pb, cursor_from_pb, cursor_to_pb, kept_rows
from galileo.wire.status import error_from_pb
from galileo.wire.v1 import continuous_pb2
from galileo.wire.v1.continuous_pb2_grpc import ContinuousStub

COORDINATORS_MAX = 200_000
"""Continuous queries whose coordinator and text are cached."""
WAIT_MAX_S = 60.0
"""Of one call."""

ReadPosition: TypeAlias = str | Cursor
"""A token, or the cursor from which one is encoded when it is needed."""
Result = TypeVar("Result")

Parts = Sequence[continuous_pb2.FetchManyPart]


class _Answer:
    """The answer of one node, with the tables of its packs, each unpacked once."""

    def __init__(self, parts: Parts) -> None:
        self._packs = [data for part in parts for data in part.packed]
        self._cursors = [value for part in parts for value in part.cursors]
        self._schemas = [text for part in parts for text in part.schemas_json]
        self._tables: dict[int, pa.Table] = {}
        self._decoded: dict[int, Cursor] = {}

    def cursor(self, number: int) -> Cursor:
        """The same object at each call with a number."""
        cursor = self._decoded.get(number)
        if cursor is None:
            cursor = self._decoded[number] = cursor_from_pb(self._cursors[number])
        return cursor

    def schema(self, number: int) -> Schema:
        return decode.schema_of(self._schemas[number])

    def schemas(self) -> dict[str, Schema]:
        """The schemas of the datasets of the answer, by name."""
        return {schema.name: schema for schema in map(decode.schema_of, self._schemas)}

    def table(self, pack: int, schema: Schema) -> pa.Table:
        table = self._tables.get(pack)
        if table is None:
            table = self._tables[pack] = unpack(self._packs[pack], schema.label_schema)
        return table


@dataclass(frozen=True, slots=True)
class _QueryAnswer:
    """One query's part of an answer."""

    value: continuous_pb2.ManyUpdate
    answer: _Answer
    query: str


class _SharedUpdate:
    """Queries of one answer whose updates differ in their labels only."""

    def __init__(
        self, value: continuous_pb2.SharedUpdate, ccq_ids: Sequence[str], answer: _Answer
    ) -> None:
        self.answer = answer
        self.schema = answer.schema(value.schema)
        self.cursor, self.frontier = answer.cursor(value.cursor), answer.cursor(value.frontier)
        columns = (value.ccqs, value.packs, value.starts, value.counts)
        if len({len(column) for column in columns}) > 1:
            raise InputError("expected a shared update with columns of one length, got others")
        self.ccq_ids = [ccq_ids[place] for place in value.ccqs]
        packs, starts, counts = (np.array(column, dtype=np.int64) for column in columns[1:])
        self._value = value
        self._packs, self._ranges = packs, np.stack([np.arange(len(packs)), starts, counts], axis=1)
        self._has_labels = counts > 0

    def with_labels(self) -> dict[str, tuple[_SharedUpdate, int]]:
        """By query with labels: this shared update, and the place of the query in its columns."""
        places = np.flatnonzero(self._has_labels).tolist()
        return {self.ccq_ids[at]: (self, at) for at in places}

    def answer_of(self, at: int, query: str) -> _QueryAnswer:
        """One query's part, as an update of its own."""
        shared, ccq_id = self._value, self.ccq_ids[at]
        value = continuous_pb2.ManyUpdate(
            ccq=shared.ccqs[at],
            token=resume.encode(ccq_id, self.cursor),
            cursor=shared.cursor,
            frontier=shared.frontier,
            age_s=shared.age_s,
            interval_s=shared.interval_s,
            schema=shared.schema,
        )
        value.kept.add(
            pack=shared.packs[at], starts=[shared.starts[at]], counts=[shared.counts[at]]
        )
        return _QueryAnswer(value, self.answer, query)

    def tables(self) -> Iterator[pa.Table]:
        """The labels, pack by pack, with a column `ccq`."""
        ids = pa.array(self.ccq_ids, pa.string())
        for number in np.unique(self._packs[self._has_labels]).tolist():
            ranges = self._ranges[self._has_labels & (self._packs == number)]
            yield _rows(self.answer.table(number, self.schema), ranges, ids)


class UpdateBatch(Mapping[str, Update]):
    """The news of many queries: by id an `Update` for each query that has some.

    An `Update` is decoded at each access; `to_arrow` returns the labels of all.

    Attributes:
        positions: the read position of each query, from which `tokens` are encoded.
        frontiers: by id how far each answered query is evaluated, also without a match.
        errors: by id why queries are not answered, such as `CcqExpired`.
        more: whether the next fetch returns more at once.
        rest: the queries for which the answers had no room.
    """

    def __init__(
        self,
        answers: Mapping[str, _QueryAnswer],
        *,
        positions: Mapping[str, ReadPosition],
        frontiers: Mapping[str, Cursor],
        errors: dict[str, GalileoError],
        more: bool,
        rest: Sequence[str] = (),
        shared_updates: Sequence[_SharedUpdate] = (),
        queries: Mapping[str, str] | None = None,
        schemas: Mapping[str, Schema] | None = None,
    ) -> None:
        self._answers = dict(answers)
        self._shared_updates = shared_updates
        self._queries = queries or {}
        self._schemas = schemas or {}
        self.positions, self.frontiers = positions, frontiers
        self.errors = errors
        self.more = more
        self.rest = rest

    @cached_property
    def tokens(self) -> dict[str, str]:
        """By id the token of each query, to store with its labels and for the next fetch."""
        encoder = resume.Encoder()
        return {
            ccq_id: position
            if isinstance(position, str)
            else encoder.encode(ccq_id, position, resume.NO_PROGRESS)
            for ccq_id, position in self.positions.items()
        }

    @cached_property
    def _in_shared_updates(self) -> dict[str, tuple[_SharedUpdate, int]]:
        return {
            i: place for shared in self._shared_updates for i, place in shared.with_labels().items()
        }

    def __getitem__(self, ccq_id: str) -> Update:
        answer = self._answers.get(ccq_id)
        if answer is None:
            shared, at = self._in_shared_updates[ccq_id]
            answer = shared.answer_of(at, self._queries.get(ccq_id, ""))
        return _update(answer)

    def __iter__(self) -> Iterator[str]:
        yield from self._answers
        yield from self._in_shared_updates

    def __len__(self) -> int:
        return len(self._answers) + len(self._in_shared_updates)

    def __repr__(self) -> str:
        return f"<UpdateBatch: news for {len(self):,} continuous queries>"

    @property
    def is_news(self) -> bool:
        """Whether it has labels or anything else that is new."""
        return bool(self._answers or self._shared_updates or self.errors)

    def to_arrow(self, dataset: str | None = None) -> pa.Table:
        """The labels of all queries: a column `ccq` with the id, then those of the labels.

        Without labels and without an answer about any query there are no other columns.

        Args:
            dataset: whose queries; may be left out where all are of one dataset.

        Raises:
            InputError: there are several datasets, and `dataset` names none.

        Example:
            >>> client.fetch_many({ccq.id: ""}).to_arrow().num_rows
            2
        """
        rows = [(i, a, a.answer.schema(a.value.schema)) for i, a in self._answers.items()]
        schemas = {schema.name: schema for _, _, schema in rows}
        schemas |= {shared.schema.name: shared.schema for shared in self._shared_updates}
        names = sorted(schemas)
        if dataset is None and len(names) > 1:
            raise InputError(f"expected the name of one of the datasets {', '.join(names)}")
        selected = [row for row in rows if dataset in (None, row[2].name)]
        shared_updates = [
            shared for shared in self._shared_updates if dataset in (None, shared.schema.name)
        ]
        tables = [
            *_tables(selected),
            *(table for shared in shared_updates for table in shared.tables()),
        ]
        if tables:
            return pa.concat_tables(tables)
        known = {**self._schemas, **schemas} if dataset else schemas or self._schemas
        name = dataset or (next(iter(known)) if len(known) == 1 else "")
        empty = known[name].label_schema.empty_table() if name in known else pa.table({})
        return empty.add_column(0, "ccq", pa.array([], pa.string()))


def _tables(answers: Sequence[tuple[str, _QueryAnswer, Schema]]) -> list[pa.Table]:
    """The selected rows of each pack, with a column `ccq`."""
    ids = pa.array([ccq_id for ccq_id, _, _ in answers], pa.string())
    ranges: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    tables: dict[tuple[int, int], pa.Table] = {}
    for place, (_, query_answer, schema) in enumerate(answers):
        for selection in query_answer.value.kept:
            key = (id(query_answer.answer), selection.pack)
            if key not in tables:
                tables[key] = query_answer.answer.table(selection.pack, schema)
                ranges[key] = []
            starts, counts = selection.starts, selection.counts
            if not starts:
                ranges[key].append((place, 0, tables[key].num_rows))
            for start, count in zip(starts, counts, strict=True):
                ranges[key].append((place, start, count))
    return [_rows(table, np.array(ranges[key]), ids) for key, table in tables.items()]


def _rows(table: pa.Table, ranges: Any, ids: pa.Array) -> pa.Table:
    """The rows of ranges, of shape (n, 3): place of the id, first row, number of rows."""
    places, starts, counts = ranges.T
    if (starts + counts > table.num_rows).any():
        raise InputError(
            f"expected rows within {table.num_rows} labels, got some past them",
            bound=table.num_rows,
        )
    before = np.cumsum(counts) - counts
    at = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    rows = table.take(pa.array(at))
    return rows.add_column(0, "ccq", ids.take(pa.array(np.repeat(places, counts))))


def _update(query_answer: _QueryAnswer) -> Update:
    value, answer = query_answer.value, query_answer.answer
    schema = answer.schema(value.schema)
    tables = []
    for selection in value.kept:
        rows = (selection.starts, selection.counts) if selection.starts else None
        tables.append(kept_rows(answer.table(selection.pack, schema), rows))
    windows, clock_us = decode.windows_of(value)
    return Update(
        labels=Labels(
            schema,
            pa.concat_tables(tables) if tables else schema.label_schema.empty_table(),
            frontier=answer.cursor(value.cursor),
            missing=value.missing,
            query=query_answer.query,
        ),
        token=value.token,
        frontier=answer.cursor(value.frontier),
        age_s=value.age_s,
        interval_s=value.interval_s,
        more=value.more,
        gone=commit_ranges_from_pb(value.gone),
        windows=windows,
        clock_us=clock_us,
    )


@dataclass(frozen=True, slots=True)
class _Reply:
    """The answer of a node about some queries, or its error."""

    ccq_ids: Sequence[str]
    address: str
    parts: Parts = ()
    error: GalileoError | None = None


class _FetchState:
    """The results of one fetch so far, and the queries that are not answered yet."""

    def __init__(self, positions: Mapping[str, ReadPosition], queries: Mapping[str, str]) -> None:
        self.positions, self.frontiers = dict(positions), dict[str, Cursor]()
        self.left = list(positions)
        self.queries = queries
        self.answers: dict[str, _QueryAnswer] = {}
        self.shared_updates: list[_SharedUpdate] = []
        self.schemas: dict[str, Schema] = {}
        self.errors: dict[str, GalileoError] = {}
        self.more = False
        self.rest: list[str] = []

    def result(self) -> UpdateBatch:
        return UpdateBatch(
            self.answers,
            positions=self.positions,
            frontiers=self.frontiers,
            errors=self.errors,
            more=self.more,
            rest=self.rest,
            shared_updates=self.shared_updates,
            queries=self.queries,
            schemas=self.schemas,
        )


class BulkFetcher:
    """Fetches many queries, and caches their coordinators."""

    def __init__(self, caller: Caller, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._caller = caller
        self._monotonic = monotonic
        self._coordinators: dict[str, str] = {}
        self._queries: dict[str, str] = {}
        self._shared_update_senders: set[str] = set()

    def cache_coordinator(self, ccq_id: str, address: str) -> None:
        """Caches the "host:port" of a continuous query's coordinator; ignores an empty one."""
        if not address:
            return
        if len(self._coordinators) >= COORDINATORS_MAX:
            self._coordinators.clear()
        self._coordinators[ccq_id] = address

    async def fetch(
        self, positions: Mapping[str, ReadPosition], *, wait_s: float, labels_max: int
    ) -> UpdateBatch:
        """See `AsyncClient.fetch_many`."""
        state = _FetchState(positions, self._queries)
        await self._read(state, labels_max)
        deadline = self._monotonic() + wait_s
        while not state.result().is_news and not state.more and state.positions:
            left_s = min(deadline - self._monotonic(), WAIT_MAX_S)
            if left_s <= 0:
                break
            await self._wait(state, left_s, labels_max)
        return state.result()

    async def _read(self, state: _FetchState, labels_max: int) -> None:
        """Asks about all queries, until each is answered or the patience of the caller has ended.

        Not `Caller.call`: each attempt asks only about the queries that are left, each at the node
        that coordinates it by then, and the answers about the others are kept.
        """
        options = self._caller.options
        deadline = self._monotonic() + options.patience_s
        while True:
            groups = self._groups(state.left)
            state.left = []
            calls = [self._ask(state, *group, labels_max=labels_max) for group in groups.items()]
            for reply in await gather_or_cancel(calls):
                await asyncio.to_thread(self._apply, state, reply)
            if not state.left or self._monotonic() + options.pause_s > deadline:
                return
            for ccq_id in state.left:
                state.errors.pop(ccq_id, None)
            await asyncio.sleep(options.pause_s)

    async def _wait(self, state: _FetchState, wait_s: float, labels_max: int) -> None:
        """Waits at all coordinators until one has news, and cancels the other calls."""
        calls = [
            asyncio.ensure_future(self._ask(state, *group, labels_max=labels_max, wait_s=wait_s))
            for group in self._groups(state.positions).items()
        ]
        try:
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(calls)
        # Other answers are dropped: their tokens have not moved, so their labels come again.
        for call in done:
            await asyncio.to_thread(self._apply, state, call.result())
        if state.left:
            await self._read(state, labels_max)

    def _groups(self, ccq_ids: Iterable[str]) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        first_address = self._caller.addresses[0]
        for ccq_id in ccq_ids:
            groups.setdefault(self._coordinators.get(ccq_id, first_address), []).append(ccq_id)
        return groups

    async def _ask(
        self,
        state: _FetchState,
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
        # A node that has sent no shared update may not accept cursors in place of tokens.
        encode_positions(
            request, state.positions, as_tokens=address not in self._shared_update_senders
        )

        async def attempt(node: Connection) -> Parts:
            stub, timeout_s = ContinuousStub, node.options.answer_s + wait_s
            with node.stream(stub, "FetchMany", request, timeout_s=timeout_s) as stream:
                return [part async for part in stream]

        try:
            return _Reply(ccq_ids, address, await self._caller.ask(address, attempt))
        except (TransientError, NotOwner) as error:
            self._caller.deprioritise(address)
            return _Reply(ccq_ids, address, error=error)

    def _apply(self, state: _FetchState, reply: _Reply) -> None:
        """Applies a whole reply to the state, tokens and labels together."""
        if reply.error is not None:
            for ccq_id in reply.ccq_ids:
                self._coordinators.pop(ccq_id, None)
                state.errors[ccq_id] = reply.error
            state.left += reply.ccq_ids
            return
        parts, answer = reply.parts, _Answer(reply.parts)
        state.schemas |= answer.schemas()
        for value in (value for part in parts for value in part.updates):
            ccq_id = reply.ccq_ids[value.ccq]
            if value.coordinator:
                self.cache_coordinator(ccq_id, value.coordinator)
                state.left.append(ccq_id)
            elif value.HasField("error"):
                self._apply_error(state, ccq_id, error_from_pb(value.error))
            else:
                self._apply_update(state, ccq_id, value, answer)
        for shared in (shared for part in parts for shared in part.sheets):
            self._shared_update_senders.add(reply.address)
            update = _SharedUpdate(shared, reply.ccq_ids, answer)
            state.positions.update(dict.fromkeys(update.ccq_ids, update.cursor))
            state.frontiers.update(dict.fromkeys(update.ccq_ids, update.frontier))
            if any(shared.counts):
                state.shared_updates.append(update)
        if any(part.is_cut for part in parts):
            state.more = True
            state.rest += reply.ccq_ids[_last_answered(parts) + 1 :]

    def _apply_error(self, state: _FetchState, ccq_id: str, error: GalileoError) -> None:
        state.errors[ccq_id] = error
        if isinstance(error, TransientError):
            self._coordinators.pop(ccq_id, None)
            state.left.append(ccq_id)

    def _apply_update(
        self,
        state: _FetchState,
        ccq_id: str,
        value: continuous_pb2.ManyUpdate,
        answer: _Answer,
    ) -> None:
        if value.query_json or ccq_id not in self._queries:
            if len(self._queries) >= COORDINATORS_MAX:
                self._queries.clear()
            self._queries[ccq_id] = value.query_json
        state.positions[ccq_id] = value.token
        state.frontiers[ccq_id] = answer.cursor(value.frontier)
        state.more |= value.more
        if value.kept or value.gone or value.missing or value.windows.states:
            state.answers[ccq_id] = _QueryAnswer(value, answer, self._queries[ccq_id])


def _last_answered(parts: Parts) -> int:
    """The place of the last query that a node answered without an error."""
    places = [
        update.ccq for part in parts for update in part.updates if not update.HasField("error")
    ]
    places += [place for part in parts for shared in part.sheets for place in shared.ccqs]
    return max(places, default=-1)


def encode_positions(
    request: continuous_pb2.FetchManyRequest,
    positions: Mapping[str, ReadPosition],
    *,
    as_tokens: bool,
) -> None:
    """Writes the read positions of a request's queries: as tokens, or as numbered cursors."""
    encoder, numbers = resume.Encoder(), dict[int, int]()
    tokens, cursor_numbers = [], []
    for ccq_id in request.ccq_ids:
        position = positions[ccq_id]
        number = 0
        if isinstance(position, str):
            tokens.append(position)
        elif as_tokens:
            tokens.append(encoder.encode(ccq_id, position, resume.NO_PROGRESS))
        else:
            tokens.append("")
            number = numbers.setdefault(id(position), len(numbers) + 1)
            if number > len(request.cursors):
                request.cursors.append(cursor_to_pb(position))
        cursor_numbers.append(number)
    request.tokens.extend(tokens)
    if numbers:
        request.stands.extend(cursor_numbers)


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results in the order of the calls; if one fails, cancels the others first."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancels the tasks, and returns when all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
