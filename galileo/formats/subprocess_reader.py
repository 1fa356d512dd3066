"""Readers of GRIB and NetCDF files that run in a subprocess (`galileo.formats.reader_worker`).

A process that has read a file waits for the next one, since to start it takes about as long as to
read a small file. What kills it, or makes it silent, is an error about the file that it read.
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
"""Of the process that reads."""
READ_TIMEOUT_S = 600.0
"""A file of which nothing has come for so long is given up."""
ORPHAN_GRACE_S = 5.0
"""How much longer a process is silent that nobody is there to end."""
FRAME_BYTES_MAX = 4 << 30
_READ_BYTES = 1 << 20


class ReaderPool:
    """The processes that read files for this one; for any thread.

    Args:
        memory_bytes_max: of each of them.
        silence_max_s: as the constant.
    """

    def __init__(
        self,
        *,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        silence_max_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._silence_max_s = silence_max_s
        self._changing = threading.Lock()
        self._idle: _Process | None = None

    def opener(self, format: str) -> Callable[[Path, Mapping], Reader]:
        """Opens files of one format."""
        return lambda path, mapping: SubprocessReader(self, path, format=format, mapping=mapping)

    def take(self) -> _Process:
        """A process that waits for a request."""
        with self._changing:
            found, self._idle = self._idle, None
        if found is not None and found.is_alive:
            return found
        return _Process(self._memory_bytes_max, silence_max_s=self._silence_max_s)

    def give_back(self, process: _Process) -> None:
        """Keeps it for the next file; not a second one, and none that is still at work."""
        with self._changing:
            if self._idle is None and process.is_waiting:
                self._idle = process
                return
        process.end()


class SubprocessReader:
    """A `Reader` whose work is done elsewhere.

    Raises:
        InputError: the file is damaged, or its reader died of it, fell silent, or needed too much
            memory; and what else it refused, as the format's own reader does.
    """

    def __init__(self, readers: ReaderPool, path: Path, *, format: str, mapping: Mapping) -> None:
        path.open("rb").close()
        self._readers = readers
        self._path = path
        self._request = {"path": str(path), "format": format, "mapping": asdict(mapping)}
        process = readers.take()
        try:
            self._described = self._open(process)
        finally:
            readers.give_back(process)

    @property
    def rows(self) -> int | None:
        rows: int | None = self._described["rows"]
        return rows

    def variables(self) -> Sequence[VariableInfo]:
        return self._infos("variables")

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        return self._infos("coordinates")

    def _infos(self, which: str) -> list[VariableInfo]:
        return [
            VariableInfo(**one | {"dims": tuple(one["dims"]), "aliases": tuple(one["aliases"])})
            for one in self._described[which]
        ]

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        process = self._readers.take()
        try:
            # Another file may have been read meanwhile; to open it again says what it said before.
            self._open(process)
            process.ask({"names": list(names)})
            while (body := self._answer(process, TABLE, END)) is not None:
                yield _table(body)
        finally:
            self._readers.give_back(process)

    def _open(self, process: _Process) -> dict[str, Any]:
        process.ask(self._request)
        described: dict[str, Any] = json.loads(self._answer(process, DESCRIBED, DESCRIBED) or b"")
        return described

    def _answer(self, process: _Process, wanted: int, last: int) -> bytes | None:
        """The body of the next frame; None where it is the last one and another one is wanted."""
        try:
            kind, body = process.answer()
        except WorkerDied as lost:
            raise InputError(
                f"{self._path} cannot be read: {lost}. It is damaged, or of a kind that the "
                "library behind its format does not stand; check or replace it"
            ) from None
        if kind == wanted:
            return body
        if kind == last:
            return None
        if kind == REFUSED:
            told = json.loads(body)
            if not told["kind"]:
                raise InputError(f"{self._path} cannot be read: {told['message']}")
            raise by_kind().get(told["kind"], InputError)(told["message"], **told["details"])
        raise InternalError(f"reading {self._path} failed with an internal error: {body.decode()}")


class WorkerDied(Exception):
    """What became of a process; the message says so to who brought the file."""


class _Process:
    def __init__(self, memory_bytes_max: int, *, silence_max_s: float) -> None:
        self._silence_max_s = silence_max_s
        # -P keeps the directory that somebody works in off the path.
        command = [sys.executable, "-P", "-m", "galileo.formats.reader_worker"]
        self._child = subprocess.Popen(
            [*command, str(memory_bytes_max), str(silence_max_s + ORPHAN_GRACE_S)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._child.stdin is not None, "a pipe was asked for"
        assert self._child.stdout is not None, "a pipe was asked for"
        self._requests, self._answers = self._child.stdin, self._child.stdout
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self.is_waiting = False
        self.end: Callable[[], object] = weakref.finalize(self, _end, self._child)

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def ask(self, request: dict[str, Any]) -> None:
        self.is_waiting = False
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            """What became of it is told with the answer that does not come."""

    def answer(self) -> tuple[int, bytes]:
        """Kind and body of the next frame.

        Raises:
            WorkerDied: there will be none.
        """
        kind, size = FRAME.unpack(self._exactly(FRAME.size))
        if size > FRAME_BYTES_MAX:
            raise WorkerDied(f"its reader answered with {size:,} bytes at a time")
        body = self._exactly(size)
        self.is_waiting = kind != TABLE
        return kind, body

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            until = time.monotonic() + self._silence_max_s
            while not self._poll.poll(1e3 * max(0.0, until - time.monotonic())):
                if time.monotonic() >= until:
                    raise WorkerDied(f"nothing has come of it for {self._silence_max_s:g} s")
            came = os.read(self._answers.fileno(), min(_READ_BYTES, size - len(data)))
            if not came:
                raise WorkerDied(f"the process that read it died ({_death(self._child.wait())})")
            data += came
        return bytes(data)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def _death(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


def _table(body: bytes) -> pa.Table:
    table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    table.validate(full=True)
    return table
