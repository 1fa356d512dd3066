"""Paths in columns, as the metadata graph stores them, and their conversion from and to Arrow.

A path costs 8 bytes each for cell, bucket, float and int feature (9 in a run where some are
missing), 4 for a text feature, 1 for a bool feature, and 12 for row, rows and the number of its
commit within the run: 60 bytes with four numbers. Partition and sequence are stored once per
commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InternalError
from galileo.graph.arena import gather
from galileo.model.schema import Feature, Schema, widen
from galileo.model.times import TIME_TYPE, column_micros
from galileo.query.columns import (
    NULL_CODE,
    BoolColumn,
    Columns,
    FeatureColumn,
    FloatColumn,
    IntColumn,
    TextColumn,
    from_arrow,
    take_rows,
)

Array: TypeAlias = npt.NDArray[Any]

_FIXED_DTYPES = (np.uint64, np.int64, np.int32, np.int32, np.int32)
CELL, BUCKET, COMMIT = 0, 1, 4
"""Where those are among `Paths.arrays`."""
_FEATURE_DTYPES: dict[str, tuple[type[np.generic], ...]] = {
    "float": (np.float64,),
    "float32": (np.float32,),
    "int": (np.int64, np.bool_),
    "text": (np.int32,),
    "bool": (np.int8,),
}
_NULLS: dict[str, tuple[Any, ...]] = {
    "float": (np.nan,),
    "float32": (np.nan,),
    "int": (0, False),
    "text": (NULL_CODE,),
    "bool": (NULL_CODE,),
}
"""What is in the arrays of a feature where it is null."""
_NO_TEXTS: pa.StringArray = pa.array([], type=pa.string())


@dataclass(frozen=True, slots=True, eq=False)
class Commits:
    """The commits of a run by number, oldest first.

    Attributes:
        partition: shape (m,).
        sequence: commit sequence within the partition, shape (m,).
        first: where the versions of a commit begin among those of the graph, shape (m,); None in a
            dataset without a key. See `galileo.graph.versions`.
        copied: whether some versions of a commit are copies, shape (m,); None as `first`.
    """

    partition: npt.NDArray[np.int32]
    sequence: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64] | None = None
    copied: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, partition: int, sequences: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Commits:
        """Commits of one partition."""
        sequence = np.asarray(sequences, dtype=np.int64)
        return cls(np.full(len(sequence), partition, dtype=np.int32), sequence)

    def __len__(self) -> int:
        return len(self.partition)

    def take(self, rows: Array) -> Commits:
        return Commits(*(array[rows] for array in self.arrays()))

    def arrays(self) -> tuple[Array, ...]:
        """Every array that there is, in the order of the attributes."""
        every = (self.partition, self.sequence, self.first, self.copied)
        return tuple(array for array in every if array is not None)

    @classmethod
    def concat(cls, parts: Sequence[Commits]) -> Commits:
        """All commits of `parts`, at least one, in their order."""
        stacks = zip(*(part.arrays() for part in parts), strict=True)
        return cls(*map(np.concatenate, stacks))

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays())


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The columns of k paths of one dataset.

    Attributes:
        columns: cell, bucket and features. The codes of a text column refer to the
            `StringDictionary` of the graph; its own dictionary is empty until
            `StringDictionary.bind`.
        row: first observation of the path within its commit, shape (k,).
        rows: number of observations, shape (k,).
        commit: number of the commit in the `Commits` of the run, shape (k,).
    """

    columns: Columns
    row: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    commit: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: Any) -> Paths:
        """The paths of an index array, a mask or a slice."""
        return Paths(
            self.columns.take(rows),
            take_rows(self.row, rows),
            take_rows(self.rows, rows),
            take_rows(self.commit, rows),
        )

    def gather(self, rows: npt.NDArray[np.intp]) -> Paths:
        """`take` of many rows, into an arena."""
        return self.like(gather(self.arrays(), rows))

    def arrays(self) -> tuple[Array, ...]:
        """Every array, in the order of `dtypes`."""
        fixed = (self.columns.cell, self.columns.bucket, self.row, self.rows, self.commit)
        features = (part for c in self.columns.features.values() for part in _arrays_of(c))
        return (*fixed, *features)

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays() if array.strides != (0,))

    def like(self, arrays: Sequence[Array]) -> Paths:
        """Paths of the same dataset with other `arrays`."""
        cell, bucket, row, rows, commit = arrays[: len(_FIXED_DTYPES)]
        rest = iter(arrays[len(_FIXED_DTYPES) :])
        features = {n: _like(column, rest) for n, column in self.columns.features.items()}
        return Paths(Columns(cell, bucket, features), row, rows, commit)

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Sequence[Array]) -> Paths:
        """The inverse of `arrays`."""
        cell, bucket, row, rows, commit = arrays[: len(_FIXED_DTYPES)]
        rest = iter(arrays[len(_FIXED_DTYPES) :])
        features = {feature.name: _column_of(feature, rest) for feature in schema.indexed}
        return cls(Columns(cell, bucket, features), row, rows, commit)

    @classmethod
    def concat(cls, parts: Sequence[Paths]) -> Paths:
        """All paths of `parts`, at least one, in their order."""
        stacks = zip(*(part.arrays() for part in parts), strict=True)
        return parts[0].like([np.concatenate(stack) for stack in stacks])

    def with_features(self, features: Sequence[Feature]) -> Paths:
        """The same paths with further features, which are null and take no memory."""
        nulls = {feature.name: _nulls(feature, len(self)) for feature in features}
        columns = self.columns
        wide = Columns(columns.cell, columns.bucket, {**columns.features, **nulls})
        return replace(self, columns=wide)


def dtypes(schema: Schema) -> tuple[type[np.generic], ...]:
    """The types of `Paths.arrays`."""
    features = (dtype for feature in schema.indexed for dtype in _FEATURE_DTYPES[feature.type])
    return (*_FIXED_DTYPES, *features)


def _arrays_of(column: FeatureColumn) -> tuple[Array, ...]:
    if isinstance(column, IntColumn):
        return column.values, column.valid
    return (column.codes,) if isinstance(column, TextColumn) else (column.values,)


def _column_of(feature: Feature, arrays: Iterator[Array]) -> FeatureColumn:
    match feature.type:
        case "float" | "float32":
            return FloatColumn(next(arrays))
        case "int":
            return IntColumn(next(arrays), next(arrays))
        case "text":
            return TextColumn(next(arrays), _NO_TEXTS)
        case "bool":
            return BoolColumn(next(arrays))


def _nulls(feature: Feature, count: int) -> FeatureColumn:
    pairs = zip(_FEATURE_DTYPES[feature.type], _NULLS[feature.type], strict=True)
    return _column_of(feature, (np.broadcast_to(dtype(null), count) for dtype, null in pairs))


def _like(column: FeatureColumn, arrays: Iterator[Array]) -> FeatureColumn:
    if isinstance(column, IntColumn):
        return IntColumn(next(arrays), next(arrays))
    if isinstance(column, TextColumn):
        return TextColumn(next(arrays), _NO_TEXTS)
    return type(column)(next(arrays))


class StringDictionary:
    """The texts of one graph; a code is a position, and never changes its meaning.

    One writer at a time; readers need no lock, since they only see codes that were added before.
    """

    __slots__ = ("_array", "_codes", "_values")

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._values: list[str] = []
        self._array: pa.StringArray = _NO_TEXTS

    def __len__(self) -> int:
        return len(self._values)

    def encode(self, column: TextColumn) -> TextColumn:
        """The column with codes of this graph; unknown texts are added."""
        texts, codes = column.dictionary.to_pylist(), self._codes
        fresh = dict.fromkeys(text for text in texts if text not in codes)
        codes.update(zip(fresh, range(len(codes), len(codes) + len(fresh)), strict=True))
        self._values += fresh
        known = np.array([*map(codes.__getitem__, texts), NULL_CODE], dtype=np.int32)
        return TextColumn(known[column.codes], _NO_TEXTS)

    def code(self, text: str) -> int:
        """The code of a text; an unused code if the text is unknown."""
        return self._codes.get(text, len(self._values))

    def ranked(self, codes: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """The rank of each code among these by its text, and the code of each rank."""
        used, places = np.unique(codes, return_inverse=True)
        order = pc.array_sort_indices(self._all().take(pa.array(used))).to_numpy()
        return np.argsort(order).take(places), used.take(order)

    def bind(self, columns: Columns) -> Columns:
        """The columns with the dictionaries of their codes."""
        features = columns.features.items()
        bound = {n: self.bound(c) if isinstance(c, TextColumn) else c for n, c in features}
        return Columns(columns.cell, columns.bucket, bound)

    def bound(self, column: TextColumn) -> TextColumn:
        """The column with its dictionary; a small one for few rows.

        So a predicate costs time in proportion to the rows.
        """
        dictionary = self._all()
        if len(column) >= len(dictionary):
            return TextColumn(column.codes, dictionary)
        used, codes = np.unique(column.codes, return_inverse=True)
        nulls = int(np.count_nonzero(used == NULL_CODE))
        small = dictionary.take(pa.array(used[nulls:]))
        return TextColumn((codes - nulls).astype(np.int32), small)

    def column(self) -> TextColumn:
        """Every text once, in the order of codes."""
        dictionary = self._all()
        return TextColumn(np.arange(len(dictionary), dtype=np.int32), dictionary)

    @property
    def nbytes(self) -> int:
        """Estimated size of the texts in Arrow and of the index of codes."""
        object_bytes = 150
        return int(self._array.nbytes) + object_bytes * len(self._values)

    def _all(self) -> pa.StringArray:
        array = self._array
        if len(array) < len(self._values):
            fresh = pa.array(self._values[len(array) :], type=pa.string())
            array = self._array = pa.concat_arrays([array, fresh])
        return array


def columns_from_batch(schema: Schema, batch: pa.RecordBatch) -> Columns:
    """The columns of a batch of `schema.graph_schema`, with dictionaries of their own.

    Args:
        schema: of the dataset.
        batch: features that were added after it was made may be missing.

    Raises:
        InternalError: the batch has other columns.
    """
    if batch.schema in [schema.narrowed(n).graph_schema for n in range(schema.added)]:
        batch = widen(batch, schema.graph_schema)
    if batch.schema.names != schema.graph_schema.names:
        raise InternalError(
            f"expected paths with columns {schema.graph_schema.names} for dataset "
            f"{schema.name!r}, got {batch.schema.names}",
            expected="path_columns",
            dataset=schema.name,
        )
    features = {f.name: from_arrow(batch.column(f.name)) for f in schema.indexed}
    cell = np.asarray(batch.column("cell").to_numpy(), dtype=np.uint64)
    return Columns(cell, column_micros(batch.column("bucket")), features)


def paths_from_batch(
    columns: Columns,
    batch: pa.RecordBatch,
    *,
    commit: int | npt.NDArray[np.int32],
    texts: StringDictionary,
) -> Paths:
    """The paths of a batch, of which `columns` are the columns.

    Args:
        columns: `columns_from_batch` the batch.
        batch: of the graph's schema.
        commit: the number of the commit, or that of each path's.
        texts: of the graph.
    """
    features = {
        name: texts.encode(column) if isinstance(column, TextColumn) else column
        for name, column in columns.features.items()
    }
    return Paths(
        Columns(columns.cell, columns.bucket, features),
        np.asarray(batch.column("row").to_numpy(), dtype=np.int32),
        np.asarray(batch.column("rows").to_numpy(), dtype=np.int32),
        np.full(len(columns), commit, dtype=np.int32),
    )


def to_labels(
    label_schema: pa.Schema,
    paths: Paths,
    *,
    commits: Commits,
    texts: StringDictionary,
    large: bool = False,
) -> pa.RecordBatch:
    """The paths as a batch of the `label_schema` of their dataset.

    Args:
        label_schema: of the dataset.
        paths: of a run.
        commits: of the run.
        texts: of the graph.
        large: whether intermediate arrays are allocated in an arena.
    """
    sources = commits.partition, commits.sequence
    if large:
        partition, sequence = gather(sources, paths.commit)
    else:
        partition, sequence = (source.take(paths.commit) for source in sources)
    columns = texts.bind(paths.columns)
    arrays = [
        pa.array(columns.cell),
        pa.array(columns.bucket).view(TIME_TYPE),
        *(columns.features[name].to_arrow() for name in label_schema.names[2:-4]),
        pa.array(paths.row),
        pa.array(paths.rows),
        pa.array(partition),
        pa.array(sequence),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=label_schema)
