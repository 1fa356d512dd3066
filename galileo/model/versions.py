"""Versions of partitions: whether an answer would be another one now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionVersion:
    """What readers see of a partition: a function of these numbers.

    Attributes:
        epoch: another one where commits of the same number might differ: after another node has
            become the owner, or the owner was started again.
        dropped: the commits up to here are deleted.
        last: the last commit.
    """

    epoch: int
    dropped: int
    last: int
