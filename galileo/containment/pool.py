"""A bounded pool of contained samplers."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from galileo.containment.limits import ContainmentLimits
from galileo.containment.sampler import DEFAULT_LIMITS, ContainedSampler
from galileo.errors import Overloaded
from galileo.sampler_package import SamplerArchive
from galileo.samplers import SamplerSpec

SAMPLERS_MAX = 8
"""Processes of some 100 MB each."""
RETRY_AFTER_S = 1.0

Key = tuple[str, str, str]
"""Digest, options, owner."""


@dataclass(slots=True)
class _PooledSampler:
    """A sampler, the number of its running calls, and whether it ends after these."""

    starting: threading.Lock
    sampler: ContainedSampler | None = None
    users: int = 0
    is_removed: bool = False


class ContainedSamplers:
    """Contained samplers by archive, options and owner; evicts the least recently used."""

    def __init__(
        self,
        *,
        samplers_max: int = SAMPLERS_MAX,
        limits: ContainmentLimits = DEFAULT_LIMITS,
    ) -> None:
        self._samplers_max, self._limits = samplers_max, limits
        self._lock = threading.Lock()
        self._pooled: OrderedDict[Key, _PooledSampler] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pooled)

    @contextmanager
    def lease(
        self, archive: SamplerArchive, spec: SamplerSpec, *, owner: str = ""
    ) -> Iterator[ContainedSampler]:
        """The sampler for the time of the block; started on first use.

        Args:
            archive: its code.
            spec: its options; the seed is given with each call, so it does not matter here.
            owner: whose data the process sees; calls of other owners get another process.

        Raises:
            Overloaded: all `samplers_max` samplers are in use.
            SandboxUnavailable, InputError, SamplerFailed: as `ContainedSampler`.
        """
        key = archive.digest, json.dumps(dict(spec.options), sort_keys=True), owner
        pooled = self._take(key)
        try:
            yield self._start(pooled, archive, spec)
        finally:
            self._release(key, pooled)

    def remove(self, digest: str) -> None:
        """Ends the samplers of an archive; those in use end after their calls."""
        self._forget([key for key in self._keys() if key[0] == digest])

    def close(self) -> None:
        """Ends all samplers; those in use end after their calls."""
        self._forget(self._keys())

    def _keys(self) -> list[Key]:
        with self._lock:
            return list(self._pooled)

    def _take(self, key: Key) -> _PooledSampler:
        """The sampler of a key, marked as in use; evicts another one if necessary."""
        with self._lock:
            unused = self._select_evicted(key)
            pooled = self._pooled.setdefault(key, _PooledSampler(threading.Lock()))
            self._pooled.move_to_end(key)
            pooled.users += 1
        if unused is not None and unused.sampler is not None:
            unused.sampler.close()
        return pooled

    def _select_evicted(self, key: Key) -> _PooledSampler | None:
        """Removes and returns the least recently used idle sampler, if a new key needs room."""
        if key in self._pooled or len(self._pooled) < self._samplers_max:
            return None
        idle = next((other for other, pooled in self._pooled.items() if not pooled.users), None)
        if idle is None:
            raise Overloaded(
                f"expected at most {self._samplers_max} sent samplers at work at a time; "
                "repeat it when one is done",
                after_s=RETRY_AFTER_S,
            )
        return self._pooled.pop(idle)

    def _start(
        self, pooled: _PooledSampler, archive: SamplerArchive, spec: SamplerSpec
    ) -> ContainedSampler:
        """Started by the first call; concurrent calls wait for it."""
        with pooled.starting:
            if pooled.sampler is None:
                pooled.sampler = ContainedSampler(archive, spec, limits=self._limits)
            return pooled.sampler

    def _release(self, key: Key, pooled: _PooledSampler) -> None:
        with self._lock:
            pooled.users -= 1
            over = not pooled.users and (pooled.is_removed or pooled.sampler is None)
            if over and self._pooled.get(key) is pooled:
                del self._pooled[key]
        if over and pooled.sampler is not None:
            pooled.sampler.close()

    def _forget(self, keys: list[Key]) -> None:
        ended: list[_PooledSampler] = []
        with self._lock:
            for key in keys:
                pooled = self._pooled.pop(key, None)
                if pooled is None:
                    continue
                pooled.is_removed = True
                if not pooled.users:
                    ended.append(pooled)
        for pooled in ended:
            if pooled.sampler is not None:
                pooled.sampler.close()
