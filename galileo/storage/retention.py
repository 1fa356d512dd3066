"""The log start of a partition: the end of its dropped part, and the batches of that part.

Retention drops whole files, oldest first. Before the first one is deleted, a record stores the
commit up to which the log is dropped (the *log start*) and the dropped batches of each producer, so
that a repeated batch is still recognised. A crash in between leaves files before the log start,
which the next start deletes. The log start never moves back and is always the end of a file; the
next file, which may be empty, exists before the record. The record keeps the last dropped seal of
range epochs, too, and up to where the log was to be dropped: in a file that goes on behind the log
start, copies of what counts there replace versions that were dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import ConfigError, CorruptData, DataExpired, GalileoError
from galileo.model.forks import Forks, follows
from galileo.model.schema import StoredSchema
from galileo.storage.commits import RECORD, SEAL, Commit, Committed, conflict, to_record_batch
from galileo.storage.compacted_segment import CompactedSegment, compacted_segment_paths, load_index
from galileo.storage.disk import Disk
from galileo.storage.frame import encode_body
from galileo.storage.metadata_files import MetadataFiles, load_record
from galileo.storage.segment import Segment, corrupt_error, segment_paths

LOG_START_FILE = "dropped"
FORMAT_VERSION = 1
BATCHES_KEPT_MAX = 262_144
"""The newest dropped batches of one partition that are recognised when a producer repeats them."""
LOG_START_BYTES_MAX = 16 << 20
"""Of the record with the mark and those batches."""

BATCHES = pa.schema(
    [
        ("producer", pa.string()),
        ("batch", pa.uint64()),
        ("sequence", pa.uint64()),
        ("rows", pa.uint32()),
        ("paths", pa.uint32()),
        # Of the observations as they were stored, or the low bits of a record's digest.
        ("observations_crc", pa.uint32()),
    ]
)
_CRC_BITS = 0xFFFFFFFF
_WRITING = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd"))


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a partition, as retention sees it.

    Attributes:
        first, last: commit sequences.
        bytes: of the file.
        newest_us: the end of the newest time bucket that it has observations in: all of them
            are older. Microseconds since 1970.
        sealed: whether it is not written to any more; only such can be dropped.
    """

    first: int
    last: int
    bytes: int
    newest_us: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class Truncation:
    """The extent of one drop."""

    until: int
    commits: int = 0
    rows: int = 0
    paths: int = 0
    files: int = 0
    bytes: int = 0


class TruncatedProducers:
    """The batches of dropped commits, by producer and number; it never changes."""

    __slots__ = ("_crcs", "_numbers", "_places", "_results", "batches")

    def __init__(self, batches: pa.Table) -> None:
        """`batches`: of `BATCHES`, in any order."""
        ordered = batches.sort_by([("producer", "ascending"), ("batch", "ascending")])
        ordered = ordered.combine_chunks()
        self.batches = ordered
        self._numbers = ordered.column("batch").to_numpy()
        names = ("sequence", "rows", "paths")
        self._results = [ordered.column(name).to_numpy() for name in names]
        self._crcs = ordered.column("observations_crc")
        self._places = _places(ordered.column("producer"))

    def __len__(self) -> int:
        return int(self.batches.num_rows)

    def merge(self, dropped: pa.Table) -> TruncatedProducers:
        """These and those of `dropped`; the oldest are forgotten where there are too many."""
        together = pa.concat_tables([self.batches, dropped]).sort_by("sequence")
        return TruncatedProducers(together.slice(max(0, together.num_rows - BATCHES_KEPT_MAX)))

    def newest(self, count: int) -> TruncatedProducers:
        """Those of the `count` last commits."""
        ordered = self.batches.sort_by("sequence")
        return TruncatedProducers(ordered.slice(max(0, ordered.num_rows - count)))

    def find(self, producer: str, batch: int) -> Committed | None:
        """The first result of a batch, None where it is not known."""
        place = self._place(producer, batch)
        return None if place is None else self._result(place)

    def _place(self, producer: str, batch: int) -> int | None:
        if producer not in self._places:
            return None
        start, stop = self._places[producer]
        place = start + int(np.searchsorted(self._numbers[start:stop], np.uint64(batch)))
        return place if place < stop and int(self._numbers[place]) == batch else None

    def _result(self, place: int) -> Committed:
        sequence, rows, paths = (int(column[place]) for column in self._results)
        return Committed(sequence, rows, paths, duplicate=True)

    def first_result(self, commit: Commit, schema: StoredSchema) -> Committed | GalileoError | None:
        """The answer to a batch that was dropped; of its rows the number and a checksum are known.

        Args:
            commit: the batch; it may have features that were added since, without values.
            schema: of its observations.
        """
        place = self._place(commit.producer, commit.batch)
        if place is None:
            return None
        first, crc = self._result(place), self._crcs[place].as_py()
        if commit.is_record:
            return first if crc == commit.digest & _CRC_BITS else conflict(commit, first)
        sent = to_record_batch(
            commit.observations,
            schema.observation_schema,
            "observations",
            may_be_empty=commit.is_seal,
        )
        is_same = first.rows == sent.num_rows and any(
            crc == encode_body(form).crc for form in _earlier_forms(sent, schema)
        )
        return first if is_same else conflict(commit, first)

    def last_batch(self, producer: str) -> int | None:
        """The highest batch number of a producer, None where none is known."""
        start, stop = self._places.get(producer, (0, 0))
        return int(self._numbers[stop - 1]) if stop > start else None


def _earlier_forms(sent: pa.RecordBatch, schema: StoredSchema) -> Iterator[pa.RecordBatch]:
    """Observations, and what an earlier schema would have had of them."""
    yield sent
    for column in reversed(sent.columns[sent.num_columns - schema.added :]):
        if column.null_count < len(column):
            return
        sent = sent.select(sent.schema.names[:-1])
        yield sent


def _places(producers: pa.ChunkedArray) -> dict[str, tuple[int, int]]:
    """Where each producer's rows begin and end, for a sorted column."""
    counts = pc.value_counts(producers)
    names, sizes = counts.field("values").to_pylist(), counts.field("counts").to_numpy()
    stops = np.cumsum(sizes).tolist()
    return {
        name: (stop - size, stop)
        for name, size, stop in zip(names, sizes.tolist(), stops, strict=True)
    }


NO_PRODUCERS = TruncatedProducers(BATCHES.empty_table())


@dataclass(frozen=True, slots=True)
class LogStart:
    """The dropped part of a partition's log: its commits 1 to `until`.

    Attributes:
        batches: of these commits, as many as are kept.
        sealed_epoch: that of the last seal of range epochs among them, 1 without any.
        forks: the jumps of the log to these commits; they are kept for ever.
        bound: up to where the log was to be dropped; not before `until`. What the last dropped
            commits store may be missing that counted until commits up to here.
    """

    until: int = 0
    batches: TruncatedProducers = NO_PRODUCERS
    sealed_epoch: int = 1
    forks: Forks = field(default_factory=Forks)
    bound: int = 0

    def advance(self, until: int, dropped: pa.Table, forks: Forks, *, bound: int) -> LogStart:
        """The mark after `dropped` were dropped too, cut to what a record may hold."""
        seals = dropped.filter(pc.equal(dropped.column("producer"), SEAL)).column("batch")
        sealed_epoch = max([self.sealed_epoch, *seals.to_pylist()])
        kept, bound = forks.between(0, until), max(self.bound, bound)
        mark = LogStart(until, self.batches.merge(dropped), sealed_epoch, kept, bound)
        while len(mark.to_bytes()) > LOG_START_BYTES_MAX:
            mark = replace(mark, batches=mark.batches.newest(len(mark.batches) // 2))
        return mark

    def to_bytes(self) -> bytes:
        forks = json.dumps(self.forks.pairs)
        stamp = {"format": str(FORMAT_VERSION), "until": str(self.until), "forks": forks}
        stamp["bound"] = str(self.bound)
        if self.sealed_epoch > 1:
            stamp["sealed_epoch"] = str(self.sealed_epoch)
        table = self.batches.batches.replace_schema_metadata(stamp)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_WRITING) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @staticmethod
    def from_bytes(data: bytes) -> LogStart:
        """The inverse of `to_bytes`.

        Raises:
            CorruptData: these are other bytes.
            ConfigError: they are of a format that this version does not know.
        """
        try:
            with pa.ipc.open_stream(data) as reader:
                table = reader.read_all()
            stamp = table.schema.metadata
            version, until = int(stamp[b"format"]), int(stamp[b"until"])
            bound = int(stamp[b"bound"])
            sealed_epoch = int(stamp.get(b"sealed_epoch", 1))
            forks = Forks(tuple((int(a), int(b)) for a, b in json.loads(stamp[b"forks"])))
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
            raise CorruptData(
                f"expected the mark of dropped commits: {error}", expected="mark"
            ) from error
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"expected marks of dropped commits of format {FORMAT_VERSION}, got {version}; "
                "start the version of Galileo that wrote them",
                expected="format_version",
            )
        batches = TruncatedProducers(table.replace_schema_metadata())
        return LogStart(until, batches, sealed_epoch, forks, bound)


NOTHING_TRUNCATED = LogStart()


def log_start_path(directory: Path) -> Path:
    """The file of a partition's mark."""
    return directory / f"{LOG_START_FILE}.record"


def load_log_start(directory: Path) -> LogStart:
    """The mark of a partition.

    Raises:
        CorruptData: its file is not what was written.
    """
    path = log_start_path(directory)
    data = load_record(path)
    try:
        return NOTHING_TRUNCATED if data is None else LogStart.from_bytes(data)
    except CorruptData as error:
        raise corrupt_error(path, 0, reason=error.message) from error


def advance_log_start(
    directory: Path,
    mark: LogStart,
    files: Sequence[Segment | CompactedSegment],
    *,
    bound: int,
    forks: Forks,
    disk: Disk,
) -> tuple[LogStart, Truncation]:
    """Makes durable that the files behind the mark are dropped too; deletes nothing yet.

    Args:
        directory: of the partition.
        mark: as it is.
        files: that are dropped.
        bound: up to which files were to be dropped.
        forks: of the whole log.
        disk: to write with.

    Returns:
        The mark as it is now, and what it passed.

    Raises:
        CorruptData: a header of a file is not what was written.
        PartitionReadOnly: the disk refuses; the mark is where it was.
    """
    dropped = _batches(files)
    moved = mark.advance(files[-1].next_sequence - 1, dropped, forks, bound=bound)
    MetadataFiles(directory, disk).save(LOG_START_FILE, moved.to_bytes())
    rows, paths = (int(pc.sum(dropped.column(name)).as_py()) for name in ("rows", "paths"))
    size = sum(file.length for file in files)
    return moved, Truncation(moved.until, dropped.num_rows, rows, paths, len(files), size)


def recover_log_start(directory: Path, *, disk: Disk) -> LogStart:
    """The mark of a partition, after deleting what an earlier process has left under it.

    Raises:
        CorruptData: the record is damaged, or the file behind the mark is missing; nothing was
            deleted.
        OSError: the disk refuses.
    """
    mark = load_log_start(directory)
    if mark.until == 0:
        return mark
    paths = [*compacted_segment_paths(directory), *segment_paths(directory)]
    behind = [_first(path) for path in paths if _first(path) > mark.until]
    if not follows(min(behind, default=0), mark.until):
        reason = f"the log is dropped up to {mark.until}, but the file behind that is missing"
        raise corrupt_error(log_start_path(directory), 0, reason=reason)
    delete_files([path for path in paths if _first(path) <= mark.until], disk=disk)
    return mark


def delete_files(paths: Sequence[Path], *, disk: Disk) -> None:
    """Deletes files that the mark covers, or whose commits a durable merged segment has.

    Raises:
        OSError: the disk refuses; what is left is deleted at the next start.
    """
    for path in paths:
        disk.unlink(path)
    if paths:
        disk.sync_directory(paths[0].parent)


def _first(path: Path) -> int:
    return int(path.stem)


def _batches(files: Iterable[Segment | CompactedSegment]) -> pa.Table:
    """The batches that some files hold, as a table of `BATCHES`; reads every frame's header."""
    return pa.concat_tables([BATCHES.empty_table(), *map(_batches_from_file, files)])


def _batches_from_file(file: Segment | CompactedSegment) -> pa.Table:
    if isinstance(file, CompactedSegment):
        commits = load_index(file.path).commits
        sequences = np.arange(commits.num_rows, dtype=np.uint64) + np.uint64(file.first_sequence)
        columns = [
            commits.column("producer").cast(pa.string()),
            commits.column("batch"),
            pa.array(sequences),
            commits.column("rows"),
            commits.column("paths"),
            commits.column("observations_crc"),
        ]
        digests = commits.column("committed_at_us").to_numpy()
    else:
        headers = [file.header(n) for n in range(file.first_sequence, file.next_sequence)]
        columns = [
            pa.array([getattr(header, name) for header in headers], BATCHES.field(name).type)
            for name in BATCHES.names
        ]
        digests = np.array([header.committed_at_us for header in headers], np.int64)
    low = pa.array((digests & _CRC_BITS).astype(np.uint32))
    columns[-1] = pc.if_else(pc.ends_with(columns[0], RECORD), low, columns[-1])
    return pa.Table.from_arrays(columns, schema=BATCHES)


def log_files(
    files: Sequence[Segment | CompactedSegment], *, writing: Path | None
) -> list[LogFile]:
    """The files of a partition for a retention plan; `writing` is the open one."""
    return [
        LogFile(
            *(file.first_sequence, file.next_sequence - 1, file.length, file.newest_us),
            sealed=file.path != writing,
        )
        for file in files
    ]


def droppable(
    files: Sequence[Segment | CompactedSegment], until: int, *, writing: Path | None
) -> list[Segment | CompactedSegment]:
    """The oldest files that hold nothing past `until` and are not written to."""
    segments: list[Segment | CompactedSegment] = []
    for file in files:
        if file.next_sequence - 1 > until or file.path == writing:
            break
        segments.append(file)
    return segments


def erased_error(partition: int, sequence: int) -> DataExpired:
    """The error for a row that is blank."""
    return DataExpired(
        f"observations of commit {sequence} of partition {partition} were deleted or replaced, and "
        "are erased; read what is there now",
        partitions=[partition],
        until=[0],
    )


def dropped_error(partition: int, sequence: int, *, until: int) -> DataExpired:
    """The error for a commit that is under the mark."""
    return DataExpired(
        f"commit {sequence} was dropped by the dataset's retention, as were all up to {until} of "
        f"partition {partition}; only later ones can be read",
        partitions=[partition],
        until=[until],
    )
