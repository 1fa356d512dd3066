"""How the client sends observations: numbered batches, a few of them under way at a time."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import threading
import uuid
import warnings
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.arrays import rebatch, split_by_bytes
from galileo.client.results import Receipt
from galileo.client.routing import Router
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Conflict, GalileoError, InputError, InvalidObservations
from galileo.formats import Mapping as FileMapping
from galileo.formats import Source, open_source
from galileo.formats.memory import is_grid, is_table, named_tables, open_grid, open_table, opened
from galileo.formats.reader import Reader
from galileo.formats.source import BATCH_ROWS
from galileo.model import keyed
from galileo.model.observations import normalise
from galileo.model.paths import buckets_from_table
from galileo.model.schema import Schema, has_columns
from galileo.model.times import column_micros
from galileo.optional_imports import is_frame, is_series
from galileo.wire.codec import cursor_from_pb
from galileo.wire.v1 import storage_pb2

BATCHES_IN_FLIGHT_MIN = 2
BATCHES_IN_FLIGHT_MAX = 32
BYTES_IN_FLIGHT_MAX = 16 << 20
"""Of observations in Arrow, sent and not yet acknowledged; two batches may be under way anyway."""

Progress = Callable[[int], None]
Result = TypeVar("Result")
Batches: TypeAlias = Any
"""A table, a grid, a path, or an iterable of them: what `AsyncClient.ingest` takes."""
_Replies: TypeAlias = list[storage_pb2.IngestReply]
"""Of the owners of a batch."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A batch that is under way.

    Attributes:
        rows: of the batch.
        size: their bytes.
        first, last: of a keyed dataset, the bounds of their time buckets; else no bucket is within.
        hashes: of their keys; None until they are needed.
        keys: the first halves of these, sorted; None until they are compared.
    """

    rows: pa.Table
    size: int
    first: float = math.inf
    last: float = -math.inf
    hashes: npt.NDArray[np.uint64] | None = None
    keys: npt.NDArray[np.uint64] | None = None

    @classmethod
    def of(cls, schema: Schema, rows: pa.Table) -> _Sent:
        if not schema.is_keyed or not rows.num_rows:
            return cls(rows, rows.nbytes)
        buckets = buckets_from_table(schema, rows)
        return cls(rows, rows.nbytes, int(buckets.min()), int(buckets.max()))

    def shares_keys(self, schema: Schema, others: Iterable[_Sent]) -> bool:
        """Whether it has a key of one of some other batches; for a thread."""
        keys = self._sorted_keys(schema)
        known = (other._sorted_keys(schema) for other in others)
        return any(
            bool((each.take(np.searchsorted(each, keys), mode="clip") == keys).any())
            for each in known
        )

    def hashed(self, schema: Schema) -> npt.NDArray[np.uint64]:
        """The hashes of the keys; for a thread."""
        if self.hashes is None:
            self.hashes = keyed.hashes_of(schema, self.rows)
        return self.hashes

    def _sorted_keys(self, schema: Schema) -> npt.NDArray[np.uint64]:
        if self.keys is None:
            self.keys = np.sort(self.hashed(schema)[:, 0])
        return self.keys


_Running: TypeAlias = dict[asyncio.Task[_Replies], _Sent]
"""The batches under way."""


async def send_all(
    router: Router, sending: Sending, *, data: Batches, progress: Progress | None
) -> Receipt:
    """Sends everything and returns when all of it is durable; see `AsyncClient.ingest`.

    Of a keyed dataset, batches with a common key are sent one after the other, since of one key the
    last one counts.
    """
    batches: list[_Replies] = []
    running: _Running = {}
    is_request, times = isinstance(data, OneRequest), TimeBounds()
    try:
        async with aclosing(sending.batches(data.tables if is_request else data)) as unsent:
            if sending.unchanged_since is not None:
                unsent = await _distinct(sending, unsent)
            marked = (
                _until_last(unsent) if is_request else ((batch, False) async for batch in unsent)
            )
            async for batch, is_last in marked:
                sent = _Sent.of(sending.schema, batch.table)
                times.note(batch.table)
                if sending.keys is not None:
                    sending.keys.append(await asyncio.to_thread(sent.hashed, sending.schema))
                while _is_full(running, sent.size) or await _overlaps(sending, running, sent):
                    batches += await _some(running, progress)
                if is_request:  # In order: another request is refused before its first new batch.
                    await router.record(
                        sending.schema,
                        batch.table,
                        producer=batch.producer,
                        batch=batch.number,
                        is_last=is_last,
                    )
                storing = router.ingest(
                    sending.schema,
                    batch.table,
                    producer=batch.producer,
                    batch=batch.number,
                    is_new=batch.producer == sending.fresh_name,
                    is_named=batch.producer == sending.producer and not is_request,
                    unchanged_since=sending.unchanged_since,
                )
                running[asyncio.create_task(storing)] = sent
        while running:
            batches += await _some(running, progress)
    except GalileoError as error:  # Under another name, what is stored by now would come twice.
        error.details.setdefault("producer", sending.name)
        if isinstance(error, Conflict):
            name_cursor(error)
        raise
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return replace(_receipt(sending, batches), start_us=times.start_us, end_us=times.end_us)


@dataclass(slots=True)
class TimeBounds:
    """The least and the greatest time of what is sent."""

    start_us: int | None = None
    end_us: int | None = None

    def note(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        times = column_micros(table.column("time"))
        self._note(int(times.min()), int(times.max()))

    def note_buckets(self, tables: Iterable[pa.Table], width_us: int) -> None:
        """Notes the bounds of the time buckets of labels."""
        for table in tables:
            if table.num_rows:
                buckets = column_micros(table.column("bucket"))
                self._note(int(buckets.min()), int(buckets.max()) + width_us - 1)

    def _note(self, first: int, last: int) -> None:
        self.start_us = first if self.start_us is None else min(first, self.start_us)
        self.end_us = last if self.end_us is None else max(last, self.end_us)


async def _overlaps(sending: Sending, running: _Running, sent: _Sent) -> bool:
    """Whether a batch has a key of one that is under way; its time bucket is part of a key."""
    others = running.values()
    near = [each for each in others if each.first <= sent.last and sent.first <= each.last]
    return bool(near) and await asyncio.to_thread(sent.shares_keys, sending.schema, near)


async def _distinct(
    sending: Sending, batches: AsyncGenerator[Batch, None]
) -> AsyncGenerator[Batch, None]:
    """All batches of a conditional call, which are read before the first one is sent.

    Raises:
        DuplicateKey: two rows have one key.
    """
    whole = [batch async for batch in batches]
    if whole:
        rows = pa.concat_tables([batch.table for batch in whole])
        await asyncio.to_thread(keyed.refuse_duplicates, sending.schema, rows)
    return _again(whole)


async def _again(batches: Iterable[Batch]) -> AsyncGenerator[Batch, None]:
    for batch in batches:
        yield batch


def name_cursor(conflict: Conflict) -> None:
    """Names the cursor of the change in place of the partition and the sequence of its commit."""
    details = conflict.details
    if "partition" in details:
        details["cursor"] = Cursor({details.pop("partition"): details.pop("sequence")})


async def _until_last(
    batches: AsyncGenerator[Batch, None],
) -> AsyncGenerator[tuple[Batch, bool], None]:
    """Batches, and whether each is the last one, for which the next one is awaited."""
    before = await anext(batches, None)
    async for batch in batches:
        assert before is not None, "there is a batch before the second one"
        yield before, False
        before = batch
    if before is not None:
        yield before, True


def _receipt(sending: Sending, batches: list[_Replies]) -> Receipt:
    replies = list(itertools.chain.from_iterable(batches))
    reached = EMPTY_CURSOR
    for reply in replies:
        reached = reached.join(cursor_from_pb(reply.reached))
    return Receipt(
        rows=sum(reply.rows for reply in replies),
        paths=sum(reply.paths for reply in replies),
        batches=len(batches),
        duplicate_rows=sum(reply.duplicate_rows for reply in replies),
        reached=reached,
        producer=sending.name,
        skipped=sending.lacking.total(),
        lacking=sending.lacking,
    )


@dataclass(frozen=True, slots=True)
class OneRequest:
    """Tables that are stored under the numbers of a producer together or not at all.

    A request of other tables under the number of the first one stores nothing.
    """

    tables: AsyncIterator[pa.Table]


class Batch(NamedTuple):
    """Observations under the name and number by which the nodes know them again."""

    producer: str
    number: int
    table: pa.Table


@dataclass(slots=True)
class Sending:
    """What one call of `ingest` sends, and how far it is.

    Args:
        schema: of the dataset.
        producer: under which batches are numbered; None: files by their content, and all else under
            a fresh name.
        first_batch: number of the first batch of the producer.
        batch_rows: of a batch at most.
        mapping: which columns and variables become features.
        format: of files; None looks at each.
        read_schema: reads the schema anew: a file may have features that were added since, and so
            may a table with unknown columns. None: it stays as it is.

    Attributes:
        name: the producer of the latest batch.
        fresh_name: the producer that no other call has used; None if the caller named one.
        lacking: rows that were left out so far, by what they lack.
        unchanged_since: rows of a keyed dataset are refused whose keys have changed since.
        deletes: whether rows delete their keys, and need have no more than these.
        keys: gets the hashes of the keys that are sent; None: they are not wanted.
    """

    schema: Schema
    producer: str | None
    first_batch: int = 0
    batch_rows: int = BATCH_ROWS
    mapping: FileMapping = field(default_factory=FileMapping)
    format: str | None = None
    read_schema: Callable[[], Awaitable[Schema]] | None = None
    name: str = ""
    fresh_name: str | None = None
    lacking: Counter[str] = field(default_factory=Counter)
    unchanged_since: Cursor | None = None
    deletes: bool = False
    keys: list[npt.NDArray[np.uint64]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.batch_rows, int | np.integer) or self.batch_rows < 1:
            raise InputError(
                f"expected batch_rows, a whole number of at least 1, got {self.batch_rows!r}"
            )
        if not isinstance(self.first_batch, int | np.integer) or self.first_batch < 0:
            raise InputError(
                f"expected first_batch, a whole number of at least 0, got {self.first_batch!r}"
            )
        self.fresh_name = None if self.producer else f"client-{uuid.uuid4().hex}"
        self.name = self.producer or self.fresh_name or ""

    async def batches(self, data: Batches) -> AsyncGenerator[Batch, None]:
        """The batches of everything, in order."""
        common, number = self.name, self.first_batch
        async with aclosing(_each(data)) as items:
            async for each in items:
                with opened(each) as item:
                    source = await self._source(item)
                    # A file may bring back what another one has replaced in a keyed dataset.
                    is_recognised = self.producer is None and not self.schema.is_keyed
                    if is_recognised and source is not None and source.path is not None:
                        self.name = await in_thread(source.digest, self.batch_rows)
                        async for count, table in _numbered(self._read(source)):
                            yield Batch(self.name, count, table)
                        self.name = common
                        continue
                    tables = self._plain(item) if source is None else self._read(source)
                    async with aclosing(tables):
                        async for table in tables:
                            yield Batch(common, number, table)
                            number += 1

    async def _source(self, item: Any) -> Source | None:
        """What has to be read by a mapping; None for a table that has the dataset's columns."""
        is_plain = is_table(item) and self.mapping.is_empty
        if not is_plain:
            await self._update_schema()
        if isinstance(item, Source):
            return item.bound_to(self.schema)
        if isinstance(item, str | os.PathLike):
            return await in_thread(
                partial(
                    open_source,
                    Path(item),
                    mapping=self.mapping,
                    schema=self.schema,
                    format=self.format,
                )
            )
        if is_grid(item):
            reader: Reader = open_grid(item, self.mapping)
        elif not is_table(item):
            raise _no_table(item)
        elif is_plain:
            return None
        else:
            reader = open_table(item, self.mapping)
        return Source(None, reader, format="", mapping=self.mapping, schema=self.schema)

    async def _read(self, source: Source) -> AsyncGenerator[pa.Table, None]:
        async for table in _stepped(source.batches(self.batch_rows)):
            yield self._normalised(table)
        self.lacking += source.lacking
        for warning in source.warnings():
            warnings.warn(warning, stacklevel=1)

    def _normalised(self, data: Any) -> pa.Table:
        rows = keyed.deleted_rows(self.schema, data) if self.deletes else data
        return normalise(self.schema, rows)

    async def _update_schema(self) -> None:
        if self.read_schema is not None:
            self.schema = await self.read_schema()

    async def _plain(self, item: Any) -> AsyncGenerator[pa.Table, None]:
        is_in_memory = isinstance(item, pa.Table | pa.RecordBatch | Mapping) or is_frame(item)
        named = named_tables(item)
        first = next(named, None) if is_in_memory else await in_thread(next, named, None)
        if first is None:
            return
        names = map(str, first.columns) if is_frame(first) else first.column_names
        if not has_columns(self.schema, names):
            await self._update_schema()
        pieces = (self._normalised(piece) for piece in itertools.chain([first], named))
        if not is_in_memory:
            async for table in _stepped(rebatch(pieces, rows_max=self.batch_rows)):
                yield table
            return
        for table in pieces:
            for start in range(0, table.num_rows, self.batch_rows):
                for batch in split_by_bytes(table.slice(start, self.batch_rows)):
                    yield batch


async def _numbered(
    tables: AsyncGenerator[pa.Table, None],
) -> AsyncGenerator[tuple[int, pa.Table], None]:
    number = 0
    async with aclosing(tables):
        async for table in tables:
            yield number, table
            number += 1


async def _stepped(tables: Iterator[pa.Table]) -> AsyncGenerator[pa.Table, None]:
    """Steps through tables outside the loop, which goes on sending meanwhile."""
    while (table := await in_thread(next, tables, None)) is not None:
        yield table


async def in_thread(call: Callable[..., Result], *args: Any) -> Result:
    """The result of a call in a thread of its own.

    Unlike a thread of the loop's executor it keeps neither a cancelled call nor the end of the
    process waiting while a slow file is being read.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(Result, result))

    def work() -> None:
        result, failure = None, None
        try:
            result = call(*args)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # The loop is closed: the call was given up.
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="galileo-reading", daemon=True).start()
    return await future


async def _each(data: Batches) -> AsyncGenerator[Any, None]:
    if isinstance(data, AsyncIterator):
        async for item in data:
            yield item
    elif is_stream(data):
        for item in data:
            yield item
            await asyncio.sleep(0)  # What was made of it is sent while the next one is awaited.
    else:
        yield data


def is_stream(data: Any) -> TypeGuard[Iterable[Any]]:
    """Whether it is several tables, grids or files, rather than one."""
    is_one = isinstance(data, str | bytes | os.PathLike | Source) or is_series(data)
    return isinstance(data, Iterable) and not is_one and not is_table(data) and not is_grid(data)


def _no_table(item: object) -> InvalidObservations:
    advice = ""
    if is_series(item) or isinstance(item, np.record):
        advice = "; make it a table by pandas.DataFrame(...)"
    return InvalidObservations(
        "expected a DataFrame (pandas, GeoPandas, polars), an Arrow table, batch or reader, an "
        "xarray Dataset or DataArray, a dict of arrays, the path of a file, or an iterable of "
        f"them, got {'None' if item is None else type(item).__name__}{advice}"
    )


def _is_full(running: _Running, size: int) -> bool:
    """Whether a batch of `size` bytes has to wait for one that is under way."""
    if len(running) < BATCHES_IN_FLIGHT_MIN:
        return False
    many = len(running) >= BATCHES_IN_FLIGHT_MAX
    return many or sum(sent.size for sent in running.values()) + size > BYTES_IN_FLIGHT_MAX


async def _some(running: _Running, progress: Progress | None) -> list[_Replies]:
    """Waits for at least one batch and takes those that are done out of `running`."""
    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    batches = [task.result() for task in done]
    for task in done:
        del running[task]
    if progress is not None:
        for replies in batches:
            progress(sum(reply.rows for reply in replies))
    return batches
