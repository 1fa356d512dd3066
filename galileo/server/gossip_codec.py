"""The entries of node states, as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.model.windows import ClockStep
from galileo.node.shard import PublishedCommits
from galileo.wire.messages import Forms, MessageCodec

_COUNT = np.dtype("<u4")


@dataclass(frozen=True, slots=True)
class _Commits:
    """The last commits and deletions of a dataset, and the columns of its event clock."""

    sequences: Cursor
    partitions: npt.NDArray[np.int32]
    commits: npt.NDArray[np.int64]
    buckets_us: npt.NDArray[np.int64]
    deletions: Cursor


_FORMS = Forms()
_COMMITS: MessageCodec[_Commits] = MessageCodec(
    _FORMS.of(_Commits), digest=_FORMS.digest(""), name="commits"
)


def encode_commits(published: PublishedCommits) -> bytes:
    """The last commits of a dataset, as an entry."""
    clock = published.clock
    return _COMMITS.encode(
        _Commits(
            published.sequences,
            np.array([step.partition for step in clock], dtype=np.int32),
            np.array([step.sequence for step in clock], dtype=np.int64),
            np.array([step.bucket_us for step in clock], dtype=np.int64),
            published.deletions,
        )
    )


def decode_commits(value: bytes) -> PublishedCommits:
    """The inverse of `encode_commits`.

    Raises:
        InputError: the columns of the event clock differ in length, or the bytes are no entry.
    """
    entry = _COMMITS.decode(value)
    columns = [column.tolist() for column in (entry.partitions, entry.commits, entry.buckets_us)]
    if len({len(column) for column in columns}) != 1:
        raise InputError(
            f"expected steps of an event clock in three columns of one length, got "
            f"{[len(column) for column in columns]}",
            expected="same_lengths",
            name="event_clock",
        )
    clock = tuple(map(ClockStep, *columns))
    return PublishedCommits(entry.sequences, clock, entry.deletions)


def encode_partitions(partitions: Iterable[int]) -> bytes:
    """Some partitions, as an entry."""
    return np.array(sorted(partitions), dtype=_COUNT).tobytes()


def decode_partitions(value: bytes) -> frozenset[int]:
    return frozenset(np.frombuffer(value, dtype=_COUNT).tolist())
