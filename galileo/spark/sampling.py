"""Runs samplers in a task: limits their time and reads the observations that they need."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from galileo import samplers
from galileo.errors import (
    Cancelled,
    DataExpired,
    NotOwner,
    SamplerFailed,
    SamplerRevoked,
    TransientError,
    UnknownSampler,
)
from galileo.labels import LabelSet, from_ipc
from galileo.samplers import Observe, Sampler, SamplerSpec, numbered_parts, observed_schema
from galileo.spark.calls import OWNER, Owner
from galileo.spark.cpu_time_limit import WAITING_FACTOR, CpuTimeLimit, TimeLimitExceeded
from galileo.wire.blocking_caller import BlockingCaller
from galileo.wire.caller import CallOptions
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.zero_copy import stream_of

RETRY_NEXT_CYCLE = (TransientError, NotOwner, Cancelled, DataExpired)
"""Errors of reading observations after which the query keeps its cursor until the next cycle."""
_SAMPLERS_MAX = 4_096
_OBSERVATIONS = OWNER.call(Owner.observations)

LoadUploaded = Callable[[SamplerSpec], Sampler]
Result = TypeVar("Result")


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


@dataclass(frozen=True, slots=True)
class ObservationReader:
    """Reads the observations behind labels from the node that matched them; thread-safe.

    Attributes:
        address: of the node.
        digest: of the query that the observations must match.
        timeout_s: for one call.
        keys: of a node.
    """

    address: str
    digest: bytes
    timeout_s: float
    keys: TlsFiles = NO_TLS_FILES

    def __call__(self, labels: LabelSet) -> pa.Table:
        """The observations of labels, in the columns of `observed_schema`.

        Args:
            labels: of partitions of the node, so few that their observations fit in memory.

        Raises:
            TransientError: the node cannot be reached, or does not know the query any more.
            DataExpired: retention dropped some of them.
        """
        columns = observed_schema(labels.schema)
        schema = labels.schema
        parts = stream_of(numbered_parts(labels).combine_chunks())
        request = _OBSERVATIONS.encode(schema.key, self.digest, parts, schema.added)
        options = CallOptions(stream_s=self.timeout_s, patience_s=0.0)
        with BlockingCaller([self.address], options=options, keys=self.keys) as caller:
            chunks = caller.exchange_parts(_OBSERVATIONS.path, request)
            tables = [from_ipc(_OBSERVATIONS.decode_answer(chunk), columns) for chunk in chunks]
        return pa.concat_tables([columns.empty_table(), *tables])
