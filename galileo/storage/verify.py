"""Checks everything that a node keeps on disk against its checksums; changes nothing.

It takes no lock, so it works next to a running node: what that appends meanwhile is not looked
at, and a file that it replaced meanwhile is looked for again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from galileo.errors import CorruptData, Unavailable
from galileo.model.forks import follows
from galileo.storage.compacted_segment import SUFFIX as MERGED
from galileo.storage.metadata_files import load_record, record_paths
from galileo.storage.partition_files import (
    Partition,
    check_file,
    check_is_node,
    partitions,
    without_dropped,
    without_replaced,
)
from galileo.storage.retention import load_log_start
from galileo.storage.segment_verify import Corruption, FileCheck, check_compacted

THREADS = 2
ATTEMPTS_MAX = 5
"""How often a partition is begun anew because the node replaced its files meanwhile."""

Progress = Callable[[int], None]
"""Called with the bytes that were read since the last call; from any thread."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Stored bytes that cannot be trusted.

    Attributes:
        dataset, partition, sequence: of the commit that is lost; None where that is unknown,
            and for small records.
        offset: in the file, bytes.
    """

    file: str
    offset: int
    dataset: str | None
    partition: int | None
    sequence: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a verification.

    Attributes:
        bytes: that were read.
        torn_bytes: of tails that the next start of the node cuts, or that it was writing.
    """

    directory: str
    files: int
    bytes: int
    commits: int
    torn_bytes: int
    damages: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        return not self.damages


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """The files of one partition, in sequence order, each with what was found.

    Attributes:
        dropped: up to which commit the log is dropped.
    """

    partition: Partition
    files: list[tuple[Path, FileCheck]]
    dropped: int


def verify(directory: Path, *, progress: Progress | None = None) -> Report:
    """Reads every file of a node's directory and reports all damage.

    Args:
        directory: of a node, running or not.
        progress: called with the number of bytes just read.

    Raises:
        InputError: this is no node's directory.
    """
    check_is_node(directory)
    damages, files, size = _check_records(directory)
    commits = torn_bytes = 0
    with (
        ThreadPoolExecutor(THREADS, thread_name_prefix="verify") as executor,
        ThreadPoolExecutor(THREADS, thread_name_prefix="verify-partitions") as waiting,
    ):
        check = functools.partial(
            _check_partition, executor=executor, progress=progress or no_progress
        )
        for checked in waiting.map(check, partitions(directory)):
            damages += _damages(checked)
            files += len(checked.files)
            size += sum(result.size for _, result in checked.files)
            commits += sum(result.commits for _, result in checked.files)
            torn_bytes += sum(result.torn_bytes for _, result in checked.files)
    return Report(str(directory), files, size, commits, torn_bytes, tuple(damages))


def bytes_to_read(directory: Path) -> int:
    """The length of all files that hold commits, for a progress bar."""
    size = 0
    for partition in partitions(directory):
        for path in partition.directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a running node replaced it
                size += path.stat().st_size
    return size


def no_progress(_: int) -> None:
    """No-op progress callback."""


def _check_partition(
    partition: Partition, *, executor: ThreadPoolExecutor, progress: Progress
) -> _CheckedFile:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        paths = partition.files()

        def check(path: Path, last: Path | None = paths[-1] if paths else None) -> FileCheck:
            result = check_file(path, partition.number, last=path == last)
            progress(result.size)
            return result

        with contextlib.suppress(FileNotFoundError):
            plain = executor.map(check, [path for path in paths if path.suffix != MERGED])
            merged = [
                _check_compacted(path, partition, executor=executor, progress=progress)
                for path in paths
                if path.suffix == MERGED
            ]
            files = list(zip(paths, [*merged, *plain], strict=True))
            # Looked at last: a file that is missing here may be one that was dropped meanwhile.
            dropped = _dropped(partition)
            left = without_dropped(without_replaced(files), dropped)
            if left or not dropped or attempt == ATTEMPTS_MAX:
                return _CheckedFile(partition, left, dropped)
    raise Unavailable(
        f"the node replaced files of {partition.directory} {ATTEMPTS_MAX} times while they were "
        "read; try again"
    )


def _check_compacted(
    path: Path, partition: Partition, *, executor: ThreadPoolExecutor, progress: Progress
) -> FileCheck:
    """Checks a compacted file in several threads, since it may be large and the only one."""
    before = path.stat().st_ino
    result = check_compacted(path, partition=partition.number, run=executor.map)
    if result.flaws and path.stat().st_ino != before:
        raise FileNotFoundError(f"{path} was erased and replaced while it was read")
    progress(result.size)
    return result


def _dropped(partition: Partition) -> int:
    """The commit up to which the log is dropped; damage of the record is reported elsewhere."""
    try:
        return load_log_start(partition.directory).until
    except CorruptData:
        return 0


def _damages(checked: _CheckedFile) -> list[Damage]:
    """The damage of each file, and missing files; dropped files are no damage."""
    damages = []
    expected: int | None = checked.dropped + 1
    if checked.dropped and not checked.files:
        reason = f"the log is dropped up to {checked.dropped}, the file behind that is missing"
        mark = checked.partition.log_start_file()
        damages.append(_damage(checked.partition, mark, Corruption(0, expected, reason)))
    for path, result in checked.files:
        if expected is not None and not follows(int(path.stem), expected - 1):
            reason = f"expected the file of sequence {expected} next; one is missing or misplaced"
            damages.append(_damage(checked.partition, path, Corruption(0, expected, reason)))
        damages += [_damage(checked.partition, path, flaw) for flaw in result.flaws]
        expected = result.next_sequence
    return damages


def _damage(partition: Partition, path: Path, flaw: Corruption) -> Damage:
    return Damage(
        file=str(path),
        offset=flaw.offset,
        dataset=partition.dataset,
        partition=partition.number,
        sequence=flaw.sequence,
        reason=flaw.reason,
    )


def _check_records(directory: Path) -> tuple[list[Damage], int, int]:
    """Damages, number of files and bytes of the small records: node, schemas, marks, others."""
    damages, files, size = [], 0, 0
    places = [directory / "node", directory / "datasets", *sorted(directory.glob("records/*"))]
    places += [partition.directory for partition in partitions(directory)]
    for path in (path for place in places for path in record_paths(place)):
        try:
            size += len(load_record(path) or b"")
            files += 1
        except CorruptData as error:
            damages.append(Damage(str(path), 0, None, None, None, error.message))
    return damages, files, size
