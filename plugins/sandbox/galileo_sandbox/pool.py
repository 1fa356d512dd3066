"""The runtime of uploaded samplers: a bounded pool of sandboxed ones, leased for each call.

A process serves one archive with one set of options for one owner, and stays for later calls until
another one needs its place. `revoke` is the only check of revocations: from then on no call of the
archive begins, those that run get no result, and their processes end.
"""

from __future__ import annotations

import functools
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from galileo.errors import Overloaded, SamplerRevoked
from galileo.labels import LabelSet
from galileo.sampler_package import SamplerArchive
from galileo.sampler_runtime import DEFAULT_LIMITS, SandboxLimits
from galileo.samplers import Mask, SamplerSpec
from galileo_sandbox import probe
from galileo_sandbox.sampler import SandboxedSampler

RETRY_AFTER_S = 1.0

Key = tuple[str, str, str]
"""Digest, options, owner."""


@dataclass(slots=True)
class _PooledSampler:
    """A sampler, the number of its running calls, and whether it ends after these."""

    starting: threading.Lock
    sampler: SandboxedSampler | None = None
    users: int = 0
    is_removed: bool = False


class SandboxPool:
    """Sandboxed samplers by archive, options and owner; evicts the least recently used."""

    def __init__(self, limits: SandboxLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._pooled: OrderedDict[Key, _PooledSampler] = OrderedDict()
        self._revoked: set[str] = set()

    def __len__(self) -> int:
        return len(self._pooled)

    @staticmethod
    def unavailable_reason() -> str | None:
        """As `probe.unavailable_reason`."""
        return probe.unavailable_reason()

    def load(self, archive: SamplerArchive, spec: SamplerSpec, *, owner: str) -> LeasedSampler:
        """As `galileo.sampler_runtime.SamplerRuntime.load`."""
        return LeasedSampler(self, archive, spec, owner=owner)

    @contextmanager
    def lease(
        self, archive: SamplerArchive, spec: SamplerSpec, *, owner: str = ""
    ) -> Iterator[SandboxedSampler]:
        """The sampler for the time of the block; started on first use.

        Args:
            archive: its code.
            spec: its options; the seed is given with each call, so it does not matter here.
            owner: whose data the process sees; calls of other owners get another process.

        Raises:
            SamplerRevoked: the archive was revoked before or during the block.
            Overloaded: all processes of the limits are in use.
            SandboxUnavailable, InputError, SamplerFailed: as `SandboxedSampler`.
        """
        key = archive.digest, json.dumps(dict(spec.options), sort_keys=True), owner
        pooled = self._take(key, archive)
        try:
            yield self._start(pooled, archive, spec)
        finally:
            self._release(key, pooled)
            self._check_not_revoked(archive)

    def evict(self, digest: str) -> None:
        """Ends the samplers of an archive; those in use end after their calls."""
        self._forget([key for key in self._keys() if key[0] == digest])

    def revoke(self, digest: str) -> None:
        """As `evict`, and every call of them, also one that runs, raises `SamplerRevoked`."""
        with self._lock:
            self._revoked.add(digest)
        self.evict(digest)

    def close(self) -> None:
        """Ends all samplers; those in use end after their calls."""
        self._forget(self._keys())

    def _check_not_revoked(self, archive: SamplerArchive) -> None:
        if archive.digest in self._revoked:
            raise SamplerRevoked(
                f"the sampler {archive.name!r} with the digest {archive.digest[:12]} was revoked; "
                "submit the query again with another one",
                digest=archive.digest,
            )

    def _keys(self) -> list[Key]:
        with self._lock:
            return list(self._pooled)

    def _take(self, key: Key, archive: SamplerArchive) -> _PooledSampler:
        """The sampler of a key, marked as in use; evicts another one if necessary."""
        with self._lock:
            # With the lock: else one could be started after `revoke` has ended the others.
            self._check_not_revoked(archive)
            unused = self._select_evicted(key)
            pooled = self._pooled.setdefault(key, _PooledSampler(threading.Lock()))
            self._pooled.move_to_end(key)
            pooled.users += 1
        if unused is not None and unused.sampler is not None:
            unused.sampler.close()
        return pooled

    def _select_evicted(self, key: Key) -> _PooledSampler | None:
        """Removes and returns the least recently used idle sampler, if a new key needs room."""
        if key in self._pooled or len(self._pooled) < self._limits.processes:
            return None
        idle = next((other for other, pooled in self._pooled.items() if not pooled.users), None)
        if idle is None:
            raise Overloaded(
                f"expected at most {self._limits.processes} uploaded samplers at work at a time; "
                "repeat it when one is done",
                after_s=RETRY_AFTER_S,
                bound=self._limits.processes,
            )
        return self._pooled.pop(idle)

    def _start(
        self, pooled: _PooledSampler, archive: SamplerArchive, spec: SamplerSpec
    ) -> SandboxedSampler:
        """Started by the first call; concurrent calls wait for it."""
        with pooled.starting:
            if pooled.sampler is None:
                pooled.sampler = SandboxedSampler(archive, spec, limits=self._limits)
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


class LeasedSampler:
    """Satisfies `Sampler` and `MergingSampler`; holds no process between two calls.

    The constructor starts one, to see whether the sampler can be constructed. Constructor and calls
    raise as `SandboxPool.lease`.

    Attributes:
        scope: as the sampler's class says; "commit" where it does not.
        regroups: likewise; False where it does not say.
        needs_observations: likewise.
        needs_columns: likewise; None, which is all, where it does not say.
    """

    def __init__(
        self, pool: SandboxPool, archive: SamplerArchive, spec: SamplerSpec, *, owner: str
    ) -> None:
        self._lease = functools.partial(pool.lease, archive, spec, owner=owner)
        with self._lease() as sampler:
            self.scope = sampler.scope
            self.regroups = sampler.regroups
            self.needs_observations = sampler.needs_observations
            self.needs_columns = sampler.needs_columns

    def sample(self, labels: LabelSet, *, seed: int, observations: pa.Table | None = None) -> Mask:
        """As `SandboxedSampler.sample`."""
        with self._lease() as sampler:
            return sampler.sample(labels, seed=seed, observations=observations)

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        """As `SandboxedSampler.merge`."""
        with self._lease() as sampler:
            return sampler.merge(labels, seed=seed)
