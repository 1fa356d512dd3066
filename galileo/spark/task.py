"""What a Python worker does in one task of a tick: ask nodes, sample, hand back.

Imported in workers after they were forked (and by the evaluator after its JVM runs): gRPC does
not survive a fork. Whatever goes wrong with one query becomes that query's error, for an
exception would fail the job and with it every query of the host.
"""

from __future__ import annotations

import functools
import gc
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

import numpy as np
import pyarrow as pa

from galileo import samplers
from galileo.errors import Bug, GalileoError, MessageTooLarge, SamplerFailed, UnknownSampler
from galileo.labels import LabelSet
from galileo.matches import Answered, Matches, Numbers, joined, to_bytes
from galileo.model.schema import Schema
from galileo.spark.scans import Delta, Scanner
from galileo.spark.tick import Group, Outcome, Row, Tick, packed
from galileo.spark.vouched import alone, fitted, vouched
from galileo.wire.matched import part_to_pb
from galileo.wire.pb import storage_pb2
from galileo.wire.status import error_to_pb

_SCHEMAS_MAX = 1_024
_SAMPLERS_MAX = 4_096
_REPEAT_S = 0.5


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
    deltas = _scanner().fetch(
        tick.shares_of(task), tick.groups, timeout_s=tick.limits.scan_timeout_s
    )
    found: list[_Found] = []
    for delta in deltas:
        for outcome in _judged(tick, delta):
            if isinstance(outcome, _Found):
                found.append(outcome)
            else:
                yield Row(delta.ask.group, outcome.SerializeToString())
    yield from _handed_back(tick, found)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    group: int
    schema: Schema
    part: Answered


def _judged(tick: Tick, delta: Delta) -> Iterator[_Found | Outcome]:
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
            for one in _sampled(counts, group, schema, timeout_s=tick.limits.sampler_timeout_s):
                yield one if isinstance(one, Outcome) else _Found(delta.ask.group, schema, one)
        except GalileoError as error:
            yield _failure(part.items, error)
        except Exception as error:
            yield _failure(part.items, Bug(f"{type(error).__name__}: {error}"))


def _handed_back(tick: Tick, found: Sequence[_Found]) -> Iterator[Row]:
    room = tick.limits.result_bytes_max // tick.tasks
    parts = [(one.part, one.schema) for one in found]
    for one, fits in zip(found, fitted(parts, bytes_max=room, turn=tick.number), strict=True):
        for part in fits:
            outcome = _encoded(part, bytes_max=tick.limits.result_bytes_max)
            yield Row(one.group, outcome.SerializeToString())


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
    failure = storage_pb2.MatchFailure(items=to_bytes(items), error=error_to_pb(error))
    return Outcome(failures=[failure])


def _sampled(
    part: Answered, group: Group, schema: Schema, *, timeout_s: float
) -> Iterator[Answered | Outcome]:
    """The part as it is, but what samplers thin, which is a part of its own; and their failures."""
    thinned = group.samplers[part.matches.items] > 0
    if not thinned.any():
        yield part
        return
    kept: list[Matches] = []
    failed: list[int] = []
    for item, table in part.matches.where(thinned).split():
        sampler = group.samplers_json[int(group.samplers[item]) - 1]
        try:
            labels = sample(LabelSet(schema, table), sampler, timeout_s=timeout_s)
            kept.append(alone(item, labels, like=part).matches)
        except GalileoError as error:
            failed.append(item)
            yield _failure(np.array([item], dtype=np.uint32), error)
    whole = part.matches.where(~thinned)
    matches = joined([whole, *kept], schema.label_schema)
    answered = part.items[~np.isin(part.items, np.array(failed, dtype=np.uint32))]
    yield replace(part, items=answered, matches=matches)


def sample(labels: LabelSet, sampler_json: str, *, timeout_s: float) -> LabelSet:
    """The labels that the sampler keeps.

    Raises:
        UnknownSampler: it is not installed here.
        SamplerFailed: it refused its options, raised, tried to exit, took too long or gave no mask.
    """
    spec = samplers.SamplerSpec.from_json(sampler_json)
    try:
        with _time_limit(timeout_s):
            chosen = _sampler(spec.name, json.dumps(dict(spec.options), sort_keys=True))
            return samplers.apply(chosen, labels, seed=spec.seed)
    except UnknownSampler:
        raise
    except (Exception, SystemExit, _TookTooLong) as error:
        raise SamplerFailed(
            f"sampler {spec.name!r} failed on {len(labels)} labels: {type(error).__name__}: {error}"
        ) from error


class _TookTooLong(BaseException):
    """Not an Exception: a sampler that catches those must not catch this."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises `_TookTooLong` in the block after a while; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        raise _TookTooLong(f"it took longer than {seconds} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_S)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        # Again, for the first one can be interrupted just before it takes effect.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


@functools.cache
def _scanner() -> Scanner:
    """Once per worker."""
    # Spark collects garbage after every task; what was imported need not be looked at again.
    gc.collect()
    gc.freeze()
    return Scanner()


@functools.lru_cache(_SCHEMAS_MAX)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)


@functools.lru_cache(_SAMPLERS_MAX)
def _sampler(name: str, options_json: str) -> samplers.Sampler:
    return samplers.load(samplers.SamplerSpec(name, json.loads(options_json)))
