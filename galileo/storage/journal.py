"""The journal of one partition of one dataset: its commits, in sequence, on the disk."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from galileo.errors import (
    CorruptData,
    DataExpired,
    GalileoError,
    InputError,
    InternalError,
    PartitionReadOnly,
    Unavailable,
)
from galileo.model.forks import Forks, first_of, follows, history_of, next_sequence
from galileo.model.schema import StoredSchema, widen
from galileo.model.sort_keys import differs
from galileo.model.times import MICROS, TIME_MIN_US
from galileo.storage import retention
from galileo.storage.commit_log import Stretch
from galileo.storage.commits import (
    SEAL,
    FrameGroup,
    RowRanges,
    conflict,
    first_result,
    is_new,
    ranges_changed,
    take_rows,
    to_record_batch,
)
from galileo.storage.commits import Commit as Commit
from galileo.storage.commits import Committed as Committed
from galileo.storage.compacted_format import SegmentIndex
from galileo.storage.compacted_segment import (
    BlockCache,
    CompactedSegment,
    compacted_segment_paths,
    load_index,
    unfinished_paths,
)
from galileo.storage.compaction import (
    BLOCK_BYTES,
    Compaction,
    CompactionOptions,
    RateLimit,
    give_final_name,
    pick_compaction,
    write_compacted,
)
from galileo.storage.disk import make_directory
from galileo.storage.erasing import ErasedRows, RemovedRows, blank_rows
from galileo.storage.frame import (
    BATCH_MAX,
    HEADER_BYTES_MAX,
    Buffer,
    FrameHeader,
    checksum,
    decode_body,
    decode_header,
    encode_body,
    encode_header,
    producer_name,
)
from galileo.storage.history import LogHistory
from galileo.storage.producers import ProducerIndex
from galileo.storage.recovery import Replayed, ScannedFrame, SegmentScan, in_groups, scan
from galileo.storage.retention import LogFile, LogStart, Truncation
from galileo.storage.segment import Segment, SegmentMaps, corrupt_error, segment_paths
from galileo.storage.writer import JournalOptions, SegmentWriter

_log = logging.getLogger(__name__)

T = TypeVar("T")

UNKNOWN_FEATURES_AFTER_S = 0.5
"""Seconds after which a leader repeats frames with features that a follower does not know yet."""

Replay: TypeAlias = Callable[[Replayed], None]


@dataclass(slots=True)
class Appending:
    """Commits on their way to the disk; a `commit_log.Write`.

    Attributes:
        journal: of the partition.
        group: the encoded frames of new commits.
        results: as of `PartitionJournal.append`, valid after `finish`.
        is_finished: whether the frames are durable.
        error: why they are not.
    """

    journal: PartitionJournal
    group: FrameGroup
    results: list[Committed | GalileoError]
    _writer: SegmentWriter
    is_finished: bool = False
    error: GalileoError | None = None

    def refuse(self, error: GalileoError) -> None:
        """Makes an error the result of new commits, which are not written."""
        self.results = [error if is_new(r, self.group) else r for r in self.results]
        self.error = error

    @property
    def size(self) -> int:
        return self.group.size

    def write(self) -> bool:
        """Writes the frames; if the disk refuses, its error becomes the result of new commits."""
        group = self.group
        try:
            self._writer.append(
                group.buffers,
                size=group.size,
                sequence=group.first,
                is_jump=group.first != group.after + 1,
            )
        except Exception as error:
            self._refuse(error)
            return False
        return True

    @property
    def stretch(self) -> Stretch:
        """Where the written frames are."""
        assert self._writer.path is not None, "a group was written to no file"
        return Stretch(self._writer.path, self._writer.length, self.size, self.group.buffers)

    def finish(self, *, is_logged: bool = False) -> None:
        """Makes the written frames durable, unless the commit log has; errors as of `write`."""
        try:
            self._writer.finish(self.size, is_logged=is_logged)
            self.is_finished = True
        except Exception as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Makes an error the result of new commits; stops the partition if it is unexpected."""
        if not isinstance(error, PartitionReadOnly):
            error = self._writer.stop(f"writing failed: {error!r}")
        self.refuse(error)


@dataclass(frozen=True, slots=True)
class FollowedFrame:
    """A frame that a leader has sent.

    Attributes:
        bodies: paths and observations as they are written.
        paths: decoded.
    """

    header: FrameHeader
    bodies: Buffer
    paths: pa.RecordBatch


class FrameEpochs(Protocol):
    """The epoch of each frame of a log, and where it jumps."""

    @property
    def forks(self) -> Forks: ...

    def at(self, sequence: int) -> int: ...


class PartitionJournal:
    """One directory of segment files. `append` excludes itself; readers never wait for it.

    A journal of a replicated partition also has *pending* frames at its end. They are durable, but
    readers do not see them until `publish`, and `truncate` can remove them.

    Invariants: sequences are 1, 2, 3 … without gaps, except where a history begins
    (`galileo.model.forks`), and there a file begins; what a reader can see is durable. Commits up
    to `dropped` are gone; all later ones are there.

    Attributes:
        on_damage: called with the error of damaged bytes; returns the one to raise in its place.
        last_sequence: of the newest commit that readers see, 0 where there is none.
        sealed_epoch: the range epoch of the last seal that readers see, 1 without any. What the log
            has of earlier epochs is before that seal, and stays so.
        rows_total, paths_total: over all commits that are there.
        torn_bytes: length of the torn tail that was cut when the journal was opened.
        syncs: how long the disk took to make commits durable.
        history: digests of the commits, pending ones included.
        forks: the jumps of the log, also those to dropped and to pending frames.
        erased: rows that commits up to this one have removed may be blank.
    """

    def __init__(
        self,
        directory: Path,
        *,
        schema: StoredSchema,
        partition: int,
        options: JournalOptions,
        wall: Callable[[], float],
    ) -> None:
        self.last_sequence = 0
        self.sealed_epoch = 1
        self.rows_total = 0
        self.paths_total = 0
        self.torn_bytes = 0
        self.erased = 0
        self._directory = directory
        self._partition = partition
        self._take_schema(schema)
        self._wall = wall
        self._disk = options.disk
        self._producers = ProducerIndex()
        self._mark = retention.NOTHING_TRUNCATED
        self._segments: list[Segment | CompactedSegment] = []
        self._maps = SegmentMaps()
        self._blocks = BlockCache()
        self.on_damage: Callable[[CorruptData], GalileoError] | None = None
        self._writer = SegmentWriter(directory, options)
        self.syncs = self._writer.syncs
        self._pending: deque[ScannedFrame] = deque()
        self._epochs: list[tuple[int, int]] = []
        self.history = LogHistory()
        self.forks = Forks()
        self._is_over = False
        self._writing = threading.RLock()
        self._merging = threading.Lock()
        self._merge_ends = 0

    def _take_schema(self, schema: StoredSchema) -> None:
        self._schema = schema
        self._observation_schema = schema.observation_schema
        self._path_schema = schema.path_schema

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        schema: StoredSchema,
        partition: int,
        options: JournalOptions,
        replay: Replay,
        wall: Callable[[], float],
    ) -> PartitionJournal:
        """Recovers a partition, or starts an empty one where there is no directory.

        Frames that are not known to be committed are pending.

        Cost: reads index and paths of merged segments, headers and paths of all others, and the
        whole last segment.

        Args:
            directory: of this partition alone.
            schema: of the dataset.
            partition: its number, which every frame repeats.
            options: how to write.
            replay: called with all commits in sequence order, many at a time.
            wall: seconds since 1970, for the informative time in each frame.

        Raises:
            CorruptData: a frame fails its checksum and is not the torn tail.
            PartitionReadOnly: the disk refuses what recovery has to write.
            ConfigError: the files are of a format that this version does not know.
        """
        journal = cls(directory, schema=schema, partition=partition, options=options, wall=wall)
        try:
            make_directory(options.disk, directory)
            journal._recover(replay)
        except BaseException as error:
            journal.close()
            if isinstance(error, OSError):
                raise PartitionReadOnly(
                    f"the partition in {directory} cannot be opened: {error}. "
                    "Check the disk, then start again",
                    after_s=options.retry_after_s,
                ) from error
            raise
        return journal

    def add_features(self, schema: StoredSchema) -> None:
        """Takes the schema of a dataset to which features were added.

        Frames stay as they are. What is read from now on has null in features that a frame lacks;
        commits may have those of the new schema or of an earlier one.
        """
        with self._writing:
            assert schema.extends(self._schema), "a schema only gets more features"
            self._take_schema(schema)

    @property
    def stopped(self) -> str | None:
        """Why the partition takes no writes at present, None while it does."""
        return self._writer.stopped

    @property
    def dropped(self) -> int:
        """The sequence up to which retention has dropped the commits; 0 without any."""
        return self._mark.until

    @property
    def drop_bound(self) -> int:
        """The commit up to which what is dropped was to be dropped, in the middle of a file too."""
        return max(self._mark.until, self._mark.bound)

    @property
    def end_sequence(self) -> int:
        """The sequence of the newest frame, pending ones included."""
        pending = self._pending
        return pending[-1].header.sequence if pending else self.last_sequence

    @property
    def pending_paths(self) -> list[pa.RecordBatch]:
        """The paths of pending frames; for the thread that appends and publishes."""
        return [frame.paths for frame in self._pending]

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Runs of frames of one epoch, pending ones included: (first sequence, epoch)."""
        return tuple(self._epochs)

    @property
    def log_start_record(self) -> bytes:
        """The record of what retention has dropped, for a copy that begins there."""
        return self._mark.to_bytes()

    @property
    def bytes_on_disk(self) -> int:
        return sum(segment.length for segment in self._segments)

    @property
    def segments(self) -> int:
        return len(self._segments)

    def last_batch(self, producer: str) -> int | None:
        """The highest batch number of a producer, None where it has committed nothing."""
        numbers = (self._producers.last_batch(producer), self._mark.batches.last_batch(producer))
        return max((number for number in numbers if number is not None), default=None)

    def find_batch(self, producer: str, batch: int) -> int | None:
        """The sequence of a producer's batch, None where it is not known."""
        sequence = self._producers.sequence_of(producer, batch)
        # A pending frame may be removed yet.
        if sequence is not None and sequence <= self.last_sequence:
            return sequence
        dropped = self._mark.batches.find(producer, batch)
        return None if dropped is None else dropped.sequence

    def append(self, commits: Sequence[Commit]) -> list[Committed | GalileoError]:
        """Commits all of `commits` with one sync; returns when they are durable.

        Returns:
            For each commit its result, in order. Errors are results too: `BatchConflict`,
            `InputError` for what can never be stored, `RangesChanged` after a seal of a later
            range epoch, `PartitionReadOnly` for everything new while the disk refuses. A known
            (producer, batch) is answered in any state.
        """
        with self.appending(commits) as appending:
            if appending.group.headers and appending.write():
                appending.finish()
        return appending.results

    @contextmanager
    def appending(
        self, commits: Sequence[Commit], *, epoch: int = 0, is_pending: bool = False
    ) -> Iterator[Appending]:
        """`append` in steps: commits are encoded at the begin, and readable after the end.

        In between, the caller writes and finishes them, in any thread, if there are new ones.
        Other appends wait.

        Args:
            commits: to be appended.
            epoch: the term of this leader. If it is of a later history than the last frame, the log
                jumps.
            is_pending: whether new commits stay pending, as other members have to store them, too.
                A repeated batch that is pending is answered as one that is stored; its sequence is
                past `last_sequence`.
        """
        with self._writing:
            after = self.end_sequence
            group = FrameGroup(next_sequence(after, history_of(epoch)), after)
            committed = self.last_sequence if is_pending else None
            results = [self._admit(commit, group, epoch, committed) for commit in commits]
            appending = Appending(self, group, results, self._writer)
            yield appending
            if appending.is_finished and is_pending:
                paths = [group.paths[header.sequence] for header in group.headers]
                self._hold(group, paths)
            elif appending.is_finished:
                self._index_group(group)

    @contextmanager
    def appending_frames(self, after: int, frames: Sequence[FollowedFrame]) -> Iterator[Appending]:
        """`appending` for frames of the partition's leader, which stay pending.

        Args:
            after: the last frame that is there.
            frames: the following ones, from `decode_frames`; none but the first after a jump.

        Raises:
            InternalError: the journal ends elsewhere.
        """
        with self._writing:
            if self.end_sequence != after:
                raise InternalError(
                    f"expected frames of partition {self._partition} after {self.end_sequence}, "
                    f"got those after {after}"
                )
            group = FrameGroup(frames[0].header.sequence, after)
            for frame in frames:
                # A torn tail is recognised by the groups that were synced here, not at the leader.
                header = replace(frame.header, group=group.first)
                group.headers.append(header)
                group.buffers += [encode_header(header), frame.bodies]
                group.size += header.frame_bytes
                newest = self._schema.newest_us(frame.paths)
                group.newest_us = max(group.newest_us, newest)
            appending = Appending(self, group, [], self._writer)
            yield appending
            if appending.is_finished:
                self._hold(group, [frame.paths for frame in frames])

    def publish(self, until: int) -> list[ScannedFrame]:
        """Lets readers see pending frames.

        Args:
            until: the last one of them; more than there are is all.

        Returns:
            Those that were published.
        """
        published = []
        with self._writing:
            while self._pending and self._pending[0].header.sequence <= until:
                frame = self._pending.popleft()
                published.append(replace(frame, paths=widen(frame.paths, self._path_schema)))
                self._count(frame.header)
        return published

    def truncate(self, after: int) -> None:
        """Removes the pending frames after a sequence, durably.

        The commit log must not have them any more: it would write them again.

        Raises:
            PartitionReadOnly: the disk refuses; the partition stops.
        """
        assert after >= self.last_sequence, "a published frame would be removed"
        # A merge, which takes many seconds, goes on: it reads published segments alone.
        with self._writing:
            if after >= self.end_sequence:
                return
            while self._pending and self._pending[-1].header.sequence > after:
                header = self._pending.pop().header
                self._producers.remove(header.producer, header.batch)
                self.history.remove(header, self.forks.preceding(header.sequence))
            while self._epochs and self._epochs[-1][0] > after:
                self._epochs.pop()
            first = self.forks.following(after)
            while len(self._segments) > 1 and self._segments[-1].first_sequence > first:
                self._maps.evict(self._segments.pop().path)
            segment = self._segments[-1]
            assert isinstance(segment, Segment), "pending frames are in segments that are written"
            self._maps.evict(segment.path)
            segment.truncate(first)
            self.forks = self.forks.between(0, after)
            self._writer.cut(segment.path, length=segment.length)
            if not segment.length:  # A jump that comes next makes another file.
                self._segments.pop()

    def frames(self, after: int, until: int, *, bytes_max: int) -> tuple[int, bytes]:
        """The frames after one as bytes, pending ones included, up to the next jump behind them.

        Args:
            after: before the first frame that is wanted, which is there.
            until: the last one that is wanted.
            bytes_max: of all frames; a single one may exceed it.

        Returns:
            The sequence of the last one, and their bytes; they are not checked.

        Raises:
            DataExpired: retention has dropped the first one.
            CorruptData: the stored bytes cannot be read.
        """
        until, first = min(until, self.end_sequence), self.forks.following(after)
        return self._from_segment(
            first,
            lambda segment: segment.frames(first - 1, until, bytes_max=bytes_max),
            last=until,
        )

    def read(self, sequence: int, *, ranges: RowRanges | None = None) -> pa.Table:
        """Observations of one commit, in stored order; memory-mapped where rows are adjacent.

        Args:
            sequence: of the commit.
            ranges: which rows, in the order wanted; None for all, and those that are erased are
                blank.

        Raises:
            CorruptData: the stored bytes fail their checksum.
            InputError: there is no such commit, or no such row in it.
            DataExpired: retention has dropped it, or a row of `ranges` is erased.
        """
        batch = self._from_segment(sequence, lambda segment: segment.observations(sequence))
        table = pa.Table.from_batches([widen(batch, self._observation_schema)])
        return table if ranges is None else self.stored(take_rows(table, ranges), sequence)

    def stored(self, rows: pa.Table, sequence: int) -> pa.Table:
        """Rows of a commit; raises DataExpired if one is erased."""
        if self.erased and blank_rows(rows) is not None:
            raise retention.erased_error(self._partition, sequence)
        return rows

    def paths(self, sequence: int) -> pa.RecordBatch:
        """The paths of one commit; errors as `read`."""
        stored = self._from_segment(sequence, lambda segment: segment.paths(sequence))
        return widen(stored, self._path_schema)

    def header(self, sequence: int) -> FrameHeader:
        """What the frame of one commit says about itself; errors as `read`."""
        return self._from_segment(sequence, lambda segment: segment.header(sequence))

    def row_count(self, sequence: int) -> int:
        """The rows of one commit; errors as `read`."""
        return self._from_segment(sequence, lambda segment: segment.row_count(sequence))

    def row_sizes(self, sequences: Sequence[int]) -> list[float]:
        """The mean bytes of the rows of each commit; 0 of one that was dropped.

        Args:
            sequences: ascending.

        Raises:
            CorruptData: as of `read`.
        """
        sizes: list[float] = []
        while len(sizes) < len(sequences):
            rest = sequences[len(sizes) :]
            try:
                sizes += self._from_segment(rest[0], partial(_row_sizes, rest))
            except DataExpired:
                sizes.append(0.0)
        return sizes

    def merge(self, options: CompactionOptions, pace: RateLimit) -> bool:
        """Merges the oldest sealed segments into one, where there are enough of them.

        Reads and writes go on; sequences, rows and what recovery replays stay as they are. A drop
        of files ends it.

        Args:
            options: when it is worth while.
            pace: bounds the rate, and can end it.

        Returns:
            Whether anything was merged.

        Raises:
            CorruptData: of a segment; it stays as it is.
            OSError: the disk refuses; nothing has changed.
        """
        with self._merging:
            plain = [file for file in self._sealed() if isinstance(file, Segment)]
            sources = pick_compaction(plain, options)
            if not sources or self.stopped or self._is_over:
                return False
            return self._rewrite(sources, options.block_bytes, pace) is not None

    def _rewrite(
        self,
        sources: Sequence[Segment | CompactedSegment],
        block_bytes: int,
        pace: RateLimit,
        *,
        removed: RemovedRows | None = None,
    ) -> int | None:
        """Makes one merged segment of files; its length, None where `pace` or a drop ended it."""
        place = self._directory, self._partition, self._schema
        merge = Compaction(*place, tuple(sources), block_bytes, removed)
        try:
            path = write_compacted(
                merge, disk=self._disk, pace=lambda size: pace(size) and not self._merge_ends
            )
        except CorruptData as error:
            raise self.report_damage(error) from error
        return None if path is None else self._replace(sources, path)

    def erase(self, removed: RemovedRows, pace: RateLimit, *, share: float = 0.0) -> ErasedRows:
        """Leaves rows blank that were removed, in files that are not written to any more.

        Each becomes a merged segment, and so do the segments before it. Reads and writes go on; who
        reads such a row gets `DataExpired`. Each file is one step. A drop of files ends it.

        Args:
            removed: as they are in the log, by published commits.
            pace: as of `merge`.
            share: of the rows of a file that are not blank, which become blank at least.

        Raises:
            CorruptData, OSError: as of `merge`; files before are done.
            PartitionReadOnly: the partition takes no writes at present.
        """
        done = ErasedRows()
        with self._merging:
            if (refusal := self._writer.refusal()) is not None and not self._is_over:
                raise refusal
            # First: a row that is blank is never one that a reader does not expect.
            self.erased = max(self.erased, removed.until)
            files = self._sealed()
            parts = [removed.between(file.first_sequence, file.next_sequence) for file in files]
            counts = [_count_to_erase(*one, share) for one in zip(files, parts, strict=True)]
            # Merged segments are before all others.
            plain = [n for n, file in enumerate(files) if counts[n] and isinstance(file, Segment)]
            for number, (file, part, rows) in enumerate(zip(files, parts, counts, strict=True)):
                if not rows and not (isinstance(file, Segment) and number < max(plain, default=0)):
                    continue
                length = self._rewrite((file,), BLOCK_BYTES, pace, removed=part)
                if length is None:
                    return replace(done, is_over=False)
                size = done.bytes + file.length - length
                done = ErasedRows(done.files + 1, done.rows + rows, size)
        return done

    def log_files(self) -> list[LogFile]:
        """The files, oldest first."""
        with self._writing:
            return retention.log_files(self._segments, writing=self._writer.path)

    def files(self) -> list[tuple[Path, int]]:
        """The files with commits, oldest first, and the bytes of each that never change again."""
        with self._writing:
            files = [(segment.path, self._published_length(segment)) for segment in self._segments]
            return [(path, length) for path, length in files if length]

    def _published_length(self, segment: Segment | CompactedSegment) -> int:
        if isinstance(segment, CompactedSegment) or not self._pending:
            return segment.length
        first = max(self.last_sequence + 1, segment.first_sequence)
        return segment.length_before(first)

    def seal(self) -> None:
        """Ends the segment that is written to, so that it can be dropped; nothing if it is empty.

        Raises:
            PartitionReadOnly: the disk refuses.
        """
        with self._writing:
            if not self._is_over:
                self._writer.seal(sequence=self.end_sequence + 1)

    def drop(self, until: int, *, may_drop: Callable[[int], bool] | None = None) -> Truncation:
        """Drops the oldest files, as far as they hold nothing past `until` and are sealed.

        Reads and writes go on. What was read before stays valid. Durable when it returns, and a
        crash on the way leaves either nothing or all of it dropped.

        Args:
            until: the last commit to drop.
            may_drop: whether the files may go; called with their last commit.

        Raises:
            CorruptData: the headers of a file cannot be read; nothing was dropped.
            PartitionReadOnly: the disk refuses; nothing was dropped.
            OSError: the disk keeps files that are dropped; the next start deletes them.
        """
        until = min(until, self.last_sequence)
        if not self._droppable(until):
            return Truncation(self.dropped)
        with self._merging_ended():
            files = self._droppable(until)
            if (
                not files
                or self._is_over
                or not (may_drop is None or may_drop(files[-1].next_sequence - 1))
            ):
                return Truncation(self.dropped)
            # The record first: a file that is missing above the log start counts as damage.
            moved = retention.advance_log_start(
                self._directory,
                self._mark,
                files,
                bound=until,
                forks=self.forks,
                disk=self._disk,
            )
            mark, dropped = moved
            self._remove_files(files, mark, dropped)
            retention.delete_files([file.path for file in files], disk=self._disk)
            return dropped

    def _droppable(self, until: int) -> list[Segment | CompactedSegment]:
        with self._writing:
            return retention.droppable(self._segments, until, writing=self._writer.path)

    @contextmanager
    def _merging_ended(self) -> Iterator[None]:
        """Ends a merge that is under way, and keeps others from beginning.

        A merge takes many seconds, in which a writer that drops would write to no partition.
        """
        with self._writing:
            self._merge_ends += 1
        try:
            with self._merging:
                yield
        finally:
            with self._writing:
                self._merge_ends -= 1

    def sync(self) -> bool:
        """Syncs what only the commit log has made durable; waits for what is being written.

        Returns:
            Whether all commits are durable without the commit log. If not, the partition stops.
        """
        with self._writing:
            return self._writer.sync()

    def stop(self, reason: str) -> None:
        """Rejects writes until the next opening; known batches are still answered."""
        with self._writing:
            self._writer.stop(reason, advice="Restart the node")  # The disk did its part.

    def close(self) -> None:
        """Ends writing and drops the memory maps; tables that were read stay valid."""
        with self._writing:
            self._writer.close()
            self._maps.clear()
            self._blocks.clear()

    def end(self) -> None:
        """Before its directory is deleted: from here on it has no commits, and takes none.

        Ends a merge that is under way. What was read before stays valid; reads that have begun
        raise DataExpired.
        """
        self._is_over = True
        with self._merging_ended():
            with self._writing:
                self._writer.stop("the dataset was dropped", advice="Create it again")
                self._mark = LogStart(self.last_sequence)
                self._segments = []
                self._pending.clear()
                self.rows_total = self.paths_total = 0
            self.close()

    # --- merging and dropping ----------------------------------------------------------------

    def _remove_files(
        self, files: Sequence[Segment | CompactedSegment], mark: LogStart, dropped: Truncation
    ) -> None:
        """Removes files from the journal; their readers get `DataExpired` from now on."""
        with self._writing:
            self._mark = mark
            self._segments = self._segments[len(files) :]
            self._producers.truncate(mark.until)
            self._trim_epochs()
            self.history.drop(mark.until)
            self.rows_total -= dropped.rows
            self.paths_total -= dropped.paths
        for file in files:
            self._maps.evict(file.path)
            self._blocks.evict(file)

    def _sealed(self) -> list[Segment | CompactedSegment]:
        """Files that will not change any more, oldest first."""
        with self._writing:
            path, published = self._writer.path, self.last_sequence
            # A segment with pending frames is left out: a compacted one cannot be truncated.
            return [
                segment
                for segment in self._segments
                if segment.path != path and segment.next_sequence <= published + 1
            ]

    def _replace(self, sources: Sequence[Segment | CompactedSegment], temporary: Path) -> int:
        """Switches readers to the compacted segment, and deletes the sources; its length."""
        index, newest = load_index(temporary), max(source.newest_us for source in sources)
        with self._writing:  # A reader that meets the new file looks for the new segment.
            path = give_final_name(temporary, disk=self._disk)
            merged = self._compacted_segments(index, path, newest=newest)
            start = self._segments.index(sources[0])
            stop = start + len(sources)
            self._segments = [*self._segments[:start], merged, *self._segments[stop:]]
        self._disk.sync_directory(self._directory)
        for source in sources:
            self._maps.evict(source.path)
            self._blocks.evict(source)
        left = [source.path for source in sources if source.path != path]
        retention.delete_files(left, disk=self._disk)
        return merged.length

    def _compacted_segments(
        self, index: SegmentIndex, path: Path, *, newest: int = TIME_MIN_US
    ) -> CompactedSegment:
        merged = CompactedSegment(path, index, schema=self._schema, cache=self._blocks)
        merged.newest_us = newest
        return merged

    # --- recovery ----------------------------------------------------------------------------

    def _recover(self, replay: Replay) -> None:
        for path in unfinished_paths(self._directory):
            self._disk.unlink(path)
        self._mark = retention.recover_log_start(self._directory, disk=self._disk)
        self.last_sequence, self.sealed_epoch = self.dropped, self._mark.sealed_epoch
        self.history, self.forks = LogHistory(self.dropped), self._mark.forks
        for path in compacted_segment_paths(self._directory):
            self._recover_compacted(path, replay)
        plain = segment_paths(self._directory)
        paths = [path for path in plain if int(path.stem) > self.last_sequence]
        replaced = plain[: len(plain) - len(paths)]
        # A crash came between a merge and the deletion of its sources. The segment that is written
        # to is never one of them, so it has to be behind them.
        if replaced and not paths:
            reason = "the segment behind it, which was being written, is missing"
            raise corrupt_error(replaced[-1], 0, reason=reason)
        if paths:
            self._check_first(paths[0], int(paths[0].stem))
        retention.delete_files(replaced, disk=self._disk)
        if paths:
            self._recover_segments(paths, replay)
        self._trim_epochs()

    def _recover_compacted(self, path: Path, replay: Replay) -> None:
        index = load_index(path)
        merged = self._compacted_segments(index, path)
        self._check_first(path, index.first_sequence)
        if index.partition != self._partition:
            reason = f"expected partition {self._partition}, got {index.partition}"
            raise corrupt_error(path, 0, reason=reason)
        for commits in merged.replayed():
            newest = self._schema.newest_us(commits.paths)
            merged.newest_us = max(merged.newest_us, newest)
            replay(replace(commits, paths=widen(commits.paths, self._path_schema)))
        self._begin_segment(merged)
        self._index_compacted(index)

    def _recover_segments(self, paths: list[Path], replay: Replay) -> None:
        self._writer.repair_tail(paths[-1])
        for path in paths:
            self._recover_segment(path, replay, last=path == paths[-1])
        last = self._segments[-1] if self._segments else None
        length = last.length if last is not None and last.path == paths[-1] else 0
        self.torn_bytes = paths[-1].stat().st_size - length
        if self.torn_bytes:
            _log.warning("cutting a torn tail of %d bytes off %s", self.torn_bytes, paths[-1])
        self._writer.resume(paths[-1], length=length)

    def _recover_segment(self, path: Path, replay: Replay, *, last: bool) -> None:
        """Replays what is committed, as far as a leader knew when it made the newest frame."""
        first = int(path.stem)
        self._check_first(path, first)
        plan = SegmentScan(path, self._partition, first, self._schema, last)
        for frames in in_groups(scan(plan)):
            for frame in frames:
                self._index_frame(frame.header, path, verified=last)
            self._update_newest(self._schema.newest_us(Replayed.of(frames).paths))
            self._pending += frames
            published = self.publish(max(frame.header.committed for frame in frames))
            if published:
                replay(Replayed.of(published))

    def _check_first(self, path: Path, first: int) -> None:
        end = self.end_sequence
        if not follows(first, end) or int(path.stem) != first:
            reason = f"expected the segment of sequence {end + 1} next; one is missing or misplaced"
            raise corrupt_error(path, 0, reason=reason)

    def _index_compacted(self, index: SegmentIndex) -> None:
        """Takes the commits of a merged segment into the indices, all at once."""
        self.erased = max(self.erased, int(index.numbers("erased").max()))
        self._producers.add_merged(index)
        self.history.add_merged(index)
        self.sealed_epoch = self._last_seal
        self.rows_total += int(index.numbers("rows").sum())
        self.paths_total += int(index.numbers("paths").sum())
        self.last_sequence = index.first_sequence + index.commits.num_rows - 1
        epochs = index.numbers("epoch")
        for number in np.flatnonzero(differs(epochs)).tolist():
            self._add_epoch(index.first_sequence + number, int(epochs[number]))

    def _add_epoch(self, sequence: int, epoch: int) -> None:
        if not self._epochs or self._epochs[-1][1] != epoch:
            self._epochs.append((sequence, epoch))

    def _trim_epochs(self) -> None:
        """Forgets the epochs of frames that were dropped."""
        first = self.forks.following(self.dropped)
        while len(self._epochs) > 1 and self._epochs[1][0] <= first:
            del self._epochs[0]
        if self.dropped == self.end_sequence:  # What comes next may be after a jump.
            self._epochs.clear()
        elif self._epochs and self._epochs[0][0] < first:
            self._epochs[0] = first, self._epochs[0][1]

    def _index_frame(self, header: FrameHeader, path: Path, *, verified: bool) -> None:
        """Takes a durable frame into the index; readers see it when `last_sequence` is set."""
        if not self._segments or self._segments[-1].path != path:
            first = header.sequence
            self._begin_segment(
                Segment(path, first_sequence=first, schema=self._schema, maps=self._maps)
            )
        newest = self._segments[-1]
        assert isinstance(newest, Segment), "merged segments are not written to"
        newest.schema = self._schema
        newest.add(header, verified=verified)
        self.erased = max(self.erased, header.erased)
        self._producers.add(header.producer, header.batch, sequence=header.sequence)
        self._add_epoch(header.sequence, header.epoch)
        self.history.add(header)

    def _begin_segment(self, segment: Segment | CompactedSegment) -> None:
        """Adds a segment, which may begin with a jump."""
        last = self._segments[-1].next_sequence - 1 if self._segments else self.dropped
        self.forks = self.forks.jumped(last, segment.first_sequence)
        self._segments.append(segment)

    def _update_newest(self, newest: int) -> None:
        self._segments[-1].newest_us = max(self._segments[-1].newest_us, newest)

    # --- append ------------------------------------------------------------------------------

    def _admit(
        self, commit: Commit, group: FrameGroup, epoch: int, committed: int | None
    ) -> Committed | GalileoError:
        """Answers a known batch, or encodes a new one into the group."""
        try:
            # A batch that is stored is answered also where the partition takes nothing new.
            known = self._known(commit, group)
            if known is not None:
                header, stored = known
                first = Committed(header.sequence, header.rows, header.paths, duplicate=True)
                if commit.is_record:
                    is_same = header.committed_at_us == commit.digest
                    return first if is_same else conflict(commit, first)
                wide = self._widened(commit.observations)
                stored = widen(stored, self._observation_schema)
                return first_result(replace(commit, observations=wide), first, stored)
            schema = self._schema_of(commit.observations)
            dropped = self._mark.batches.first_result(commit, schema)
            if dropped is not None:
                return dropped
            sealed = max(self._last_seal, group.sealed)
            # A seal, even a pending one, says that no batch of an earlier range epoch follows.
            # Records have no epoch: their partition stays when ranges are cut anew.
            if commit.range_epoch < sealed and not commit.is_record:
                return ranges_changed(sealed)
            refusal = commit.refusal or self._writer.refusal()
            if refusal is not None:
                return refusal
            header = self._encode(commit, group, epoch, committed)
        except GalileoError as error:
            return error
        return Committed(header.sequence, header.rows, header.paths, duplicate=False)

    @property
    def _last_seal(self) -> int:
        """The range epoch of the last seal, also of a pending one; 1 without any."""
        return max(self._producers.last_batch(SEAL) or 1, self.sealed_epoch)

    def _known(self, commit: Commit, group: FrameGroup) -> tuple[FrameHeader, pa.Table] | None:
        """The first commit of this producer and batch, with its observations."""
        if not 0 <= commit.batch <= BATCH_MAX:
            raise InputError(f"expected a batch number from 0 to 2^64-1, got {commit.batch}")
        producer = producer_name(commit.producer)
        sequence = self._producers.sequence_of(producer, commit.batch)
        if sequence is not None:
            return self._stored(sequence)
        first = group.batches.get((producer, commit.batch))
        return None if first is None else (first[0], pa.Table.from_batches([first[1]]))

    def _schema_of(self, observations: pa.Table | pa.RecordBatch) -> StoredSchema:
        """The schema of the dataset that has as many columns; the present one where none has."""
        lacking = len(self._observation_schema) - observations.num_columns
        added = self._schema.added - lacking
        return self._schema.narrowed(added) if 0 <= added < self._schema.added else self._schema

    def _widened(self, observations: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
        """Observations of an earlier schema in the present one; others as they are."""
        if observations.schema.equals(self._schema_of(observations).observation_schema):
            return widen(observations, self._observation_schema)
        return observations

    def _stored(self, sequence: int) -> tuple[FrameHeader, pa.Table]:
        """The header and the observations of a frame, which may be pending."""
        header = self._from_segment(
            sequence, lambda segment: segment.header(sequence), last=self.end_sequence
        )
        batch = self._from_segment(
            sequence, lambda segment: segment.observations(sequence), last=self.end_sequence
        )
        return header, pa.Table.from_batches([batch])

    def _encode(
        self, commit: Commit, group: FrameGroup, epoch: int, committed: int | None
    ) -> FrameHeader:
        may_be_empty, schema = not commit.has_rows, self._schema_of(commit.observations)
        is_present = schema is self._schema
        observations = to_record_batch(
            commit.observations,
            self._observation_schema if is_present else schema.observation_schema,
            "observations",
            may_be_empty=may_be_empty,
        )
        paths = to_record_batch(
            commit.paths,
            self._path_schema if is_present else schema.path_schema,
            "paths",
            may_be_empty=may_be_empty,
        )
        observations_body, paths_body = encode_body(observations), encode_body(paths)
        header = FrameHeader(
            partition=self._partition,
            sequence=group.next_sequence,
            group=group.first,
            producer=commit.producer,
            batch=commit.batch,
            rows=observations.num_rows,
            paths=paths.num_rows,
            committed_at_us=commit.digest if commit.is_record else int(self._wall() * MICROS),
            paths_bytes=paths_body.size,
            observations_bytes=observations_body.size,
            paths_crc=paths_body.crc,
            observations_crc=observations_body.crc,
            epoch=epoch,
            # Without other members the sync here commits a frame. It names itself, so that a start
            # publishes it. A leader takes frames only when all that its term began with is
            # committed, so it knows that all earlier histories are.
            committed=group.next_sequence
            if committed is None
            else max(committed, first_of(history_of(group.first)) - 1),
            added=schema.added,
        )
        group.newest_us = max(group.newest_us, self._schema.newest_us(paths))
        bodies = [*paths_body.buffers, *observations_body.buffers]
        group.add(header, bodies, observations)
        if committed is not None:
            group.paths[header.sequence] = paths
        return header

    def _index_group(self, group: FrameGroup) -> None:
        """Takes durable frames into the index, and publishes them."""
        self._take_in(group)
        for header in group.headers:
            self._count(header)

    def _count(self, header: FrameHeader) -> None:
        """Lets readers see a frame."""
        self.rows_total += header.rows
        self.paths_total += header.paths
        self.last_sequence = header.sequence
        if header.producer == SEAL:
            self.sealed_epoch = max(self.sealed_epoch, header.batch)

    def _hold(self, group: FrameGroup, paths: Sequence[pa.RecordBatch]) -> None:
        """Takes durable frames into the index, where they are pending."""
        self._take_in(group)
        self._pending += map(ScannedFrame, group.headers, paths)

    def _take_in(self, group: FrameGroup) -> None:
        assert self._writer.path is not None, "a group was written to no file"
        for header in group.headers:
            self._index_frame(header, self._writer.path, verified=False)
        self._update_newest(group.newest_us)

    # --- reading -----------------------------------------------------------------------------

    def _from_segment(
        self,
        sequence: int,
        read: Callable[[Segment | CompactedSegment], T],
        *,
        last: int | None = None,
    ) -> T:
        """Reads again where the segment was merged meanwhile and its file is gone."""
        last = self.last_sequence if last is None else last
        segment = self._segment_of(sequence, last)
        try:
            return read(segment)
        except CorruptData as error:
            with self._writing:
                newer = self._segment_of(sequence, last)
            if newer is segment:
                raise self.report_damage(error) from error
            return read(newer)

    def report_damage(self, error: CorruptData) -> GalileoError:
        """Reports stored bytes that are damaged; returns the error that the reader gets."""
        return error if self.on_damage is None else self.on_damage(error)

    def _segment_of(self, sequence: int, last: int) -> Segment | CompactedSegment:
        if 1 <= sequence <= self.dropped:
            raise retention.dropped_error(self._partition, sequence, until=self.dropped)
        if not 1 <= sequence <= last:
            raise InputError(
                f"expected a commit sequence from 1 to {last}, got {sequence}",
                last_sequence=last,
            )
        segments = self._segments
        place = bisect_right(segments, sequence, key=attrgetter("first_sequence")) - 1
        if place < 0:  # It was dropped since we looked.
            raise retention.dropped_error(self._partition, sequence, until=self.dropped)
        segment = segments[place]
        if sequence >= segment.next_sequence:
            raise InputError(
                f"expected a commit sequence up to {segment.next_sequence - 1}, or one of a later "
                f"history, got {sequence}: that commit is lost",
                last_sequence=segment.next_sequence - 1,
            )
        return segment


def _count_to_erase(file: Segment | CompactedSegment, removed: RemovedRows, share: float) -> int:
    """How many rows of a file become blank; 0 if they are fewer than a share of the others."""
    is_late = removed.by > file.erased(removed.sequence) if len(removed) else removed.by > 0
    if not is_late.any():
        return 0
    blank = removed.take(~is_late).count()
    rows = removed.count() - blank
    is_worth_it = not share or rows >= share * (file.count_rows() - blank)
    return rows if is_worth_it else 0


def _row_sizes(sequences: Sequence[int], segment: Segment | CompactedSegment) -> list[float]:
    """Of the first commits, those in one segment."""
    count = bisect_left(sequences, segment.next_sequence)
    return segment.row_sizes(sequences[: max(count, 1)])


def decode_frames(
    data: Buffer, *, schema: StoredSchema, partition: int, after: int, epochs: FrameEpochs
) -> list[FollowedFrame]:
    """Frames of a leader, checked whole; those up to `after` are left out.

    Args:
        data: frames, one behind the other.
        schema: of the dataset.
        partition: of the frames.
        after: the last frame that is there already.
        epochs: of the frames.

    Raises:
        CorruptData: they are not the expected ones, or fail their checksums.
        Unavailable: they have features that were added to the dataset, and are not known here yet.
    """
    buffer, frames, offset = pa.py_buffer(data), list[FollowedFrame](), 0
    while offset < buffer.size:
        part = buffer.slice(offset, min(HEADER_BYTES_MAX, buffer.size - offset))
        header = decode_header(part.to_pybytes())
        if header.partition != partition or header.frame_bytes > buffer.size - offset:
            raise CorruptData(f"expected whole frames of partition {partition}, got {header}")
        offset += header.frame_bytes
        if header.sequence <= after:
            continue
        last = frames[-1].header.sequence if frames else after
        expected = epochs.forks.following(last)
        if header.sequence != expected or header.epoch != epochs.at(expected):
            raise CorruptData(
                f"expected frame {expected} of epoch {epochs.at(expected)}, got "
                f"{header.sequence} of epoch {header.epoch}"
            )
        start = offset - header.paths_bytes - header.observations_bytes
        paths = buffer.slice(start, header.paths_bytes)
        rows = buffer.slice(start + header.paths_bytes, header.observations_bytes)
        if checksum([paths]) != header.paths_crc or checksum([rows]) != header.observations_crc:
            raise CorruptData(f"the checksum of frame {expected} is wrong")
        bodies = buffer.slice(start, header.paths_bytes + header.observations_bytes)
        if header.added > schema.added:
            raise Unavailable(
                f"frame {expected} of partition {partition} has features of dataset "
                f"{schema.name!r} that are not known here yet; try again",
                after_s=UNKNOWN_FEATURES_AFTER_S,
            )
        stored = decode_body(paths, schema.narrowed(header.added).path_schema)
        frames.append(FollowedFrame(header, bodies, widen(stored, schema.path_schema)))
    return frames
