"""Strata: coarser cells, stretches of time, values of a feature or intervals of them.

Each kind numbers the stratum of every label and knows the strata's names, by which quotas are
given. Numbers of values hold within one call; the others hold always. `columns` are those of
labels that they look at.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo_samplers.lowest import Ints
from galileo_samplers.options import feature_column, is_numeric

MISSING = "~"
BELOW = "below"

_BITS_PER_CHARACTER = 5
_GEOHASH = frozenset(string.digits + string.ascii_lowercase) - frozenset("ailo")
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class ByCell:
    """Cells of fewer characters, named by their geohash."""

    precision: int
    columns: ClassVar[tuple[str, ...]] = ("cell",)

    def numbers(self, labels: LabelSet) -> Ints:
        fine = labels.schema.geohash_precision
        if self.precision > fine:
            raise InputError(
                f"expected a precision of at most {fine}, that of dataset "
                f"{labels.schema.name!r}, got {self.precision}",
                option="precision",
                bound=fine,
            )
        shift = np.uint64(_BITS_PER_CHARACTER * (fine - self.precision))
        return (labels.cells >> shift).astype(np.int64)

    def names(self, labels: LabelSet) -> list[str]:
        return [text[: self.precision] for text in labels.geohashes().to_pylist()]

    def check(self, name: str) -> None:
        if len(name) != self.precision or not set(name) <= _GEOHASH:
            raise InputError(
                f"expected a geohash of {self.precision} characters as stratum, got {name!r}",
                expected="geohash",
                option="quotas",
            )


@dataclass(frozen=True, slots=True)
class ByTime:
    """Stretches of time from the epoch on, named by their start, `2012-03-01T06:00:00Z`."""

    width_us: int
    columns: ClassVar[tuple[str, ...]] = ("bucket",)

    def numbers(self, labels: LabelSet) -> Ints:
        return labels.buckets // self.width_us

    def names(self, labels: LabelSet) -> list[str]:
        starts = self.numbers(labels) * self.width_us
        return [pd.Timestamp(start, unit="us").strftime(_TIME) for start in starts.tolist()]

    def check(self, name: str) -> None:
        try:
            start_us = pd.Timestamp(pd.to_datetime(name, format=_TIME)).value // 1_000
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"expected a time such as '2012-03-01T06:00:00Z' as stratum, got {name!r}",
                expected="time",
                option="quotas",
            ) from error
        if start_us % self.width_us:
            raise InputError(
                f"expected the start of a stretch of time as stratum, got {name!r}",
                expected="start_of_width",
                option="quotas",
            )


@dataclass(frozen=True, slots=True)
class ByValue:
    """Values of a feature, named by their text, `~` where it is missing."""

    feature: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.feature,)

    def numbers(self, labels: LabelSet) -> Ints:
        column = feature_column(labels, self.feature)
        codes: Ints = column.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
        return codes

    def names(self, labels: LabelSet) -> list[str]:
        texts = feature_column(labels, self.feature).cast(pa.string())
        return [str(text) for text in texts.fill_null(MISSING).to_pylist()]

    def check(self, name: str) -> None:
        """Any text may be a value."""


@dataclass(frozen=True, slots=True)
class ByInterval:
    """Intervals between edges, named by the lower one; `below` the first, `~` where missing."""

    feature: str
    edges: tuple[float, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.feature,)

    def numbers(self, labels: LabelSet) -> Ints:
        column = feature_column(labels, self.feature)
        if not is_numeric(column):
            raise InputError(
                f"expected a numeric feature where edges are given, got {column.type}",
                expected="numeric_feature",
                option="edges",
            )
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        edges = np.asarray(self.edges, dtype=np.float64)
        if pa.types.is_float32(column.type):  # As in conditions, 4.7 is the 4.7 of 32 bits.
            edges = edges.astype(np.float32).astype(np.float64)
        intervals = np.searchsorted(edges, values, side="right")
        missing = column.is_null().to_numpy(zero_copy_only=False)
        return np.where(missing, -1, intervals).astype(np.int64)

    def names(self, labels: LabelSet) -> list[str]:
        known = self._names()
        return [known[number] for number in self.numbers(labels).tolist()]

    def check(self, name: str) -> None:
        known = self._names()
        if name not in known:
            raise InputError(
                f"expected a stratum of {known}, got {name!r}", expected="stratum", option="quotas"
            )

    def _names(self) -> list[str]:
        """In six digits, where they say the edge; else two edges might have one name."""
        short = ((edge, f"{edge:g}") for edge in self.edges)
        edges = [
            text if float(text) == edge else repr(edge).removesuffix(".0") for edge, text in short
        ]
        return [BELOW, *edges, MISSING]


Strata: TypeAlias = ByCell | ByTime | ByValue | ByInterval


def one_of_each(labels: LabelSet, numbers: Ints) -> tuple[LabelSet, Ints]:
    """A label of each stratum, and for every label which of them is of its own."""
    _, heads, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    return LabelSet(labels.schema, labels.table.take(pa.array(heads))), inverse.reshape(-1)


def quotas_of(
    labels: LabelSet, numbers: Ints, *, strata: Strata, quotas: dict[str, int], otherwise: int
) -> Ints:
    """The quota of each label's stratum."""
    heads, inverse = one_of_each(labels, numbers)
    found: Sequence[int] = [quotas.get(name, otherwise) for name in strata.names(heads)]
    return np.array(found, dtype=np.int64)[inverse]
