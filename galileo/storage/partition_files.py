"""The files of a partition's commits, for code that reads a node's directory from outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from galileo.errors import InputError
from galileo.storage.compacted_segment import SUFFIX as MERGED
from galileo.storage.compacted_segment import compacted_segment_paths
from galileo.storage.retention import log_start_path
from galileo.storage.segment import segment_paths
from galileo.storage.segment_verify import FileCheck, check_compacted, check_segment

DROPPED = "@removed"
"""Suffix of the directory of a dropped dataset until its deletion; no name has an @."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The directory of a partition's commits."""

    directory: Path
    dataset: str
    number: int

    def files(self) -> list[Path]:
        """The files in sequence order, dropped ones included; the last one may be open.

        A node that runs may be merging them: segments that are gone by the second look were there
        at the first, so their commits are not missed. A caller that cannot open a file lists again.
        """
        segments = segment_paths(self.directory)
        return [*compacted_segment_paths(self.directory), *segments]

    def log_start_file(self) -> Path:
        """The record that says how far the log is dropped; it need not be there."""
        return log_start_path(self.directory)


def check_is_node(directory: Path) -> None:
    """Raises:
    InputError: this is no node's directory.
    """
    if not (directory / "node").is_dir():
        raise InputError(
            f"expected the directory of a node, got {directory}; it is node.directory in the "
            "node's configuration",
            expected="node_directory",
        )


def partitions(directory: Path) -> Iterator[Partition]:
    """All partitions of a node's directory, by dataset and number."""
    for dataset in sorted((directory / "journals").glob("*")):
        if dataset.name.endswith(DROPPED):
            continue
        names = {path.name for path in dataset.iterdir() if path.is_dir()}
        for number in sorted(int(name) for name in names if name.isdecimal()):
            yield Partition(dataset / str(number), dataset.name, number)


def check_file(path: Path, partition: int, *, last: bool) -> FileCheck:
    """Checks every byte of one file; see `check_segment` and `check_compacted`."""
    if path.suffix == MERGED:
        return check_compacted(path, partition=partition)
    return check_segment(path, partition=partition, last=last)


def without_dropped(
    files: list[tuple[Path, FileCheck]], until: int
) -> list[tuple[Path, FileCheck]]:
    """The files past the log start; the others are about to be deleted."""
    return [(path, check) for path, check in files if int(path.stem) > until]


def without_replaced(files: list[tuple[Path, FileCheck]]) -> list[tuple[Path, FileCheck]]:
    """Leaves out segments that a merged one replaces, and that are about to be deleted."""
    ends = [check.next_sequence or 0 for path, check in files if path.suffix == MERGED]
    merged_until = max(ends, default=0)
    return [
        (path, check)
        for path, check in files
        if path.suffix == MERGED or int(path.stem) >= merged_until
    ]
