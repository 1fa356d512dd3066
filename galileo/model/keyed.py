"""The versions of keyed datasets: observations that replace and delete each other.

The key of an observation is the cell and the time bucket of its block, and the values of the
features of `Schema.key_features`, of which null is one. So all versions of a key are in one
partition, whose log orders them: the last one counts, and in a batch the last one of the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array
from galileo.errors import DuplicateKey
from galileo.geo import geohash
from galileo.hashing import hash128
from galileo.model import paths, table
from galileo.model.observations import as_table
from galileo.model.paths import Indexed, Place
from galileo.model.schema import (
    COORDINATES,
    DELETED,
    PLACED_KEY_SCHEMA,
    VERSION_SCHEMA,
    Schema,
    StoredSchema,
)
from galileo.model.sort_keys import differs, sort_order
from galileo.model.table import Table, key_words
from galileo.model.times import column_micros, iso

Hashes = npt.NDArray[np.uint64]
_ID = re.compile(r"p([0-9]{1,9})\.([0-9a-f]{16})([0-9a-f]{16})")


def hashes_of(schema: Schema, rows: pa.Table) -> Hashes:
    """Both halves of the hash of each key.

    Args:
        schema: of a keyed dataset.
        rows: normalised observations; of the features, those of the key are enough.
    """
    if rows.num_rows == 0:
        return np.empty((0, 2), dtype=np.uint64)
    cells, buckets = paths.cells_from_table(schema, rows), paths.buckets_from_table(schema, rows)
    return _hashes(schema, cells, buckets, rows)


def _hashes(
    schema: Schema, cells: Hashes, buckets: npt.NDArray[np.int64], rows: pa.Table
) -> Hashes:
    words, nulls = list[pa.Array](), np.zeros(len(cells), dtype=np.int64)
    for number, name in enumerate(schema.key_features):
        column = one_array(rows.column(name))
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int64())
        if column.null_count:
            nulls += column.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << number
            column = pc.fill_null(column, "" if pa.types.is_string(column.type) else 0)
        words.append(column)
    # Buckets begin at whole seconds, so what is added to their microseconds stays apart.
    return hash128([pa.array(cells.view(np.int64)), pa.array(buckets + nulls), *words])


def placed_keys(schema: StoredSchema, keys: pa.Table) -> tuple[npt.NDArray[np.int32], Hashes]:
    """The partition of each of some keys, of `key_schema`, and both halves of its hash."""
    if isinstance(schema, Table):
        hashes = table.hashes_of(schema, keys)
        return table.partitions_of(schema, hashes), hashes
    places, *halves = (column.to_numpy() for column in keys.columns)
    return places, np.column_stack(halves)


def ids_of(schema: Schema, partitions: Any, rows: pa.Table) -> pa.Array:
    """The id of the key of each row, such as `p3.1f0c…`: its partition, and its hash in hex.

    Args:
        schema: of a keyed dataset.
        partitions: of the rows.
        rows: as of `hashes_of`.
    """
    return _ids(partitions, hashes_of(schema, rows))


def ids_of_labels(schema: Schema, labels: pa.Table) -> pa.Array:
    """As `ids_of`, of labels."""
    return _ids(labels.column("partition"), _hashes_of_labels(schema, labels))


def _ids(partitions: Any, hashes: Hashes) -> pa.Array:
    digits = np.frombuffer(hashes.astype(">u8").tobytes().hex().encode(), dtype="S32")
    texts = pa.array(digits, pa.binary()).cast(pa.string())
    places = pa.array(np.asarray(partitions)).cast(pa.string())
    return pc.binary_join_element_wise("p", places, ".", texts, "")


def keys_of_ids(ids: Iterable[str]) -> pa.Table | None:
    """The keys of ids, of `PLACED_KEY_SCHEMA`; None if one is no id."""
    found = [_ID.fullmatch(one) if isinstance(one, str) else None for one in ids]
    if None in found:
        return None
    parts = [match.groups() for match in found if match is not None]
    digits = "".join(high + low for _, high, low in parts)
    halves = np.frombuffer(bytes.fromhex(digits), dtype=">u8").astype(np.uint64).reshape(-1, 2)
    places = pa.array([int(place) for place, *_ in parts], pa.int32())
    return pa.table([places, *halves.T.copy()], schema=PLACED_KEY_SCHEMA)


def without_labels(labels: pa.Table, others: pa.Table) -> pa.Table:
    """Labels but for those that are among others, too."""
    if not labels.num_rows or not others.num_rows:
        return labels
    return labels.filter(pa.array(~np.isin(_places(labels), _places(others))))


def without_keys(schema: Schema, labels: pa.Table, others: pa.Table) -> pa.Table:
    """Labels but for those whose keys others have."""
    if not labels.num_rows or not others.num_rows:
        return labels
    mine, theirs = (_hashes_of_labels(schema, table)[:, 0] for table in (labels, others))
    return labels.filter(pa.array(~np.isin(mine, theirs)))


def labels_of_update(
    schema: Schema, new: pa.Table, *, replaced: pa.Table, withdrawn: pa.Table, shortened: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """The labels of an update of a continuous query, and those that it withdraws.

    Args:
        schema: of a dataset, which need not have a key.
        new: what cycles have found; some of it may count no more.
        replaced: labels that do not count, also of `new`.
        withdrawn: labels that counted before the update and do no more. In a keyed dataset, those
            whose keys are in the update are left out: there, a correction matches.
        shortened: without a key, what deletions have left of paths, also of `new`.
    """
    new = without_labels(new, replaced)
    if schema.is_keyed:
        return new, without_keys(schema, withdrawn, new)
    if shortened.num_rows:
        new = pa.concat_tables([without_labels(new, shortened), shortened])
    return new, withdrawn


def still_held(schema: Schema, held: pa.Table, *, withdrawn: pa.Table, new: pa.Table) -> pa.Table:
    """The labels of a reader that an update leaves, before the new ones are added.

    Args:
        schema: of a dataset, which need not have a key.
        held: by the reader.
        withdrawn: by the update; without a key, labels are the same at the same place.
        new: of the update; in a keyed dataset they replace those with their keys.
    """
    if schema.is_keyed:
        return without_keys(schema, held, pa.concat_tables([withdrawn, new]))
    return without_labels(held, withdrawn)


def folded(schema: Schema, updates: Sequence[tuple[pa.Table, pa.Table]]) -> pa.Table:
    """The labels that a reader holds after updates: `still_held` of all of them, in one pass.

    Args:
        schema: of a dataset, which need not have a key.
        updates: of each one what it withdraws, and its labels; at least one.
    """
    withdrawn, new = (pa.concat_tables(tables) for tables in zip(*updates, strict=True))
    if not schema.is_keyed and not withdrawn.num_rows:
        return new
    sizes = np.array([[table.num_rows for table in update] for update in updates]).T
    gone_at, new_at = (np.repeat(np.arange(len(updates)), counts) for counts in sizes)
    both = pa.concat_tables([withdrawn, new])
    names = _hashes_of_labels(schema, both)[:, 0] if schema.is_keyed else _places(both)
    _, number = np.unique(names, return_inverse=True)
    gone_number, new_number = np.split(number, [len(gone_at)])
    # Of several assignments to one place, the last one counts.
    last_gone = np.full(len(names), -1)
    last_gone[gone_number] = gone_at
    is_held = new_at >= last_gone[new_number]
    if schema.is_keyed:
        rows = np.arange(len(new_number))
        last_new = np.zeros(len(names), dtype=np.int64)
        last_new[new_number] = rows
        is_held &= last_new[new_number] == rows
    return new.filter(pa.array(is_held))


def _places(labels: pa.Table) -> npt.NDArray[np.uint64]:
    """A hash of the place of each label, which is its partition, commit and first row."""
    names = ("partition", "sequence", "row")
    columns = [one_array(labels.column(name).cast(pa.int64())) for name in names]
    hashes: npt.NDArray[np.uint64] = hash128(columns)[:, 0]
    return hashes


def _hashes_of_labels(schema: Schema, labels: pa.Table) -> Hashes:
    cells = labels.column("cell").to_numpy()
    return _hashes(schema, cells, column_micros(labels.column("bucket")), labels)


def deleted_rows(schema: Schema, data: Any) -> pa.Table:
    """Rows that `normalise` takes, which delete the keys of some rows.

    Args:
        schema: of a keyed dataset.
        data: rows with place, time and the features of the key; others are ignored.
    """
    rows = as_table(data)
    named = [name for name in (*COORDINATES, *schema.key_features) if name in rows.column_names]
    rows = rows.select(named)
    for feature in schema.features:
        if feature.name not in schema.key_features:
            rows = rows.append_column(feature.name, pa.nulls(rows.num_rows, feature.arrow_type))
    return rows.append_column(DELETED, pa.array(np.ones(rows.num_rows, dtype=np.bool_)))


def index_versions(
    schema: Schema,
    versions: pa.Table,
    *,
    place: Place,
    since: npt.NDArray[np.int64] | None = None,
) -> dict[int, Indexed]:
    """The last version of each key, sorted and indexed, by partition.

    Args:
        schema: of a keyed dataset.
        versions: of `schema.version_schema`.
        place: maps blocks to partitions.
        since: the commit since which each counts; None: the commit that will have them.

    Returns:
        Observations of `schema.observation_schema`, and their paths of `schema.path_schema`.
    """
    hashes = hashes_of(schema, versions)
    since = np.zeros(versions.num_rows, dtype=np.int64) if since is None else since
    for name, column in (("high", hashes[:, 0]), ("low", hashes[:, 1]), ("since", since)):
        versions = versions.append_column(name, pa.array(np.ascontiguousarray(column)))
    kept = _last_of_keys(hashes)
    if len(kept) < len(hashes):
        versions = versions.take(pa.array(kept))
    names = schema.observation_schema.names
    return {
        partition: (rows.select(names), _with_versions(schema, rows, batch))
        for partition, (rows, batch) in paths.index_parts(schema, versions, place=place).items()
    }


def _with_versions(schema: Schema, rows: pa.Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Paths, one of each row, with the columns of `VERSION_SCHEMA` of the rows."""
    assert batch.num_rows == rows.num_rows, "a path of each version"
    columns = [one_array(rows.column(name)) for name in VERSION_SCHEMA.names]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema.path_schema)


def _last_of_keys(hashes: Hashes) -> npt.NDArray[np.intp]:
    """The last row of each key, ascending."""
    order = sort_order([hashes[:, 0], hashes[:, 1]])
    is_first = differs(hashes[order, 0]) | differs(hashes[order, 1])
    return np.sort(order[np.append(is_first[1:], True)[: len(order)]])


def sent_rows(rows: pa.Table, batch: pa.RecordBatch) -> pa.Table:
    """What `index_versions` has given of a partition, as rows of `schema.version_schema`."""
    return rows.append_column(VERSION_SCHEMA.field(DELETED), batch.column(DELETED))


def refuse_duplicates(schema: Schema, rows: pa.Table) -> None:
    """Raises DuplicateKey if two rows of a conditional write have one key."""
    hashes = hashes_of(schema, rows)
    kept = _last_of_keys(hashes)
    if len(kept) == len(hashes):
        return
    again = int(np.setdiff1d(np.arange(len(hashes)), kept)[0])
    key = key_of(schema, rows, again)
    raise DuplicateKey(
        f"expected one row of each key in a conditional write into dataset {schema.name!r}, got "
        f"several of {key_words(key)}; send one of them",
        key=key,
    )


def count_keys(schema: Schema, rows: pa.Table) -> int:
    """How many different keys rows have."""
    return len(_last_of_keys(hashes_of(schema, rows)))


def key_of(schema: Schema, rows: pa.Table, row: int) -> list[Any]:
    """The key of a row, for messages: cell, start of the time bucket, values of features."""
    one = rows.slice(row, 1)
    cell = geohash.to_text(paths.cells_from_table(schema, one), schema.geohash_precision)[0].as_py()
    bucket = iso(int(paths.buckets_from_table(schema, one)[0]))
    return [cell, bucket, *(one.column(name)[0].as_py() for name in schema.key_features)]
