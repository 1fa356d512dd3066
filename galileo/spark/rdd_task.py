"""Runs a function of Arrow batches over an RDD, and collects its batches.

A plan of Spark SQL costs more to make, analyse and fetch than the work of a cycle; the same tasks
of an RDD take half the time (`docs/spark.md`). Does not import PySpark, since workers import it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]
TaskFunction = Callable[[Batches], Batches]

_NUMBER = pa.schema([pa.field("id", pa.int64())])


class Shared(Protocol):
    """A broadcast variable, which Spark sends to each worker once."""

    @property
    def value(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ArrowRddTask:
    """A function for `mapPartitions` that calls a pickled function of `mapInArrow`."""

    pickled: bytes | Shared

    def __call__(self, numbers: Iterator[int]) -> Iterator[bytes]:
        pickled = self.pickled if isinstance(self.pickled, bytes) else self.pickled.value
        function: TaskFunction = pickle.loads(pickled)
        for number in numbers:
            column = pa.array([number], _NUMBER.field(0).type)
            batch = pa.RecordBatch.from_arrays([column], schema=_NUMBER)
            yield from map(_to_ipc, function(iter([batch])))


def to_table(streams: Sequence[bytes], row_schema: pa.Schema) -> pa.Table:
    """A table of the Arrow streams of all tasks, without copying."""
    batches = [batch for stream in streams for batch in pa.ipc.open_stream(stream)]
    return pa.Table.from_batches(batches, row_schema)


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
