"""A process that holds one graph and answers SPARQL about it over its standard streams.

It is run as a file, imports nothing of Galileo and is up in a few hundredths of a second.
Before the first query it gives up the right to open files and sockets, so that nothing a
query contains can reach a disk or a network, and bounds its memory. A timer of the kernel
ends it when a query outlives its time, even when its parent is gone.

Frames in both directions: 8 bytes of length, then the bytes. A request is a JSON frame,
followed by one frame of N-Triples where it is a load; every answer is a JSON frame and a frame
of data (tab-separated values for solutions, N-Triples for triples).
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from typing import IO, Any

import pyoxigraph as ox

LENGTH = struct.Struct(">Q")
STANDARD_STREAMS = 3

Reply = tuple[dict[str, Any], bytes]


class AnswerTooLarge(Exception):
    """An answer has more lines or bytes than was asked for."""


class BoundedOutput:
    """Collects what oxigraph writes, up to a number of lines and bytes."""

    def __init__(self, *, lines_max: int, bytes_max: int) -> None:
        self._parts: list[bytes] = []
        self._lines_left = lines_max
        self._bytes_left = bytes_max

    def write(self, data: bytes) -> int:
        self._lines_left -= data.count(b"\n")
        self._bytes_left -= len(data)
        if self._lines_left < 0:
            raise AnswerTooLarge("rows")
        if self._bytes_left < 0:
            raise AnswerTooLarge("bytes")
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back; oxigraph asks all the same."""

    def value(self) -> bytes:
        return b"".join(self._parts)


def read_frame(stream: IO[bytes]) -> bytes:
    """The next frame; `EOFError` where the stream ends."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError("the stream ended")
    (size,) = LENGTH.unpack(head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the stream ended within a frame")
    return data


def write_frames(stream: IO[bytes], *frames: bytes) -> None:
    for frame in frames:
        stream.write(LENGTH.pack(len(frame)))
        stream.write(frame)
    stream.flush()


def confine(*, memory_bytes_max: int) -> None:
    """No new file descriptors, no core files, bounded address space; cannot be undone."""
    _lower(resource.RLIMIT_NOFILE, STANDARD_STREAMS)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_AS, memory_bytes_max)


def _lower(limit: int, bound: int) -> None:
    _, hard = resource.getrlimit(limit)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(limit, (bound, bound))


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answers requests until the stream of them ends."""
    store = ox.Store()
    while True:
        try:
            request = json.loads(read_frame(requests))
        except EOFError:
            return
        triples = read_frame(requests) if request["op"] == "load" else None
        head, data = _answer(store, request, triples)
        write_frames(answers, json.dumps(head).encode(), data)


def _answer(store: ox.Store, request: dict[str, Any], triples: bytes | None) -> Reply:
    signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
    try:
        return _query(store, request) if triples is None else _load(store, triples)
    except SyntaxError as error:
        return {"error": "syntax", "message": str(error)}, b""
    except AnswerTooLarge as error:
        return {"error": "too_large", "message": str(error)}, b""
    except (OSError, ValueError, MemoryError) as error:
        return {"error": "failed", "message": f"{type(error).__name__}: {error}"}, b""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _load(store: ox.Store, triples: bytes) -> Reply:
    # In memory `load` is faster than `bulk_load`. The IRIs were checked where they were made.
    store.load(triples, ox.RdfFormat.N_TRIPLES, lenient=True)
    return {"kind": "loaded"}, b""


def _query(store: ox.Store, request: dict[str, Any]) -> Reply:
    found = store.query(request["text"], prefixes=request["prefixes"])
    if isinstance(found, ox.QueryBoolean):
        return {"kind": "boolean", "value": bool(found)}, b""
    header_lines = 1 if isinstance(found, ox.QuerySolutions) else 0
    output = BoundedOutput(
        lines_max=request["rows_max"] + header_lines, bytes_max=request["bytes_max"]
    )
    if isinstance(found, ox.QuerySolutions):
        found.serialize(output, ox.QueryResultsFormat.TSV)  # type: ignore[arg-type]  # duck-typed
        return {"kind": "solutions"}, output.value()
    found.serialize(output, ox.RdfFormat.N_TRIPLES)  # type: ignore[arg-type]  # duck-typed
    return {"kind": "triples"}, output.value()


def main() -> None:
    (memory_bytes_max,) = map(int, sys.argv[1:])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    confine(memory_bytes_max=memory_bytes_max)
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
