"""How a function of Arrow batches runs over an RDD, and how its batches come back.

A plan of Spark SQL costs more to make, to analyse and to fetch than a tick's work; the same tasks
of an RDD take half the time (`docs/spark.md`). Free of PySpark, since workers import it.
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
    """Something large that Spark brings to each worker once: a broadcast."""

    @property
    def value(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Carried:
    """The function of `mapPartitions` for a pickled one of `mapInArrow`."""

    packed: bytes | Shared

    def __call__(self, numbers: Iterator[int]) -> Iterator[bytes]:
        packed = self.packed if isinstance(self.packed, bytes) else self.packed.value
        function: TaskFunction = pickle.loads(packed)
        for number in numbers:
            column = pa.array([number], _NUMBER.field(0).type)
            batch = pa.RecordBatch.from_arrays([column], schema=_NUMBER)
            for found in function(iter([batch])):
                yield _to_bytes(found)


def joined(pieces: Sequence[bytes], row_schema: pa.Schema) -> pa.Table:
    """What all tasks yielded; its memory is that of the pieces."""
    batches = [batch for piece in pieces for batch in pa.ipc.open_stream(piece)]
    return pa.Table.from_batches(batches, row_schema)


def _to_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found
