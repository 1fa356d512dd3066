"""Converts Galileo's columns to Spark's: the same Arrow types, without conversion of values.

Only the cell of a label becomes a text, its geohash: Spark has no unsigned integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from galileo.errors import InputError, InvalidObservations
from galileo.geo import geohash
from galileo.model.schema import Schema, nearest_name, not_keyed
from galileo.model.table import Table
from galileo.spark.source.options import CHANGES, LABELS

GEOHASH = "geohash"


def arrow_columns(schema: Schema | Table, what: str) -> pa.Schema:
    """All columns of observations, labels, rows or changes.

    Raises:
        InputError: changes of a dataset without a key.
    """
    if what == CHANGES:
        if not schema.is_keyed:
            raise not_keyed(schema)
        return schema.version_schema
    if isinstance(schema, Table):
        return schema.arrow_schema
    if what != LABELS:
        return schema.observation_schema
    label = schema.label_schema
    place = label.get_field_index("cell")
    return label.set(place, pa.field(GEOHASH, pa.string(), nullable=False))


def spark_columns(schema: Schema | Table, what: str, names: Sequence[str]) -> StructType:
    """The columns of a read as a schema of Spark; all if none is named.

    Raises:
        InputError: there is no such column, or it is named twice.
    """
    available, of = arrow_columns(schema, what), f"the {what} of {_named(schema)}"
    for name in names:
        if name not in available.names or list(names).count(name) > 1:
            close = nearest_name(name, available.names)
            hint = f"; did you mean {close!r}?" if close and close != name else ""
            raise InputError(
                f"expected columns of {of}, each once, of {', '.join(available.names)}; got "
                f"{name!r}{hint}"
            )
    return from_arrow_schema(pa.schema([available.field(n) for n in names or available.names]))


def requested_columns(schema: Schema | Table, what: str, wanted: StructType) -> pa.Schema:
    """The Arrow schema of the batches that Spark expects.

    Args:
        schema: of the dataset or table.
        what: observations, labels, rows or changes.
        wanted: all columns or some of them, as from `.schema(...)`.

    Raises:
        InputError: a column is unknown, or has another type than the stored one.
    """
    stored = spark_columns(schema, what, wanted.fieldNames())
    for field in wanted.fields:
        kind = stored[field.name].dataType
        if field.dataType != kind:
            raise InputError(
                f"expected column {field.name!r} of {_named(schema)} as {kind.simpleString()}, got "
                f"{field.dataType.simpleString()}; cast it in a select"
            )
    arrow: pa.Schema = to_arrow_schema(wanted, timezone="UTC")
    return arrow


def check_writable(schema: Schema, columns: StructType) -> None:
    """Raises InvalidObservations if a DataFrame has other columns than the dataset.

    Features that were added to the dataset may be missing, and so may the column that says which
    rows delete their keys.
    """
    wanted = schema.version_schema.names
    required = schema.narrowed(0).observation_schema.names
    missing = [name for name in required if name not in columns.fieldNames()]
    unknown = [name for name in columns.fieldNames() if name not in wanted]
    if missing or unknown:
        parts = [f"missing: {', '.join(missing)}"] * bool(missing)
        parts += [f"unknown: {', '.join(unknown)}"] * bool(unknown)
        raise InvalidObservations(
            f"expected the columns {', '.join(wanted)} for dataset {schema.name!r}; "
            f"{'; '.join(parts)}. Rename or drop columns, or fill a missing feature with nulls"
        )


def observations_to_spark(batch: pa.RecordBatch, arrow: pa.Schema) -> pa.RecordBatch:
    """A batch with the schema of Spark, not copied."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=arrow)


def labels_to_spark(batch: pa.RecordBatch, arrow: pa.Schema, *, precision: int) -> pa.RecordBatch:
    """The selected columns of labels, with cells as geohashes."""
    arrays = [
        geohash.to_text(batch.column("cell").to_numpy(), precision)
        if name == GEOHASH
        else batch.column(name)
        for name in arrow.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _named(schema: Schema | Table) -> str:
    return f"{'table' if isinstance(schema, Table) else 'dataset'} {schema.name!r}"
