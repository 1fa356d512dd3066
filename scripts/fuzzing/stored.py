"""Files of a node: segments as they are read at its start, and records."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from fuzzing.files import scratch
from fuzzing.targets import Target
from galileo.errors import CorruptData
from galileo.model import paths as model_paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.storage.disk import REAL_DISK
from galileo.storage.journal import Commit, PartitionJournal
from galileo.storage.metadata_files import MetadataFiles
from galileo.storage.metadata_log import MetadataLog
from galileo.storage.recovery import SegmentScan, scan
from galileo.storage.segment import segment_name
from galileo.storage.writer import JournalOptions

SCHEMA = Schema("nam", [Feature("temperature", "K")], geohash_precision=4)
COMMITS = 3
RELAXED = JournalOptions(durability="none")


def _commit(batch: int) -> Commit:
    rng = np.random.default_rng(batch)
    table = pa.table(
        [
            pa.array(np.round(rng.uniform(30, 50, 2), 3)),
            pa.array(np.round(rng.uniform(-120, -80, 2), 3)),
            pa.array([0, 3_600_000_000], pa.int64()).cast(TIME_TYPE),
            pa.array(np.round(rng.uniform(250, 310, 2), 1)),
        ],
        schema=SCHEMA.observation_schema,
    )
    return Commit("radar", batch, *model_paths.index(SCHEMA, table))


@functools.cache
def _written() -> tuple[bytes, tuple[pa.RecordBatch, ...]]:
    """A segment of a few commits, and the paths of each."""
    directory = scratch() / "written"
    journal = PartitionJournal.open(
        directory,
        schema=SCHEMA,
        partition=0,
        options=RELAXED,
        replay=lambda commits: None,
        wall=lambda: 0.0,
    )
    for batch in range(1, COMMITS + 1):
        journal.append([_commit(batch)])
    journal.close()
    path = directory / segment_name(1)
    found = tuple(frame.paths for frame in scan(_plan(path)))
    return path.read_bytes(), found


def _plan(path: Path) -> SegmentScan:
    return SegmentScan(path, 0, 1, SCHEMA.path_schema, last=True)


def _segment(data: bytes) -> None:
    """What is read of a changed segment is what was written, from the first commit on."""
    _, written = _written()
    path = scratch() / segment_name(1)
    path.write_bytes(data)
    found = [frame.paths for frame in scan(_plan(path))]
    assert len(found) <= len(written), "read more commits than were written"
    for one, expected in zip(found, written, strict=False):
        assert one.equals(expected), "read something else than was written"


def _segments() -> Iterator[bytes]:
    yield _written()[0]


def _records(data: bytes) -> None:
    """A batch of records, with the checksum put right; what is read can be written and read."""
    directory = scratch() / "records"
    shutil.rmtree(directory, ignore_errors=True)
    MetadataFiles(directory, _NO_WAIT).save(f"{1:016d}", data)
    found = MetadataLog(directory, _NO_WAIT).load_all()
    assert sum(map(len, found.values())) <= len(data), "read more than was written"


class _NoWait(type(REAL_DISK)):  # type: ignore[misc]
    def fdatasync(self, descriptor: int) -> None:
        """Nothing is lost that is wanted."""

    def sync_directory(self, directory: Path) -> None:
        """As above."""


_NO_WAIT = _NoWait()


def _record_batches() -> Iterator[bytes]:
    directory = scratch() / "made"
    shutil.rmtree(directory, ignore_errors=True)
    batches = MetadataLog(directory, _NO_WAIT)
    batches.save({"a": b"one", "b.c": b"", "d": b"\0" * 20})
    found = MetadataFiles(directory, _NO_WAIT).load(f"{1:016d}")
    if found is None:
        raise CorruptData("expected the batch that was written")
    yield found


TARGETS = (
    Target(
        "segment", "files of commits, as they are read at the start", _segment, _segments, weight=4
    ),
    Target("records", "batches of records, right checksum", _records, _record_batches, weight=3),
)
