"""The constants of all queries in columns, one row for each slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.query.columns import Columns, FeatureColumn, FloatColumn, Mask, TextColumn
from galileo.query.feature_predicates import casefold
from galileo.query.index.candidates import CandidatePairs
from galileo.query.index.normal_form import UNBOUNDED, NormalForm, TextKey
from galileo.query.index.prefixes import Slots

Floats: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int32]

NO_TEXT = -1
"""In place of a text's number: the query does not read the feature."""
_OTHER = -2
_CAPACITY_MIN = 64
_TIMES = np.iinfo(np.int64)


def grow(array: npt.NDArray[Any], capacity: int, fill: object) -> npt.NDArray[Any]:
    """A longer array that begins with the given one."""
    longer = np.full(capacity, fill, dtype=array.dtype)
    longer[: len(array)] = array
    return longer


class NumberIntervals:
    """The intervals of one numeric feature; `bound` says which queries have one."""

    __slots__ = ("bound", "hi", "lo")

    def __init__(self, capacity: int) -> None:
        self.lo: Floats = np.full(capacity, UNBOUNDED[0])
        self.hi: Floats = np.full(capacity, UNBOUNDED[1])
        self.bound: Mask = np.zeros(capacity, dtype=np.bool_)

    def grow(self, capacity: int) -> None:
        self.lo = grow(self.lo, capacity, UNBOUNDED[0])
        self.hi = grow(self.hi, capacity, UNBOUNDED[1])
        self.bound = grow(self.bound, capacity, False)

    @property
    def nbytes(self) -> int:
        return int(self.lo.nbytes + self.hi.nbytes + self.bound.nbytes)


class TextEquality:
    """The value of one text feature that each query requires, by number; or `NO_TEXT`."""

    __slots__ = ("_codes", "wanted")

    def __init__(self, capacity: int) -> None:
        self.wanted: Ids = np.full(capacity, NO_TEXT, dtype=np.int32)
        self._codes: dict[str, int] = {}

    def grow(self, capacity: int) -> None:
        self.wanted = grow(self.wanted, capacity, NO_TEXT)

    def set(self, slot: int, text: str) -> None:
        self.wanted[slot] = self._codes.setdefault(text, len(self._codes))

    def compact(self, alive: Mask) -> None:
        """Remove texts that only dead slots require."""
        self.wanted[~alive] = NO_TEXT
        used = np.unique(self.wanted[self.wanted >= 0])
        texts = [*self._codes]
        self._codes = {texts[code]: number for number, code in enumerate(used.tolist())}
        renumbered = np.full(len(texts) + 1, NO_TEXT, dtype=np.int32)
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        self.wanted = renumbered[self.wanted]

    def numbers_of(self, column: TextColumn, *, folded: bool) -> Ids:
        """The number of each row's text; no number for null and texts that no query requires."""
        texts = casefold(column.dictionary) if folded else column.dictionary
        known = pc.index_in(texts, value_set=pa.array([*self._codes], type=pa.string()))
        codes = np.asarray(known.fill_null(_OTHER).to_numpy(zero_copy_only=False), dtype=np.int32)
        ids: Ids = np.append(codes, np.int32(_OTHER))[column.codes]
        return ids

    @property
    def nbytes(self) -> int:
        object_bytes = 150
        return int(self.wanted.nbytes) + object_bytes * len(self._codes)


class PathRows:
    """A batch of paths, with cached conversions of its features."""

    __slots__ = ("_numbers", "_texts", "columns")

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._numbers: dict[str, Floats] = {}
        self._texts: dict[TextKey, Ids] = {}

    def __len__(self) -> int:
        return len(self.columns)

    def numbers(self, name: str) -> Floats:
        """As doubles, NaN for null."""
        if name not in self._numbers:
            self._numbers[name] = _doubles(self.columns.features[name])
        return self._numbers[name]

    def texts(self, key: TextKey, wanted: TextEquality) -> Ids:
        if key not in self._texts:
            column = self.columns.features[key[0]]
            assert isinstance(column, TextColumn), f"{key[0]!r} is no text"
            self._texts[key] = wanted.numbers_of(column, folded=key[1])
        return self._texts[key]


def _doubles(column: FeatureColumn) -> Floats:
    assert not isinstance(column, TextColumn), "a text is no number"
    if isinstance(column, FloatColumn):
        return column.numbers
    valid = column.valid
    return column.numbers if valid.all() else np.where(valid, column.numbers, np.nan)


@dataclass(slots=True, eq=False)
class BoundColumns:
    """The constants of all queries, one row per slot.

    Attributes:
        first: least start of a bucket that matches, microseconds.
        last: greatest one.
        numbers: of the features with an interval in any query.
        texts: of the features with a required text in any query.
    """

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    numbers: dict[str, NumberIntervals]
    texts: dict[TextKey, TextEquality]

    @classmethod
    def empty(cls) -> BoundColumns:
        first = np.full(_CAPACITY_MIN, _TIMES.min, dtype=np.int64)
        return cls(first, np.full(_CAPACITY_MIN, _TIMES.max, dtype=np.int64), {}, {})

    @property
    def capacity(self) -> int:
        return len(self.first)

    @property
    def nbytes(self) -> int:
        numbers = sum(column.nbytes for column in self.numbers.values())
        texts = sum(column.nbytes for column in self.texts.values())
        return int(self.first.nbytes + self.last.nbytes) + numbers + texts

    def write(self, slot: int, normal: NormalForm) -> None:
        """Replace the constants of a slot."""
        if slot >= self.capacity:
            self._grow(2 * self.capacity)
        self.first[slot], self.last[slot] = normal.first, normal.last
        for name in normal.numbers:
            self.numbers.setdefault(name, NumberIntervals(self.capacity))
        for name, column in self.numbers.items():
            column.lo[slot], column.hi[slot] = normal.numbers.get(name, UNBOUNDED)
            column.bound[slot] = name in normal.numbers
        for key in normal.texts:
            self.texts.setdefault(key, TextEquality(self.capacity))
        for key, texts in self.texts.items():
            texts.wanted[slot] = NO_TEXT
            if key in normal.texts:
                texts.set(slot, normal.texts[key])

    def compact(self, alive: Mask) -> None:
        for texts in self.texts.values():
            texts.compact(alive)

    def filter(self, pairs: CandidatePairs, rows: PathRows) -> CandidatePairs:
        """The pairs whose row satisfies the constants of the query."""
        pairs = pairs.where(self._filter_by_time(pairs, rows.columns.bucket))
        for name, column in self.numbers.items():
            pairs = _filter_by_interval(pairs, column, rows, name)
        for key, texts in self.texts.items():
            pairs = _filter_by_text(pairs, texts, rows, key)
        return pairs

    def _filter_by_time(self, pairs: CandidatePairs, buckets: npt.NDArray[np.int64]) -> Mask:
        times = buckets.take(pairs.rows)
        mask: Mask = times >= self.first.take(pairs.slots)
        mask &= times <= self.last.take(pairs.slots)
        return mask

    def _grow(self, capacity: int) -> None:
        self.first = grow(self.first, capacity, _TIMES.min)
        self.last = grow(self.last, capacity, _TIMES.max)
        for column in self.numbers.values():
            column.grow(capacity)
        for texts in self.texts.values():
            texts.grow(capacity)


def _filter_by_interval(
    pairs: CandidatePairs, column: NumberIntervals, rows: PathRows, name: str
) -> CandidatePairs:
    bound = column.bound.take(pairs.slots)
    if not bound.any():
        return pairs
    values = rows.numbers(name).take(pairs.rows)
    mask = values >= column.lo.take(pairs.slots)
    mask &= values <= column.hi.take(pairs.slots)
    return pairs.where(mask | ~bound)


def _filter_by_text(
    pairs: CandidatePairs, texts: TextEquality, rows: PathRows, key: TextKey
) -> CandidatePairs:
    expected: Slots = texts.wanted.take(pairs.slots)
    if not (expected >= 0).any():
        return pairs
    mask = rows.texts(key, texts).take(pairs.rows) == expected
    return pairs.where(mask | (expected == NO_TEXT))
