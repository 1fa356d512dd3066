"""An uploaded sampler that leases a process of a pool for the time of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from galileo.containment.pool import ContainedSamplers
from galileo.containment.sampler import ContainedSampler
from galileo.errors import GalileoError
from galileo.labels import LabelSet
from galileo.sampler_package import SamplerArchive
from galileo.samplers import Mask, SamplerSpec


class LeasedSampler:
    """Satisfies `Sampler` and `MergingSampler`; holds no process between two calls.

    Attributes:
        scope: as the sampler's class says; "commit" where it does not.
        regroups: likewise; False where it does not say.
        needs_observations: likewise.
        needs_columns: likewise; None, which is all, where it does not say.
    """

    def __init__(
        self,
        pool: ContainedSamplers,
        archive: SamplerArchive,
        spec: SamplerSpec,
        *,
        owner: str,
        check: Callable[[], None],
    ) -> None:
        """Constructs the sampler once, in a process of the pool, to see whether it can be.

        Args:
            pool: has the processes.
            archive: the sampler's code.
            spec: its options.
            owner: whose labels it is shown; no other owner's call gets the same process.
            check: raises once the archive must not be used any more; called around each use.

        Raises:
            SandboxUnavailable, InputError, SamplerFailed, Overloaded: as `ContainedSamplers.lease`.
        """
        self._pool = pool
        self._archive = archive
        self._spec = spec
        self._owner = owner
        self._check = check
        with self._lease() as sampler:
            self.scope = sampler.scope
            self.regroups = sampler.regroups
            self.needs_observations = sampler.needs_observations
            self.needs_columns = sampler.needs_columns

    def sample(self, labels: LabelSet, *, seed: int, observations: pa.Table | None = None) -> Mask:
        """As `ContainedSampler.sample`; raises `Overloaded` where all processes are in use."""
        with self._lease() as sampler:
            return sampler.sample(labels, seed=seed, observations=observations)

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        """As `ContainedSampler.merge`; raises `Overloaded` where all processes are in use."""
        with self._lease() as sampler:
            return sampler.merge(labels, seed=seed)

    @contextmanager
    def _lease(self) -> Iterator[ContainedSampler]:
        """A sampler for one call; raises if its archive was revoked before or during the call."""
        self._check()
        try:
            with self._pool.lease(self._archive, self._spec, owner=self._owner) as sampler:
                yield sampler
        finally:
            try:
                self._check()
            except GalileoError:
                self._pool.remove(self._archive.digest)
                raise
