"""The program in the sandbox: imports uploaded code and calls it for each request.

The uploaded code runs in the same process and can change everything here. So this module protects
nothing: `confinement` has done that before, and the parent checks each response.
"""

from __future__ import annotations

import functools
import importlib
import json
import mmap
import os
import sys
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc  # noqa: F401  # before the filter, as samplers use it

from galileo import samplers
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo_sandbox import confinement, protocol
from galileo_sandbox.protocol import Request

REQUESTS = 0
SCHEMAS_MAX = 64
LAZY = "pandas"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of a worker, as JSON in its arguments.

    Attributes:
        answers: descriptor of the pipe for answers.
        memory: descriptor of the shared memory, which is only readable here.
        archive: path of the uploaded zip file.
        user: uid to change to; None where a user namespace has done it.
        bounds: for `confinement.confine`.
    """

    answers: int
    memory: int
    archive: str
    user: int | None
    bounds: dict[str, int]


class Worker:
    """Serves requests until their pipe is closed."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._mapped: mmap.mmap | None = None
        self._sampler: Any = None

    def serve(self) -> None:
        self._answer(protocol.READY, b"")
        while True:
            data = os.read(REQUESTS, protocol.REQUEST_BYTES)
            if len(data) < protocol.REQUEST_BYTES:
                return
            status, payload = self._run(Request.from_bytes(data))
            self._answer(status, payload)

    def _answer(self, status: int, payload: bytes) -> None:
        data = memoryview(protocol.ANSWER.pack(status, len(payload)) + payload)
        while data:
            data = data[os.write(self._config.answers, data) :]

    def _run(self, request: Request) -> tuple[int, bytes]:
        try:
            if request.operation == "load":
                return self._load(self._head(request))
            return self._sample(request)
        except BaseException as error:
            status = protocol.REFUSED if isinstance(error, InputError) else protocol.FAILED
            try:
                return status, _encode_error(error)
            except BaseException:
                return protocol.FAILED, b"an error that cannot be shown"

    def _load(self, head: dict[str, Any]) -> tuple[int, bytes]:
        sys.path.append(self._config.archive)
        module, _, name = head["entry"].partition(":")
        sampler_class = getattr(importlib.import_module(module), name)
        spec = samplers.SamplerSpec(head["name"], head["options"])
        self._sampler = samplers.construct(sampler_class, spec)
        columns = samplers.needed_columns(self._sampler)
        traits = protocol.TRAITS.pack(
            protocol.SCOPES.index(samplers.scope_of(self._sampler)),
            bool(getattr(self._sampler, "regroups", False)),
            samplers.needs_observations(self._sampler),
            columns is not None,
        )
        names = protocol.SEPARATOR.join(columns or ()).encode()
        if len(names) > protocol.COLUMNS_BYTES_MAX:
            raise InputError(
                f"expected needs_columns of at most {protocol.COLUMNS_BYTES_MAX:,} bytes together, "
                f"got {len(names):,}"
            )
        return protocol.LOADED, traits + names

    def _sample(self, request: Request) -> tuple[int, bytes]:
        head = self._head(request)
        labels = LabelSet(_schema(head["schema"]), self._table(request.labels_at, request.labels))
        arguments = {"seed": head["seed"]}
        if request.observations:
            arguments["observations"] = self._table(request.observations_at, request.observations)
        mask = np.asarray(getattr(self._sampler, request.operation)(labels, **arguments))
        if mask.dtype != np.bool_ or mask.shape != (len(labels),):
            raise TypeError(
                f"expected the sampler to return {len(labels)} booleans, "
                f"got {mask.dtype} of shape {mask.shape}"
            )
        return protocol.MASK, np.packbits(mask, bitorder="little").tobytes()

    def _head(self, request: Request) -> dict[str, Any]:
        head: dict[str, Any] = json.loads(self._piece(0, request.head).to_pybytes())
        return head

    def _table(self, at: int, size: int) -> pa.Table:
        return pa.ipc.open_stream(self._piece(at, size)).read_all()

    def _piece(self, at: int, size: int) -> pa.Buffer:
        return pa.py_buffer(self._memory(at + size)).slice(at, size)

    def _memory(self, size: int) -> mmap.mmap:
        """The shared memory; mapped anew where it has grown or was given back meanwhile."""
        there = os.fstat(self._config.memory).st_size
        if self._mapped is None or len(self._mapped) != there or there < size:
            self._mapped = mmap.mmap(self._config.memory, there, prot=mmap.PROT_READ)
        return self._mapped


@functools.lru_cache(SCHEMAS_MAX)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)


def _encode_error(error: BaseException) -> bytes:
    """Message and traceback of an error; the frames of this file are left out."""
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    kind = type(error).__name__
    message = str(error) if isinstance(error, InputError) else f"{kind}: {error}"
    lines = traceback.format_exception(type(error), error, inner)
    text = message + protocol.SEPARATOR + "".join(lines)
    return text.encode(errors="replace")[: protocol.TEXT_BYTES_MAX]


class LazyModule(ModuleType):
    """A module that is imported at the first access to an attribute.

    Few samplers need pandas, which takes as long to import as all other modules together.
    """

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def main(config_json: str) -> None:
    """Confines this process, then serves requests until their pipe is closed."""
    sys.modules[LAZY] = LazyModule(LAZY)
    config = WorkerConfig(**json.loads(config_json))
    if config.user is not None:
        confinement.drop_privileges(config.user)
    confinement.confine(config.bounds)
    Worker(config).serve()
