"""Labels of continuous queries as caches keep them: packed, with a list of their commits.

Fetches and cycles decide about labels commit by commit: which are new, which a client has, where an
answer is cut. The list says where each commit's labels are, so these decisions need no unpacking
and take time in proportion to the commits. Packing, unpacking and sorting take time in proportion
to the labels; only `pack_labels`, `pack_many`, `labels`, `to_bytes` and `pieces` do it: run them in
a thread.

Packing costs some milliseconds per pack, and a cycle can find a few labels for each of very many
CCQs. So their labels are packed as one, and each CCQ's pack lists its commits in it. The memory is
freed when the last of them is dropped; a CCQ with many small chunks packs its own anew.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import CorruptData, InputError
from galileo.labels import CommitSizes, LabelSet
from galileo.model.schema import Schema
from galileo.packing import ROWS_MAX, Compression, pack, unpack

PACK_BYTES_MAX = 16 << 20
"""Unpacked size of the labels of one pack; a single label may exceed it."""

SHARED_ROWS = 8_192
"""Labels of several CCQs that are packed together, about."""
FEW_COMMITS = 64
"""Up to so many, Python sums numbers faster than NumPy."""
KEPT_SHARE = 4
"""A pack of which at least one label in so many is selected is sent as it is: packing the rest anew
costs more than the reader wastes.
"""

Commits = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Ranges: TypeAlias = tuple[Sequence[int], Sequence[int]]
_PARTITION, _SEQUENCE, _START, _COUNT = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Labels of one CCQ in a pack.

    Attributes:
        data: input of `galileo.packing.unpack`; the same object for all CCQs that share it.
        rows: the first rows and row counts of the labels; None for all.
    """

    data: bytes
    rows: Ranges | None


@dataclass(frozen=True, slots=True)
class Pack:
    """Some labels, packed in commit order.

    Attributes:
        data: `rows` packed labels.
        commits: shape (4, k): partition, sequence, first row and number of rows of each selected
            commit; other rows of `data` are not selected.
        share: rows of `data` that this pack accounts for, if other packs share the data; 0: all.
    """

    data: bytes
    rows: int
    commits: Commits
    share: int = 0

    @staticmethod
    def of(labels: LabelSet, compression: Compression) -> Pack:
        """Pack labels that are in commit order."""
        partitions, sequences = labels.partitions, labels.sequences
        differs = (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
        starts = np.flatnonzero(np.concatenate(([True], differs)))
        counts = np.diff(np.append(starts, len(labels)))
        commits = np.stack((partitions[starts], sequences[starts], starts, counts))
        data = pack(labels.table, compression)
        return Pack(data, len(labels), commits.astype(np.int64))

    def __len__(self) -> int:
        counts = self.commits[_COUNT]
        return sum(counts.tolist()) if len(counts) <= FEW_COMMITS else int(counts.sum())

    @property
    def size(self) -> int:
        """Bytes in memory; of shared data its share."""
        share = len(self.data) * self.share // self.rows if self.share else len(self.data)
        return share + self.commits.nbytes

    @property
    def is_whole(self) -> bool:
        return len(self) == self.rows

    @property
    def is_mostly_kept(self) -> bool:
        """Whether to send all of it to a reader; never if the data is shared."""
        return not self.share and KEPT_SHARE * len(self) >= self.rows

    def ranges(self) -> Ranges:
        """First rows and row counts of the selected rows, in as few ranges as possible."""
        starts, counts = self.commits[_START], self.commits[_COUNT]
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], (starts + counts)[order]
        first = np.flatnonzero(np.append(True, starts[1:] != ends[:-1]))
        last = np.append(first[1:] - 1, len(starts) - 1)
        return starts[first].tolist(), (ends[last] - starts[first]).tolist()

    def where(self, mask: npt.NDArray[np.bool_]) -> Pack:
        """Select the commits of the mask; shares the packed data."""
        return self if mask.all() else Pack(self.data, self.rows, self.commits[:, mask], self.share)

    def alone(self, schema: Schema, compression: Compression) -> Pack:
        """The same labels in a pack without other rows."""
        if self.is_whole:
            return self if self.share == 0 else replace(self, share=0)
        return Pack.of(LabelSet(schema, self.table(schema.label_schema)), compression)

    def past(self, cursor: Cursor) -> npt.NDArray[np.bool_]:
        """Which commits lie after `cursor`."""
        return cursor.past(self.commits[_PARTITION].astype(np.int32), self.commits[_SEQUENCE])

    def table(self, schema: pa.Schema) -> pa.Table:
        """Unpack the selected rows. Raises CorruptData if the data is damaged."""
        table = unpack(self.data, schema)
        if table.num_rows != self.rows:
            raise CorruptData(
                f"expected {self.rows:,} labels in a pack, got {table.num_rows:,}",
                expected="label_count",
            )
        if self.is_whole:
            return table
        edges = np.zeros(self.rows + 1, dtype=np.int8)
        edges[self.commits[_START]] += 1
        edges[self.commits[_START] + self.commits[_COUNT]] -= 1
        return table.filter(pa.array(np.cumsum(edges[:-1]) > 0))


@dataclass(frozen=True, slots=True, repr=False)
class PackedLabels:
    """Labels of one dataset in packs; in commit order within each partition.

    Partitions are in no order.
    """

    schema: Schema
    packs: tuple[Pack, ...]

    @staticmethod
    def concat(parts: Iterable[PackedLabels | None]) -> PackedLabels | None:
        """All labels, those of a partition in the order of the parts; None if there are none."""
        some = [part for part in parts if part is not None and part.packs]
        if not some:
            return None
        if len(some) == 1:
            return some[0]
        return PackedLabels(some[0].schema, tuple(pack for part in some for pack in part.packs))

    def __len__(self) -> int:
        return sum(map(len, self.packs))

    def __repr__(self) -> str:
        return f"<PackedLabels {self.schema.name}: {len(self):,} labels>"

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(pack.size for pack in self.packs)

    @property
    def is_whole(self) -> bool:
        """Whether its packs hold no other rows, so that they can be sent as they are."""
        return all(pack.is_whole for pack in self.packs)

    def after(self, cursor: Cursor) -> PackedLabels:
        """The labels whose commits lie past `cursor`."""
        return self._where((pack, pack.past(cursor)) for pack in self.packs)

    def until(self, cursor: Cursor) -> PackedLabels:
        """The labels whose commits lie at or before `cursor`."""
        return self._where((pack, ~pack.past(cursor)) for pack in self.packs)

    def cut(self, *, reached: Cursor, labels_max: int) -> tuple[PackedLabels, Cursor]:
        """As many whole commits as `labels_max` allows; see `galileo.labels.first_commits`.

        Returns:
            The labels, and up to where they are complete.
        """
        if len(self) <= labels_max:
            return self, reached
        commits = np.concatenate([pack.commits for pack in self.packs], axis=1)
        # A large commit can lie in several packs.
        sizes = CommitSizes.of(
            commits[_PARTITION].astype(np.int32), commits[_SEQUENCE], commits[_COUNT]
        )
        until = sizes.cut(reached=reached, labels_max=labels_max)
        return self.until(until), until

    def compact(self, compression: Compression) -> PackedLabels | None:
        """The same labels in as few packs as possible; None if there are none."""
        return pack_labels(self.labels(), compression)

    def labels(self) -> LabelSet:
        """The labels, unpacked."""
        tables = [pack.table(self.schema.label_schema) for pack in self.packs]
        empty = self.schema.label_schema.empty_table()
        return LabelSet(self.schema, pa.concat_tables(tables) if tables else empty)

    def to_bytes(self, compression: Compression = Compression.STREAM) -> list[bytes]:
        """Input of `galileo.packing.unpack`; packs with other rows are packed anew."""
        return [self._alone(each, compression) for each in self.packs]

    @property
    def is_quick(self) -> bool:
        """Whether `pieces` packs nothing anew."""
        return all(one.is_whole or one.is_mostly_kept for one in self.packs)

    def pieces(self, compression: Compression = Compression.STREAM) -> list[Piece]:
        """As `to_bytes`, but packs with a few other rows stay as they are."""
        return [
            Piece(one.data, one.ranges())
            if one.is_mostly_kept and not one.is_whole
            else Piece(self._alone(one, compression), None)
            for one in self.packs
        ]

    def _alone(self, one: Pack, compression: Compression) -> bytes:
        if one.is_whole:
            return one.data
        return pack(one.table(self.schema.label_schema), compression)

    def _where(self, masked: Iterable[tuple[Pack, npt.NDArray[np.bool_]]]) -> PackedLabels:
        packs: list[Pack] = []
        for one, mask in masked:
            count = np.count_nonzero(mask)
            if count:
                packs.append(one if count == len(mask) else one.where(mask))
        if len(packs) == len(self.packs) and all(map(operator.is_, packs, self.packs)):
            return self
        return PackedLabels(self.schema, tuple(packs))


def pack_labels(
    labels: LabelSet,
    compression: Compression,
    *,
    rows_max: int = ROWS_MAX,
    bytes_max: int = PACK_BYTES_MAX,
) -> PackedLabels | None:
    """Pack labels, in any order, with bounded rows and bytes in a pack; None if there are none."""
    if len(labels) == 0:
        return None
    if not _is_in_commit_order(labels):
        labels = labels.in_commit_order()
    packs = tuple(Pack.of(piece, compression) for piece in _pieces(labels, rows_max, bytes_max))
    return PackedLabels(labels.schema, packs)


def _is_in_commit_order(labels: LabelSet) -> bool:
    """Whether labels are sorted by partition, sequence and row; much cheaper than sorting."""
    steps = [np.diff(key) for key in (labels.partitions, labels.sequences, labels.rows)]
    partition, sequence, row = steps
    same = partition == 0
    is_sorted = (partition > 0) | (same & (sequence > 0)) | (same & (sequence == 0) & (row >= 0))
    return bool(is_sorted.all())


def _pieces(labels: LabelSet, rows_max: int, bytes_max: int) -> Iterator[LabelSet]:
    size = labels.table.nbytes
    rows = max(1, min(rows_max, len(labels) * bytes_max // max(size, 1)))
    for start in range(0, len(labels), rows):
        yield labels.slice(start, start + rows)


def pack_many(
    schema: Schema,
    table: pa.Table,
    starts: Rows,
    *,
    compression: Compression,
    shared_rows: int = SHARED_ROWS,
) -> list[PackedLabels]:
    """The labels of each of several CCQs.

    Args:
        schema: of their dataset.
        table: the labels of the CCQs, one CCQ after the other, each in commit order.
        starts: first row of each, ascending from 0 on; each has one at least.
        compression: of the packs.
        shared_rows: about so many are packed together; a CCQ with more has its own pack.
    """
    stops = np.append(starts[1:], table.num_rows)
    shared = np.flatnonzero(stops - starts <= shared_rows)
    packs_by_number: dict[int, PackedLabels] = {}
    for numbers in _groups(shared, stops - starts, shared_rows):
        packs_by_number |= _pack_group(
            schema, table, numbers=numbers, starts=starts, stops=stops, compression=compression
        )
    for number, start, stop in zip(
        range(len(starts)), starts.tolist(), stops.tolist(), strict=True
    ):
        if number not in packs_by_number:
            alone = pack_labels(LabelSet(schema, table.slice(start, stop - start)), compression)
            assert alone is not None, "a CCQ without labels"
            packs_by_number[number] = alone
    return [packs_by_number[number] for number in range(len(starts))]


def _groups(numbers: Rows, sizes: Rows, rows: int) -> Iterator[Rows]:
    """Split `numbers` into groups of about `rows` rows."""
    if len(numbers):
        before = np.cumsum(sizes[numbers]) - sizes[numbers]
        yield from np.split(numbers, np.flatnonzero(np.diff(before // rows)) + 1)


def _pack_group(
    schema: Schema,
    table: pa.Table,
    *,
    numbers: Rows,
    starts: Rows,
    stops: Rows,
    compression: Compression,
) -> dict[int, PackedLabels]:
    """The labels of some CCQs; others may lie between them."""
    sizes = stops[numbers] - starts[numbers]
    first = np.cumsum(sizes) - sizes
    parts = [
        table.slice(start, size) for start, size in _adjacent_rows(starts[numbers], stops[numbers])
    ]
    table = pa.concat_tables(parts).combine_chunks()
    data = pack(table, compression)
    commits, ends = _commits(LabelSet(schema, table), first)
    packs_by_number: dict[int, PackedLabels] = {}
    begin = 0
    for number, size, end in zip(numbers.tolist(), sizes.tolist(), ends.tolist(), strict=True):
        shared_pack = Pack(data, table.num_rows, commits[:, begin:end], share=size)
        packs_by_number[number] = PackedLabels(schema, (shared_pack,))
        begin = end
    return packs_by_number


def _adjacent_rows(starts: Rows, stops: Rows) -> Iterator[tuple[int, int]]:
    """Start and length of runs of adjacent rows."""
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts = starts[np.append(0, breaks)]
    lasts = stops[np.append(breaks - 1, len(stops) - 1)]
    yield from zip(firsts.tolist(), (lasts - firsts).tolist(), strict=True)


def _commits(labels: LabelSet, first: Rows) -> tuple[npt.NDArray[np.int64], Rows]:
    """`Pack.commits`, split by CCQ; and where each CCQ's commits end."""
    partitions, sequences = labels.partitions, labels.sequences
    begins = np.zeros(len(labels), dtype=np.bool_)
    begins[first] = True
    begins[1:] |= (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(labels)))
    commits = np.stack((partitions[starts], sequences[starts], starts, counts)).astype(np.int64)
    return commits, np.searchsorted(starts, np.append(first[1:], len(labels)))


@dataclass(frozen=True, slots=True, eq=False)
class PackColumns:
    """The packs of many items, as they travel.

    Attributes:
        data: of packs; several items may share one.
        rows: labels in each of them, shape (d,).
        items: of each pack its item, ascending, shape (k,).
        sources: of each pack its data, shape (k,).
        shares: `Pack.share`, shape (k,).
        sizes: number of commits of each pack, shape (k,).
        commits: `Pack.commits` of all packs: four rows, one behind the other.
    """

    data: tuple[pa.Buffer, ...]
    rows: npt.NDArray[np.int64]
    items: npt.NDArray[np.uint32]
    sources: npt.NDArray[np.uint32]
    shares: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    commits: npt.NDArray[np.int64]

    @classmethod
    def of(cls, labels: Mapping[int, PackedLabels]) -> PackColumns:
        """The packs of items."""
        packs = [(item, pack) for item in sorted(labels) for pack in labels[item].packs]
        data = {id(pack.data): pack for _, pack in packs}
        source = {key: number for number, key in enumerate(data)}
        commits = [pack.commits for _, pack in packs]
        return cls(
            tuple(pack.data for pack in data.values()),
            np.array([pack.rows for pack in data.values()], dtype=np.int64),
            np.array([item for item, _ in packs], dtype=np.uint32),
            np.array([source[id(pack.data)] for _, pack in packs], dtype=np.uint32),
            np.array([pack.share for _, pack in packs], dtype=np.int64),
            np.array([one.shape[1] for one in commits], dtype=np.int64),
            np.concatenate([np.empty((4, 0), dtype=np.int64), *commits], axis=1).reshape(-1),
        )

    def labels(self, schema: Schema) -> dict[int, PackedLabels]:
        """The labels of each item; copies the data.

        Raises:
            InputError: the columns do not fit each other.
        """
        self._check()
        data = [bytes(memoryview(one)) for one in self.data]
        commits = self.commits.reshape(4, -1)
        ends = np.cumsum(self.sizes).tolist()
        packs: dict[int, list[Pack]] = {}
        columns = (self.items, self.sources, self.shares)
        rows, begin = self.rows.tolist(), 0
        for item, source, share, end in zip(*(c.tolist() for c in columns), ends, strict=True):
            pack = Pack(data[source], rows[source], commits[:, begin:end], share)
            packs.setdefault(item, []).append(pack)
            begin = end
        return {item: PackedLabels(schema, tuple(some)) for item, some in packs.items()}

    def _check(self) -> None:
        lengths = {len(self.items), len(self.sources), len(self.shares), len(self.sizes)}
        is_sound = len(lengths) == 1 and len(self.rows) == len(self.data)
        is_sound &= bool((self.sources < len(self.data)).all() and (self.sizes >= 0).all())
        if not is_sound or len(self.commits) != 4 * int(self.sizes.sum()):
            raise InputError("expected packs with their items, data and commits, got others")
