"""Appends groups of frames to a partition's newest segment, and stops when the disk fails.

States: writing; *pausing* after a failed write that was undone, until a delay has passed;
*stopped* until a restart after any error that leaves the content of the disk unknown, above all a
failed fsync: Linux reports it once and drops the pages, so a second fsync would succeed wrongly.

Invariant: the first `length` bytes of the file are exactly the frames that were reported. They are
durable, or in the commit log (`galileo.storage.commit_log`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from galileo.errors import ConfigError, PartitionReadOnly
from galileo.histogram import DISK_BOUNDS_S, DurationHistogram
from galileo.storage.disk import REAL_DISK, Disk, write_all
from galileo.storage.frame import Buffer
from galileo.storage.segment import segment_name, segment_paths

SEGMENT_BYTES_MAX = 64 << 20
RETRY_AFTER_S = 5.0
"""Seconds without writes after a write that failed and was undone (a full disk)."""

Durability = Literal["fsync", "none"]


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """How a partition writes.

    Args:
        segment_bytes_max: a group of commits that would make a segment longer starts a new
            one; only a group that is longer by itself exceeds it.
        durability: "fsync": a commit is on the disk before it is acknowledged. "none": the
            operating system writes it later; a crash of the process loses nothing, a
            power cut the last seconds, and may leave damage that has to be repaired by hand.
        retry_after_s: the pause after a write that failed and was undone.
        disk, monotonic: the operations that may fail, and the clock that times the pause.
    """

    segment_bytes_max: int = SEGMENT_BYTES_MAX
    durability: Durability = "fsync"
    retry_after_s: float = RETRY_AFTER_S
    disk: Disk = REAL_DISK
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if self.segment_bytes_max <= 0:
            raise ConfigError(f"expected segment_bytes_max above 0, got {self.segment_bytes_max}")
        if self.durability not in ("fsync", "none"):
            raise ConfigError(f'expected durability "fsync" or "none", got {self.durability!r}')


class SegmentWriter:
    """The write end of one partition; one thread at a time.

    Attributes:
        syncs: how long the disk took to make groups durable.
    """

    def __init__(self, directory: Path, options: JournalOptions) -> None:
        self.path: Path | None = None
        self.length = 0
        self.stopped: str | None = None
        self.syncs = DurationHistogram(DISK_BOUNDS_S)
        self._retry_at: float | None = None
        self._descriptor: int | None = None
        self._is_unsynced = False
        self._has_failed = False
        self._directory = directory
        self._options = options
        self._disk = options.disk

    def repair_tail(self, path: Path) -> None:
        """Makes durable what an earlier process left in a file, and forgets its cached pages.

        It may have died between write and sync, or gone on after a failed sync, which leaves
        pages in the cache that are not on the disk. What is read next comes from the disk.

        Raises:
            OSError: the disk refuses.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._sync(descriptor)
            self._disk.sync_directory(path.parent)
            if hasattr(os, "posix_fadvise") and self._options.durability == "fsync":
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def resume(self, path: Path, *, length: int) -> None:
        """Goes on in a file whose first `length` bytes are valid frames; cuts the rest.

        Raises:
            OSError: the file cannot be written or made durable.
        """
        self.path, self.length = path, length
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if self._undo():
            self._sync(self._descriptor)

    def refusal(self) -> PartitionReadOnly | None:
        """Why nothing can be written now, None if a write may be tried."""
        if self.stopped is None or self._may_retry():
            return None
        return self._refusal(self.stopped)

    def append(
        self, buffers: Sequence[Buffer], *, size: int, sequence: int, is_jump: bool = False
    ) -> None:
        """Writes one group of frames behind the others; `finish` makes it a part of the file.

        Args:
            buffers: the frames' bytes in order.
            size: bytes of all buffers together.
            sequence: of the group's first frame; names a new segment.
            is_jump: whether it is not the next one, and so begins a segment.

        Raises:
            PartitionReadOnly: the group is not committed, and never will be.
        """
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        try:
            descriptor = self._ready(size, sequence=sequence, is_jump=is_jump)
            write_all(self._disk, descriptor, buffers, offset=self.length)
        except OSError as error:
            raise self._stop_after_write(error) from error

    def finish(self, size: int, *, is_logged: bool) -> None:
        """Ends the write of a group: syncs it, unless the commit log has it.

        Raises:
            PartitionReadOnly: the group is not committed.
        """
        assert self._descriptor is not None, "a group that was not appended"
        if not is_logged:
            try:
                self._sync(self._descriptor)
            except OSError as error:
                raise self._stop_after_sync(error) from error
        self._is_unsynced |= is_logged
        self.length += size
        self.stopped = self._retry_at = None

    def sync(self) -> bool:
        """Syncs the groups that only the commit log has made durable.

        Returns:
            Whether all groups are durable without the commit log. If not, the partition stops.
        """
        if self._is_unsynced and not self._has_failed and self._descriptor is not None:
            try:
                self._sync(self._descriptor)
            except OSError as error:
                self._stop_after_sync(error)
        return not self._is_unsynced

    def seal(self, *, sequence: int) -> None:
        """Ends the segment, unless it is empty; the next group goes into a new one.

        Args:
            sequence: of the next group; names the new segment.

        Raises:
            PartitionReadOnly: the disk refuses; where nothing was lost the old one goes on.
        """
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        if self._descriptor is None or self.length == 0:
            return
        try:
            self._undo()
            self._roll(sequence)
        except OSError as error:
            raise self._refusal(f"a new segment cannot be made: {error}") from error

    def cut(self, path: Path, *, length: int) -> None:
        """Removes the end of the last groups, durably; the commit log must not have them.

        Args:
            path: of the segment that goes on; later ones are deleted.
            length: that is left of it.

        Raises:
            PartitionReadOnly: the disk refuses; the partition stops.
        """
        if self.stopped is not None and self._retry_at is None:
            raise self._refusal(self.stopped)
        try:
            later = [other for other in segment_paths(self._directory) if other.stem > path.stem]
            if later:
                self._close_file()
                for other in reversed(later):
                    self._disk.unlink(other)
                self._disk.sync_directory(self._directory)
                self.path = path
                self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            assert self._descriptor is not None, "a file is cut that is not written to"
            self.length = length
            self._undo()
            self._sync(self._descriptor)
        except OSError as error:
            self._has_failed = True
            raise self.stop(f"truncating failed: {error}") from error

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def close(self) -> None:
        self.sync()
        self.stopped, self._retry_at = "it is closed", None
        self._close_file()

    def _ready(self, size: int, *, sequence: int, is_jump: bool) -> int:
        """The descriptor of the segment that takes the next group, at its good length."""
        is_full = self.length > 0 and self.length + size > self._options.segment_bytes_max
        if self._descriptor is None or self.path is None or is_full:
            return self._roll(sequence)
        self._undo()
        # An empty segment has the name of a frame that does not come where the log jumps.
        is_misnamed = self.length == 0 and int(self.path.stem) != sequence
        if not is_misnamed and not (is_jump and self.length):
            return self._descriptor
        before = self.path
        descriptor = self._roll(sequence)
        if is_misnamed:
            self._disk.unlink(before)
            self._disk.sync_directory(self._directory)
        return descriptor

    def _roll(self, sequence: int) -> int:
        if not self.sync():
            raise self._refusal(str(self.stopped))
        path = self._directory / segment_name(sequence)
        descriptor = self._disk.create(path)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self.path, self.length, self._descriptor = path, 0, descriptor
        try:
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise self._stop_after_sync(error) from error
        return descriptor

    def _sync(self, descriptor: int) -> None:
        if self._options.durability == "fsync":
            begun = self._options.monotonic()
            self._disk.fdatasync(descriptor)
            self.syncs.observe(self._options.monotonic() - begun)
        self._is_unsynced = False

    def _undo(self) -> bool:
        """Truncates the file to its valid length, after a crash or a failed write."""
        if self._descriptor is None or os.fstat(self._descriptor).st_size == self.length:
            return False
        self._disk.truncate(self._descriptor, self.length)
        return True

    def _may_retry(self) -> bool:
        return self._retry_at is not None and self._options.monotonic() >= self._retry_at

    def _stop_after_write(self, error: OSError) -> PartitionReadOnly:
        """Pauses where the failed write could be undone, else stops."""
        try:
            self._undo()
        except OSError as second:
            return self.stop(f"writing failed ({error}), and so did undoing it ({second})")
        self._retry_at = self._options.monotonic() + self._options.retry_after_s
        self.stopped = f"writing failed: {error}. Make room on the disk; it is tried again"
        return self._refusal(self.stopped)

    def _stop_after_sync(self, error: OSError) -> PartitionReadOnly:
        """Stops for good; tries to keep what was refused from turning up after a restart.

        Another sync would succeed wrongly, so there is none.
        """
        self._has_failed = True
        with contextlib.suppress(OSError):
            self._undo()
        return self.stop(f"making commits durable failed: {error}")

    def stop(
        self, reason: str, *, advice: str = "Check the disk, then restart the node"
    ) -> PartitionReadOnly:
        """Stops for good; what refuses writes from now on."""
        self._retry_at = None
        self.stopped = f"{reason}. {advice}"
        return self._refusal(self.stopped)

    def _refusal(self, reason: str) -> PartitionReadOnly:
        return PartitionReadOnly(
            f"the partition in {self._directory} takes no writes: {reason}. "
            "Nothing of this commit was stored; reads go on",
            after_s=self._options.retry_after_s,
        )
