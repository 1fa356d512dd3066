"""The worker process that reads GRIB and NetCDF; it may crash, hang or need too much memory.

The C libraries behind both were not written for hostile or damaged files. What becomes of the
process is an error here. It has the rights of who started it: this is no fence around code that
somebody smuggles into a file.

Requests are lines of JSON on standard input; answers are frames, a kind and a length and as many
bytes, on what was standard output. A timer of the kernel ends a process that is silent for too long
over a file, even where nobody is there any more to do so.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from galileo.errors import GalileoError
from galileo.formats.grib import open_grib
from galileo.formats.mapping import Mapping as FileMapping
from galileo.formats.netcdf import open_netcdf
from galileo.formats.reader import Reader

DESCRIBED, TABLE, END, REFUSED, FAILED = range(5)
"""Kinds of frames. Refused: an error about the file; failed: one that must not happen."""
FRAME = struct.Struct("<BQ")
_OPENERS: Mapping[str, Callable[[Path, FileMapping], Reader]] = {
    "grib": open_grib,
    "netcdf": open_netcdf,
}


class FrameWriter:
    """Sends frames. Whoever reads them may take their time; who makes them may not."""

    def __init__(self, file: BinaryIO, *, silence_max_s: float) -> None:
        self._file = file
        self._silence_max_s = silence_max_s

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within, each answer has to come in time."""
        signal.setitimer(signal.ITIMER_REAL, self._silence_max_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def send(self, kind: int, body: bytes | memoryview) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._file.write(FRAME.pack(kind, len(body)))
        view = memoryview(body)
        while len(view):
            view = view[self._file.write(view) or 0 :]
        signal.setitimer(signal.ITIMER_REAL, self._silence_max_s)


def main() -> None:
    memory_bytes, silence_max_s = int(sys.argv[1]), float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The libraries may print, and must not print into the frames.
    file = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    answers = FrameWriter(file, silence_max_s=silence_max_s)
    reader: Reader | None = None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        with answers.at_work():
            try:
                if "path" in request:
                    reader = None
                    reader = _opened(request)
                    answers.send(DESCRIBED, _description(reader))
                elif reader is not None:
                    _send_tables(answers, reader, request["names"])
            except MemoryError:
                text = f"reading it takes more than {memory_bytes >> 20:,} MB of memory"
                answers.send(REFUSED, json.dumps({"kind": "", "message": text}).encode())
            except GalileoError as error:
                told = {"kind": error.kind, "message": error.message, "details": error.details}
                answers.send(REFUSED, json.dumps(told, default=str).encode())
            except Exception:
                answers.send(FAILED, traceback.format_exc().encode())


def _opened(request: dict[str, Any]) -> Reader:
    raw = request["mapping"]
    for name in ("features", "missing"):
        raw[name] = tuple(tuple(pair) for pair in raw[name])
    return _OPENERS[request["format"]](Path(request["path"]), FileMapping(**raw))


def _description(reader: Reader) -> bytes:
    variables = [asdict(one) for one in reader.variables()]
    coordinates = [asdict(one) for one in reader.coordinate_variables()]
    described = {"rows": reader.rows, "variables": variables, "coordinates": coordinates}
    return json.dumps(described).encode()


def _send_tables(answers: FrameWriter, reader: Reader, names: list[str]) -> None:
    for table in reader.tables(names):
        sink = io.BytesIO()
        stream = pa.ipc.new_stream(sink, table.schema)
        stream.write_table(table)  # Out of memory, it could not be closed, and would hide why.
        stream.close()
        answers.send(TABLE, sink.getbuffer())
    answers.send(END, b"")


if __name__ == "__main__":
    main()
