"""Arrow batches through bytes, as tasks of an RDD return them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pyarrow as pa
import pytest

from galileo.spark.rdd_task import ArrowRddTask, to_table

ROWS = pa.schema([pa.field("task", pa.int32()), pa.field("data", pa.binary())])


@dataclass(frozen=True)
class Repeat:
    """As many batches of one row as the task's number."""

    data: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column("id").to_pylist():
                for _ in range(task):
                    columns = [pa.array([task], pa.int32()), pa.array([self.data], pa.binary())]
                    yield pa.RecordBatch.from_arrays(columns, schema=ROWS)


@pytest.mark.parametrize("is_shared", [False, True])
def test_rdd_task_batches_keep_their_order(is_shared: bool) -> None:
    packed = pickle.dumps(Repeat(b"\0x" * 100))
    carried = ArrowRddTask(SimpleNamespace(value=packed) if is_shared else packed)
    pieces = [piece for task in range(4) for piece in carried(iter([task]))]
    assert to_table(pieces, ROWS).to_pydict() == {
        "task": [1, 2, 2, 3, 3, 3],
        "data": [b"\0x" * 100] * 6,
    }


def test_rdd_task_without_batches_is_an_empty_table() -> None:
    assert to_table([], ROWS) == ROWS.empty_table()
    assert list(ArrowRddTask(pickle.dumps(Repeat(b"")))(iter([]))) == []
