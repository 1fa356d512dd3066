"""Readers of GRIB, NetCDF and Zarr in a subprocess (`galileo.formats.reader_worker`).

A process is reused for the next file, since its start takes about as long as reading a small file.
If a process dies or exceeds a timeout, that is an error of the file that it read.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from galileo.errors import InputError, InternalError, by_kind
from galileo.formats.expressions import Name
from galileo.formats.mapping import Mapping
from galileo.formats.reader import Coordinates, Reader
from galileo.formats.reader_worker import DESCRIBED, END, FRAME, REFUSED, TABLE
from galileo.formats.variables import VariableInfo
from galileo.model.feature_metadata import FeatureMetadata

MEMORY_BYTES_MAX = 8 << 30
"""Memory limit of a reader process."""
READ_TIMEOUT_S = 600.0
"""Maximum time between two frames of a reader process."""
ORPHAN_GRACE_S = 5.0
"""Added to the timeout for the worker's own timer, which ends it if this process does not."""
FRAME_BYTES_MAX = 4 << 30
_READ_BYTES = 1 << 20

log = logging.getLogger(__name__)


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
        return lambda path, mapping: _File(self, path, format=format, mapping=mapping).reader()

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


class _File:
    """A file that is read in a subprocess.

    Raises:
        InputError: the file is damaged, or its reader died, timed out or needed too much memory;
            and as the reader of the format.
    """

    def __init__(self, readers: ReaderPool, path: Path, *, format: str, mapping: Mapping) -> None:
        if not path.is_dir():
            path.open("rb").close()
        self._readers = readers
        self._path = path
        facts = {name: value for name, value in asdict(mapping).items() if name != "csv"}
        self._request = {"path": str(path.absolute()), "format": format, "mapping": facts}

    def reader(self) -> Reader:
        process = self._readers.acquire()
        try:
            description = self._open(process)
        finally:
            self._readers.release(process)
        latitude, longitude, time, constant_us = description["coordinates"]
        missing = description["place_error"]
        error = InputError(missing["message"], **missing["details"]) if missing else None
        return Reader(
            Coordinates(Name(latitude), Name(longitude), time, constant_us, error),
            [_info(each) for each in description["variables"]],
            description["rows"],
            self._scan,
            description["others"],
        )

    def _scan(self, names: Sequence[str]) -> Iterator[pa.Table]:
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
        log.error("reading %s failed with an internal error:\n%s", self._path, body.decode())
        raise InternalError(f"reading {self._path} failed with an internal error; the log has it")


def _info(described: dict[str, Any]) -> VariableInfo:
    tuples = ("dims", "aliases", "words")  # JSON has made lists of them.
    about = described["about"]
    about["flags"] = tuple((value, meaning) for value, meaning in about["flags"])
    parts = {name: tuple(described[name]) for name in tuples}
    return VariableInfo(**described | parts | {"about": FeatureMetadata(**about)})


class WorkerDied(Exception):
    """A process ended or timed out; the message becomes part of the error of its file."""


class _Process:
    def __init__(self, memory_bytes_max: int, *, timeout_s: float) -> None:
        # -P keeps the working directory off the path.
        command = [sys.executable, "-P", "-m", "galileo.formats.reader_worker"]
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(timeout_s)
        with theirs:
            self._child = subprocess.Popen(
                [*command, str(memory_bytes_max), str(timeout_s + ORPHAN_GRACE_S)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.is_waiting = False
        self.end: Callable[[], object] = weakref.finalize(self, _end, self._child, self._socket)

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def send(self, request: dict[str, Any]) -> None:
        self.is_waiting = False
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            """`receive` raises for a process that ended or reads nothing."""

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
            try:
                chunk = self._socket.recv(min(_READ_BYTES, size - len(data)))
            except TimeoutError:
                timeout_s = self._socket.gettimeout()
                raise WorkerDied(f"its reader sent nothing for {timeout_s:g} s") from None
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise WorkerDied(
                    f"the process that read it died ({_exit_text(self._child.wait())})"
                )
            data += chunk
        return bytes(data)


def _end(child: subprocess.Popen[bytes], connection: socket.socket) -> None:
    child.kill()
    child.wait()
    connection.close()


def _exit_text(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


def _table(body: bytes) -> pa.Table:
    table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    table.validate(full=True)
    return table
