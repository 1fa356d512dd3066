"""What travels between the evaluator and the tasks of one job, and back.

A tick joins the requests of several coordinators. Its items are all their queries, numbered
through; its shares say which node to ask for which items. Share i belongs to task i modulo the
number of tasks, so a job has as many tasks as the session has cores, however many nodes there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from galileo.cursor import ORIGIN, Cursor
from galileo.errors import GalileoError
from galileo.wire.codec import cursor_from_pb, cursor_to_pb
from galileo.wire.pb import common_pb2, evaluator_pb2
from galileo.wire.status import error_from_pb, error_to_pb

RESULT_BYTES_MAX = 32 << 20
BATCH_ROWS_MAX = 256
BATCH_BYTES_MAX = 4 << 20

ROW_SCHEMA = pa.schema(
    [
        pa.field("item", pa.int32()),
        pa.field("labels", pa.binary()),  # Arrow IPC stream of the label schema, or empty
        pa.field("reached", pa.binary()),  # CursorValue
        pa.field("error", pa.binary()),  # ErrorValue, or empty
    ]
)
SPARK_ROW_SCHEMA = "item int, labels binary, reached binary, error binary"


@dataclass(frozen=True, slots=True)
class TickItem:
    """One query of a tick: what matches `query_json` in `dataset` after a cursor."""

    dataset: str
    schema_json: str
    query_json: str
    after: Cursor
    sampler_json: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One item's partitions at one node."""

    item: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """What one node is asked."""

    address: str
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class TickLimits:
    """Bounds of one job.

    Attributes:
        scan_timeout_s: for a node's whole answer.
        sampler_timeout_s: for one item's sampler.
        result_bytes_max: of labels that all tasks together return; what is left over comes
            with the next tick.
    """

    scan_timeout_s: float
    sampler_timeout_s: float
    result_bytes_max: int = RESULT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Tick:
    """One job.

    Attributes:
        number: of the job; turns the order in which items are served.
        items: the queries.
        shares: which node answers which of them.
        tasks: of the job.
        limits: of the job.
    """

    number: int
    items: tuple[TickItem, ...]
    shares: tuple[Share, ...]
    tasks: int
    limits: TickLimits

    def shares_of(self, task: int) -> tuple[Share, ...]:
        return self.shares[task :: self.tasks]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tick found for one item: labels (IPC streams) up to `reached`, or an error."""

    labels: tuple[bytes, ...] = ()
    reached: Cursor = ORIGIN
    error: GalileoError | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """The queries of one or several requests, and who can answer each.

    Attributes:
        items: the queries.
        asks: for each item, the partitions that are asked at each address.
    """

    items: tuple[TickItem, ...]
    asks: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]

    def __len__(self) -> int:
        return len(self.items)

    def __add__(self, other: Work) -> Work:
        return Work(self.items + other.items, self.asks + other.asks)

    def part(self, start: int, stop: int) -> Work:
        return Work(self.items[start:stop], self.asks[start:stop])

    def shares(self) -> tuple[Share, ...]:
        by_address: dict[str, list[Ask]] = defaultdict(list)
        for number, asks in enumerate(self.asks):
            for address, partitions in asks:
                by_address[address].append(Ask(number, partitions))
        return tuple(Share(address, tuple(by_address[address])) for address in sorted(by_address))


NOTHING = Work((), ())


def work_of(request: evaluator_pb2.EvaluateRequest) -> Work:
    """The work that a request asks for.

    Raises:
        InputError: a cursor's lists do not pair up.
    """
    nodes = [(node.address, frozenset(node.partitions)) for node in request.nodes]
    items = tuple(_item(item) for item in request.items)
    return Work(items, tuple(_asks(item.partitions, nodes) for item in request.items))


def _item(item: evaluator_pb2.EvaluateItem) -> TickItem:
    return TickItem(
        dataset=item.dataset,
        schema_json=item.schema_json,
        query_json=item.query_json,
        after=cursor_from_pb(item.after),
        sampler_json=item.sampler_json,
    )


def _asks(
    partitions: Iterable[int], nodes: Sequence[tuple[str, frozenset[int]]]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Each partition is asked once, at the first node that is said to hold it."""
    wanted, asks = set(partitions), []
    for address, held in nodes:
        if some := wanted & held:
            asks.append((address, tuple(sorted(some))))
            wanted -= some
    return tuple(asks)


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of one node about one item."""

    item: int
    labels: bytes = b""
    reached: Cursor = ORIGIN
    error: GalileoError | None = None


def packed(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows in few batches, as they pass through Spark."""
    held: list[Row] = []
    size = 0
    for one in rows:
        held.append(one)
        size += len(one.labels)
        if len(held) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
            yield _batch(held)
            held, size = [], 0
    if held:
        yield _batch(held)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = (
        [row.item for row in rows],
        [row.labels for row in rows],
        [cursor_to_pb(row.reached).SerializeToString() for row in rows],
        [error_to_pb(row.error).SerializeToString() if row.error else b"" for row in rows],
    )
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def outcomes_of(rows: pa.Table, count: int) -> list[Outcome]:
    """What the rows of a job say about each of its `count` items.

    An item that failed at one node has no labels and has reached nothing.
    """
    found = [Outcome()] * count
    for one in rows.to_pylist():
        found[one["item"]] = _joined(found[one["item"]], one)
    return found


def _joined(before: Outcome, one: dict[str, Any]) -> Outcome:
    if before.error is not None:
        return before
    if one["error"]:
        return Outcome(error=error_from_pb(common_pb2.ErrorValue.FromString(one["error"])))
    reached = cursor_from_pb(common_pb2.CursorValue.FromString(one["reached"]))
    labels = (one["labels"],) if one["labels"] else ()
    return Outcome(before.labels + labels, before.reached.join(reached))
