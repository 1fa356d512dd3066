"""Digests of the history of a log: two replicas with equal digests have the same commits.

A commit counts with what every copy of it says, however it is stored: sequence, epoch, producer,
batch, numbers of rows and paths, and time. Its checksums do not count: a copy that is made from a
merged segment encodes the commit again, and Arrow encodes equal values in several ways.

The digest of a range is the sum of the digests of its commits, modulo 2^64. Sums are kept up to
each *mark*, which is a multiple of `RANGE`, and what the commits since the last mark say. Where the
log jumps, number 0 of the history that begins is a mark.
"""

from __future__ import annotations

import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from galileo.hashing import mix64, text64
from galileo.storage.compacted_format import SegmentIndex
from galileo.storage.frame import FrameHeader

RANGE = 128
"""Commits between two sums that are kept: 16 bytes of memory for so many."""
PRODUCERS_MAX = 4096
_BITS = 2**64 - 1
_COLUMNS = ("epoch", "batch", "rows", "paths", "committed_at_us")
_FIELDS = struct.Struct(f"<{len(_COLUMNS) + 2}Q")
"""Sequence, digest of the producer's name, and the columns above."""
_FACTORS = np.array([text64("history", n) | 1 for n in range(len(_COLUMNS) + 2)], np.uint64)

Digests = npt.NDArray[np.uint64]


def commit_digests(headers: list[FrameHeader]) -> Digests:
    """The digest of each commit."""
    return _digests(b"".join(map(_fields, headers)))


def merged_digests(index: SegmentIndex) -> Digests:
    """The digests of all commits of a merged segment."""
    commits = index.commits
    producers = commits.column("producer")
    names = np.array([_name64(one) for one in producers.dictionary.to_pylist()], np.uint64)
    first = np.uint64(index.first_sequence)
    columns = [
        np.arange(commits.num_rows, dtype=np.uint64) + first,
        names[producers.indices.to_numpy()],
        *(commits.column(name).to_numpy().astype(np.uint64) for name in _COLUMNS),
    ]
    return _mixed(np.stack(columns, axis=1))


@lru_cache(PRODUCERS_MAX)
def _name64(producer: str) -> int:
    return text64("producer", producer)


def _fields(header: FrameHeader) -> bytes:
    return _FIELDS.pack(
        header.sequence,
        _name64(header.producer),
        header.epoch,
        header.batch,
        header.rows,
        header.paths,
        header.committed_at_us & _BITS,
    )


def _digests(fields: bytes) -> Digests:
    return _mixed(np.frombuffer(fields, "<u8").reshape(-1, len(_FACTORS)))


def _mixed(fields: npt.NDArray[np.uint64]) -> Digests:
    return mix64((fields * _FACTORS).sum(axis=1, dtype=np.uint64))


class LogHistory:
    """The digests of a log's commits. One thread changes it; any number of threads read.

    Args:
        dropped: the commit before the first one.
    """

    # `_tail` has the fields of the commits in (`_base`, `_last`]. `_base` is the last mark, or
    # another commit if the commits before that mark were removed.

    def __init__(self, dropped: int = 0) -> None:
        self._lock = threading.Lock()
        self._base, self._base_sum, self._last = dropped, 0, dropped
        self._tail = bytearray()
        self._dropped = dropped
        self._marks = array("Q", [] if dropped % RANGE else [dropped])
        self._sums = array("Q", [] if dropped % RANGE else [0])

    def add(self, header: FrameHeader) -> None:
        """Adds the next commit."""
        fields = _fields(header)
        with self._lock:
            self._jump(header.sequence)
            self._tail += fields
            self._last = header.sequence
            if header.sequence % RANGE == 0:
                self._rebase(header.sequence, self._sum_at(header.sequence) or 0)
                self._add_mark(self._base, self._base_sum)

    def _jump(self, first: int) -> None:
        """Adds a mark before a commit that begins a history."""
        if first != self._last + 1:
            self._rebase(first - 1, self._sum_at(self._last) or 0)
            self._add_mark(self._base, self._base_sum)

    def _rebase(self, base: int, base_sum: int) -> None:
        self._base, self._base_sum, self._last = base, base_sum, base
        self._tail.clear()

    def _add_mark(self, sequence: int, total: int) -> None:
        self._marks.append(sequence)
        self._sums.append(total)

    def add_merged(self, index: SegmentIndex) -> None:
        """Adds the commits of a merged segment, which follow."""
        digests = merged_digests(index)
        with self._lock:
            first, last = index.first_sequence, index.first_sequence + len(digests) - 1
            self._jump(first)
            sums = np.cumsum(digests, dtype=np.uint64) + np.uint64(self._sum_at(first - 1) or 0)
            marks = np.arange(-(-first // RANGE), last // RANGE + 1) * RANGE
            self._marks.extend(marks.tolist())
            self._sums.extend(sums[marks - first].tolist())
            self._rebase(last, int(sums[-1]))

    def remove(self, header: FrameHeader, before: int) -> None:
        """Removes the last commit; `before` is the one before it."""
        with self._lock:
            while self._marks and self._marks[-1] > before:
                self._marks.pop()
                self._sums.pop()
            if self._tail:
                del self._tail[-_FIELDS.size :]
            else:
                self._base_sum = (self._base_sum - int(commit_digests([header])[0])) & _BITS
            if not self._tail:
                self._base = before
            self._last = before

    def drop(self, until: int) -> None:
        """Forgets the commits up to one."""
        with self._lock:
            place = bisect_left(self._marks, until)
            del self._marks[:place], self._sums[:place]
            self._dropped = max(until, self._dropped)

    def first_mark(self) -> int:
        """The commit behind which digests begin; there may be none yet."""
        with self._lock:
            return self._marks[0] if self._marks else -(-self._dropped // RANGE) * RANGE

    def middle_mark(self, after: int, until: int) -> int | None:
        """The mark in the middle of those between two commits; None without any."""
        with self._lock:
            start, stop = bisect_right(self._marks, after), bisect_left(self._marks, until)
            return self._marks[(start + stop) // 2] if start < stop else None

    def digest(self, after: int, until: int) -> int | None:
        """The digest of the commits from `after + 1` to `until`; None where it is not known.

        Known are marks, and the newest commits; some time after a start, not all of those behind
        the last mark.
        """
        with self._lock:
            start, stop = self._sum_at(after), self._sum_at(until)
        return None if start is None or stop is None else (stop - start) & _BITS

    def _sum_at(self, sequence: int) -> int | None:
        """The sum up to a commit; the caller holds the lock."""
        if self._base <= sequence <= self._last:
            tail = bytes(self._tail[: (sequence - self._base) * _FIELDS.size])
            return (self._base_sum + int(_digests(tail).sum(dtype=np.uint64))) & _BITS
        place = bisect_left(self._marks, sequence)
        is_mark = place < len(self._marks) and self._marks[place] == sequence
        return self._sums[place] if is_mark else None
