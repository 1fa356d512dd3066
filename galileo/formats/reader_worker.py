"""The worker process that reads GRIB, NetCDF and Zarr; it can crash, hang or run out of memory.

The C libraries of these formats are not written for hostile or damaged files, so the parent turns
the end of this process into an error. The process has the rights of its user: it is no sandbox for
code that a file exploits a library to run.

Requests are lines of JSON on standard input; answers are frames of kind, length and body on the
original standard output. A timer of the kernel ends a process that sends nothing for too long, even
if its parent has ended.
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
from galileo.formats.grid_options import GridOptions
from galileo.formats.mapping import Mapping as FileMapping
from galileo.formats.netcdf import open_netcdf
from galileo.formats.reader import Reader
from galileo.formats.zarr import open_zarr

DESCRIBED, TABLE, END, REFUSED, FAILED = range(5)
"""Kinds of frames. REFUSED: an error of the file; FAILED: an internal error."""
FRAME = struct.Struct("<BQ")
_OPENERS: Mapping[str, Callable[[Path, FileMapping], Reader]] = {
    "grib": open_grib,
    "netcdf": open_netcdf,
    "zarr": open_zarr,
}


class FrameWriter:
    """Sends frames. The timer runs while a frame is made, and not while the parent reads it."""

    def __init__(self, file: BinaryIO, *, timeout_s: float) -> None:
        self._file = file
        self._timeout_s = timeout_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Ends the process if a frame takes longer than the timeout within the block."""
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
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
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)


def main() -> None:
    memory_bytes, timeout_s = int(sys.argv[1]), float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What libraries print must not mix with the frames.
    file = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    answers = FrameWriter(file, timeout_s=timeout_s)
    reader: Reader | None = None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        with answers.timed():
            try:
                if "path" in request:
                    reader = None
                    reader = _open(request)
                    answers.send(DESCRIBED, _description(reader))
                elif reader is not None:
                    _send_tables(answers, reader, request["names"])
            except MemoryError:
                text = f"reading it takes more than {memory_bytes >> 20:,} MB of memory"
                answers.send(REFUSED, json.dumps({"kind": "", "message": text}).encode())
            except GalileoError as error:
                answers.send(REFUSED, json.dumps(_facts(error), default=str).encode())
            except Exception:
                answers.send(FAILED, traceback.format_exc().encode())


def _open(request: dict[str, Any]) -> Reader:
    raw = request["mapping"]
    for name in ("features", "missing"):
        raw[name] = tuple(tuple(pair) for pair in raw[name])
    raw["grid"] = GridOptions(**raw["grid"])
    return _OPENERS[request["format"]](Path(request["path"]), FileMapping(**raw))


def _description(reader: Reader) -> bytes:
    where = reader.coordinates
    described = {
        "rows": reader.rows,
        "variables": [asdict(info) for info in reader.infos],
        "coordinates": [str(where.latitude), str(where.longitude), where.time, where.constant_us],
        "place_error": _facts(where.error) if where.error else None,
        "others": list(reader.others),
    }
    return json.dumps(described, default=str).encode()


def _facts(error: GalileoError) -> dict[str, Any]:
    return {"kind": error.kind, "message": error.message, "details": error.details}


def _send_tables(answers: FrameWriter, reader: Reader, names: list[str]) -> None:
    for table in reader.scan(names):
        sink = io.BytesIO()
        stream = pa.ipc.new_stream(sink, table.schema)
        stream.write_table(table)  # Not in a `with`: after a MemoryError, closing would fail, too.
        stream.close()
        answers.send(TABLE, sink.getbuffer())
    answers.send(END, b"")


if __name__ == "__main__":
    main()
