"""Contained samplers that are kept for the next call, a bounded number of them."""

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
    """A sampler, the calls that use it now, and whether it is to end when they are over."""

    starting: threading.Lock
    sampler: ContainedSampler | None = None
    users: int = 0
    forgotten: bool = False


class ContainedSamplers:
    """Contained samplers by archive, options and owner; those longest unused are ended first."""

    def __init__(
        self,
        *,
        samplers_max: int = SAMPLERS_MAX,
        limits: ContainmentLimits = DEFAULT_LIMITS,
    ) -> None:
        self._samplers_max, self._limits = samplers_max, limits
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, _PooledSampler] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def lease(
        self, archive: SamplerArchive, spec: SamplerSpec, *, owner: str = ""
    ) -> Iterator[ContainedSampler]:
        """The sampler, for as long as the block lasts; started where there is none yet.

        Args:
            archive: its code.
            spec: its options; the seed is given with each call, so it does not matter here.
            owner: whose data the process sees; calls of other owners get another process.

        Raises:
            Overloaded: so many are lent out that there is no room for one more.
            SandboxUnavailable, InputError, SamplerFailed: as `ContainedSampler`.
        """
        key = archive.digest, json.dumps(dict(spec.options), sort_keys=True), owner
        kept = self._take(key)
        try:
            yield self._start(kept, archive, spec)
        finally:
            self._release(key, kept)

    def remove(self, digest: str) -> None:
        """Ends those of an archive, such as a revoked one; those lent out when they come back."""
        self._forget([key for key in self._keys() if key[0] == digest])

    def close(self) -> None:
        """Ends all of them; those lent out when they come back."""
        self._forget(self._keys())

    def _keys(self) -> list[Key]:
        with self._lock:
            return list(self._kept)

    def _take(self, key: Key) -> _PooledSampler:
        """What is kept under a key, in use from now on, and room made for it."""
        with self._lock:
            unused = self._select_evicted(key)
            kept = self._kept.setdefault(key, _PooledSampler(threading.Lock()))
            self._kept.move_to_end(key)
            kept.users += 1
        if unused is not None and unused.sampler is not None:
            unused.sampler.close()
        return kept

    def _select_evicted(self, key: Key) -> _PooledSampler | None:
        """Takes out the one longest unused, where there is no room for a new key else."""
        if key in self._kept or len(self._kept) < self._samplers_max:
            return None
        idle = next((other for other, kept in self._kept.items() if not kept.users), None)
        if idle is None:
            raise Overloaded(
                f"expected at most {self._samplers_max} sent samplers at work at a time; "
                "repeat it when one is done",
                after_s=RETRY_AFTER_S,
            )
        return self._kept.pop(idle)

    def _start(
        self, kept: _PooledSampler, archive: SamplerArchive, spec: SamplerSpec
    ) -> ContainedSampler:
        """Started by the first call; concurrent calls wait for it."""
        with kept.starting:
            if kept.sampler is None:
                kept.sampler = ContainedSampler(archive, spec, limits=self._limits)
            return kept.sampler

    def _release(self, key: Key, kept: _PooledSampler) -> None:
        with self._lock:
            kept.users -= 1
            over = not kept.users and (kept.forgotten or kept.sampler is None)
            if over and self._kept.get(key) is kept:
                del self._kept[key]
        if over and kept.sampler is not None:
            kept.sampler.close()

    def _forget(self, keys: list[Key]) -> None:
        ended: list[_PooledSampler] = []
        with self._lock:
            for key in keys:
                kept = self._kept.pop(key, None)
                if kept is None:
                    continue
                kept.forgotten = True
                if not kept.users:
                    ended.append(kept)
        for kept in ended:
            if kept.sampler is not None:
                kept.sampler.close()
