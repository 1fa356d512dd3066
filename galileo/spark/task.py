"""One task of a Spark job, in a Python worker: reads matches from nodes, samples, packs labels.

Workers import it after their fork (and the evaluator after its JVM runs): gRPC does not survive a
fork. An error of one query becomes an answer about that query, since an exception would fail the
job and with it all queries of the host.

A function of an RDD, not of a DataFrame: a plan of Spark SQL costs more to make, analyse and fetch
than the work of a cycle (`docs/spark.md`).
"""

from __future__ import annotations

import functools
import gc
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from galileo import spans
from galileo.cycle import (
    CycleAnswer,
    ItemFailure,
    MatchBatch,
    MatchedPartitions,
    Matches,
    Numbers,
    ReachedPart,
    joined,
)
from galileo.errors import GalileoError, InternalError, MessageTooLarge, Overloaded
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.packing import Compression
from galileo.packs import PackColumns, PackedLabels, pack_many
from galileo.sampler_runtime import SandboxLimits, open_runtime
from galileo.samplers import SamplerSpec
from galileo.spark.cpu_time_limit import WAITING_FACTOR
from galileo.spark.job import FAILED, Asked, Job
from galileo.spark.node_scanner import NodeScanner, select_new
from galileo.spark.result_budget import fit_to_budget, single_query_part
from galileo.spark.sampler_cache import SamplerCache, get_over_grpc
from galileo.spark.sampler_calls import BackgroundCalls, Call, Key
from galileo.spark.sampling import RETRY_NEXT_CYCLE, ObservationReader, sample
from galileo.tracing import Tracing, TracingOptions, start_tracing
from galileo.wire.context_propagation import continue_request
from galileo.wire.tls_credentials import TlsFiles

log = logging.getLogger(__name__)


class Shared(Protocol):
    """A broadcast variable, which Spark sends to each worker once."""

    @property
    def value(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class JobTask:
    """The function of `mapPartitions`: runs the tasks of some numbers of a pickled job."""

    pickled: bytes | Shared

    def __call__(self, numbers: Iterator[int]) -> Iterator[tuple[int, CycleAnswer]]:
        pickled = self.pickled if isinstance(self.pickled, bytes) else self.pickled.value
        job: Job = pickle.loads(pickled)
        for number in numbers:
            yield from run(job, number)


def run(job: Job, task: int) -> Iterator[tuple[int, CycleAnswer]]:
    """The answers of one task, each with the number of its request."""
    _start_tracing(job.limits.tracing)
    asked = job.of_task(task)
    found = _scanner(job.limits.keys).fetch(
        [one.request for one in asked], timeout_s=job.limits.scan_timeout_s
    )
    drafts = {one.number: _Draft() for one in asked}
    calls: list[_UploadedCall] = []
    for one, matches in zip(asked, found, strict=True):
        draft = drafts[one.number]
        draft.unknown.append(one.request.items[matches.unknown])
        for item in _evaluate(job, one, matches):
            if isinstance(item, _UploadedCall):
                calls.append(item)
            else:
                draft.add(one, item)
    for one, result in _run_calls(calls, turn=job.number):
        drafts[one.number].add(one, result)
    _fit_to_budget(job, drafts.values())
    for number, draft in drafts.items():
        yield number, _answer(job, number, draft)


@dataclass(slots=True, eq=False)
class _Draft:
    """An answer to a request, while the task works on it.

    Attributes:
        results: parts of it, items numbered as in what the node was asked.
        unknown: numbers of items in the request.
        failures: with numbers of items in the request.
    """

    results: list[tuple[Asked, MatchedPartitions]] = field(default_factory=list)
    unknown: list[Numbers] = field(default_factory=list)
    failures: list[ItemFailure] = field(default_factory=list)

    def add(self, asked: Asked, result: MatchedPartitions | ItemFailure) -> None:
        if isinstance(result, ItemFailure):
            numbers = asked.request.items[result.items]
            self.failures.append(ItemFailure(numbers, result.error))
        else:
            self.results.append((asked, result))


@dataclass(frozen=True, slots=True, eq=False)
class _UploadedCall:
    """A call of an uploaded sampler for one item of a part."""

    asked: Asked
    part: MatchedPartitions
    item: int
    key: Key
    make: Callable[[], Call]


def _evaluate(
    job: Job, asked: Asked, matches: Matches
) -> Iterator[MatchedPartitions | _UploadedCall | ItemFailure]:
    """Filters and samples the answer of a node; yields errors as failures and never raises."""
    yield from matches.failures
    for part in matches.parts:
        try:
            yield from _sample_part(select_new(part, asked.request), asked, job=job)
        except GalileoError as error:
            yield ItemFailure(part.items, error)
        except Exception:
            log.exception("the evaluation of a query failed with an internal error")
            yield ItemFailure(part.items, InternalError(FAILED))


def _fit_to_budget(job: Job, drafts: Iterable[_Draft]) -> None:
    """Cuts the results of a task to its share of what a job may return."""
    bytes_max = job.limits.result_bytes_max // job.tasks
    results = [(draft, *result) for draft in drafts for result in draft.results]
    parts = [(part, asked.request.schema) for _, asked, part in results]
    fitting = [*fit_to_budget(parts, bytes_max=bytes_max, turn=job.number)]
    for draft, _, _ in results:
        draft.results = []
    for (draft, asked, _), own_parts in zip(results, fitting, strict=True):
        for part in own_parts:
            draft.add(asked, _checked(part, bytes_max=job.limits.result_bytes_max))


def _checked(part: MatchedPartitions, *, bytes_max: int) -> MatchedPartitions | ItemFailure:
    """The part; the failure of its items if a single commit of one is too large."""
    size = part.matches.nbytes
    if size <= bytes_max or len(part.matches) == 0:
        return part
    error = MessageTooLarge(
        f"expected the labels of one commit to fit {bytes_max} bytes, "
        f"got {size}; use a sampler, a narrower query or smaller batches"
    )
    return ItemFailure(part.items, error)


def _answer(job: Job, number: int, draft: _Draft) -> CycleAnswer:
    parts = [
        ReachedPart(asked.request.items[part.items], part.reached, part.dropped)
        for asked, part in draft.results
    ]
    matches = [part.matches.renumbered(asked.request.items) for asked, part in draft.results]
    request = job.requests[number]
    batch = joined(matches, request.schema.label_schema)
    is_compressed = request.is_compressed[np.searchsorted(request.items, batch.items)]
    packs: dict[int, PackedLabels] = {}
    for compression, mask in (
        (Compression.LZ4, is_compressed),
        (Compression.NONE, ~is_compressed),
    ):
        packs |= _packed(batch.where(mask), request.schema, compression)
    unknown = np.concatenate([request.items[:0], *draft.unknown])
    return CycleAnswer(tuple(parts), PackColumns.of(packs), unknown, tuple(draft.failures))


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


def _sample_part(
    part: MatchedPartitions, asked: Asked, *, job: Job
) -> Iterator[MatchedPartitions | _UploadedCall | ItemFailure]:
    """Applies installed samplers; yields the part, the calls of uploaded samplers, and failures."""
    request = asked.request
    is_sampled = request.samplers[part.matches.items] > 0
    if not is_sampled.any():
        yield part
        return
    schema = request.schema
    sampled: list[MatchBatch] = []
    absent: list[int] = []
    for item, table in part.matches.where(is_sampled).split():
        spec = SamplerSpec.from_json(request.samplers_json[int(request.samplers[item]) - 1])
        labels = LabelSet(schema, table)
        apply = functools.partial(_sample, labels, spec, asked=asked, item=item, job=job)
        try:
            if spec.archive:
                absent.append(item)
                yield _uploaded_call(spec, apply, asked=asked, item=item, part=part)
            else:
                sampled.append(single_query_part(item, apply(), like=part).matches)
        except RETRY_NEXT_CYCLE:
            absent.append(item)
        except GalileoError as error:
            absent.append(item)
            yield ItemFailure(np.array([item], dtype=np.uint32), error)
    matches = joined([part.matches.where(~is_sampled), *sampled], schema.label_schema)
    items = part.items[~np.isin(part.items, np.array(absent, dtype=np.uint32))]
    yield replace(part, items=items, matches=matches)


def _sample(labels: LabelSet, spec: SamplerSpec, *, asked: Asked, item: int, job: Job) -> LabelSet:
    request, limits = asked.request, job.limits
    observe = ObservationReader(
        asked.address, request.digest_of(item), limits.scan_timeout_s, limits.keys
    )
    load_uploaded = functools.partial(
        _sampler_cache(limits.sampler_timeout_s, limits.keys).load,
        address=asked.address,
        owner=request.dataset,
    )
    with (
        continue_request(request.origin),
        spans.child("sampler", sampler=spec.name, labels=len(labels)),
    ):
        return sample(
            labels,
            spec,
            timeout_s=limits.sampler_timeout_s,
            observe=observe,
            load_uploaded=load_uploaded,
        )


def _uploaded_call(
    spec: SamplerSpec,
    apply: Callable[[], LabelSet],
    *,
    asked: Asked,
    item: int,
    part: MatchedPartitions,
) -> _UploadedCall:
    """A call whose key is the same in each job, as long as the query's cursors are."""
    request = asked.request
    cursors = request.cursor_rows[request.cursors[item]].tobytes()
    partitions = request.partitions.tobytes()
    key = (spec.to_json(), request.dataset, request.digest_of(item), partitions, cursors)
    make = functools.partial(Call, apply, spec=spec, owner=request.dataset, reached=part.reached)
    return _UploadedCall(asked, part, item, key, make)


def _run_calls(
    calls: Sequence[_UploadedCall], *, turn: int
) -> Iterator[tuple[Asked, MatchedPartitions | ItemFailure]]:
    """The results and failures of those calls of uploaded samplers that are done.

    Each result has the cursor up to which its call went. The first call differs from job to job,
    so that all are started at some time even if there are too many.
    """
    first = turn * _background_calls().calls_max % max(1, len(calls))
    started: list[tuple[_UploadedCall, Call]] = []
    for uploaded in (*calls[first:], *calls[:first]):
        with suppress(Overloaded):
            started.append((uploaded, _background_calls().start(uploaded.key, uploaded.make)))
    _background_calls().wait(call for _, call in started)
    for uploaded, call in started:
        if not call.done.is_set():
            continue
        try:
            labels = _background_calls().deliver(uploaded.key, call).after(uploaded.part.dropped)
            part = replace(uploaded.part, reached=call.reached)
            yield uploaded.asked, single_query_part(uploaded.item, labels, like=part)
        except RETRY_NEXT_CYCLE:
            continue
        except GalileoError as error:
            item = np.array([uploaded.item], dtype=np.uint32)
            yield uploaded.asked, ItemFailure(item, error)


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
def _background_calls() -> BackgroundCalls:
    """Once per worker."""
    return BackgroundCalls()


@functools.cache
def _scanner(keys: TlsFiles) -> NodeScanner:
    """Once per worker."""
    # Spark collects garbage after every task; exclude what is loaded by now.
    gc.collect()
    gc.freeze()
    return NodeScanner(keys)


@functools.cache
def _sampler_cache(timeout_s: float, keys: TlsFiles) -> SamplerCache:
    """Once per worker."""
    limits = SandboxLimits(cpu_s=timeout_s, wall_s=WAITING_FACTOR * timeout_s)
    return SamplerCache(open_runtime(limits), get=functools.partial(get_over_grpc, keys=keys))
