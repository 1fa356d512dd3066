"""Tables: rows that are found by their key, and replaced or deleted.

A table is stored as a dataset is, in commits of its partitions. A commit has *versions*: rows that
take the place of an earlier version of their key, or delete it. The version that counts is that of
the last commit, and in a commit the last one. The hash of the key alone chooses the partition,
among those that the cluster had when the table was created.

Versions that no longer count are removed with the oldest files. What still counts there is
committed once more, with the sequence that it has *since*.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import cast, one_array, plain, plain_type
from galileo.errors import (
    DuplicateKey,
    InputError,
    InvalidObservations,
    InvalidSchema,
    reason_of,
)
from galileo.geo import geoarrow, geometry_columns
from galileo.hashing import hash128
from galileo.model.observations import is_text, refuse_long
from galileo.model.schema import (
    ARROW_TYPES,
    DELETED,
    FEATURE_NAME,
    FEATURES_MAX,
    VERSION_SCHEMA,
    StoredSchema,
    dataset_name,
    nearest_name,
    read_json,
)
from galileo.model.sort_keys import differs
from galileo.model.times import TIME_TYPE, time_column

ColumnType = Literal["float", "int", "text", "bool", "time", "geometry"]
KEY_TYPES = ("int", "text", "time")
KEY_BYTES_MAX = 1_024
SYSTEM = 1 << 20
"""The number of the system partition, whose rows the whole cluster shares."""

_ARROW_TYPES: dict[str, pa.DataType] = {
    **ARROW_TYPES,
    "time": TIME_TYPE,
    "geometry": pa.binary(),
}
_COUNTS = ("generation", "partitions", "first_partition")
Versions: TypeAlias = tuple[pa.Table, pa.RecordBatch]
"""Rows of `Table.observation_schema`, and of each the hash of its key, of `Table.path_schema`."""


@dataclass(frozen=True, slots=True, init=False)
class Table(StoredSchema):
    """Keyed rows, which can be replaced and deleted; once the table exists, it never changes.

    Args:
        name: as of a dataset, with which it shares the name.
        columns: their types by name: "float", "int", "text", "bool", "time" or "geometry".
        key: the column, or columns, whose values identify a row: "int", "text" or "time".

    Attributes:
        columns: names and types, in order.
        key_columns: the names of the key's columns.
        partitions: over how many partitions rows are spread; the cluster sets it at the creation.
        first_partition: the first one of them; 0, or `SYSTEM` for a system table.

    Example:
        >>> shelters = galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id")
        >>> shelters.key_columns
        ('id',)
    """

    columns: tuple[tuple[str, ColumnType], ...]
    key_columns: tuple[str, ...]
    partitions: int
    first_partition: int

    def __init__(
        self, name: str, columns: Mapping[str, ColumnType], key: str | Sequence[str]
    ) -> None:
        object.__setattr__(self, "name", dataset_name(name))
        object.__setattr__(self, "generation", 0)
        object.__setattr__(self, "added", 0)
        object.__setattr__(self, "columns", _columns(columns))
        object.__setattr__(self, "key_columns", _key_columns(key, dict(self.columns)))
        object.__setattr__(self, "partitions", 0)
        object.__setattr__(self, "first_partition", 0)

    def spread(self, partitions: int) -> Table:
        """The same table for the partitions of a cluster, unless it has some already.

        Example:
            >>> shelters = galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id")
            >>> shelters.spread(16).partitions
            16
        """
        return self if self.partitions else self._with(partitions=partitions)

    @property
    def is_keyed(self) -> bool:
        """True: rows replace those with the same key."""
        return True

    @property
    def placed(self) -> range:
        """The numbers of its partitions.

        Example:
            >>> shelters = galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id")
            >>> shelters.spread(16).placed
            range(0, 16)
        """
        return range(self.first_partition, self.first_partition + self.partitions)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns, of which those of the key have no nulls."""
        return pa.schema(
            pa.field(name, _ARROW_TYPES[kind], nullable=name not in self.key_columns)
            for name, kind in self.columns
        )

    @property
    def geometry_columns(self) -> tuple[str, ...]:
        """The names of the columns of geometries, which are stored as WKB.

        Example:
            >>> galileo.Table("sites", {"id": "text", "place": "geometry"}, "id").geometry_columns
            ('place',)
        """
        return tuple(name for name, kind in self.columns if kind == "geometry")

    @property
    def observation_schema(self) -> pa.Schema:
        """The stored columns: those of the table, and whether the version deletes its key."""
        return self.arrow_schema.append(pa.field(DELETED, pa.bool_(), nullable=False))

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key, in its order."""
        return pa.schema([self.arrow_schema.field(name) for name in self.key_columns])

    @property
    def path_schema(self) -> pa.Schema:
        """Of each row of a commit: both halves of its key's hash, the commit since which it counts,
        0 for this one, and whether it deletes its key.
        """
        return VERSION_SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, which `from_dict` reads.

        Example:
            >>> galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id").to_dict()["key"]
            ['id']
        """
        raw = {
            "name": self.name,
            "columns": [list(column) for column in self.columns],
            "key": list(self.key_columns),
        }
        counts = {name: getattr(self, name) for name in _COUNTS}
        return raw | {name: count for name, count in counts.items() if count}

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> Table:
        """The inverse of `to_dict`.

        Example:
            >>> shelters = galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id")
            >>> galileo.Table.from_dict(shelters.to_dict()) == shelters
            True
        """
        try:
            table = Table(raw["name"], dict(raw["columns"]), list(raw["key"]))
            counts = {name: int(raw.get(name, 0)) for name in _COUNTS}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidSchema(
                f"expected a table as `Table.to_dict` gives it: {reason_of(error)}",
                expected="table",
            ) from error
        return table._with(**counts)

    @staticmethod
    def from_json(text: str) -> Table:
        """The inverse of `to_json`.

        Raises:
            InvalidSchema: the text is no table.

        Example:
            >>> shelters = galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id")
            >>> galileo.Table.from_json(shelters.to_json()) == shelters
            True
        """
        return Table.from_dict(read_json(text, "table"))


def in_system(table: Table) -> Table:
    """The same table with all rows in the system partition."""
    return table._with(partitions=1, first_partition=SYSTEM)


def _columns(columns: Mapping[str, ColumnType]) -> tuple[tuple[str, ColumnType], ...]:
    if not isinstance(columns, Mapping) or not 1 <= len(columns) <= FEATURES_MAX:
        raise InvalidSchema(
            f"expected 1 to {FEATURES_MAX} columns, a dict of their types by name, such as "
            f"{{'id': 'text', 'beds': 'int'}}, got {columns!r:.200}",
            expected="columns",
            bound=FEATURES_MAX,
        )
    for name, kind in columns.items():
        if not isinstance(name, str) or not FEATURE_NAME.fullmatch(name):
            raise InvalidSchema(
                f"expected a column name of letters, digits and underscores, got {name!r}",
                expected="column_name",
            )
        if name == DELETED:
            raise InvalidSchema(
                f"the column name {DELETED!r} is taken by Galileo; use another",
                expected="free_name",
            )
        if kind not in _ARROW_TYPES:
            raise InvalidSchema(
                f"expected the type {', '.join(get_args(ColumnType))} for column {name!r}, got "
                f"{kind!r}",
                expected="column_type",
            )
    return tuple(columns.items())


def _key_columns(key: str | Sequence[str], columns: dict[str, ColumnType]) -> tuple[str, ...]:
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names or len(set(names)) < len(names):
        raise InvalidSchema(
            f"expected a key of one or several different columns, got {key!r}", expected="key"
        )
    for name in names:
        if name not in columns:
            raise InvalidSchema(
                f"expected a key of columns of the table ({', '.join(columns)}), got {name!r}",
                expected="key",
            )
        if columns[name] not in KEY_TYPES:
            raise InvalidSchema(
                f"expected a key of the types {', '.join(KEY_TYPES)}, got {columns[name]} in "
                f"column {name!r}",
                expected="key_type",
            )
    return names


# --- rows ------------------------------------------------------------------------------------


def versions_of(table: Table, rows: pa.Table, *, is_sent: bool = False) -> pa.Table:
    """Rows to be stored: `rows` as they replace earlier ones, of `table.observation_schema`.

    Naive times are UTC, NaN is null, and a missing column is null. Rows with a column `deleted`
    are versions already.

    Args:
        table: the rows are of.
        rows: of some of its columns.
        is_sent: a client has sent them, which has called this function; what is costly to check is
            not checked again (`geometry_columns.to_stored`), and texts may take some memory only.

    Raises:
        InvalidObservations: a column is unknown or of a wrong type, a key is missing, null or too
            long, or a geometry is none that queries accept.
    """
    check_names(table, rows.column_names)
    columns = [
        _column(rows, name, kind, table, is_sent=is_sent)
        if name in rows.column_names
        else _nulls(rows, kind)
        for name, kind in table.columns
    ]
    if DELETED in rows.column_names:
        columns.append(rows.column(DELETED).cast(pa.bool_()))
    else:
        columns.append(pa.array(np.zeros(rows.num_rows, dtype=np.bool_)))
    return pa.table(columns, schema=table.observation_schema)


def deleted_rows(table: Table, keys: pa.Table) -> pa.Table:
    """Rows that `versions_of` takes, which delete keys.

    Args:
        table: with the keys.
        keys: the key's columns; others are ignored.
    """
    named = keys.select([name for name in table.key_columns if name in keys.column_names])
    deleted = pa.array(np.ones(keys.num_rows, dtype=np.bool_))
    return named.append_column(DELETED, deleted)


def hashes_of(table: Table, rows: pa.Table) -> npt.NDArray[np.uint64]:
    """Of each row both halves of its key's hash."""
    if rows.num_rows == 0:
        return np.empty((0, 2), dtype=np.uint64)
    return hash128([one_array(rows.column(name)) for name in table.key_columns])


def partitions_of(table: Table, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """The partition of each key."""
    assert table.partitions, "a table of no cluster has no partitions"
    place = (hashes[:, 0] % np.uint64(table.partitions)).astype(np.int32)
    return place + np.int32(table.first_partition)


def index_versions(table: Table, versions: pa.Table) -> dict[int, Versions]:
    """The versions of each partition, in their order, with the hashes of their keys."""
    hashes = hashes_of(table, versions)
    places = partitions_of(table, hashes)
    deleted = versions.column(DELETED).to_numpy()
    parts: dict[int, Versions] = {}
    for partition in np.unique(places).tolist():
        rows = np.flatnonzero(places == partition)
        now = np.zeros(len(rows), dtype=np.int64)
        columns = [hashes[rows, 0], hashes[rows, 1], now, deleted[rows]]
        keyed = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=VERSION_SCHEMA)
        parts[partition] = versions.take(pa.array(rows)), keyed
    return parts


def refuse_duplicates(table: Table, rows: pa.Table) -> None:
    """Raises DuplicateKey if two rows of a conditional write have one key."""
    hashes = hashes_of(table, rows)
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    is_again = ~(differs(hashes[order, 0]) | differs(hashes[order, 1]))
    if is_again.any():
        key = key_of(table, rows, int(order[is_again.argmax()]))
        raise DuplicateKey(
            f"expected one row of each key in a conditional write into table {table.name!r}, got "
            f"several of {key_words(key)}; send one of them",
            key=key,
        )


def key_of(table: Table, rows: pa.Table | pa.RecordBatch, row: int) -> Any:
    """The key of a row, for messages: one value, or a list if the key has several columns."""
    values = [rows.column(name)[row].as_py() for name in table.key_columns]
    values = [value.isoformat() if isinstance(value, dt.datetime) else value for value in values]
    return values[0] if len(values) == 1 else values


def key_words(key: Any) -> str:
    """A key as words of a message."""
    return ", ".join(map(str, key)) if isinstance(key, list) else repr(key)


def check_names(table: Table, names: Sequence[str]) -> None:
    """Raises InvalidObservations if rows with columns of these names are not those of a table."""
    known = [name for name, _ in table.columns]
    unknown = [name for name in names if name not in known and name != DELETED]
    missing = [name for name in table.key_columns if name not in names]
    if not unknown and not missing and len(set(names)) == len(names):
        return
    close = nearest_name(unknown[0], known) if unknown else None
    hint = f" (did you mean {close}?)" if close else ""
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    parts += [f"unknown: {', '.join(unknown)}{hint}"] if unknown else []
    raise InvalidObservations(
        f"expected rows of the columns {', '.join(known)} for table {table.name!r}, each once and "
        f"with those of the key ({', '.join(table.key_columns)}); "
        f"{'; '.join(parts) or 'some are there twice'}",
        expected="columns_of_table",
        missing_columns=missing,
        unknown_columns=unknown,
    )


def _column(
    rows: pa.Table, name: str, kind: ColumnType, table: Table, *, is_sent: bool
) -> pa.ChunkedArray:
    if kind == "geometry":
        return _geometries(rows, name, table, is_sent=is_sent)
    values = rows.column(name)
    if is_sent:
        refuse_long(values, name)
    try:
        if not _fits(plain_type(values.type), kind):
            raise InputError(f"{values.type} values")
        values = plain(values)
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        values = time_column(values) if kind == "time" else cast(values, _ARROW_TYPES[kind])
    except (InputError, pa.ArrowException, TypeError) as error:
        raise InvalidObservations(
            f"expected {kind} values in column {name!r} of table {table.name!r}, got "
            f"{rows.column(name).type}: {reason_of(error)}",
            expected="column_type",
            column=name,
        ) from error
    if name in table.key_columns:
        _check_key(values, name)
    return values


def _fits(given: pa.DataType, wanted: ColumnType) -> bool:
    """Whether plain values can become those of a column; others may take any memory."""
    if pa.types.is_null(given) or is_text(given):
        return pa.types.is_null(given) or wanted in ("text", "time")
    if wanted == "time":
        return bool(pa.types.is_primitive(given))
    is_number = pa.types.is_primitive(given) and not pa.types.is_temporal(given)
    return wanted != "text" and bool(is_number or pa.types.is_decimal(given))


def _geometries(rows: pa.Table, name: str, table: Table, *, is_sent: bool) -> pa.ChunkedArray:
    try:
        geoarrow.check_column(rows.schema, name)
        return geometry_columns.to_stored(rows.column(name), is_sent=is_sent)
    except InputError as error:
        row = error.details.get("row")
        place = f"column {name!r}" if row is None else f"row {row} of column {name!r}"
        raise InvalidObservations(
            f"the geometry in {place} of table {table.name!r} cannot be stored: {error.message}",
            **(error.details | {"column": name}),
        ) from error


def _check_key(values: pa.ChunkedArray, name: str) -> None:
    if values.null_count:
        row = pc.index(values.is_null(), True).as_py()
        raise InvalidObservations(
            f"expected a key in every row, got none in column {name!r} of row {row}",
            expected="key",
            column=name,
            row=row,
        )
    if pa.types.is_string(values.type):
        sizes = pc.binary_length(values)
        longest = pc.max(sizes).as_py() or 0
        if longest > KEY_BYTES_MAX:
            row = pc.index(sizes, longest).as_py()
            raise InvalidObservations(
                f"expected keys of at most {KEY_BYTES_MAX:,} bytes, got {longest:,} in column "
                f"{name!r} of row {row}",
                expected="key",
                column=name,
                row=row,
            )


def _nulls(rows: pa.Table, kind: ColumnType) -> pa.Array:
    return pa.nulls(rows.num_rows, _ARROW_TYPES[kind])
