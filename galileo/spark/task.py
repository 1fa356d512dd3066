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
from dataclasses import dataclass
from types import FrameType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo import samplers
from galileo.cursor import Cursor
from galileo.errors import Bug, GalileoError, MessageTooLarge, SamplerFailed, UnknownSampler
from galileo.labels import LabelSet, first_commits, from_ipc, to_ipc
from galileo.model.schema import Schema
from galileo.spark.scans import Delta, Scanner
from galileo.spark.tick import Row, Tick, TickItem, packed

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
    """The rows of one task: one for each item and node that answered."""
    deltas = _scanner().fetch(
        tick.shares_of(task), tick.items, timeout_s=tick.limits.scan_timeout_s
    )
    # Turned from job to job, so that it is not always the same items that find the room gone.
    turn = tick.number % max(1, len(deltas))
    room = tick.limits.result_bytes_max // tick.tasks
    share = fair_share([sum(map(len, delta.labels)) for delta in deltas], room=room)
    for delta in deltas[turn:] + deltas[:turn]:
        if room <= 0 and delta.labels:
            continue
        answer = _answer(tick, delta, bytes_max=share)
        room -= len(answer.labels)
        yield answer


def fair_share(sizes: Sequence[int], *, room: int) -> int:
    """The largest bound such that sizes cut to it fit the room together (max-min fairness)."""
    ordered = np.sort(np.asarray(sizes, dtype=np.int64))
    if int(ordered.sum()) <= room:
        return room
    # With everything below position i whole, the others share what is left equally.
    whole = np.concatenate(([0], np.cumsum(ordered)[:-1]))
    others = np.arange(len(ordered), 0, -1)
    first = np.argmax(room - whole <= ordered * others)
    return int((room - whole[first]) // others[first])


def _answer(tick: Tick, delta: Delta, *, bytes_max: int) -> Row:
    """The row of one delta, never an exception."""
    try:
        if delta.error is not None:
            raise delta.error
        assert delta.reached is not None
        if not delta.labels:
            return Row(delta.item, reached=delta.reached)
        item = tick.items[delta.item]
        labels, reached = _sampled(tick, item, delta, bytes_max=bytes_max)
        data = to_ipc(labels.table) if len(labels) else b""
        if len(data) > tick.limits.result_bytes_max:
            raise MessageTooLarge(
                f"expected the labels of one commit to fit {tick.limits.result_bytes_max} bytes, "
                f"got {len(data)}; use a sampler, a narrower query or smaller batches"
            )
        return Row(delta.item, labels=data, reached=reached)
    except GalileoError as error:
        return Row(delta.item, error=error)
    except Exception as error:
        return Row(delta.item, error=Bug(f"{type(error).__name__}: {error}"))


def _sampled(
    tick: Tick, item: TickItem, delta: Delta, *, bytes_max: int
) -> tuple[LabelSet, Cursor]:
    assert delta.reached is not None
    schema = _schema(item.schema_json)
    tables = [from_ipc(data, schema.label_schema) for data in delta.labels]
    labels = LabelSet.concat(schema, [LabelSet(schema, table) for table in tables])
    # Whole commits, and nothing that the answer does not vouch for.
    labels = labels.where(_between(labels, item.after, delta.reached))
    if item.sampler_json and len(labels):
        labels = sample(labels, item.sampler_json, timeout_s=tick.limits.sampler_timeout_s)
    return cut(labels, reached=delta.reached, bytes_max=bytes_max)


def _between(labels: LabelSet, after: Cursor, until: Cursor) -> npt.NDArray[np.bool_]:
    places = labels.partitions, labels.sequences
    return after.past(*places) & ~until.past(*places)


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


def cut(labels: LabelSet, *, reached: Cursor, bytes_max: int) -> tuple[LabelSet, Cursor]:
    """As many whole commits as fit, and how far they reach; see `first_commits`.

    Args:
        labels: of one item, up to `reached`.
        reached: up to where `labels` is complete.
        bytes_max: of the kept labels, approximately.
    """
    size = labels.table.nbytes
    if size <= bytes_max:
        return labels, reached
    rows_max = max(1, len(labels) * bytes_max // size)
    return first_commits(labels, reached=reached, labels_max=rows_max)


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
