"""An uploaded sampler that runs in a sandboxed process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa

from galileo.errors import InputError, InternalError, SamplerFailed, SandboxUnavailable
from galileo.labels import LabelSet
from galileo.sampler_package import SamplerArchive
from galileo.sampler_runtime import DEFAULT_LIMITS, SandboxLimits
from galileo.samplers import Mask, SamplerSpec, Scope, shown
from galileo_sandbox.channel import SandboxTerminated
from galileo_sandbox.probe import unavailable_reason
from galileo_sandbox.process import SandboxedProcess, Traits, UserCodeError
from galileo_sandbox.protocol import Operation

_DETAIL_CHARS_MAX = 900
"""Bound on the traceback and on the output in error details."""

Response = TypeVar("Response")


class SandboxedSampler:
    """Satisfies `Sampler` and `MergingSampler`; the code of the archive runs in another process.

    The process starts with the constructor, serves one call at a time, and is restarted after it
    was killed. Thread-safe.

    Attributes:
        name: of the spec, for messages.
        scope: as the sampler's class says; "commit" where it does not.
        regroups: likewise; False where it does not say.
        needs_observations: likewise.
        needs_columns: likewise; None, which is all, where it does not say. No others go there.
    """

    name: str
    scope: Scope
    regroups: bool
    needs_observations: bool
    needs_columns: tuple[str, ...] | None

    def __init__(
        self,
        archive: SamplerArchive,
        spec: SamplerSpec,
        *,
        limits: SandboxLimits = DEFAULT_LIMITS,
    ) -> None:
        """Starts the process, imports the code and constructs the sampler with its options.

        Raises:
            SandboxUnavailable: this machine cannot contain it.
            InputError: the sampler refuses its options.
            SamplerFailed: its code raised, hung or died when it was imported or constructed, or
                is no sampler.
        """
        if (reason := unavailable_reason()) is not None:
            raise SandboxUnavailable(
                f"uploaded sampler {spec.name!r} cannot run here: {reason}", sampler=spec.name
            )
        self.name = spec.name
        self._archive, self._spec, self._limits = archive, spec, limits
        self._lock = threading.Lock()
        self._process: SandboxedProcess | None = None
        self._closed = False
        traits = self._start()
        self.scope, self.regroups = traits.scope, traits.regroups
        self.needs_observations = traits.needs_observations
        self.needs_columns = traits.needs_columns

    @property
    def pid(self) -> int | None:
        """Process id; None after the end of the process, until the next call starts another."""
        return self._process.pid if self._process is not None else None

    def cpu_s(self) -> float:
        """CPU time that its process has taken, of all threads; 0 where there is none."""
        return self._process.cpu_s() if self._process is not None else 0.0

    def sample(self, labels: LabelSet, *, seed: int, observations: pa.Table | None = None) -> Mask:
        """The mask of labels to keep, with the right type and length.

        Raises:
            SamplerFailed: it raised, gave no such mask, took more than its limits, or died;
                `details` have the end of its `traceback` and the beginning of what it `printed`.
                Where it did not answer in order, the next call has a new process.
        """
        return self._mask("sample", labels, seed=seed, observations=observations)

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        """As `sample`, for the samples of many commits."""
        return self._mask("merge", labels, seed=seed, observations=None)

    def close(self) -> None:
        """Ends the process after a running call. A further call raises `InternalError`."""
        with self._lock:
            self._closed = True
            self._end()

    def _mask(
        self, operation: Operation, labels: LabelSet, *, seed: int, observations: pa.Table | None
    ) -> Mask:
        if len(labels) == 0:
            return np.zeros(0, dtype=np.bool_)
        labels = shown(self, labels)
        with self._lock:
            if self._closed:
                raise InternalError(
                    f"expected an open sampler {self.name!r}, this one was closed",
                    expected="open",
                    sampler=self.name,
                )
            if self._process is not None and not self._process.alive():
                self._end()
            if self._process is None:
                self._start()
            what = f"on {len(labels):,} labels"
            try:
                return self._read_response(
                    lambda process: process.mask(
                        operation, labels, seed=seed, observations=observations
                    ),
                    what=what,
                )
            except UserCodeError as error:
                raise self._failure(what, error) from None

    def _start(self) -> Traits:
        try:
            self._process = SandboxedProcess(self._archive, limits=self._limits)
        except SandboxTerminated as error:
            raise SamplerFailed(
                f"the process of sampler {self.name!r} did not start: {error}",
                sampler=self.name,
                limit=error.limit,
            ) from error
        try:
            return self._read_response(
                lambda process: process.load(self._spec), what="when it was loaded"
            )
        except UserCodeError as error:
            self._end()
            if error.refused:
                # Most messages name the sampler themselves.
                is_named = f"sampler {self.name!r}" in error.message
                words = error.message if is_named else f"sampler {self.name!r}: {error.message}"
                raise InputError(words, expected="options", sampler=self.name) from None
            raise self._failure("when it was loaded", error) from None

    def _read_response(self, ask: Callable[[SandboxedProcess], Response], *, what: str) -> Response:
        """The response of the process; ends the process unless the response is valid."""
        process = self._process
        assert process is not None
        try:
            return ask(process)
        except UserCodeError:
            raise
        except SandboxTerminated as error:
            printed = process.printed()
            self._end()
            raise self._failure(what, error, printed=printed) from None
        except BaseException:
            # Such as an interrupt: the next response would be that of this call.
            self._end()
            raise

    def _failure(
        self, what: str, error: UserCodeError | SandboxTerminated, *, printed: str | None = None
    ) -> SamplerFailed:
        if printed is None and self._process is not None:
            printed = self._process.printed()
        traceback = error.traceback if isinstance(error, UserCodeError) else ""
        return SamplerFailed(
            f"sampler {self.name!r} failed {what}: {error}",
            sampler=self.name,
            limit=error.limit,
            traceback=traceback[-_DETAIL_CHARS_MAX:],
            printed=(printed or "")[:_DETAIL_CHARS_MAX],
        )

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
