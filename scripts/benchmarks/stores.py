"""Directories of nodes with made-up commits, and what the disk takes to read them plainly."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks import weather
from galileo.errors import GalileoError
from galileo.storage.compaction import CompactionOptions
from galileo.storage.journal import Commit
from galileo.storage.store import Store
from galileo.storage.writer import SEGMENT_BYTES_MAX, JournalOptions

DIFFERENT = 50
"""So many different commits are made and used again and again."""
GROUP_BYTES = 4 << 20
READ_BYTES = 4 << 20
SEALED_BYTES = 8 << 20
"""Of a segment in a store that is merged, so that little of it is left to the one in use."""
_ROW_BYTES = 100


def filled(directory: Path, *, rows: int, commits: int, merged: bool) -> Path:
    """A node's directory with commits of `rows` observations in four partitions, on the disk.

    Args:
        directory: must not exist.
        rows: of each commit, and its paths.
        commits: of all partitions together.
        merged: whether the sealed segments are merged.
    """
    different = _different(rows, min(DIFFERENT, commits))
    together = max(1, min(256, GROUP_BYTES // (rows * _ROW_BYTES)))
    options = JournalOptions(
        durability="none", segment_bytes_max=SEALED_BYTES if merged else SEGMENT_BYTES_MAX
    )
    with Store.open(directory, options, wall=time.time) as store:
        store.recover(lambda *_: None)
        store.create_dataset(weather.SCHEMA)
        for number, start in enumerate(range(0, commits, together)):
            journal = store.journal(weather.SCHEMA.name, number % weather.PARTITIONS)
            group = range(start, min(start + together, commits))
            _stored(journal.append([Commit("bench", n, *different[n % DIFFERENT]) for n in group]))
        for journal in store.journals().values():
            if merged:
                journal.merge(CompactionOptions(bytes_min=1, bytes_max=4 << 30), lambda _: True)
    _settle(directory)
    return directory


def _different(rows: int, count: int) -> list[tuple[pa.Table, pa.RecordBatch]]:
    generator = np.random.default_rng(5)
    return [
        (_observations(batch, generator), batch)
        for batch in weather.path_batches(rows * count, size=rows, seed=4)
    ]


def _observations(paths: pa.RecordBatch, generator: np.random.Generator) -> pa.Table:
    """One observation for each path, of about the same values."""
    count, schema = paths.num_rows, weather.SCHEMA.observation_schema
    columns = {
        "latitude": generator.uniform(*weather.LATITUDES, count),
        "longitude": generator.uniform(*weather.LONGITUDES, count),
        "time": paths.column("bucket"),
    }
    columns |= {name: paths.column(name) for name in schema.names if name not in columns}
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _stored(results: Sequence[object]) -> None:
    errors = [result for result in results if isinstance(result, GalileoError)]
    if errors:
        raise errors[0]


def _settle(directory: Path) -> None:
    """Makes everything durable, so that the page cache can be dropped."""
    for path in files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def files(directory: Path) -> Iterator[Path]:
    """Those that hold commits."""
    return directory.glob("journals/*/*/*")


def size(directory: Path) -> int:
    """Bytes of those."""
    return sum(path.stat().st_size for path in files(directory))


def forget(directory: Path) -> None:
    """Drops the cached pages of a directory's files; what is read next comes from the disk."""
    for path in files(directory):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_plainly(directory: Path) -> int:
    """Reads every byte of a directory's files one behind the other; how many there are."""
    buffer, total = bytearray(READ_BYTES), 0
    for path in sorted(files(directory)):
        descriptor = os.open(path, os.O_RDONLY)
        while count := os.readv(descriptor, [buffer]):
            total += count
        os.close(descriptor)
    return total
