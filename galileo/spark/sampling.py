"""Samplers in a task: limited in time, and shown the observations that they ask for."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
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
from galileo.labels import LabelSet
from galileo.samplers import Observe, Sampler, SamplerSpec
from galileo.spark.allowance import WAITING_FACTOR, Allowance, TookTooLong

LEFT_FOR_LATER = (TransientError, NotOwner, Cancelled, DataExpired)
"""Of observations that could not be read: the query stays where it is until the next tick."""
_SAMPLERS_MAX = 4_096

LoadSent = Callable[[SamplerSpec], Sampler]
Result = TypeVar("Result")


def sample(
    labels: LabelSet,
    spec: SamplerSpec,
    *,
    timeout_s: float,
    observe: Observe,
    load_sent: LoadSent,
) -> LabelSet:
    """The labels that the sampler keeps.

    Args:
        labels: whole commits.
        spec: names it.
        timeout_s: for all that the sampler does; reading observations does not count.
        observe: reads observations, for a sampler that looks at them.
        load_sent: constructs a sampler that was sent, which limits each call by itself.

    Raises:
        UnknownSampler: it is not installed here.
        SamplerRevoked: it was sent, and has been revoked, perhaps while it ran.
        SamplerFailed: it refused its options, raised, tried to exit, took too long or gave no mask.
        GalileoError: a sampler that was sent is not run, or observations cannot be read.
    """
    turn = _Turn(spec, len(labels), timeout_s)
    chosen = load_sent(spec) if spec.archive else turn.run(lambda: _installed(spec))

    def choose(part: LabelSet, observations: pa.Table | None = None) -> LabelSet:
        return turn.run(
            lambda: samplers.apply(chosen, part, seed=spec.seed, observations=observations)
        )

    if not samplers.needs_observations(chosen):
        return choose(labels)
    kept = [choose(part, observe(part)) for part in samplers.observed_parts(labels)]
    return LabelSet.concat(labels.schema, kept)


class _Turn:
    """What one sampler does in one task, up to its time limit, and whose fault its errors are."""

    def __init__(self, spec: SamplerSpec, size: int, timeout_s: float) -> None:
        self._spec = spec
        self._size = size
        self._timeout_s = timeout_s
        self._allowance = Allowance(timeout_s)
        self._left_s = WAITING_FACTOR * timeout_s

    def run(self, step: Callable[[], Result]) -> Result:
        started = time.monotonic()
        try:
            return self._limited(step)
        except (UnknownSampler, SamplerFailed, SamplerRevoked, *LEFT_FOR_LATER) as error:
            if self._spec.archive or isinstance(error, UnknownSampler):
                raise
            raise samplers.failed(error, self._spec, labels=self._size) from error
        except (Exception, SystemExit, TookTooLong) as error:
            raise samplers.failed(error, self._spec, labels=self._size) from error
        finally:
            self._left_s -= time.monotonic() - started

    def _limited(self, step: Callable[[], Result]) -> Result:
        if not self._spec.archive:
            with self._allowance.running():
                return step()
        if self._left_s <= 0:
            raise TookTooLong(f"it took longer than {WAITING_FACTOR * self._timeout_s:g} s")
        return step()


def _installed(spec: SamplerSpec) -> Sampler:
    return _of_options(spec.name, json.dumps(dict(spec.options), sort_keys=True))


@functools.lru_cache(_SAMPLERS_MAX)
def _of_options(name: str, options_json: str) -> Sampler:
    return samplers.load(SamplerSpec(name, json.loads(options_json)))
