"""Columns of feature values with nulls, in the layout that the graphs store.

One class per feature type, each with at most two NumPy arrays, so that a predicate is one
vectorised expression and a null costs no object.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask: TypeAlias = npt.NDArray[np.bool_]

NULL_CODE = -1
"""Null among dictionary codes and booleans."""


def take_rows(array: npt.NDArray[Any], rows: Any) -> npt.NDArray[Any]:
    """The rows of an index array, a mask or a slice; faster than indexing with an index array.

    A constant array (without strides) stays constant.
    """
    by_index = isinstance(rows, np.ndarray) and rows.dtype != np.bool_
    if by_index and len(rows) and array.strides == (0,):
        return np.broadcast_to(array[0], len(rows))
    values: npt.NDArray[Any] = array.take(rows) if by_index else array[rows]
    return values


def rounded_to_float32(numbers: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Numbers rounded to 32-bit floats, as doubles; those that are beyond these stay."""
    doubles = np.asarray(numbers, dtype=np.float64)
    with np.errstate(over="ignore"):
        rounded = doubles.astype(np.float32).astype(np.float64)
    return np.where(np.isinf(rounded), doubles, rounded)


@dataclass(frozen=True, slots=True, eq=False)
class FloatColumn:
    """Floats of 64 or 32 bits; null is NaN."""

    values: npt.NDArray[np.float64] | npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def valid(self) -> Mask:
        return ~np.isnan(self.values)

    @property
    def numbers(self) -> npt.NDArray[np.float64]:
        """As doubles, NaN for null."""
        return self.values.astype(np.float64, copy=False)

    def take(self, rows: Any) -> FloatColumn:
        """The rows of an index array, a mask or a slice."""
        return FloatColumn(take_rows(self.values, rows))

    def to_arrow(self) -> pa.Array:
        """Shares the memory if nothing is null."""
        missing = np.isnan(self.values)
        return pa.array(self.values, mask=missing) if missing.any() else pa.array(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class IntColumn:
    """64-bit integers; null where `valid` is false, and 0 there."""

    values: npt.NDArray[np.int64]
    valid: Mask

    def __len__(self) -> int:
        return len(self.values)

    @property
    def numbers(self) -> npt.NDArray[np.float64]:
        """As doubles, null as any number. Rounds beyond 2**53, and never changes an order."""
        return self.values.astype(np.float64)

    def take(self, rows: Any) -> IntColumn:
        """The rows of an index array, a mask or a slice."""
        return IntColumn(take_rows(self.values, rows), take_rows(self.valid, rows))

    def to_arrow(self) -> pa.Array:
        """Shares the memory if nothing is null."""
        complete = self.valid.all()
        return pa.array(self.values) if complete else pa.array(self.values, mask=~self.valid)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """Texts as int32 codes into a dictionary without nulls; null is code -1.

    The dictionary may hold texts that no row uses, and a text twice.
    """

    codes: npt.NDArray[np.int32]
    dictionary: pa.StringArray

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def valid(self) -> Mask:
        return self.codes >= 0

    def take(self, rows: Any) -> TextColumn:
        """The rows of an index array, a mask or a slice; the dictionary is shared."""
        return TextColumn(take_rows(self.codes, rows), self.dictionary)

    def to_arrow(self) -> pa.Array:
        codes = pa.array(self.codes, mask=self.codes < 0)
        return self.dictionary.take(codes)


@dataclass(frozen=True, slots=True, eq=False)
class BoolColumn:
    """Booleans as int8: 0, 1, and -1 for null."""

    values: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def valid(self) -> Mask:
        return self.values >= 0

    @property
    def numbers(self) -> npt.NDArray[np.float64]:
        """0.0 and 1.0, null as any number."""
        return self.values.astype(np.float64)

    def take(self, rows: Any) -> BoolColumn:
        """The rows of an index array, a mask or a slice."""
        return BoolColumn(take_rows(self.values, rows))

    def to_arrow(self) -> pa.Array:
        return pa.array(self.values == 1, mask=self.values < 0)


FeatureColumn: TypeAlias = FloatColumn | IntColumn | TextColumn | BoolColumn
NumberColumn: TypeAlias = FloatColumn | IntColumn | BoolColumn


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The columns of k paths that a query reads, as the graphs store them.

    Attributes:
        cell: geohash cells at the schema's precision, shape (k,).
        bucket: starts of the time buckets, microseconds, shape (k,).
        features: of every indexed feature by name, each of length k.
    """

    cell: npt.NDArray[np.uint64]
    bucket: npt.NDArray[np.int64]
    features: Mapping[str, FeatureColumn]

    def __len__(self) -> int:
        return len(self.cell)

    def only(self, names: Container[str]) -> Columns:
        """Without other features than those."""
        features = {name: column for name, column in self.features.items() if name in names}
        return Columns(self.cell, self.bucket, features)

    def take(self, rows: Any) -> Columns:
        """The rows of an index array, a mask or a slice."""
        features = {name: column.take(rows) for name, column in self.features.items()}
        return Columns(take_rows(self.cell, rows), take_rows(self.bucket, rows), features)


def from_arrow(values: pa.Array | pa.ChunkedArray) -> FeatureColumn:
    """The column of an Arrow array of float64, float32, int64, string or bool; NaN is null."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_floating(array.type):
        floats = np.asarray(array.to_numpy(zero_copy_only=False))
        return FloatColumn(
            floats if floats.dtype == np.float32 else floats.astype(np.float64, copy=False)
        )
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    if pa.types.is_integer(array.type):
        return IntColumn(np.asarray(array.fill_null(0).to_numpy(), dtype=np.int64), valid)
    if pa.types.is_boolean(array.type):
        truth = np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.int8)
        return BoolColumn(np.where(valid, truth, np.int8(NULL_CODE)))
    encoded = array.dictionary_encode()
    codes = encoded.indices.fill_null(NULL_CODE).to_numpy()
    return TextColumn(np.asarray(codes, dtype=np.int32), encoded.dictionary)
