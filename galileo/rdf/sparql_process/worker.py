"""A process that holds a graph, and its forks, which answer SPARQL queries about the graph.

This file is run as a script and imports nothing of Galileo, so that it starts in a few hundredths
of a second. The graph process holds the graph and never evaluates a query. It forks a query
process, which shares the memory of the graph, reads requests and writes replies on the same
standard streams, until it is dismissed or killed. So ending a query costs a fork, not a load.

Before its first query, a query process gives up the right to open files and sockets, so that a
query can reach neither disk nor network. Both processes limit their memory. A timer of the kernel
ends a query that exceeds its time even if the owner of the process does not.

Frames in both directions are 8 bytes of length and the data. A request is a JSON frame, with a
frame of N-Triples for `load`; a reply is a JSON frame and a frame of data (tab-separated values for
solutions, N-Triples for triples). Requests to the graph process:

    load    adds triples
    answer  forks a query process, which replies "ready"

and to the query process:

    query   answers a query
    keep    exits; the graph process reads the next request

SIGUSR1 to the graph process kills its query process. A query process that ends in any other way
than `keep` is followed by a mark: a length that no frame has, its exit status, and the secret with
which the graph process was started, by which the mark is results even within an incomplete frame.
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
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyoxigraph as ox

LENGTH = struct.Struct(">Q")
MARK = struct.Struct(">Qq")
"""`ENDED` in place of a length, and the exit status of the query process."""
ENDED = 2**64 - 1
SECRET_BYTES = 16
STANDARD_STREAMS = 3
PIECE_BYTES = 1 << 20
UNKNOWN_FUNCTION = "The custom function "
"""Beginning of the message of oxigraph's RuntimeError about a function that it does not know."""

Reply = tuple[dict[str, Any], bytes]
Functions = dict[ox.NamedNode, Callable[..., Any]]


class AnswerTooLarge(Exception):
    """An answer has more lines or bytes than the request allows."""


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
        """Does nothing; oxigraph calls it."""

    def value(self) -> bytes:
        return b"".join(self._parts)


# --- frames ----------------------------------------------------------------------------------
# Reads are not buffered: the next frame can be for the other process.


def read_frame(stream: int) -> bytes:
    """The next frame of a file descriptor. Raises EOFError at the end of the stream."""
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
    """Discards the rest of the request of a query process that was killed.

    The owner sends the next request after the mark only.
    """
    while select.select([stream], [], [], 0)[0]:
        if not os.read(stream, PIECE_BYTES):
            return


def write_frames(stream: int, *frames: bytes) -> None:
    """Writes frames: short ones in one call, long ones without copying them."""
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


# --- graph process ------------------------------------------------------------------------------


class GraphProcess:
    """Holds the graph and starts query processes, one at a time."""

    def __init__(self, requests: int, answers: int, *, secret: bytes) -> None:
        self._requests = requests
        self._answers = answers
        self._secret = secret
        self._store = ox.Store()
        self._child = 0

    def serve(self) -> None:
        """Handles requests until the end of their stream."""
        while True:
            try:
                request = json.loads(read_frame(self._requests))
            except EOFError:
                return
            if request["op"] == "load":
                self._load(request)
            elif request["op"] == "answer":
                self._answer(request)
            # Other requests were for a query process that has ended; its mark is the reply.

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Kills the query process; the handler of SIGUSR1."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)

    def _load(self, request: dict[str, Any]) -> None:
        triples = read_frame(self._requests)
        head = {"kind": "loaded"}
        signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
        try:
            # In memory `load` is faster than `bulk_load`. The IRIs are valid already.
            self._store.load(triples, ox.RdfFormat.N_TRIPLES, lenient=True)
        except Exception as error:
            head = _failure(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        write_frames(self._answers, json.dumps(head).encode(), b"")

    def _answer(self, request: dict[str, Any]) -> None:
        """Forks a query process and waits for its end; writes a mark if it was killed."""
        self._child = os.fork()
        if not self._child:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            run_query_process(self._store, self._requests, self._answers, request=request)
        # Reaped after `_child` is reset, so that `interrupt` kills no other process of this pid.
        os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
        child, self._child = self._child, 0
        _, status = os.waitpid(child, 0)
        if status:
            _drain(self._requests)
            code = os.waitstatus_to_exitcode(status)
            _write(self._answers, MARK.pack(ENDED, code) + self._secret)


# --- query process ----------------------------------------------------------------------------


def run_query_process(
    store: ox.Store, requests: int, answers: int, *, request: dict[str, Any]
) -> None:
    """Answers queries, and exits."""
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
    """Prevents new file descriptors; cannot be undone."""
    _lower(resource.RLIMIT_NOFILE, STANDARD_STREAMS)


def _lower(limit: int, bound: int) -> None:
    _, hard = resource.getrlimit(limit)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(limit, (bound, bound))


def _geometry() -> Functions:
    """The functions of `galileo/rdf/geometry.py`; opens files, so call it before `confine`."""
    path = Path(__file__).parent.with_name("geometry.py")
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
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error).startswith(UNKNOWN_FUNCTION):
            return {"error": "unknown", "message": str(error)}, b""
        return _failure(error), b""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _failure(error: Exception) -> dict[str, Any]:
    """The head of a reply about an error for which the caller is not to blame."""
    if isinstance(error, MemoryError):
        return {"error": "memory"}
    return {"error": "internal", "message": "".join(traceback.format_exception(error))}


def _query(store: ox.Store, request: dict[str, Any], functions: Functions) -> Reply:
    results = store.query(
        request["text"], prefixes=request["prefixes"], custom_functions=functions or None
    )
    if isinstance(results, ox.QueryBoolean):
        return {"kind": "boolean", "value": bool(results)}, b""
    header_lines = 1 if isinstance(results, ox.QuerySolutions) else 0
    output = BoundedOutput(
        lines_max=request["rows_max"] + header_lines, bytes_max=request["bytes_max"]
    )
    if isinstance(results, ox.QuerySolutions):
        results.serialize(output, ox.QueryResultsFormat.TSV)  # type: ignore[arg-type]  # duck-typed
        return {"kind": "solutions"}, output.value()
    results.serialize(output, ox.RdfFormat.N_TRIPLES)  # type: ignore[arg-type]  # duck-typed
    return {"kind": "triples"}, output.value()


def main() -> None:
    memory_bytes_max, secret = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_AS, memory_bytes_max)
    graph_process = GraphProcess(sys.stdin.fileno(), sys.stdout.fileno(), secret=secret)
    signal.signal(signal.SIGUSR1, graph_process.interrupt)
    graph_process.serve()


if __name__ == "__main__":
    main()
