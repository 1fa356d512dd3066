"""Shared memory that a node writes and a contained process only reads."""

from __future__ import annotations

import mmap
import os

import pyarrow as pa

from galileo.containment.frames import Operation, Request

KEPT_BYTES = 128 * 2**20
"""Bytes that stay allocated between two calls, which saves the time of allocation."""

COPY_THREADS = 2
"""For columns of more than a megabyte; copying is most of what containment costs."""

_STEP_BYTES = 2**20


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
