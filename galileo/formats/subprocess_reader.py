"""Readers of GRIB and NetCDF files in a subprocess (`galileo.formats.reader_worker`).

A process is reused for the next file, since its start takes about as long as reading a small file.
If a process dies or exceeds a timeout, that is an error of the file that it read.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from galileo.errors import InputError, InternalError, by_kind
from galileo.formats.mapping import Mapping
from galileo.formats.reader import Reader
from galileo.formats.reader_worker import DESCRIBED, END, FRAME, REFUSED, TABLE
from galileo.formats.variables import VariableInfo

MEMORY_BYTES_MAX = 8 << 30
"""Memory limit of a reader process."""
READ_TIMEOUT_S = 600.0
"""Maximum time between two frames of a reader process."""
ORPHAN_GRACE_S = 5.0
"""Added to the timeout for the worker's own timer, which ends it if this process does not."""
FRAME_BYTES_MAX = 4 << 30
_READ_BYTES = 1 << 20


class ReaderPool:
    """The reader processes of this process; thread-safe.

    Args:
        memory_bytes_max: of each process.
        timeout_s: see `READ_TIMEOUT_S`.
    """

    def __init__(
        self,
        *,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: _Process | None = None

    def opener(self, format: str) -> Callable[[Path, Mapping], Reader]:
        """A function that opens files of a format."""
        return lambda path, mapping: SubprocessReader(self, path, format=format, mapping=mapping)

    def acquire(self) -> _Process:
        """An idle process, or a new one."""
        with self._lock:
            process, self._idle = self._idle, None
        if process is not None and process.is_alive:
            return process
        return _Process(self._memory_bytes_max, timeout_s=self._timeout_s)

    def release(self, process: _Process) -> None:
        """Keeps one idle process for the next file, and ends others and busy ones."""
        with self._lock:
            if self._idle is None and process.is_waiting:
                self._idle = process
                return
        process.end()


class SubprocessReader:
    """A `Reader` that runs in a subprocess.

    Raises:
        InputError: the file is damaged, or its reader died, timed out or needed too much memory;
            and as the reader of the format.
    """

    def __init__(self, readers: ReaderPool, path: Path, *, format: str, mapping: Mapping) -> None:
        path.open("rb").close()
        self._readers = readers
        self._path = path
        facts = {name: value for name, value in asdict(mapping).items() if name != "csv"}
        self._request = {"path": str(path), "format": format, "mapping": facts}
        process = readers.acquire()
        try:
            description = self._open(process)
        finally:
            readers.release(process)
        self.rows: int | None = description["rows"]
        self.others: list[str] = description["others"]
        self._variables = [_info(each) for each in description["variables"]]
        self._coordinates = [_info(each) for each in description["coordinates"]]

    def variables(self) -> Sequence[VariableInfo]:
        return self._variables

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        return self._coordinates

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        process = self._readers.acquire()
        try:
            # The process can have another file open.
            self._open(process)
            process.send({"names": list(names)})
            while (body := self._receive(process, TABLE, END)) is not None:
                yield _table(body)
        finally:
            self._readers.release(process)

    def _open(self, process: _Process) -> dict[str, Any]:
        process.send(self._request)
        description: dict[str, Any] = json.loads(
            self._receive(process, DESCRIBED, DESCRIBED) or b""
        )
        return description

    def _receive(self, process: _Process, wanted: int, last: int) -> bytes | None:
        """The body of the next frame of kind `wanted`; None at a frame of kind `last`."""
        try:
            kind, body = process.receive()
        except WorkerDied as error:
            raise InputError(
                f"{self._path} cannot be read: {error}. The file is damaged, or the library of "
                "its format does not support it; check or replace it",
                expected="readable_file",
            ) from None
        if kind == wanted:
            return body
        if kind == last:
            return None
        if kind == REFUSED:
            refusal = json.loads(body)
            if not refusal["kind"]:
                raise InputError(
                    f"{self._path} cannot be read: {refusal['message']}", expected="readable_file"
                )
            cls = by_kind().get(refusal["kind"], InputError)
            raise cls(refusal["message"], **refusal["details"])
        raise InternalError(f"reading {self._path} failed with an internal error: {body.decode()}")


def _info(described: dict[str, Any]) -> VariableInfo:
    tuples = ("dims", "aliases", "words")  # JSON has made lists of them.
    return VariableInfo(**described | {name: tuple(described[name]) for name in tuples})


class WorkerDied(Exception):
    """A process ended or timed out; the message becomes part of the error of its file."""


class _Process:
    def __init__(self, memory_bytes_max: int, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # -P keeps the working directory off the path.
        command = [sys.executable, "-P", "-m", "galileo.formats.reader_worker"]
        self._child = subprocess.Popen(
            [*command, str(memory_bytes_max), str(timeout_s + ORPHAN_GRACE_S)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._child.stdin is not None, "stdin and stdout are pipes"
        assert self._child.stdout is not None, "stdin and stdout are pipes"
        self._requests, self._answers = self._child.stdin, self._child.stdout
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self.is_waiting = False
        self.end: Callable[[], object] = weakref.finalize(self, _end, self._child)

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def send(self, request: dict[str, Any]) -> None:
        self.is_waiting = False
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            """`receive` raises for a process that ended."""

    def receive(self) -> tuple[int, bytes]:
        """Kind and body of the next frame.

        Raises:
            WorkerDied: the process ended, timed out, or sent an invalid frame.
        """
        kind, size = FRAME.unpack(self._read(FRAME.size))
        if size > FRAME_BYTES_MAX:
            raise WorkerDied(f"its reader sent a frame of {size:,} bytes")
        body = self._read(size)
        self.is_waiting = kind != TABLE
        return kind, body

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            until = time.monotonic() + self._timeout_s
            while not self._poll.poll(1e3 * max(0.0, until - time.monotonic())):
                if time.monotonic() >= until:
                    raise WorkerDied(f"its reader sent nothing for {self._timeout_s:g} s")
            chunk = os.read(self._answers.fileno(), min(_READ_BYTES, size - len(data)))
            if not chunk:
                raise WorkerDied(
                    f"the process that read it died ({_exit_text(self._child.wait())})"
                )
            data += chunk
        return bytes(data)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def _exit_text(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


def _table(body: bytes) -> pa.Table:
    table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    table.validate(full=True)
    return table
