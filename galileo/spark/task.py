"""One task of a Spark job, in a Python worker: scans owners, samples, bounds and packs labels.

Workers import it after their fork: gRPC does not survive a fork. An error of one query becomes an
answer about that query, since an exception would fail the job and with it all queries of the host.

A function of an RDD, not of a DataFrame: a plan of Spark SQL costs more to make, analyse and fetch
than the work of a cycle (`docs/spark.md`).
"""

from __future__ import annotations

import functools
import gc
import logging
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.cycle import (
    PAIR_BYTES,
    CycleAnswer,
    CycleRequest,
    ItemFailure,
    MatchBatch,
    MatchedPartitions,
    Matches,
    Numbers,
    ReachedPart,
    joined,
)
from galileo.errors import GalileoError, InternalError, MessageTooLarge
from galileo.labels import LabelSet, first_commits
from galileo.model.schema import Schema
from galileo.packing import Compression
from galileo.packs import PackColumns, PackedLabels, pack_many
from galileo.spark.options import EvaluatorOptions
from galileo.spark.owners import NodeScanner, OwnerScan
from galileo.spark.sampling import UploadedCall, finish_calls, sample_part
from galileo.tracing import Tracing, TracingOptions, start_tracing
from galileo.wire.tls_credentials import TlsFiles

if TYPE_CHECKING:
    from pyspark import Broadcast

RESULT_BYTES_MAX = 32 << 20
"""Bytes of labels that all tasks of a job together return; the next job returns the rest."""
CUTS_MAX = 64
FAILED = "the evaluation failed with an internal error; the evaluator's log has it"
"""What the owner of a query learns of an internal error."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One Spark job. Task i of n asks every n-th node, whatever the number of nodes.

    Attributes:
        number: of the job; rotates the order in which items are served.
        requests: of one or several coordinators.
        tasks: number of tasks, one for each core of the session.
        options: of the evaluator.
    """

    number: int
    requests: tuple[CycleRequest, ...]
    tasks: int
    options: EvaluatorOptions

    def of_task(self, task: int) -> list[OwnerScan]:
        """What a task asks, ordered by address."""
        addresses = sorted({one for request in self.requests for one in request.addresses})
        scans = [
            OwnerScan(number, request.for_node(request.addresses.index(address)))
            for address in addresses[task :: self.tasks]
            for number, request in enumerate(self.requests)
            if address in request.addresses
        ]
        return [scan for scan in scans if len(scan.request)]


def run_tasks(
    pickled: bytes | Broadcast[bytes], tasks: Iterable[int]
) -> Iterator[tuple[int, CycleAnswer]]:
    """The function of `mapPartitions`: runs the tasks of some numbers of a pickled job.

    Args:
        pickled: the job, or a variable with it, which Spark sends to each worker once.
        tasks: their numbers.
    """
    job: Job = pickle.loads(pickled if isinstance(pickled, bytes) else pickled.value)
    for task in tasks:
        yield from run(job, task)


def run(job: Job, task: int) -> Iterator[tuple[int, CycleAnswer]]:
    """The answers of one task, each with the number of its request."""
    options, scans = job.options, job.of_task(task)
    _start_tracing(options.tracing)
    requests = [scan.request for scan in scans]
    fetched = _scanner(options.keys).fetch(requests, timeout_s=options.scan_timeout_s)
    calls: list[UploadedCall] = []
    for scan, matches in zip(scans, fetched, strict=True):
        calls += _evaluate(scan, matches, options)
    finish_calls(calls, turn=job.number)
    _fit_to_budget(job, scans)
    by_request: dict[int, list[OwnerScan]] = {}
    for scan in scans:
        by_request.setdefault(scan.number, []).append(scan)
    for number, own in by_request.items():
        yield number, _answer(job.requests[number], own)


def _evaluate(scan: OwnerScan, matches: Matches, options: EvaluatorOptions) -> list[UploadedCall]:
    """Filters and samples the answer of an owner; errors become failures of the scan."""
    scan.unknown, scan.failures = matches.unknown, [*matches.failures]
    calls: list[UploadedCall] = []
    for part in matches.parts:
        try:
            calls += sample_part(scan, select_new(part, scan.request), options=options)
        except GalileoError as error:
            scan.failures.append(ItemFailure(part.items, error))
        except Exception:
            log.exception("the evaluation of a query failed with an internal error")
            scan.failures.append(ItemFailure(part.items, InternalError(FAILED)))
    return calls


# --- what counts ------------------------------------------------------------------------------


def select_new(part: MatchedPartitions, request: CycleRequest) -> MatchedPartitions:
    """Selects of a node's answer what each item requests.

    Keeps commits of requested partitions that are new for the item, complete (up to `reached`) and
    not dropped. No later step of a cycle looks at them again.
    """
    reached, dropped = _restrict(part.reached, request), _restrict(part.dropped, request)
    part = replace(part, reached=reached, dropped=dropped)
    if len(part.matches) == 0:
        return part
    matches = part.matches
    partitions, sequences = (
        np.asarray(matches.rows.column(name).to_numpy()) for name in ("partition", "sequence")
    )
    last = len(request.partitions) - 1
    column = np.minimum(np.searchsorted(request.partitions, partitions), last)
    known = request.partitions[column] == partitions
    known &= dropped.past(partitions, sequences)
    known &= ~reached.past(partitions, sequences)
    after = request.cursor_rows[request.cursors[matches.items], column[matches.places]]
    new = sequences[matches.places] > after
    return replace(part, matches=matches.where(known[matches.places] & new))


def _restrict(cursor: Cursor, request: CycleRequest) -> Cursor:
    """The cursor of the requested partitions only."""
    return Cursor({p: cursor[p] for p in request.partitions.tolist()}) if cursor else EMPTY_CURSOR


# --- what fits --------------------------------------------------------------------------------


def _fit_to_budget(job: Job, scans: Sequence[OwnerScan]) -> None:
    """Cuts the results of a task to its share of what a job may return."""
    parts = [(part, scan.request.schema) for scan in scans for part in scan.parts]
    fitting = fit_to_budget(parts, bytes_max=RESULT_BYTES_MAX // job.tasks, turn=job.number)
    for scan in scans:
        whole, scan.parts = scan.parts, []
        for part in (piece for _ in whole for piece in next(fitting)):
            size = part.matches.nbytes
            if size <= RESULT_BYTES_MAX or len(part.matches) == 0:
                scan.parts.append(part)
                continue
            error = MessageTooLarge(
                f"expected the labels of one commit to fit {RESULT_BYTES_MAX} bytes, "
                f"got {size}; use a sampler, a narrower query or smaller batches"
            )
            scan.failures.append(ItemFailure(part.items, error))


def fit_to_budget(
    parts: Sequence[tuple[MatchedPartitions, Schema]],
    *,
    bytes_max: int,
    turn: int,
    cuts_max: int = CUTS_MAX,
) -> Iterator[list[MatchedPartitions]]:
    """For each part, the parts of it that fit the budget, in whole commits.

    Where there are more, items share the budget: those with few labels return all, the others as
    many whole commits as the rest holds, or nothing until the next job.

    Args:
        parts: with the schemas of their datasets.
        bytes_max: of all results together, approximately; one commit can exceed it.
        turn: number of the job; rotates which items are cut.
        cuts_max: items of one part that are cut; others that do not fit are left for the next job.
    """
    if sum(part.matches.nbytes for part, _ in parts) <= bytes_max:
        yield from ([part] for part, _ in parts)
        return
    costs = [PAIR_BYTES + _row_bytes(part.matches) for part, _ in parts]
    sizes = [
        cost * part.matches.counts(_end(part)) for cost, (part, _) in zip(costs, parts, strict=True)
    ]
    share = fair_share(np.concatenate(sizes), room=bytes_max)
    for cost, size, (part, schema) in zip(costs, sizes, parts, strict=True):
        heavy = np.flatnonzero(size > share)
        yield [
            _without(part, heavy),
            *(
                _cut(part, item, schema=schema, labels_max=max(1, share // cost))
                for item in np.roll(heavy, -turn * cuts_max)[:cuts_max].tolist()
            ),
        ]


def fair_share(sizes: npt.ArrayLike, *, room: int) -> int:
    """The largest bound such that the sizes, each cut to it, fit the room (max-min fairness)."""
    ordered = np.sort(np.asarray(sizes, dtype=np.int64))
    if int(ordered.sum()) <= room:
        return room
    # At position i, all smaller sizes stay whole and the others share the rest equally.
    whole = np.concatenate(([0], np.cumsum(ordered)[:-1]))
    others = np.arange(len(ordered), 0, -1)
    first = np.argmax(room - whole <= ordered * others)
    return int((room - whole[first]) // others[first])


def _row_bytes(matches: MatchBatch) -> int:
    rows = max(1, int(matches.rows.num_rows))
    return -(-int(matches.rows.nbytes) // rows)


def _end(part: MatchedPartitions) -> int:
    return int(part.items[-1]) + 1 if len(part.items) else 0


def _without(part: MatchedPartitions, items: npt.NDArray[np.intp]) -> MatchedPartitions:
    matches = part.matches.where(~np.isin(part.matches.items, items))
    others = part.items[~np.isin(part.items, items)]
    return replace(part, items=others, matches=matches)


def _cut(
    part: MatchedPartitions, item: int, *, schema: Schema, labels_max: int
) -> MatchedPartitions:
    """The first whole commits of one item, and the cursor up to which they are complete."""
    matches = part.matches.where(part.matches.items == item)
    labels, reached = first_commits(
        LabelSet(schema, matches.rows), reached=part.reached, labels_max=labels_max
    )
    return replace(part, reached=reached).of_item(item, labels.table)


# --- what is answered -------------------------------------------------------------------------


def _answer(request: CycleRequest, scans: Sequence[OwnerScan]) -> CycleAnswer:
    """The results of all scans for a request, with items numbered as in the whole request."""
    results = [(scan.request.items, part) for scan in scans for part in scan.parts]
    batch = joined(
        [part.matches.renumbered(items) for items, part in results], request.schema.label_schema
    )
    is_compressed = request.is_compressed[np.searchsorted(request.items, batch.items)]
    packs: dict[int, PackedLabels] = {}
    for compression, mask in (
        (Compression.LZ4, is_compressed),
        (Compression.NONE, ~is_compressed),
    ):
        packs |= _packed(batch.where(mask), request.schema, compression)
    return CycleAnswer(
        tuple(
            ReachedPart(items[part.items], part.reached, part.dropped, part.deletions)
            for items, part in results
        ),
        PackColumns.of(packs),
        np.concatenate([scan.request.items[scan.unknown] for scan in scans]),
        tuple(
            ItemFailure(scan.request.items[failure.items], failure.error)
            for scan in scans
            for failure in scan.failures
        ),
    )


def _packed(
    matches: MatchBatch, schema: Schema, compression: Compression
) -> dict[int, PackedLabels]:
    """The labels of each item with matches."""
    if len(matches) == 0:
        return {}
    table, items = _in_commit_order(matches)
    starts = np.flatnonzero(np.append(True, items[1:] != items[:-1]))
    packs = pack_many(schema, table, starts, compression=compression)
    return dict(zip(items[starts].tolist(), packs, strict=True))


def _in_commit_order(matches: MatchBatch) -> tuple[pa.Table, Numbers]:
    """The rows of all pairs, by item, then partition, sequence and row; and their items."""
    keys = [matches.rows.column(name).to_numpy() for name in ("row", "sequence", "partition")]
    rank = np.empty(matches.rows.num_rows, dtype=np.int64)
    rank[np.lexsort(keys)] = np.arange(len(rank))
    order = np.lexsort((rank[matches.places], matches.items))
    places = pa.array(matches.places[order])
    return matches.rows.take(places).combine_chunks(), matches.items[order]


@functools.cache
def _start_tracing(options: TracingOptions) -> Tracing | None:
    """Once per worker, after the fork, since threads do not survive one.

    A worker that cannot record traces still runs its tasks.
    """
    try:
        return start_tracing(options, service="galileo-worker")
    except Exception as error:
        log.warning("this worker records no traces: %s", error)
        return None


@functools.cache
def _scanner(keys: TlsFiles) -> NodeScanner:
    """Once per worker."""
    # Spark collects garbage after every task; exclude what is loaded by now.
    gc.collect()
    gc.freeze()
    return NodeScanner(keys)
