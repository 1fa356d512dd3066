from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from expected_errors import raises
from fault_injection.stream import RETRIES_TOGETHER, Stream, StreamOptions
from waiting import wait_until

from galileo.errors import InvalidObservations, Unavailable

FAST = StreamOptions(rows=10, pause_s=0.001)


class Node:
    """Stores what it is sent, by producer; refuses everything while it is down."""

    def __init__(self) -> None:
        self.down = threading.Event()
        self.stored: dict[str, pa.Table] = {}
        self.refused: list[str] = []

    def ingest(self, dataset: str, table: pa.Table, *, producer: str) -> Any:
        assert dataset == "numbered"
        if self.down.is_set():
            self.refused.append(producer)
            raise Unavailable("down")
        assert producer not in self.stored
        self.stored[producer] = table
        return SimpleNamespace(rows=table.num_rows)

    def numbers(self) -> list[int]:
        return sorted(pa.concat_tables(self.stored.values()).column("number").to_pylist())


def test_stream_refused_batch_is_resent_and_stored_once() -> None:
    node = Node()
    stream = Stream(node, "numbered", FAST)  # type: ignore[arg-type]
    stream.start()
    wait_until(lambda: len(node.stored) > 3, what="some batches")
    node.down.set()
    wait_until(lambda: len(set(node.refused)) > RETRIES_TOGETHER, what="some refusals")
    node.down.clear()
    stream.finish()
    assert node.numbers() == list(range(stream.sent))
    assert stream.retried == len(node.refused)
    assert set(node.refused) <= set(node.stored)


def test_stream_rejected_batch_raises_its_error() -> None:
    class Strict(Node):
        def ingest(self, dataset: str, table: pa.Table, *, producer: str) -> Any:
            raise InvalidObservations("latitude 91")

    stream = Stream(Strict(), "numbered", FAST)  # type: ignore[arg-type]
    stream.start()
    wait_until(lambda: stream.failure is not None, what="the failure")
    with raises(InvalidObservations):
        stream.finish()
