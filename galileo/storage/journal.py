"""The journal of one partition of one dataset: its commits, in sequence, on the disk."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias, TypeVar

import pyarrow as pa

from galileo.errors import CorruptData, GalileoError, InputError, PartitionReadOnly
from galileo.model.schema import Schema
from galileo.model.times import MICROS, TIME_MIN_US
from galileo.storage import retention
from galileo.storage.commit_log import Stretch
from galileo.storage.commits import Commit as Commit
from galileo.storage.commits import Committed as Committed
from galileo.storage.commits import (
    FrameGroup,
    RowRanges,
    first_result,
    is_new,
    take_rows,
    to_record_batch,
)
from galileo.storage.compacted_format import Index
from galileo.storage.compacted_segment import (
    BlockCache,
    CompactedSegment,
    compacted_segment_paths,
    load_index,
    unfinished_paths,
)
from galileo.storage.compaction import (
    Compaction,
    CompactionOptions,
    RateLimit,
    pick_compaction,
    write_compacted,
)
from galileo.storage.disk import make_directory
from galileo.storage.frame import BATCH_MAX, FrameHeader, encode_body, producer_name
from galileo.storage.producers import ProducerIndex
from galileo.storage.recovery import Replayed, SegmentScan, in_groups, scan
from galileo.storage.retention import LogFile, LogStart, Truncation
from galileo.storage.segment import Segment, SegmentMaps, corrupt_error, segment_paths
from galileo.storage.writer import JournalOptions, SegmentWriter

_log = logging.getLogger(__name__)

T = TypeVar("T")

Replay: TypeAlias = Callable[[Replayed], None]


@dataclass(slots=True)
class Appending:
    """Commits on their way to the disk; a `commit_log.Write`.

    Attributes:
        journal: of the partition.
        group: the encoded frames of new commits.
        results: as of `PartitionJournal.append`, valid after `finish`.
        is_finished: whether the frames are durable.
    """

    journal: PartitionJournal
    group: FrameGroup
    results: list[Committed | GalileoError]
    _writer: SegmentWriter
    is_finished: bool = False

    @property
    def size(self) -> int:
        return self.group.size

    def write(self) -> bool:
        """Writes the frames; if the disk refuses, its error becomes the result of new commits."""
        group = self.group
        try:
            self._writer.append(group.buffers, size=group.size, sequence=group.first)
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
        self.results = [error if is_new(r, self.group) else r for r in self.results]


class PartitionJournal:
    """One directory of segment files. `append` excludes itself; readers never wait for it.

    Invariants: sequences are 1, 2, 3 … without gaps; what a reader can see is durable. Commits
    1 to `dropped` are gone; all later ones are there.

    Attributes:
        last_sequence: of the newest commit, 0 where there is none.
        rows_total, paths_total: over all commits that are there.
        torn_bytes: length of the torn tail that was cut when the journal was opened.
        syncs: how long the disk took to make commits durable.
    """

    def __init__(
        self,
        directory: Path,
        *,
        schema: Schema,
        partition: int,
        options: JournalOptions,
        wall: Callable[[], float],
    ) -> None:
        self.last_sequence = 0
        self.rows_total = 0
        self.paths_total = 0
        self.torn_bytes = 0
        self._directory = directory
        self._partition = partition
        self._schema = schema
        self._observation_schema = schema.observation_schema
        self._path_schema = schema.path_schema
        self._wall = wall
        self._disk = options.disk
        self._producers = ProducerIndex()
        self._mark = retention.NOTHING_TRUNCATED
        self._segments: list[Segment | CompactedSegment] = []
        self._maps = SegmentMaps(
            segments_max=options.mapped_segments_max, commits_max=options.decoded_commits_max
        )
        self._blocks = BlockCache()
        self._writer = SegmentWriter(directory, options)
        self.syncs = self._writer.syncs
        self._is_over = False
        self._writing = threading.Lock()
        self._merging = threading.Lock()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        schema: Schema,
        partition: int,
        options: JournalOptions,
        replay: Replay,
        wall: Callable[[], float],
    ) -> PartitionJournal:
        """Recovers a partition, or starts an empty one where there is no directory.

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

    @property
    def stopped(self) -> str | None:
        """Why the partition takes no writes at present, None while it does."""
        return self._writer.stopped

    @property
    def dropped(self) -> int:
        """The sequence up to which retention has dropped the commits; 0 without any."""
        return self._mark.until

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
        if sequence is not None:
            return sequence
        dropped = self._mark.batches.find(producer, batch)
        return None if dropped is None else dropped.sequence

    def append(self, commits: Sequence[Commit]) -> list[Committed | GalileoError]:
        """Commits all of `commits` with one sync; returns when they are durable.

        Returns:
            For each commit its result, in order. Errors are results too: `BatchConflict`,
            `InputError` for what can never be stored, `PartitionReadOnly` for everything new
            while the disk refuses. A known (producer, batch) is answered in any state.
        """
        with self.appending(commits) as appending:
            if appending.group.headers and appending.write():
                appending.finish()
        return appending.results

    @contextmanager
    def appending(self, commits: Sequence[Commit]) -> Iterator[Appending]:
        """`append` in steps: commits are encoded at the begin, and readable after the end.

        In between, the caller writes and finishes them, in any thread, if there are new ones.
        Other appends wait.
        """
        with self._writing:
            group = FrameGroup(self.last_sequence + 1)
            results = [self._admit(commit, group) for commit in commits]
            appending = Appending(self, group, results, self._writer)
            yield appending
            if appending.is_finished:
                self._publish(group)

    def read(self, sequence: int, *, ranges: RowRanges | None = None) -> pa.Table:
        """Observations of one commit, in stored order; memory-mapped where rows are adjacent.

        Args:
            sequence: of the commit.
            ranges: which rows, in the order wanted; None for all.

        Raises:
            CorruptData: the stored bytes fail their checksum.
            InputError: there is no such commit, or no such row in it.
            DataExpired: retention has dropped it.
        """
        batch = self._from_segment(sequence, lambda segment: segment.observations(sequence))
        table = pa.Table.from_batches([batch])
        return table if ranges is None else take_rows(table, ranges)

    def paths(self, sequence: int) -> pa.RecordBatch:
        """The paths of one commit; errors as `read`."""
        return self._from_segment(sequence, lambda segment: segment.paths(sequence))

    def header(self, sequence: int) -> FrameHeader:
        """What the frame of one commit says about itself; errors as `read`."""
        return self._from_segment(sequence, lambda segment: segment.header(sequence))

    def merge(self, options: CompactionOptions, pace: RateLimit) -> bool:
        """Merges the oldest sealed segments into one, where there are enough of them.

        Reads and writes go on; sequences, rows and what recovery replays stay as they are.

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
            sources = pick_compaction(self._sealed(), options)
            if not sources or self.stopped or self._is_over:
                return False
            place = self._directory, self._partition, self._schema
            merge = Compaction(*place, sources, options.block_bytes)
            path = write_compacted(
                merge, disk=self._disk, pace=lambda size: pace(size) and not self._is_over
            )
            if path is None:
                return False
            newest = max(source.newest_us for source in sources)
            self._replace(sources, self._compacted_segments(load_index(path), path, newest=newest))
            retention.delete_files([source.path for source in sources], disk=self._disk)
            return True

    def log_files(self) -> list[LogFile]:
        """The files, oldest first."""
        with self._writing:
            return retention.log_files(self._segments, writing=self._writer.path)

    def files(self) -> list[tuple[Path, int]]:
        """The files with commits, oldest first, and the bytes of each that never change again."""
        with self._writing:
            return [(segment.path, segment.length) for segment in self._segments]

    def seal(self) -> None:
        """Ends the segment that is written to, so that it can be dropped; nothing if it is empty.

        Raises:
            PartitionReadOnly: the disk refuses.
        """
        with self._writing:
            if not self._is_over:
                self._writer.seal(sequence=self.last_sequence + 1)

    def drop(self, until: int) -> Truncation:
        """Drops the oldest files, as far as they hold nothing past `until` and are sealed.

        Reads and writes go on. What was read before stays valid. Durable when it returns, and a
        crash on the way leaves either nothing or all of it dropped.

        Raises:
            CorruptData: the headers of a file cannot be read; nothing was dropped.
            PartitionReadOnly: the disk refuses; nothing was dropped.
            OSError: the disk keeps files that are dropped; the next start deletes them.
        """
        with self._merging:
            files = retention.droppable(self._segments, until, writing=self._writer.path)
            if not files or self._is_over:
                return Truncation(self.dropped)
            moved = retention.advance_log_start(self._directory, self._mark, files, disk=self._disk)
            mark, dropped = moved
            self._remove_files(files, mark, dropped)
            retention.delete_files([file.path for file in files], disk=self._disk)
            return dropped

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
        with self._merging:
            with self._writing:
                self._writer.stop("the dataset was dropped", advice="Create it again")
                self._mark = LogStart(self.last_sequence)
                self._segments = []
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
            self.rows_total -= dropped.rows
            self.paths_total -= dropped.paths
        for file in files:
            self._maps.evict(file.path)
            self._blocks.evict(file.path)

    def _sealed(self) -> list[Segment]:
        """Segments that will not change any more, oldest first."""
        with self._writing:
            path = self._writer.path
            return [s for s in self._segments if isinstance(s, Segment) and s.path != path]

    def _replace(self, sources: Sequence[Segment], merged: CompactedSegment) -> None:
        """Switches readers to the compacted segment."""
        with self._writing:
            start = self._segments.index(sources[0])
            stop = start + len(sources)
            self._segments = [*self._segments[:start], merged, *self._segments[stop:]]
        for source in sources:
            self._maps.evict(source.path)

    def _compacted_segments(
        self, index: Index, path: Path, *, newest: int = TIME_MIN_US
    ) -> CompactedSegment:
        merged = CompactedSegment(path, index, schema=self._schema, cache=self._blocks)
        merged.newest_us = newest
        return merged

    # --- recovery ----------------------------------------------------------------------------

    def _recover(self, replay: Replay) -> None:
        for path in unfinished_paths(self._directory):
            self._disk.unlink(path)
        self._mark = retention.recover_log_start(self._directory, disk=self._disk)
        self.last_sequence = self.dropped
        for path in compacted_segment_paths(self._directory):
            self._recover_compacted(path, replay)
        plain = segment_paths(self._directory)
        paths = [path for path in plain if int(path.stem) > self.last_sequence]
        replaced = plain[: len(plain) - len(paths)]
        if replaced and not paths:
            reason = "the segment behind it, which was being written, is missing"
            raise corrupt_error(replaced[-1], 0, reason=reason)
        if paths:
            self._check_first(paths[0], int(paths[0].stem), self.last_sequence + 1)
        retention.delete_files(replaced, disk=self._disk)
        if paths:
            self._recover_segments(paths, replay)

    def _recover_compacted(self, path: Path, replay: Replay) -> None:
        index = load_index(path)
        merged, first = self._compacted_segments(index, path), self.last_sequence + 1
        self._check_first(path, index.first_sequence, first)
        if index.partition != self._partition:
            reason = f"expected partition {self._partition}, got {index.partition}"
            raise corrupt_error(path, 0, reason=reason)
        for commits in merged.replayed():
            newest = retention.newest_us(self._schema, commits.paths)
            merged.newest_us = max(merged.newest_us, newest)
            replay(commits)
        self._segments.append(merged)
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
        first = self.last_sequence + 1
        self._check_first(path, int(path.stem), first)
        plan = SegmentScan(path, self._partition, first, self._path_schema, last)
        for frames in in_groups(scan(plan)):
            for frame in frames:
                self._index_frame(frame.header, path, verified=last)
            commits = Replayed.of(frames)
            self._update_newest(retention.newest_us(self._schema, commits.paths))
            replay(commits)

    def _check_first(self, path: Path, first: int, expected: int) -> None:
        if first != expected or int(path.stem) != expected:
            reason = (
                f"expected the segment of sequence {expected} next; one is missing or misplaced"
            )
            raise corrupt_error(path, 0, reason=reason)

    def _index_compacted(self, index: Index) -> None:
        """Takes the commits of a merged segment into the indices, all at once."""
        self._producers.add_merged(index)
        self.rows_total += int(index.numbers("rows").sum())
        self.paths_total += int(index.numbers("paths").sum())
        self.last_sequence = index.first_sequence + index.commits.num_rows - 1

    def _index_frame(self, header: FrameHeader, path: Path, *, verified: bool) -> None:
        """Takes a durable frame into the index; readers see it when its sequence is set."""
        if not self._segments or self._segments[-1].path != path:
            first = header.sequence
            self._segments.append(
                Segment(path, first_sequence=first, schema=self._schema, maps=self._maps)
            )
        newest = self._segments[-1]
        assert isinstance(newest, Segment), "merged segments are not written to"
        newest.add(header, verified=verified)
        self._producers.add(header.producer, header.batch, sequence=header.sequence)
        self.rows_total += header.rows
        self.paths_total += header.paths
        self.last_sequence = header.sequence

    def _update_newest(self, newest: int) -> None:
        self._segments[-1].newest_us = max(self._segments[-1].newest_us, newest)

    # --- append ------------------------------------------------------------------------------

    def _admit(self, commit: Commit, group: FrameGroup) -> Committed | GalileoError:
        """Answers a known batch, or encodes a new one into the group."""
        try:
            known = self._known(commit, group)
            if known is not None:
                header, stored = known
                first = Committed(header.sequence, header.rows, header.paths, duplicate=True)
                return first_result(commit, first, stored)
            dropped = self._mark.batches.first_result(commit, self._observation_schema)
            if dropped is not None:
                return dropped
            refusal = self._writer.refusal()
            if refusal is not None:
                return refusal
            header = self._encode(commit, group)
        except GalileoError as error:
            return error
        return Committed(header.sequence, header.rows, header.paths, duplicate=False)

    def _known(self, commit: Commit, group: FrameGroup) -> tuple[FrameHeader, pa.Table] | None:
        """The first commit of this producer and batch, with its observations."""
        if not 0 <= commit.batch <= BATCH_MAX:
            raise InputError(f"expected a batch number from 0 to 2^64-1, got {commit.batch}")
        producer = producer_name(commit.producer)
        sequence = self._producers.sequence_of(producer, commit.batch)
        if sequence is not None:
            return self.header(sequence), self.read(sequence)
        first = group.batches.get((producer, commit.batch))
        return None if first is None else (first[0], pa.Table.from_batches([first[1]]))

    def _encode(self, commit: Commit, group: FrameGroup) -> FrameHeader:
        observations = to_record_batch(
            commit.observations, self._observation_schema, "observations"
        )
        paths = to_record_batch(commit.paths, self._path_schema, "paths")
        observations_body, paths_body = encode_body(observations), encode_body(paths)
        header = FrameHeader(
            partition=self._partition,
            sequence=group.next_sequence,
            group=group.first,
            producer=commit.producer,
            batch=commit.batch,
            rows=observations.num_rows,
            paths=paths.num_rows,
            committed_at_us=int(self._wall() * MICROS),
            paths_bytes=paths_body.size,
            observations_bytes=observations_body.size,
            paths_crc=paths_body.crc,
            observations_crc=observations_body.crc,
        )
        group.newest_us = max(group.newest_us, retention.newest_us(self._schema, paths))
        bodies = [*paths_body.buffers, *observations_body.buffers]
        group.add(header, bodies, observations)
        return header

    def _publish(self, group: FrameGroup) -> None:
        assert self._writer.path is not None, "a group was written to no file"
        for header in group.headers:
            self._index_frame(header, self._writer.path, verified=False)
        self._update_newest(group.newest_us)

    # --- reading -----------------------------------------------------------------------------

    def _from_segment(self, sequence: int, read: Callable[[Segment | CompactedSegment], T]) -> T:
        """Reads again where the segment was merged meanwhile and its file is gone."""
        segment = self._segment_of(sequence)
        try:
            return read(segment)
        except CorruptData:
            newer = self._segment_of(sequence)
            if newer is segment:
                raise
            return read(newer)

    def _segment_of(self, sequence: int) -> Segment | CompactedSegment:
        if 1 <= sequence <= self.dropped:
            raise retention.dropped_error(self._partition, sequence, until=self.dropped)
        if not 1 <= sequence <= self.last_sequence:
            raise InputError(
                f"expected a commit sequence from 1 to {self.last_sequence}, got {sequence}",
                last_sequence=self.last_sequence,
            )
        segments = self._segments
        place = bisect_right(segments, sequence, key=attrgetter("first_sequence")) - 1
        if place < 0:  # It was dropped since we looked.
            raise retention.dropped_error(self._partition, sequence, until=self.dropped)
        return segments[place]
