"""A process that holds one graph, and children of it that answer SPARQL about the graph.

It is run as a file, imports nothing of Galileo and is up in a few hundredths of a second. The
keeper holds the graph and never evaluates a query. For that it forks an answerer, which shares
the graph's memory, reads requests and writes answers on the same standard streams, and stays
until it is told to leave or is ended. So a query that is cut costs a fork, not another load.

Before its first query an answerer gives up the right to open files and sockets, so that nothing
a query contains can reach a disk or a network. Both bound their memory. A timer of the kernel
ends a query that outlives its time, even when nobody is there to do so.

Frames in both directions: 8 bytes of length, then the bytes. A request is a JSON frame,
followed by one frame of N-Triples where it is a load; every answer is a JSON frame and a frame
of data (tab-separated values for solutions, N-Triples for triples). To the keeper:

    load    adds triples
    answer  forks an answerer, which says "ready"

and to the answerer:

    query   answers it
    keep    leaves; what comes next is for the keeper

SIGUSR1 to the keeper ends its answerer. An answerer that ends unasked leaves a mark in the place
of its answer: a length that no frame has, how it ended, and the secret that the keeper was
started with, by which the mark is found even in the middle of a broken frame.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import select
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyoxigraph as ox

LENGTH = struct.Struct(">Q")
MARK = struct.Struct(">Qq")
"""`ENDED` in the place of a length, and the status with which the answerer ended."""
ENDED = 2**64 - 1
SECRET_BYTES = 16
STANDARD_STREAMS = 3
PIECE_BYTES = 1 << 20

Reply = tuple[dict[str, Any], bytes]
Functions = dict[ox.NamedNode, Callable[..., Any]]


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


# --- frames ----------------------------------------------------------------------------------
# Read without a buffer: what is not asked for belongs to whichever process reads next.


def read_frame(stream: int) -> bytes:
    """The next frame of a file descriptor; `EOFError` where the stream ends."""
    (size,) = LENGTH.unpack(_read(stream, LENGTH.size))
    return _read(stream, size)


def _read(stream: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        data = os.read(stream, min(size, PIECE_BYTES))
        if not data:
            raise EOFError("the stream ended")
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _drain(stream: int) -> None:
    """Drops what an answerer that was ended has not read, or only in part, of its request.

    Nobody sends another one before the mark says that it ended.
    """
    while select.select([stream], [], [], 0)[0]:
        if not os.read(stream, PIECE_BYTES):
            return


def write_frames(stream: int, *frames: bytes) -> None:
    """Short frames together, long ones without another copy of them."""
    heads = [LENGTH.pack(len(frame)) for frame in frames]
    if sum(map(len, frames)) < PIECE_BYTES:
        _write(stream, b"".join(part for pair in zip(heads, frames, strict=True) for part in pair))
        return
    for head, frame in zip(heads, frames, strict=True):
        _write(stream, head)
        _write(stream, frame)


def _write(stream: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(stream, rest) :]


# --- the keeper ------------------------------------------------------------------------------


class GraphProcess:
    """Holds the graph, and the process that answers about it, while there is one."""

    def __init__(self, requests: int, answers: int, *, secret: bytes) -> None:
        self._requests = requests
        self._answers = answers
        self._secret = secret
        self._store = ox.Store()
        self._child = 0

    def serve(self) -> None:
        """Obeys requests until the stream of them ends."""
        while True:
            try:
                request = json.loads(read_frame(self._requests))
            except EOFError:
                return
            if request["op"] == "load":
                self._load(request)
            elif request["op"] == "answer":
                self._answer(request)
            # Anything else was meant for an answerer that has ended; its mark is the answer.

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ends the answerer; its place is free as long as nobody waited for it."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)

    def _load(self, request: dict[str, Any]) -> None:
        triples = read_frame(self._requests)
        head = {"kind": "loaded"}
        signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
        try:
            # In memory `load` is faster than `bulk_load`. The IRIs were checked where they
            # were made.
            self._store.load(triples, ox.RdfFormat.N_TRIPLES, lenient=True)
        except (SyntaxError, OSError, ValueError, MemoryError) as error:
            head = {"error": "failed", "message": f"{type(error).__name__}: {error}"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        write_frames(self._answers, json.dumps(head).encode(), b"")

    def _answer(self, request: dict[str, Any]) -> None:
        """Lets a child answer until it leaves; where it ended otherwise, says so in its place."""
        self._child = os.fork()
        if not self._child:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            run_query_process(self._store, self._requests, self._answers, request=request)
        # Not reaped before it is forgotten, so that its number cannot be another process's.
        os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
        child, self._child = self._child, 0
        _, status = os.waitpid(child, 0)
        if status:
            _drain(self._requests)
            code = os.waitstatus_to_exitcode(status)
            _write(self._answers, MARK.pack(ENDED, code) + self._secret)


# --- the answerer ----------------------------------------------------------------------------


def run_query_process(
    store: ox.Store, requests: int, answers: int, *, request: dict[str, Any]
) -> None:
    """Answers queries, and ends the process."""
    status = 1
    try:
        functions = _geometry() if request["geometry"] else {}
        confine()
        write_frames(answers, b'{"kind": "ready"}', b"")
        status = _answer_all(store, requests, answers, functions=functions)
    except EOFError:
        status = 0
    finally:
        os._exit(status)


def confine() -> None:
    """No new file descriptors; cannot be undone."""
    _lower(resource.RLIMIT_NOFILE, STANDARD_STREAMS)


def _lower(limit: int, bound: int) -> None:
    _, hard = resource.getrlimit(limit)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(limit, (bound, bound))


def _geometry() -> Functions:
    """The functions of `geometry`, the file beside this one; needs files, so before `confine`."""
    path = Path(__file__).with_name("geometry.py")
    spec = importlib.util.spec_from_file_location("geometry", path)
    assert spec is not None, "a file of this package"
    assert spec.loader is not None, "a file of this package"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions: Functions = module.FUNCTIONS
    return functions


def _answer_all(store: ox.Store, requests: int, answers: int, *, functions: Functions) -> int:
    while True:
        request = json.loads(read_frame(requests))
        if request["op"] == "keep":
            write_frames(answers, b'{"kind": "kept"}', b"")
            return 0
        head, data = _reply(store, request, functions)
        write_frames(answers, json.dumps(head).encode(), data)


def _reply(store: ox.Store, request: dict[str, Any], functions: Functions) -> Reply:
    signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
    try:
        return _query(store, request, functions)
    except SyntaxError as error:
        return {"error": "syntax", "message": str(error)}, b""
    except AnswerTooLarge as error:
        return {"error": "too_large", "message": str(error)}, b""
    except RuntimeError as error:  # a function that nobody knows
        return {"error": "unknown", "message": str(error)}, b""
    except (OSError, ValueError, MemoryError) as error:
        return {"error": "failed", "message": f"{type(error).__name__}: {error}"}, b""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _query(store: ox.Store, request: dict[str, Any], functions: Functions) -> Reply:
    found = store.query(
        request["text"], prefixes=request["prefixes"], custom_functions=functions or None
    )
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
    memory_bytes_max, secret = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_AS, memory_bytes_max)
    keeper = GraphProcess(sys.stdin.fileno(), sys.stdout.fileno(), secret=secret)
    signal.signal(signal.SIGUSR1, keeper.interrupt)
    keeper.serve()


if __name__ == "__main__":
    main()
