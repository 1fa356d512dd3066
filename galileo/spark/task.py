"""What a Python worker does in one task of a tick: ask nodes, sample, hand back.

Imported in workers after they were forked (and by the evaluator after its JVM runs): gRPC does
not survive a fork. Whatever goes wrong with one query becomes that query's error, for an
exception would fail the job and with it every query of the host.
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
from galileo.containment import ContainedSamplers, ContainmentLimits
from galileo.errors import GalileoError, InternalError, MessageTooLarge, Overloaded
from galileo.labels import LabelSet
from galileo.matches import Answered, Matches, Numbers, joined, to_bytes
from galileo.model.schema import Schema
from galileo.samplers import SamplerSpec
from galileo.spark.allowance import WAITING_FACTOR
from galileo.spark.beside import CALLS_MAX, Beside, Call, Key
from galileo.spark.observing import ObservationReader
from galileo.spark.sampling import LEFT_FOR_LATER, sample
from galileo.spark.scans import Delta, Scanner
from galileo.spark.sent_samplers import SentCode, get_over_grpc
from galileo.spark.tick import Outcome, Row, Tick, packed
from galileo.spark.vouched import alone, fitted, vouched
from galileo.tracing import Tracing, TracingOptions, start_tracing
from galileo.wire.context_propagation import continue_request
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.match_codec import part_to_pb
from galileo.wire.status import error_to_pb
from galileo.wire.tls_credentials import TlsFiles

_SCHEMAS_MAX = 1_024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TickTask:
    """The function of `mapInArrow`."""

    tick: Tick

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from packed(run(self.tick, task))


def run(tick: Tick, task: int) -> Iterator[Row]:
    """The rows of one task: a few for each group and node that answered."""
    _traced(tick.limits.tracing)
    deltas = _scanner(tick.limits.keys).fetch(
        tick.shares_of(task), tick.groups, timeout_s=tick.limits.scan_timeout_s
    )
    found: list[_Found] = []
    sent: list[_Sent] = []
    for delta in deltas:
        for one in _judged(tick, delta):
            if isinstance(one, _Found):
                found.append(one)
            elif isinstance(one, _Sent):
                sent.append(one)
            else:
                yield _row(delta.ask.group, one)
    for taken in _chosen_beside(sent, turn=tick.number):
        if isinstance(taken, _Found):
            found.append(taken)
        else:
            yield taken
    yield from _handed_back(tick, found)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    group: int
    schema: Schema
    part: Answered


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """What a sent sampler is to choose from, for one item of a part."""

    group: int
    part: Answered
    item: int
    key: Key
    call: Callable[[], Call]


def _judged(tick: Tick, delta: Delta) -> Iterator[_Found | _Sent | Outcome]:
    """What counts of what a node said, sampled; never an exception."""
    group, answer = tick.groups[delta.ask.group], delta.answer
    if len(answer.unknown):
        yield Outcome(unknown=[to_bytes(answer.unknown)])
    for items, error in answer.errors:
        yield _failure(items, error)
    for part in answer.parts:
        try:
            counts = vouched(part, delta.ask, group)
            schema = _schema(group.schema_json)
            for one in _sampled(counts, delta, schema, tick=tick):
                yield _Found(delta.ask.group, schema, one) if isinstance(one, Answered) else one
        except GalileoError as error:
            yield _failure(part.items, error)
        except Exception as error:
            yield _failure(part.items, InternalError(f"{type(error).__name__}: {error}"))


def _handed_back(tick: Tick, found: Sequence[_Found]) -> Iterator[Row]:
    room = tick.limits.result_bytes_max // tick.tasks
    parts = [(one.part, one.schema) for one in found]
    for one, fits in zip(found, fitted(parts, bytes_max=room, turn=tick.number), strict=True):
        for part in fits:
            outcome = _encoded(part, bytes_max=tick.limits.result_bytes_max)
            yield _row(one.group, outcome)


def _row(group: int, outcome: Outcome) -> Row:
    return Row(group, outcome.SerializeToString())


def _encoded(part: Answered, *, bytes_max: int) -> Outcome:
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


def _sampled(
    part: Answered, delta: Delta, schema: Schema, *, tick: Tick
) -> Iterator[Answered | _Sent | Outcome]:
    """The part as it is, but what samplers thin, and what sent ones shall; and failures."""
    group = tick.groups[delta.ask.group]
    thinned = group.samplers[part.matches.items] > 0
    if not thinned.any():
        yield part
        return
    kept: list[Matches] = []
    absent: list[int] = []
    for item, table in part.matches.where(thinned).split():
        spec = SamplerSpec.from_json(group.samplers_json[int(group.samplers[item]) - 1])
        labels = LabelSet(schema, table)
        choose = functools.partial(_chosen, labels, spec, delta=delta, item=item, tick=tick)
        try:
            if spec.archive:
                absent.append(item)
                yield _sent_to(spec, choose, delta=delta, item=item, tick=tick, part=part)
            else:
                kept.append(alone(item, choose(), like=part).matches)
        except LEFT_FOR_LATER:
            absent.append(item)
        except GalileoError as error:
            absent.append(item)
            yield _failure(np.array([item], dtype=np.uint32), error)
    whole = part.matches.where(~thinned)
    matches = joined([whole, *kept], schema.label_schema)
    answered = part.items[~np.isin(part.items, np.array(absent, dtype=np.uint32))]
    yield replace(part, items=answered, matches=matches)


def _chosen(
    labels: LabelSet, spec: SamplerSpec, *, delta: Delta, item: int, tick: Tick
) -> LabelSet:
    group, limits = tick.groups[delta.ask.group], tick.limits
    observe = ObservationReader(
        delta.address, group.digest_of(item), limits.scan_timeout_s, limits.keys
    )
    load_sent = functools.partial(
        _sent(limits.sampler_timeout_s, limits.keys).load,
        address=delta.address,
        owner=group.dataset,
    )
    with (
        continue_request(group.origin),
        spans.child("sampler", sampler=spec.name, labels=len(labels)),
    ):
        return sample(
            labels, spec, timeout_s=limits.sampler_timeout_s, observe=observe, load_sent=load_sent
        )


def _sent_to(
    spec: SamplerSpec,
    choose: Callable[[], LabelSet],
    *,
    delta: Delta,
    item: int,
    tick: Tick,
    part: Answered,
) -> _Sent:
    """What an earlier tick asked from the same place has the same key."""
    group, columns = tick.groups[delta.ask.group], delta.ask.columns
    stands_at = group.after[group.cursors[item], columns].tobytes()
    partitions = group.partitions[columns].tobytes()
    key = (spec.to_json(), group.dataset, group.digest_of(item), partitions, stands_at)
    call = functools.partial(Call, choose, spec=spec, owner=group.dataset, reached=part.reached)
    return _Sent(delta.ask.group, part, item, key, call)


def _chosen_beside(sent: Sequence[_Sent], *, turn: int) -> Iterator[_Found | Row]:
    """What sent samplers have kept by now, each up to where its call went; and their failures.

    Where there is no room for all, others are the first with each turn.
    """
    first = turn * CALLS_MAX % max(1, len(sent))
    begun: list[tuple[_Sent, Call]] = []
    for one in (*sent[first:], *sent[:first]):
        with suppress(Overloaded):
            begun.append((one, _beside().begin(one.key, one.call)))
    _beside().settle(call for _, call in begun)
    for one, call in begun:
        if not call.over.is_set():
            continue
        try:
            kept = _beside().take(one.key, call).after(one.part.dropped)
            reached = replace(one.part, reached=call.reached)
            yield _Found(one.group, kept.schema, alone(one.item, kept, like=reached))
        except LEFT_FOR_LATER:
            continue
        except GalileoError as error:
            yield _row(one.group, _failure(np.array([one.item], dtype=np.uint32), error))


@functools.cache
def _traced(options: TracingOptions) -> Tracing | None:
    """Once per worker; after the fork, for threads do not survive one.

    A job is worth more than its traces: where these cannot be had here, it goes on without.
    """
    try:
        return start_tracing(options, service="galileo-worker")
    except Exception as error:
        log.warning("this worker records no traces: %s", error)
        return None


@functools.cache
def _beside() -> Beside:
    """Once per worker."""
    return Beside()


@functools.cache
def _scanner(keys: TlsFiles) -> Scanner:
    """Once per worker."""
    # Spark collects garbage after every task; what was imported need not be looked at again.
    gc.collect()
    gc.freeze()
    return Scanner(keys)


@functools.cache
def _sent(timeout_s: float, keys: TlsFiles) -> SentCode:
    """Once per worker."""
    limits = ContainmentLimits(cpu_s=timeout_s, wall_s=WAITING_FACTOR * timeout_s)
    return SentCode(
        ContainedSamplers(limits=limits), get=functools.partial(get_over_grpc, keys=keys)
    )


@functools.lru_cache(_SCHEMAS_MAX)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)
