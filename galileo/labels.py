"""Label sets: many path labels in columns, the currency of results.

A path label (paper, IV.D) is the canonical, reversible text of one path:

    nam/9xjqb/2012-03-01T06:00:00Z/290.5/45/p3.17.0

dataset, cell, start of the time bucket, one value per indexed feature in schema order, and
the leaf: partition, commit sequence and first row of the block part. A missing value is `~`;
in texts the characters `%`, `/` and `~` are percent-encoded. Text is made only on demand;
everything inside works on the columns of `Schema.label_schema`.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import InputError
from galileo.geo import geohash
from galileo.model.feature_metadata import described
from galileo.model.schema import Feature, Schema
from galileo.model.times import column_micros, iso_column, micros
from galileo.optional_imports import to_pandas
from galileo.packing.arrow_streams import read_stream

if TYPE_CHECKING:
    import pandas as pd

_ESCAPES = (("%", "%25"), ("/", "%2F"), ("~", "%7E"))
_LEAF = re.compile(r"p([0-9]+)\.([0-9]+)\.([0-9]+)")
_BOOLEANS = {"true": True, "false": False}
_PLAIN = re.compile(r"[-+.0-9a-z]+")
"""Python would also read numbers with spaces, underscores and the digits of other scripts."""
_INT_END = 2**63
MISSING_KEY = "galileo.missing"
THREADS_FROM_BYTES = 1 << 20
"""Columns of smaller tables are not compressed in threads, which cost more to begin."""
"""In the metadata of an Arrow or Parquet schema: the partitions that a partial answer lacks, as a
JSON list. An answer without it is complete."""


class LabelSet:
    """An immutable set of path labels of one dataset.

    Attributes:
        schema: of the dataset.
        table: columns of `schema.label_schema`; one row per path.
        frontier: up to which commit of each partition the set is an answer.
        missing: partitions that could not be asked; empty when the set is complete.
        query: the canonical CQL2 JSON that it answers, empty for "everything".
    """

    __slots__ = ("frontier", "missing", "query", "schema", "table")

    def __init__(
        self,
        schema: Schema,
        table: pa.Table,
        *,
        frontier: Cursor = EMPTY_CURSOR,
        missing: Iterable[int] = (),
        query: str = "",
    ) -> None:
        self.schema = schema
        self.table = table
        self.frontier = frontier
        self.missing = tuple(sorted(missing))
        self.query = query

    @classmethod
    def empty(cls, schema: Schema) -> LabelSet:
        """No labels, of a dataset.

        Example:
            >>> len(galileo.Labels.empty(labels.schema))
            0
        """
        return cls(schema, schema.label_schema.empty_table())

    @classmethod
    def concat(cls, schema: Schema, parts: Sequence[LabelSet]) -> LabelSet:
        """All labels of `parts`; frontier, missing and query are not carried over.

        Example:
            >>> parts = list(client.query_batches("weather"))
            >>> len(galileo.Labels.concat(labels.schema, parts))
            4
        """
        tables = [part.table for part in parts if len(part)]
        try:
            return cls(
                schema, pa.concat_tables(tables) if tables else schema.label_schema.empty_table()
            )
        except pa.ArrowInvalid as error:
            raise InputError(
                f"expected labels of datasets with the same features: {error}"
            ) from error

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        state = "complete" if self.complete else f"partitions {list(self.missing)} missing"
        return f"<{type(self).__name__} {self.schema.name}: {len(self):,} labels, {state}>"

    @property
    def complete(self) -> bool:
        """Whether every partition that could hold a match was asked."""
        return not self.missing

    @property
    def cells(self) -> geohash.Cells:
        """The geohash cell of each label as a number; `geohashes` gives texts."""
        return np.asarray(self.table.column("cell").to_numpy(), dtype=np.uint64)

    @property
    def buckets(self) -> npt.NDArray[np.int64]:
        """Start of each label's time bucket, microseconds."""
        return column_micros(self.table.column("bucket"))

    @property
    def partitions(self) -> npt.NDArray[np.int32]:
        """The partition that stores each label's observations."""
        return np.asarray(self.table.column("partition").to_numpy(), dtype=np.int32)

    @property
    def sequences(self) -> npt.NDArray[np.int64]:
        """The commit of that partition that brought each label."""
        return np.asarray(self.table.column("sequence").to_numpy(), dtype=np.int64)

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """First row of each path within its commit; with partition and sequence the identity."""
        return np.asarray(self.table.column("row").to_numpy(), dtype=np.int32)

    def where(self, mask: npt.NDArray[np.bool_]) -> LabelSet:
        """The labels for which a mask is true, one truth value for each label.

        Example:
            >>> warm = labels.to_pandas()["temperature"].to_numpy() > 290
            >>> len(labels.where(warm))
            2
        """
        try:
            return self._with(self.table.filter(pa.array(mask)))
        except (pa.ArrowException, TypeError) as error:
            raise InputError(
                f"expected {len(self):,} truth values, one for each label: {error}"
            ) from error

    def slice(self, start: int, stop: int) -> LabelSet:
        """The labels from a place to before another; nothing is copied.

        Example:
            >>> len(labels.slice(0, 3))
            3
        """
        try:
            first, end = operator.index(start), operator.index(stop)
        except TypeError as error:
            raise InputError(
                f"expected two places as whole numbers, got {start!r} and {stop!r}"
            ) from error
        if not 0 <= first <= end:
            raise InputError(f"expected places with 0 <= start <= stop, got {first} and {end}")
        return self._with(self.table.slice(first, end - first))

    def after(self, cursor: Cursor) -> LabelSet:
        """The labels whose commits lie past `cursor`.

        Example:
            >>> len(labels.after(labels.frontier))
            0
        """
        return self.where(cursor.past(self.partitions, self.sequences))

    def until(self, cursor: Cursor) -> LabelSet:
        """The labels whose commits lie at or before `cursor`.

        Example:
            >>> len(labels.until(labels.frontier))
            4
        """
        return self.where(~cursor.past(self.partitions, self.sequences)) if len(self) else self

    def only(self, names: Collection[str]) -> LabelSet:
        """The same labels with those of their columns that are named; nothing is copied.

        Example:
            >>> labels.only({"station"}).table.column_names
            ['station']
        """
        return self._with(self.table.select([n for n in self.table.column_names if n in names]))

    def in_commit_order(self) -> LabelSet:
        """Sorted by partition, then sequence, then row.

        Example:
            >>> ordered = labels.in_commit_order()
            >>> ordered.partitions.tolist() == sorted(labels.partitions.tolist())
            True
        """
        order = np.lexsort((self.rows, self.sequences, self.partitions))
        return self._with(self.table.take(pa.array(order)))

    def answering(self, *, frontier: Cursor, missing: Iterable[int] = (), query: str) -> LabelSet:
        """The same labels as the answer to `query` up to `frontier`.

        Example:
            >>> empty = galileo.Labels.empty(labels.schema)
            >>> empty.answering(frontier=labels.frontier, missing=[3], query="true").complete
            False
        """
        return type(self)(self.schema, self.table, frontier=frontier, missing=missing, query=query)

    def _with(self, table: pa.Table) -> LabelSet:
        return type(self)(
            self.schema, table, frontier=self.frontier, missing=self.missing, query=self.query
        )

    # --- what people see ---------------------------------------------------------------------

    def geohashes(self) -> pa.Array:
        """The geohash of each label's cell.

        Example:
            >>> sorted(set(labels.geohashes().to_pylist()))
            ['9xj', '9xq', 'u33']
        """
        return geohash.to_text(self.cells, self.schema.geohash_precision)

    def blocks(self) -> pa.Array:
        """The block id of each label, `nam/9xjqb/2012-03-01T06:00:00Z`.

        Example:
            >>> labels.blocks()[0].as_py().startswith("weather/")
            True
        """
        return pc.binary_join_element_wise(
            self.schema.name, self.geohashes(), iso_column(self.buckets), "/"
        )

    def texts(self) -> pa.Array:
        """The path label of each row.

        Example:
            >>> labels.texts()[0].as_py().startswith("weather/")
            True
        """
        levels = [level_texts(self._column(f.name), f) for f in self.schema.indexed]
        numbers = [self._column(n).cast(pa.string()) for n in ("partition", "sequence", "row")]
        leaf = pc.binary_join_element_wise("p", pc.binary_join_element_wise(*numbers, "."), "")
        return pc.binary_join_element_wise(self.blocks(), *levels, leaf, "/")

    def to_arrow(self) -> pa.Table:
        """Columns geohash, time, the indexed features, block, partition, sequence, label.

        `time` is the start of the bucket, UTC; `label` the path label. Of a partial answer the
        schema has metadata: `galileo.missing`, a JSON list of partitions.

        Example:
            >>> labels.to_arrow().column_names[:4]
            ['geohash', 'time', 'temperature', 'station']
        """
        columns = {"geohash": self.geohashes(), "time": self._column("bucket")}
        columns |= {feature.name: self._column(feature.name) for feature in self.schema.indexed}
        columns |= {"block": self.blocks()}
        columns |= {name: self._column(name) for name in ("partition", "sequence")}
        table = pa.table(columns | {"label": self.texts()})
        return marked(described(table, self.schema.indexed), self.missing)

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a DataFrame.

        Example:
            >>> sorted(labels.to_pandas()["temperature"])[-1]
            292.5
        """
        return to_pandas(self.to_arrow())

    def _column(self, name: str) -> pa.Array:
        column = self.table.column(name).combine_chunks()
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def marked(table: pa.Table, missing: Sequence[int]) -> pa.Table:
    """The table with the missing partitions in the metadata of its schema, if there are any."""
    if not missing:
        return table
    metadata = {**(table.schema.metadata or {}), MISSING_KEY: json.dumps(sorted(missing))}
    return table.replace_schema_metadata(metadata)


def missing_of(table: pa.Table) -> tuple[int, ...]:
    """The missing partitions that `marked` named."""
    metadata = table.schema.metadata or {}
    return tuple(json.loads(metadata.get(MISSING_KEY.encode(), b"[]")))


def to_ipc(table: pa.Table, *, compression: str | None = None) -> bytes:
    """A table as one Arrow IPC stream, schema included."""
    sink = pa.BufferOutputStream()
    uses_threads = table.nbytes > THREADS_FROM_BYTES
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=uses_threads)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_ipc(
    data: bytes | pa.Buffer, schema: pa.Schema, *, bytes_max: int | None = None
) -> pa.Table:
    """The table of an Arrow IPC stream, checked against the schema that it must have.

    Its columns have the metadata of that schema.

    Raises:
        InputError: the bytes are no such stream, or a value is missing where none may be.
        MessageTooLarge: it unpacks to more than `bytes_max`, or than one message can bring.
    """
    try:
        table = read_stream(data, bytes_max=bytes_max)
        table.validate(full=True)
        came = _described(table.schema)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InputError(
            f"expected an Arrow IPC stream, got bytes that fail: {error}", expected="arrow_stream"
        ) from error
    if not table.schema.equals(schema):
        raise InputError(
            f"expected Arrow columns {_described(schema)}; got {came}", expected="columns"
        )
    for field in schema:
        if not field.nullable and table.column(field.name).null_count:
            raise InputError(
                f"expected a value in every row of {field.name!r}, got a null",
                expected="no_nulls",
                column=field.name,
            )
    return pa.Table.from_arrays(table.columns, schema=schema.with_metadata(table.schema.metadata))


def _described(schema: pa.Schema) -> str:
    return ", ".join(
        f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema
    )


def parse_label(schema: Schema, text: str) -> dict[str, Any]:
    """The parts of a path label: the inverse of `LabelSet.texts`.

    Returns:
        geohash, time (microseconds), each indexed feature's value, partition, sequence, row.

    Raises:
        InputError: the text is no label of this schema.
    """
    parts = text.split("/")
    leaf = _LEAF.fullmatch(parts[-1])
    if leaf is None or len(parts) != 4 + len(schema.indexed) or parts[0] != schema.name:
        raise _not_a_label(schema, text)
    try:
        values = {"geohash": _cell_text(parts[1], schema), "time": micros(parts[2])}
        for feature, part in zip(schema.indexed, parts[3:-1], strict=True):
            values[feature.name] = level_value(part, feature)
    except (ValueError, KeyError, InputError) as error:
        raise _not_a_label(schema, text) from error
    numbers = zip(("partition", "sequence", "row"), leaf.groups(), strict=True)
    return values | {name: int(number) for name, number in numbers}


def _not_a_label(schema: Schema, text: str) -> InputError:
    return InputError(
        f"expected a path label of dataset {schema.name!r}, got {text!r}",
        expected="path_label",
        dataset=schema.name,
    )


def _cell_text(text: str, schema: Schema) -> Any:
    geohash.cell_from_text(text)
    if len(text) != schema.geohash_precision:
        raise ValueError(f"expected {schema.geohash_precision} characters, got {text!r}")
    return text


def level_texts(column: pa.Array, feature: Feature) -> pa.Array:
    """A feature's values as they stand in path labels."""
    texts = column.cast(pa.string())
    if feature.type == "text":
        for plain, escaped in _ESCAPES:
            texts = pc.replace_substring(texts, plain, escaped)
    return texts.fill_null("~")


def level_value(part: str, feature: Feature) -> Any:
    """The value of its text in a path label; raises ValueError or KeyError where it is none."""
    if part == "~":
        return None
    if feature.type == "text":
        for plain, escaped in reversed(_ESCAPES):
            part = part.replace(escaped, plain)
        return part
    readers: dict[str, Any] = {
        "float": _number,
        "float32": _single,
        "int": _integer,
        "bool": _BOOLEANS.__getitem__,
    }
    return readers[feature.type](part)


def _single(part: str) -> float:
    """The 32-bit float of its shortest text."""
    return float(np.float32(_number(part)))


def _number(part: str) -> float:
    value = float(part)
    if isnan(value) or not _PLAIN.fullmatch(part):
        raise ValueError(f"expected a number, got {part!r}")
    return value


def _integer(part: str) -> int:
    value = int(part)
    if not -_INT_END <= value < _INT_END or not _PLAIN.fullmatch(part):
        raise ValueError(f"expected a whole number of 64 bits, got {part!r}")
    return value


def first_commits(labels: LabelSet, *, reached: Cursor, labels_max: int) -> tuple[LabelSet, Cursor]:
    """As many whole commits as `labels_max` allows, and how far they reach.

    Taken in turns from all partitions, each from its oldest on, so that none is starved; one
    commit is kept however large it is.

    Args:
        labels: all that lie past some cursor, up to `reached`.
        reached: how far they are complete.
        labels_max: at least 1.

    Returns:
        What is kept, in commit order, and up to where it is complete.
    """
    labels = labels.in_commit_order()
    if len(labels) <= labels_max:
        return labels, reached
    ones = np.ones(len(labels), dtype=np.int64)
    sizes = CommitSizes.of(labels.partitions, labels.sequences, ones)
    cut = sizes.cut(reached=reached, labels_max=labels_max)
    return labels.until(cut), cut


@dataclass(frozen=True, slots=True, eq=False)
class CommitSizes:
    """How many labels each of some commits has; sorted by partition, then sequence.

    Attributes:
        partitions: shape (m,).
        sequences: shape (m,).
        sizes: at least 1, shape (m,).
    """

    partitions: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        partitions: npt.NDArray[np.int32],
        sequences: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> CommitSizes:
        """The sizes of commits in any order; sizes of the same commit are added."""
        order = np.lexsort((sequences, partitions))
        partitions, sequences = partitions[order], sequences[order]
        differs = (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
        starts = np.flatnonzero(np.concatenate(([len(order) > 0], differs)))
        sizes = sizes[order]
        if len(starts) < len(order):
            partitions, sequences = partitions[starts], sequences[starts]
            sizes = np.add.reduceat(sizes, starts)
        return cls(partitions, sequences, sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def past(self, cursor: Cursor) -> CommitSizes:
        """The commits past a cursor."""
        left = cursor.past(self.partitions, self.sequences)
        return CommitSizes(self.partitions[left], self.sequences[left], self.sizes[left])

    def cut(self, *, reached: Cursor, labels_max: int) -> Cursor:
        """How far the commits go that `first_commits` keeps.

        Args:
            reached: how far the commits are complete.
            labels_max: at least 1.
        """
        is_left = ~self._in_turns(labels_max)
        left, first = np.unique(self.partitions[is_left], return_index=True)
        before = (self.sequences[is_left][first] - 1).tolist()
        return Cursor({**reached, **dict(zip(left.tolist(), before, strict=True))})

    def _in_turns(self, labels_max: int) -> npt.NDArray[np.bool_]:
        """Which commits fit; those with the fewest labels of their partition before them first."""
        is_kept = np.zeros(len(self), dtype=np.bool_)
        if not len(self):
            return is_kept
        ends = np.cumsum(self.sizes)
        heads = np.flatnonzero(np.concatenate(([True], np.diff(self.partitions) != 0)))
        counts = np.diff(np.append(heads, len(self)))
        depth = ends - np.repeat((ends - self.sizes)[heads], counts)
        possible = np.flatnonzero(depth <= labels_max)
        order = possible[np.lexsort((self.partitions[possible], depth[possible]))]
        is_kept[order[np.cumsum(self.sizes[order]) <= labels_max]] = True
        is_kept[heads[np.argmin(depth[heads])]] = True
        return is_kept
