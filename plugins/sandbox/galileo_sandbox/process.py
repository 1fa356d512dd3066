"""A contained process: start, calls and end.

The process is stopped (SIGSTOP) between two calls, so that threads which uploaded code left running
take no CPU time.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import psutil
import pyarrow as pa

from galileo.labels import LabelSet
from galileo.sampler_package import SamplerArchive
from galileo.sampler_runtime import SandboxLimits
from galileo.samplers import Mask, SamplerSpec, Scope
from galileo_sandbox import protocol
from galileo_sandbox.bubblewrap import spawn
from galileo_sandbox.channel import (
    DIED,
    INVALID_RESPONSE,
    ResponseReader,
    SandboxTerminated,
    SharedMemory,
    readable,
)
from galileo_sandbox.protocol import Operation, Request

START_S = 60.0
"""From the command to a process that listens, and again until it has loaded the uploaded code."""

_TEXT = range(protocol.TEXT_BYTES_MAX + 1)
_TRAITS = range(protocol.TRAITS.size, protocol.TRAITS.size + protocol.COLUMNS_BYTES_MAX + 1)
_ERRORS = {protocol.REFUSED: _TEXT, protocol.FAILED: _TEXT}


class UserCodeError(Exception):
    """The uploaded code raised; its process can be used again.

    Attributes:
        refused: whether it was an `InputError`.
        message: the error's.
        traceback: as Python writes it.
        limit: the one of `SandboxLimits` that was reached, if any.
    """

    def __init__(self, text: str, *, refused: bool, limit: str = "") -> None:
        self.message, _, self.traceback = text.partition(protocol.SEPARATOR)
        self.refused = refused
        self.limit = limit
        super().__init__(self.message)


@dataclass(frozen=True, slots=True)
class Traits:
    """What a sampler's class says of itself, see the protocols in `galileo.samplers`."""

    scope: Scope
    regroups: bool
    needs_observations: bool
    needs_columns: tuple[str, ...] | None

    @staticmethod
    def from_bytes(data: bytes) -> Traits:
        """Raises `SandboxTerminated` for bytes that no worker of Galileo sends."""
        size = protocol.TRAITS.size
        scope, regroups, observes, names_columns = protocol.TRAITS.unpack(data[:size])
        try:
            names = data[size:].decode()
        except UnicodeDecodeError as error:
            raise SandboxTerminated(INVALID_RESPONSE) from error
        if scope >= len(protocol.SCOPES):
            raise SandboxTerminated(INVALID_RESPONSE)
        columns = tuple(names.split(protocol.SEPARATOR)) if names_columns else None
        return Traits(protocol.SCOPES[scope], bool(regroups), bool(observes), columns)


class SandboxedProcess:
    """One process with the code of one archive; not thread-safe."""

    def __init__(
        self, archive: SamplerArchive, *, limits: SandboxLimits, as_root: bool | None = None
    ) -> None:
        """Starts it.

        Raises:
            SandboxTerminated: it did not start; the message has the output of bubblewrap or Python.
        """
        self._limits, self._entry = limits, archive.entry
        self._memory = SharedMemory()
        try:
            self._child = spawn(archive.data, self._memory.reader, limits, as_root=as_root)
        except OSError as error:
            self._memory.close()
            raise SandboxTerminated(f"it cannot be started: {error}") from error
        self._answers = ResponseReader(
            self._child.answers, self._child.printed, printed_max=limits.output_bytes
        )
        try:
            self._next({protocol.READY: range(1)}, seconds=START_S, look=_no_check)
            self._child.find()
        except BaseException as error:
            reason = f"{error}: {self.printed()}".strip(": \n")
            self.end()
            if isinstance(error, SandboxTerminated | psutil.Error | OSError | ValueError):
                raise SandboxTerminated(reason) from error
            raise

    @property
    def pid(self) -> int:
        """Process id of the contained process in the namespace of this one."""
        return self._child.pid

    def alive(self) -> bool:
        return self._child.alive()

    def cpu_s(self) -> float:
        return self._child.cpu_s()

    def load(self, spec: SamplerSpec) -> Traits:
        """Imports the uploaded code and constructs the sampler.

        Raises:
            UserCodeError: the uploaded code raised, or has no such sampler class.
            SandboxTerminated: the process has ended.
        """
        head = {"entry": self._entry, "name": spec.name, "options": dict(spec.options)}
        request = self._memory.write("load", json.dumps(head).encode())
        payload = self._call(request, {protocol.LOADED: _TRAITS}, seconds=START_S)
        return Traits.from_bytes(payload)

    def mask(
        self,
        operation: Operation,
        labels: LabelSet,
        *,
        seed: int,
        observations: pa.Table | None = None,
    ) -> Mask:
        """Which labels the sampler keeps.

        Raises:
            UserCodeError: as `load`; also where labels and observations are too large.
            SandboxTerminated: as `load`.
        """
        head = json.dumps({"schema": labels.schema.to_json(), "seed": int(seed)}).encode()
        tables = [labels.table] if observations is None else [labels.table, observations]
        if sum(table.nbytes for table in tables) > self._limits.input_bytes:
            raise UserCodeError(
                f"expected at most {self._limits.input_bytes:,} bytes of labels and observations "
                "at a time, got more",
                refused=False,
                limit="input_bytes",
            )
        request = self._memory.write(operation, head, *tables)
        size = -(-len(labels) // 8)
        sizes = {protocol.MASK: range(size, size + 1)}
        try:
            bits = self._call(request, sizes, seconds=self._limits.wall_s)
        finally:
            self._memory.trim()
        packed = np.frombuffer(bits, dtype=np.uint8)
        return np.unpackbits(packed, count=len(labels), bitorder="little").view(np.bool_)

    def printed(self) -> str:
        """The beginning of what was printed since the last request."""
        try:
            return self._answers.printed()
        except SandboxTerminated as error:
            return str(error)

    def end(self) -> None:
        self._child.end()
        self._memory.close()

    def _call(self, request: Request, sizes: Mapping[int, range], *, seconds: float) -> bytes:
        self._answers.begin()
        spent_s = self._child.cpu_s()

        def look() -> None:
            if self._child.cpu_s() - spent_s > self._limits.cpu_s:
                raise SandboxTerminated(
                    f"it took more than {self._limits.cpu_s:g} s of CPU time", limit="cpu_s"
                )

        self._child.signal(signal.SIGCONT)
        try:
            os.write(self._child.requests, request.to_bytes())
        except BrokenPipeError as error:
            raise SandboxTerminated(DIED) from error
        status, payload = self._next({**sizes, **_ERRORS}, seconds=seconds, look=look)
        self._child.signal(signal.SIGSTOP)
        if status in _ERRORS:
            raise UserCodeError(
                readable(payload, keep=protocol.SEPARATOR), refused=status == protocol.REFUSED
            )
        return payload

    def _next(
        self, sizes: Mapping[int, range], *, seconds: float, look: Callable[[], None]
    ) -> tuple[int, bytes]:
        until = time.monotonic() + seconds - self._child.run_queue_wait_s()
        try:
            return self._answers.next(
                sizes=sizes, until=lambda: until + self._child.run_queue_wait_s(), look=look
            )
        except TimeoutError:
            raise SandboxTerminated(f"it took longer than {seconds:g} s", limit="wall_s") from None


def _no_check() -> None:
    """Checks nothing: for calls before the process id is known."""
