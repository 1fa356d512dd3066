"""Samples what a task found: by installed samplers at once, by uploaded ones in the background.

An error of a sampler is a failure of its item alone. An item whose sampler is called again in the
next cycle has no result, so its query keeps its cursor.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from galileo import samplers, spans
from galileo.cycle import ItemFailure, MatchBatch, MatchedPartitions, joined
from galileo.errors import (
    Cancelled,
    DataExpired,
    GalileoError,
    NotOwner,
    Overloaded,
    SamplerFailed,
    SamplerRevoked,
    TransientError,
    UnknownSampler,
)
from galileo.labels import LabelSet
from galileo.sampler_runtime import SandboxLimits, open_runtime
from galileo.samplers import Observe, Sampler, SamplerSpec
from galileo.spark.cpu_time_limit import WAITING_FACTOR, CpuTimeLimit, TimeLimitExceeded
from galileo.spark.options import EvaluatorOptions
from galileo.spark.owners import OwnerScan, find_sampler_archive, read_observations
from galileo.spark.uploaded_samplers import BackgroundCalls, Call, Key, SamplerCache
from galileo.wire.context_propagation import continue_request
from galileo.wire.tls_credentials import TlsFiles

RETRY_NEXT_CYCLE = (TransientError, NotOwner, Cancelled, DataExpired)
"""Errors of reading observations after which the query keeps its cursor until the next cycle."""
_SAMPLERS_MAX = 4_096

LoadUploaded = Callable[[SamplerSpec], Sampler]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class UploadedCall:
    """A call of an uploaded sampler for one item of a part."""

    scan: OwnerScan
    part: MatchedPartitions
    item: int
    key: Key
    make: Callable[[], Call]


def sample_part(
    scan: OwnerScan, part: MatchedPartitions, *, options: EvaluatorOptions
) -> list[UploadedCall]:
    """Adds a part to the results of a scan, sampled; returns what uploaded samplers have to do."""
    request, matches = scan.request, part.matches
    is_sampled = request.samplers[matches.items] > 0
    if not is_sampled.any():
        scan.parts.append(part)
        return []
    sampled: list[MatchBatch] = []
    absent: list[int] = []
    calls: list[UploadedCall] = []
    for item, table in matches.where(is_sampled).split():
        spec = SamplerSpec.from_json(request.samplers_json[int(request.samplers[item]) - 1])
        labels = LabelSet(request.schema, table)
        apply = functools.partial(_sample, labels, spec, scan=scan, item=item, options=options)
        try:
            if spec.archive:
                absent.append(item)
                calls.append(_uploaded_call(spec, apply, scan=scan, item=item, part=part))
            else:
                sampled.append(part.of_item(item, apply().table).matches)
        except RETRY_NEXT_CYCLE:
            absent.append(item)
        except GalileoError as error:
            absent.append(item)
            scan.failures.append(_failure(item, error))
    everything = joined([matches.where(~is_sampled), *sampled], request.schema.label_schema)
    items = part.items[~np.isin(part.items, np.array(absent, dtype=np.uint32))]
    scan.parts.append(replace(part, items=items, matches=everything))
    return calls


def finish_calls(calls: Sequence[UploadedCall], *, turn: int) -> None:
    """Adds the results and failures of those calls that are done to those of their scans.

    Each result has the cursor up to which its call went. The first call differs from job to job,
    so that all are started at some time even if there are too many.
    """
    first = turn * _background_calls().calls_max % max(1, len(calls))
    started: list[tuple[UploadedCall, Call]] = []
    for uploaded in (*calls[first:], *calls[:first]):
        with suppress(Overloaded):
            started.append((uploaded, _background_calls().start(uploaded.key, uploaded.make)))
    _background_calls().wait(call for _, call in started)
    for uploaded, call in started:
        if call.done.is_set():
            _finish(uploaded, call)


def _finish(uploaded: UploadedCall, call: Call) -> None:
    part, scan = replace(uploaded.part, reached=call.reached), uploaded.scan
    try:
        labels = _background_calls().deliver(uploaded.key, call).after(part.dropped)
        scan.parts.append(part.of_item(uploaded.item, labels.table))
    except RETRY_NEXT_CYCLE:
        return
    except GalileoError as error:
        scan.failures.append(_failure(uploaded.item, error))


def _failure(item: int, error: GalileoError) -> ItemFailure:
    return ItemFailure(np.array([item], dtype=np.uint32), error)


def _uploaded_call(
    spec: SamplerSpec,
    apply: Callable[[], LabelSet],
    *,
    scan: OwnerScan,
    item: int,
    part: MatchedPartitions,
) -> UploadedCall:
    """A call whose key is the same in each job, as long as the query's cursors are."""
    request = scan.request
    cursors = request.cursor_rows[request.cursors[item]].tobytes()
    partitions = request.partitions.tobytes()
    key = (spec.to_json(), request.dataset, request.digest_of(item), partitions, cursors)
    make = functools.partial(Call, apply, spec=spec, owner=request.dataset, reached=part.reached)
    return UploadedCall(scan, part, item, key, make)


def _sample(
    labels: LabelSet, spec: SamplerSpec, *, scan: OwnerScan, item: int, options: EvaluatorOptions
) -> LabelSet:
    request, keys = scan.request, options.keys
    observe = functools.partial(
        read_observations,
        address=scan.address,
        digest=request.digest_of(item),
        timeout_s=options.scan_timeout_s,
        keys=keys,
    )
    cache = _sampler_cache(options.sampler_timeout_s, keys)
    load = functools.partial(cache.load, address=scan.address, owner=request.dataset)
    with (
        continue_request(request.origin),
        spans.child("sampler", sampler=spec.name, labels=len(labels)),
    ):
        return sample(
            labels,
            spec,
            timeout_s=options.sampler_timeout_s,
            observe=observe,
            load_uploaded=load,
        )


def sample(
    labels: LabelSet,
    spec: SamplerSpec,
    *,
    timeout_s: float,
    observe: Observe,
    load_uploaded: LoadUploaded,
) -> LabelSet:
    """The labels that the sampler keeps.

    Args:
        labels: whole commits.
        spec: of the sampler.
        timeout_s: for all calls of the sampler; reading observations does not count.
        observe: reads observations, for a sampler that needs them.
        load_uploaded: constructs an uploaded sampler, whose process limits each call.

    Raises:
        UnknownSampler: it is not installed here.
        SamplerRevoked: it was uploaded and has been revoked.
        SamplerFailed: it refused its options, raised, tried to exit, took too long or returned no
            mask.
        GalileoError: an uploaded sampler cannot run, or observations cannot be read.
    """
    limited = _LimitedSampler(spec, len(labels), timeout_s)
    sampler = load_uploaded(spec) if spec.archive else limited.run(lambda: _load_installed(spec))

    def apply(part: LabelSet, observations: pa.Table | None = None) -> LabelSet:
        return limited.run(
            lambda: samplers.apply(sampler, part, seed=spec.seed, observations=observations)
        )

    if not samplers.needs_observations(sampler):
        return apply(labels)
    parts = [apply(part, observe(part)) for part in samplers.observed_parts(labels)]
    return LabelSet.concat(labels.schema, parts)


class _LimitedSampler:
    """Runs the steps of one sampler in one task within its time limit, and translates errors."""

    def __init__(self, spec: SamplerSpec, size: int, timeout_s: float) -> None:
        self._spec = spec
        self._size = size
        self._timeout_s = timeout_s
        self._cpu_limit = CpuTimeLimit(timeout_s)
        self._left_s = WAITING_FACTOR * timeout_s

    def run(self, step: Callable[[], Result]) -> Result:
        started = time.monotonic()
        try:
            return self._run_limited(step)
        except (UnknownSampler, SamplerFailed, SamplerRevoked, *RETRY_NEXT_CYCLE) as error:
            if self._spec.archive or isinstance(error, UnknownSampler):
                raise
            raise samplers.failed(error, self._spec, labels=self._size) from error
        except (Exception, SystemExit, TimeLimitExceeded) as error:
            raise samplers.failed(error, self._spec, labels=self._size) from error
        finally:
            self._left_s -= time.monotonic() - started

    def _run_limited(self, step: Callable[[], Result]) -> Result:
        if not self._spec.archive:
            with self._cpu_limit.running():
                return step()
        if self._left_s <= 0:
            raise TimeLimitExceeded(f"it took longer than {WAITING_FACTOR * self._timeout_s:g} s")
        return step()


def _load_installed(spec: SamplerSpec) -> Sampler:
    return _load_with_options(spec.name, json.dumps(dict(spec.options), sort_keys=True))


@functools.lru_cache(_SAMPLERS_MAX)
def _load_with_options(name: str, options_json: str) -> Sampler:
    return samplers.load(SamplerSpec(name, json.loads(options_json)))


@functools.cache
def _background_calls() -> BackgroundCalls:
    """Once per worker."""
    return BackgroundCalls()


@functools.cache
def _sampler_cache(timeout_s: float, keys: TlsFiles) -> SamplerCache:
    """Once per worker."""
    limits = SandboxLimits(cpu_s=timeout_s, wall_s=WAITING_FACTOR * timeout_s)
    return SamplerCache(
        open_runtime(limits), get=functools.partial(find_sampler_archive, keys=keys)
    )
