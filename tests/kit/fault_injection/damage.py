"""Changes stored bytes, and reads a node's directory as the node would."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from galileo.dht.topology import SYSTEM
from galileo.errors import GalileoError
from galileo.storage.frame import HEADER_BYTES_MAX, FrameHeader, decode_header
from galileo.storage.store import Store

Commits = dict[tuple[str, int, int], tuple[pa.Table, pa.RecordBatch]]
"""Observations and paths by (dataset, partition, sequence)."""


def flip(path: Path, place: int, *, mask: int = 1) -> None:
    """Flip the bits of `mask` in one byte of a file; twice restores it."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ mask]))


def frames(path: Path) -> list[tuple[int, FrameHeader]]:
    """(offset, header) of each frame of a whole segment."""
    stored, offset, found = path.read_bytes(), 0, []
    while offset < len(stored):
        header = decode_header(stored[offset : offset + HEADER_BYTES_MAX])
        found.append((offset, header))
        offset += header.frame_bytes
    return found


@contextlib.contextmanager
def kept(path: Path) -> Iterator[bytes]:
    """Restore the content of a file after the block."""
    stored = path.read_bytes()
    try:
        yield stored
    finally:
        path.write_bytes(stored)


@contextlib.contextmanager
def kept_all(directory: Path) -> Iterator[None]:
    """Restore every file of a directory after the block."""
    before = {path: path.read_bytes() for path in _files(directory)}
    try:
        yield
    finally:
        for path in set(_files(directory)) - set(before):
            path.unlink()
        for path, stored in before.items():
            if not path.exists() or path.read_bytes() != stored:
                path.write_bytes(stored)


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


@dataclass(frozen=True, slots=True)
class Reading:
    """The data of a directory.

    Attributes:
        commits: readable commits; retention may have deleted earlier ones.
        refusals: errors, of the start, of partitions that stay closed, or of single reads.
    """

    commits: Commits
    refusals: list[GalileoError]


def read_all(directory: Path) -> Reading:
    """Open a node's directory as its process does at the start, and read every commit.

    Commits count though the directory does not say that a majority has them. The last commit of a
    partition with several copies is such a commit: only a later one, or a leader, says that.
    """
    commits: Commits = {}
    refusals: list[GalileoError] = []
    try:
        store = Store.open(directory, wall=lambda: 1.5e9)
    except GalileoError as error:
        return Reading({}, [error])
    with store:
        try:
            store.recover(lambda *_: None)
            for kind in sorted(path.name for path in (directory / "records").glob("*")):
                store.load_records(kind)
        except GalileoError as error:
            return Reading({}, [error])
        refusals += store.damaged.values()
        for (dataset, partition), journal in store.journals().items():
            journal.publish(journal.end_sequence)
            ranges = journal.forks.ranges(journal.dropped, journal.last_sequence)
            for sequence in chain.from_iterable(range(first, last + 1) for first, last in ranges):
                try:
                    both = journal.read(sequence), journal.paths(sequence)
                except GalileoError as error:
                    refusals.append(error)
                else:
                    commits[dataset, partition, sequence] = _copied(*both)
    return Reading(commits, refusals)


def _copied(table: pa.Table, paths: pa.RecordBatch) -> tuple[pa.Table, pa.RecordBatch]:
    """Copy data out of the files' memory maps, which change with the files."""
    rows, of_paths = (pa.array(range(one.num_rows), pa.int64()) for one in (table, paths))
    return table.take(rows), paths.take(of_paths)


def data_of(commits: Commits) -> Commits:
    """The commits of observations, without those of system tables."""
    return {place: both for place, both in commits.items() if place[1] != SYSTEM}


def observations(*readings: Reading) -> pa.Table:
    """All observations, as one table."""
    stored = [both for reading in readings for both in data_of(reading.commits).values()]
    return pa.concat_tables([table for table, _ in stored])


def last_segments(directory: Path) -> list[Path]:
    """The active segment of each partition of data."""
    places = sorted(path for path in directory.glob("journals/*/*") if path.name != str(SYSTEM))
    return [max(found) for place in places if (found := list(place.glob("*.segment")))]
