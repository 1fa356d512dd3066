"""The node's ends of the connection to a contained process, which is not trusted.

Labels go there through memory that only the node can write; answers come back through a pipe, of
which no more is read than a valid answer can have.
"""

from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from galileo_sandbox import protocol
from galileo_sandbox.protocol import Operation, Request

PRINTED_BYTES_KEPT = 4_096
"""Of what sent code prints in one call: the beginning, for errors."""

DIED = "its process died"
INVALID_RESPONSE = "it wrote into the pipe of its answers"

_CHUNK_BYTES = 65_536
_LOOK_AFTER_MS = 100
KEPT_BYTES = 128 * 2**20
"""Bytes that stay allocated between two calls, which saves the time of allocation."""

COPY_THREADS = 2
"""For columns of more than a megabyte; copying is most of what containment costs."""

_STEP_BYTES = 2**20


class SandboxTerminated(Exception):
    """A contained process has ended or must end; the message is for the author of its sampler.

    Attributes:
        limit: the one of `SandboxLimits` that was reached, if any.
    """

    def __init__(self, message: str, *, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class ResponseReader:
    """Reads answers and what is printed meanwhile, up to their bounds.

    Args:
        answers: descriptor of the pipe of answers.
        printed: descriptor of the pipe for what sent code prints.
        printed_max: bytes that may be printed from one `begin` to the next.
    """

    def __init__(self, answers: int, printed: int, *, printed_max: int) -> None:
        self._answers, self._printed, self._printed_max = answers, printed, printed_max
        self._beginning = bytearray()
        self._count = 0
        self._is_open = True
        self._poll = select.poll()
        for descriptor in (answers, printed):
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)

    def begin(self) -> None:
        """Discards the output of earlier calls.

        Raises:
            SandboxTerminated: the process has answered before any request.
        """
        self._beginning.clear()
        self._count = 0
        if _available(self._answers, 1):
            raise SandboxTerminated(INVALID_RESPONSE)

    def printed(self) -> str:
        """The beginning of what was printed."""
        self._drain()
        return readable(bytes(self._beginning))

    def next(
        self,
        *,
        sizes: Mapping[int, range],
        until: Callable[[], float],
        look: Callable[[], None],
    ) -> tuple[int, bytes]:
        """The next answer, a status and its bytes.

        Args:
            sizes: how many bytes may follow each status that may come.
            until: when to give up, monotonic seconds; called from time to time.
            look: called from time to time; what it raises ends the wait.

        Raises:
            SandboxTerminated: it is no such answer, or the process died.
            TimeoutError: it does not come in time.
        """
        head = self._exactly(protocol.ANSWER.size, until=until, look=look)
        status, size = protocol.ANSWER.unpack(head)
        if status not in sizes or size not in sizes[status]:
            raise SandboxTerminated(INVALID_RESPONSE)
        return status, self._exactly(size, until=until, look=look)

    def _exactly(self, size: int, *, until: Callable[[], float], look: Callable[[], None]) -> bytes:
        """Reads exactly `size` bytes."""
        data = bytearray()
        while len(data) < size:
            left_s = until() - time.monotonic()
            self._poll.poll(min(_LOOK_AFTER_MS, 1000 * max(0.0, left_s) + 1))
            self._drain()
            came = _available(self._answers, size - len(data))
            if came == b"":
                raise SandboxTerminated(DIED)
            data += came or b""
            look()
            # Only now, for what came while this process was stopped came in time.
            if left_s <= 0 and len(data) < size:
                raise TimeoutError
        return bytes(data)

    def _drain(self) -> None:
        while came := _available(self._printed, _CHUNK_BYTES):
            self._count += len(came)
            self._beginning += came[: PRINTED_BYTES_KEPT - len(self._beginning)]
            if self._count > self._printed_max:
                raise SandboxTerminated(
                    f"it printed more than {self._printed_max:,} bytes", limit="output_bytes"
                )
        if came == b"" and self._is_open:
            # Else its end would wake every wait at once.
            self._is_open = False
            self._poll.unregister(self._printed)


def readable(data: bytes, *, keep: str = "") -> str:
    """Text that a terminal shows and does not obey."""
    plain = "\n\t" + keep
    text = data.decode(errors="replace")
    return "".join(
        char if char.isprintable() or char in plain else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def _available(descriptor: int, size: int) -> bytes | None:
    """The available bytes, up to `size`; None without any, empty at the end of the pipe."""
    try:
        return os.read(descriptor, size)
    except BlockingIOError:
        return None


class SharedMemory:
    """An anonymous file in memory; its descriptor `reader` is read-only."""

    def __init__(self) -> None:
        self._file = os.memfd_create("labels", os.MFD_CLOEXEC)
        self.reader = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        self._mapped: mmap.mmap | None = None

    def write(self, operation: Operation, head: bytes, *tables: pa.Table) -> Request:
        """Writes a request's head and tables, each table as an Arrow stream.

        Returns:
            The request, which says where they are.
        """
        sizes = [_size(table) for table in tables]
        request = Request(operation, len(head), *sizes)
        memory = self._grow(request.size)
        memory[: len(head)] = head
        places = (request.labels_at, request.observations_at)
        for table, at, size in zip(tables, places, sizes, strict=False):
            place = memoryview(memory)[at : at + size]
            sink = pa.FixedSizeBufferWriter(pa.py_buffer(place))
            sink.set_memcopy_threads(COPY_THREADS)
            _write(table, sink)
        return request

    def trim(self) -> None:
        """Frees the memory of a large call."""
        if self._mapped is not None and len(self._mapped) > KEPT_BYTES:
            self._mapped = None
            os.ftruncate(self._file, 0)

    def close(self) -> None:
        self._mapped = None
        os.close(self._file)
        os.close(self.reader)

    def _grow(self, size: int) -> mmap.mmap:
        if self._mapped is None or len(self._mapped) < size:
            room = -(-size // _STEP_BYTES) * _STEP_BYTES
            os.ftruncate(self._file, room)
            self._mapped = mmap.mmap(self._file, room)
        return self._mapped


def _size(table: pa.Table) -> int:
    sink = pa.MockOutputStream()
    _write(table, sink)
    size: int = sink.size()
    return size


def _write(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
