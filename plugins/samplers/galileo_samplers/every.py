"""Every n-th in time (systematic sampling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.samplers import label_hashes
from galileo_samplers.lowest import Key, Mask, ranks, starts_run
from galileo_samplers.options import checked_count


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryNth:
    """Keeps every n-th label, or all labels of every n-th time bucket, from a random start on.

    Args:
        n: 1 keeps everything.
        of: "buckets": the dataset's time buckets, counted from 1970 on. What is kept of a bucket
            does not depend on commits, so the kept times are evenly spaced. "labels": the labels
            of each commit, in the order of time.
        per: with "labels", whether they are counted over a whole commit, or in each cell of it
            on its own, as if each were a station.
        start: which is the first, from 0 to n - 1; drawn by the seed when absent.
    """

    n: int
    of: Literal["buckets", "labels"] = "buckets"
    per: Literal["commit", "cell"] | None = None
    start: int | None = None
    needs_columns: ClassVar[tuple[str, ...]] = ("cell", "bucket")

    def __post_init__(self) -> None:
        checked_count(self.n, name="n")
        if self.of not in ("buckets", "labels"):
            raise InputError(f"expected of as 'buckets' or 'labels', got {self.of!r}", option="of")
        if self.per not in (None, "commit", "cell"):
            raise InputError(f"expected per as 'commit' or 'cell', got {self.per!r}", option="per")
        if self.of == "buckets" and self.per is not None:
            raise InputError(
                "per goes with of='labels', not with of='buckets'",
                expected="of_labels",
                option="per",
            )
        whole = isinstance(self.start, int) and not isinstance(self.start, bool)
        if self.start is not None and not (whole and 0 <= self.start < self.n):
            raise InputError(
                f"expected start from 0 to {self.n - 1}, got {self.start!r}", option="start"
            )

    def sample(self, labels: LabelSet, *, seed: int) -> Mask:
        return self._labels(labels, seed) if self.of == "labels" else self._buckets(labels, seed)

    def _buckets(self, labels: LabelSet, seed: int) -> Mask:
        start = seed % self.n if self.start is None else self.start
        numbers = labels.buckets // labels.schema.time_bucket_us
        mask: Mask = numbers % self.n == start
        return mask

    def _labels(self, labels: LabelSet, seed: int) -> Mask:
        series: list[Key] = [labels.sequences, labels.partitions]
        if self.per == "cell":
            series.insert(0, labels.cells)
        # By time, then cell: then what is kept of a bucket lies all over the map.
        keys: list[Key] = [labels.rows, labels.cells, labels.buckets, *series]
        order = np.lexsort(tuple(keys))
        starts = np.flatnonzero(starts_run([key[order] for key in series]))
        sizes = np.diff(np.append(starts, len(order)))
        mask = np.zeros(len(order), dtype=np.bool_)
        first = self._first(labels, order[starts], seed)
        mask[order] = ranks(sizes) % self.n == np.repeat(first, sizes)
        return mask

    def _first(self, labels: LabelSet, heads: Key, seed: int) -> Key:
        """The place of the first label to keep in each series, by the hash of its head."""
        if self.start is not None:
            return np.full(len(heads), self.start)
        hashes = label_hashes(labels, seed=seed)[heads]
        return (hashes % np.uint64(self.n)).astype(np.int64)
