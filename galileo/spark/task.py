"""One task of a Spark job, in a Python worker: reads matches from nodes, samples, returns rows.

Workers import it after their fork (and the evaluator after its JVM runs): gRPC does not survive a
fork. An error of one query becomes the outcome of that query, since an exception would fail the
job and with it all queries of the host.
"""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from galileo import spans
from galileo.errors import GalileoError, InternalError, MessageTooLarge, Overloaded
from galileo.labels import LabelSet
from galileo.match_batch import MatchBatch, MatchedPartitions, Numbers, joined, to_bytes
from galileo.model.schema import Schema
from galileo.sampler_runtime import SandboxLimits, open_runtime
from galileo.samplers import SamplerSpec
from galileo.spark.cpu_time_limit import WAITING_FACTOR
from galileo.spark.job import FAILED, Job, Outcome, TaskRow, to_batches
from galileo.spark.node_scanner import NodeAnswer, NodeScanner, filter_untrusted
from galileo.spark.result_budget import fit_to_budget, single_query_part
from galileo.spark.sampler_cache import SamplerCache, get_over_grpc
from galileo.spark.sampler_calls import BackgroundCalls, Call, Key
from galileo.spark.sampling import RETRY_NEXT_CYCLE, ObservationReader, sample
from galileo.tracing import Tracing, TracingOptions, start_tracing
from galileo.wire.context_propagation import continue_request
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.match_codec import part_to_pb
from galileo.wire.status import error_to_pb
from galileo.wire.tls_credentials import TlsFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobTask:
    """The function of `mapInArrow`."""

    job: Job

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from to_batches(run(self.job, task))


def run(job: Job, task: int) -> Iterator[TaskRow]:
    """The rows of one task: a few for each group and node."""
    _start_tracing(job.limits.tracing)
    answers = _scanner(job.limits.keys).fetch(
        job.requests_of_task(task), job.groups, timeout_s=job.limits.scan_timeout_s
    )
    results: list[_Result] = []
    calls: list[_UploadedCall] = []
    for answer in answers:
        for item in _evaluate(job, answer):
            if isinstance(item, _Result):
                results.append(item)
            elif isinstance(item, _UploadedCall):
                calls.append(item)
            else:
                yield _row(answer.query.group, item)
    for result in _run_calls(calls, turn=job.number):
        if isinstance(result, _Result):
            results.append(result)
        else:
            yield result
    yield from _rows_within_budget(job, results)


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    group: int
    schema: Schema
    part: MatchedPartitions


@dataclass(frozen=True, slots=True, eq=False)
class _UploadedCall:
    """A call of an uploaded sampler for one item of a part."""

    group: int
    part: MatchedPartitions
    item: int
    key: Key
    make: Callable[[], Call]


def _evaluate(job: Job, answer: NodeAnswer) -> Iterator[_Result | _UploadedCall | Outcome]:
    """Filters and samples the answer of a node; yields errors as outcomes and never raises."""
    group, matches = job.groups[answer.query.group], answer.answer
    if len(matches.unknown):
        yield Outcome(unknown=[to_bytes(matches.unknown)])
    for items, error in matches.errors:
        yield _failure(items, error)
    for part in matches.parts:
        try:
            trusted = filter_untrusted(part, answer.query, group)
            schema = group.schema
            for item in _sample_part(trusted, answer, schema, job=job):
                if isinstance(item, MatchedPartitions):
                    yield _Result(answer.query.group, schema, item)
                else:
                    yield item
        except GalileoError as error:
            yield _failure(part.items, error)
        except Exception:
            log.exception("the evaluation of a query failed with an internal error")
            yield _failure(part.items, InternalError(FAILED))


def _rows_within_budget(job: Job, results: Sequence[_Result]) -> Iterator[TaskRow]:
    bytes_max = job.limits.result_bytes_max // job.tasks
    parts = [(result.part, result.schema) for result in results]
    budgeted = fit_to_budget(parts, bytes_max=bytes_max, turn=job.number)
    for result, own_parts in zip(results, budgeted, strict=True):
        for part in own_parts:
            yield _row(result.group, _encode(part, bytes_max=job.limits.result_bytes_max))


def _row(group: int, outcome: Outcome) -> TaskRow:
    return TaskRow(group, outcome.SerializeToString())


def _encode(part: MatchedPartitions, *, bytes_max: int) -> Outcome:
    message = part_to_pb(part)
    if message.ByteSize() <= bytes_max or len(part.matches) == 0:
        return Outcome(parts=[message])
    error = MessageTooLarge(
        f"expected the labels of one commit to fit {bytes_max} bytes, "
        f"got {message.ByteSize()}; use a sampler, a narrower query or smaller batches"
    )
    return _failure(part.items, error)


def _failure(items: Numbers, error: GalileoError) -> Outcome:
    failure = peers_pb2.MatchFailure(items=to_bytes(items), error=error_to_pb(error))
    return Outcome(failures=[failure])


def _sample_part(
    part: MatchedPartitions, answer: NodeAnswer, schema: Schema, *, job: Job
) -> Iterator[MatchedPartitions | _UploadedCall | Outcome]:
    """Applies installed samplers; yields the part, the calls of uploaded samplers, and failures."""
    group = job.groups[answer.query.group]
    is_sampled = group.samplers[part.matches.items] > 0
    if not is_sampled.any():
        yield part
        return
    sampled: list[MatchBatch] = []
    absent: list[int] = []
    for item, table in part.matches.where(is_sampled).split():
        spec = SamplerSpec.from_json(group.samplers_json[int(group.samplers[item]) - 1])
        labels = LabelSet(schema, table)
        apply = functools.partial(_sample, labels, spec, answer=answer, item=item, job=job)
        try:
            if spec.archive:
                absent.append(item)
                yield _uploaded_call(spec, apply, answer=answer, item=item, job=job, part=part)
            else:
                sampled.append(single_query_part(item, apply(), like=part).matches)
        except RETRY_NEXT_CYCLE:
            absent.append(item)
        except GalileoError as error:
            absent.append(item)
            yield _failure(np.array([item], dtype=np.uint32), error)
    matches = joined([part.matches.where(~is_sampled), *sampled], schema.label_schema)
    items = part.items[~np.isin(part.items, np.array(absent, dtype=np.uint32))]
    yield replace(part, items=items, matches=matches)


def _sample(
    labels: LabelSet, spec: SamplerSpec, *, answer: NodeAnswer, item: int, job: Job
) -> LabelSet:
    group, limits = job.groups[answer.query.group], job.limits
    observe = ObservationReader(
        answer.address, group.digest_of(item), limits.scan_timeout_s, limits.keys
    )
    load_uploaded = functools.partial(
        _sampler_cache(limits.sampler_timeout_s, limits.keys).load,
        address=answer.address,
        owner=group.dataset,
    )
    with (
        continue_request(group.origin),
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
    answer: NodeAnswer,
    item: int,
    job: Job,
    part: MatchedPartitions,
) -> _UploadedCall:
    """A call whose key is the same in each job, as long as the query's cursors are."""
    group, columns = job.groups[answer.query.group], answer.query.columns
    cursors = group.after[group.cursors[item], columns].tobytes()
    partitions = group.partitions[columns].tobytes()
    key = (spec.to_json(), group.dataset, group.digest_of(item), partitions, cursors)
    make = functools.partial(Call, apply, spec=spec, owner=group.dataset, reached=part.reached)
    return _UploadedCall(answer.query.group, part, item, key, make)


def _run_calls(calls: Sequence[_UploadedCall], *, turn: int) -> Iterator[_Result | TaskRow]:
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
            single = single_query_part(uploaded.item, labels, like=part)
            yield _Result(uploaded.group, labels.schema, single)
        except RETRY_NEXT_CYCLE:
            continue
        except GalileoError as error:
            item = np.array([uploaded.item], dtype=np.uint32)
            yield _row(uploaded.group, _failure(item, error))


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
