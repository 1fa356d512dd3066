from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from fault_injection.ledger import Audit, Ledger, numbered, numbered_schema
from fault_injection.stream import RETRIES_TOGETHER, Stream, StreamOptions
from waiting import wait_until

from galileo.errors import InvalidObservations, Unavailable


class Recorder:
    """Takes what is ingested, or refuses it."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.refuses = False

    def ingest(self, dataset: str, table: pa.Table) -> Recorder:
        if self.refuses:
            raise Unavailable("no node is reachable")
        self.tables.append(table)
        return self

    @property
    def rows(self) -> int:
        return self.tables[-1].num_rows


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def ledger(recorder: Recorder) -> Ledger:
    """Three batches acknowledged, and one in doubt that is not there."""
    made = Ledger("numbered", rows=10)
    for _ in range(3):
        made.send(recorder)  # type: ignore[arg-type]
    recorder.refuses = True
    with pytest.raises(Unavailable):
        made.send(recorder)  # type: ignore[arg-type]
    return made


SOUND = Audit(acknowledged=30, doubtful=10, found=30, lost=0, repeated=0, altered=0, foreign=0)


def test_numbered_observations_fit_schema_and_repeat() -> None:
    schema = numbered_schema("numbered")
    table = numbered(30, 1_000)
    assert set(schema.observation_schema.names) == set(table.column_names)
    assert table.slice(5, 7).equals(numbered(35, 7))
    assert np.ptp(table.column("latitude").to_numpy()) > 100
    assert len(np.unique(table.column("longitude").to_numpy())) > 900


def test_ledger_acknowledged_rows_found_is_clean(ledger: Ledger, recorder: Recorder) -> None:
    found = ledger.compare(pa.concat_tables(recorder.tables))
    assert found == SOUND
    assert found.clean
    assert ledger.acknowledged == 30


def test_ledger_doubtful_batch_in_part_is_clean(ledger: Ledger, recorder: Recorder) -> None:
    found = ledger.compare(pa.concat_tables([*recorder.tables, numbered(30, 4)]))
    assert found == replace(SOUND, found=34)
    assert found.clean


@pytest.mark.parametrize(
    ("keep", "more", "expected"),
    [
        (slice(0, 29), [], replace(SOUND, found=29, lost=1)),
        (slice(0, 30), [(12, 2)], replace(SOUND, found=32, repeated=2)),
        (slice(0, 30), [(30, 2), (30, 1)], replace(SOUND, found=33, repeated=1)),
        (slice(0, 30), [(40, 3)], replace(SOUND, found=33, foreign=3)),
        (slice(5, 30), [(9, 1)], replace(SOUND, found=26, lost=5, repeated=1)),
    ],
)
def test_ledger_any_difference_is_counted(
    ledger: Ledger, recorder: Recorder, keep: slice, more: list[tuple[int, int]], expected: Audit
) -> None:
    whole = pa.concat_tables(recorder.tables)
    kept = whole.slice(keep.start, keep.stop - keep.start)
    found = ledger.compare(pa.concat_tables([kept, *(numbered(*one) for one in more)]))
    assert found == expected
    assert not found.clean


@pytest.mark.parametrize("name", ["latitude", "longitude", "time", "temperature"])
def test_ledger_altered_value_is_counted(ledger: Ledger, recorder: Recorder, name: str) -> None:
    whole = pa.concat_tables(recorder.tables)
    values = whole.column(name).cast(pa.int64() if name == "time" else pa.float64()).to_pylist()
    values[7] += 1
    column = pa.array(values).cast(whole.schema.field(name).type)
    place = whole.schema.get_field_index(name)
    assert ledger.compare(whole.set_column(place, name, column)) == replace(SOUND, altered=1)


# --- testing stream ------------------------------------------------------------------------------


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
