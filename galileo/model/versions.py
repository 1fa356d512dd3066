"""Versions of datasets: whether an answer would be another one now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from galileo.model.schema import Schema


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


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """What readers see of a dataset: while it stays the same, so do all answers.

    Attributes:
        schema: of the dataset that has the name now.
        partitions: the version of each partition that can have rows and whose owner answered.
        ranges: a number that changes with the rule by which observations are placed, and so the
            partitions in which a region is looked for.
        missing: partitions whose owner could not be asked.
    """

    schema: Schema
    partitions: Mapping[int, PartitionVersion]
    ranges: int
    missing: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether every owner answered."""
        return not self.missing
