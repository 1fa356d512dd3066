"""A small dataset, commits and journals of it, and a disk whose operations can be made to fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from galileo.model import paths as model_paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer
from galileo.storage.journal import Commit, PartitionJournal
from galileo.storage.recovery import Replayed
from galileo.storage.writer import JournalOptions

SCHEMA = Schema(
    "nam",
    [Feature("temperature", "K"), Feature("station", type="text", indexed=False)],
    geohash_precision=4,
)


class UnsyncedDisk(RealDisk):
    """The real disk without waiting for it: for tests that open a journal a thousand times."""

    def fdatasync(self, descriptor: int) -> None:
        os.fstat(descriptor)

    def sync_directory(self, directory: Path) -> None:
        directory.stat()


RELAXED = JournalOptions(durability="none", disk=UnsyncedDisk())


def make_observations(rows: int, seed: int = 0) -> pa.Table:
    """A table of the dataset, not sorted."""
    rng = np.random.default_rng(seed)
    values = pa.array(np.round(rng.uniform(250, 310, rows), 1), mask=rng.random(rows) < 0.1)
    return pa.table(
        [
            pa.array(np.round(rng.uniform(30, 50, rows), 3)),
            pa.array(np.round(rng.uniform(-120, -80, rows), 3)),
            pa.array(rng.integers(0, 7 * 86400, rows) * 1_000_000, pa.int64()).cast(TIME_TYPE),
            values,
            pa.array([f"station {number}" for number in rng.integers(0, 9, rows)]),
        ],
        schema=SCHEMA.observation_schema,
    )


def make_commit(batch: int, *, rows: int = 3, producer: str = "radar") -> Commit:
    """The same commit for the same numbers."""
    return Commit(producer, batch, *model_paths.index(SCHEMA, make_observations(rows, batch)))


def one_by_one(commits: Replayed) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(sequence, paths) of each of the commits."""
    assert commits.paths.num_rows == sum(commits.counts)
    row = 0
    for sequence, count in zip(commits.sequences.tolist(), commits.counts.tolist(), strict=True):
        yield sequence, commits.paths.slice(row, count)
        row += count


@dataclass
class Opened:
    """A journal and what its recovery replayed."""

    journal: PartitionJournal
    replayed: list[tuple[int, pa.RecordBatch]]


def open_journal(
    directory: Path, options: JournalOptions = RELAXED, *, partition: int = 7
) -> Opened:
    """A journal, by default without fsync."""
    replayed: list[tuple[int, pa.RecordBatch]] = []
    journal = PartitionJournal.open(
        directory,
        schema=SCHEMA,
        partition=partition,
        options=options,
        replay=lambda commits: replayed.extend(one_by_one(commits)),
        wall=lambda: 1_330_581_600.25,
    )
    return Opened(journal, replayed)


@dataclass
class FaultyDisk(RealDisk):
    """The real disk; operations named in `failing` raise that errno, after `spare` good calls.

    A failing write stores `torn_bytes` first, as a disk does that fills up.
    """

    failing: dict[str, int] = field(default_factory=dict)
    spare: int = 0
    torn_bytes: int = 0
    calls: list[str] = field(default_factory=list)

    def _pass(self, operation: str) -> None:
        self.calls.append(operation)
        if operation in self.failing and self.calls.count(operation) > self.spare:
            number = self.failing[operation]
            raise OSError(number, errno.errorcode[number])

    def create(self, path: Path) -> int:
        self._pass("create")
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        if "write" in self.failing and self.torn_bytes:
            torn, self.torn_bytes = self.torn_bytes, 0
            return super().write(descriptor, [b"".join(map(bytes, buffers))[:torn]], offset)
        self._pass("write")
        return super().write(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        self._pass("fdatasync")
        super().fdatasync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        self._pass("truncate")
        super().truncate(descriptor, length)

    def rename(self, path: Path, name: Path) -> None:
        self._pass("rename")
        super().rename(path, name)

    def unlink(self, path: Path) -> None:
        self._pass("unlink")
        super().unlink(path)

    def sync_directory(self, directory: Path) -> None:
        self._pass("sync_directory")
        super().sync_directory(directory)
