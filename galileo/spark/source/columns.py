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
from galileo.model.schema import Schema, nearest_name
from galileo.spark.source.options import LABELS

GEOHASH = "geohash"


def arrow_columns(schema: Schema, what: str) -> pa.Schema:
    """All columns of observations or labels."""
    if what != LABELS:
        return schema.observation_schema
    label = schema.label_schema
    place = label.get_field_index("cell")
    return label.set(place, pa.field(GEOHASH, pa.string(), nullable=False))


def spark_columns(schema: Schema, what: str, columns: Sequence[str]) -> StructType:
    """The columns of a read as a schema of Spark; all if none is named.

    Raises:
        InputError: there is no such column, or it is named twice.
    """
    of = f"the {what} of dataset {schema.name!r}"
    return selected_columns(arrow_columns(schema, what), columns, of=of)


def selected_columns(available: pa.Schema, names: Sequence[str], *, of: str) -> StructType:
    """Some columns of what `of` names as a schema of Spark; all if none is named.

    Raises:
        InputError: there is no such column, or it is named twice.
    """
    for name in names:
        if name not in available.names or list(names).count(name) > 1:
            close = nearest_name(name, available.names)
            hint = f"; did you mean {close!r}?" if close and close != name else ""
            raise InputError(
                f"expected columns of {of}, each once, of {', '.join(available.names)}; got "
                f"{name!r}{hint}"
            )
    return from_arrow_schema(pa.schema([available.field(n) for n in names or available.names]))


def requested_columns(schema: Schema, what: str, wanted: StructType) -> pa.Schema:
    """The Arrow schema of the batches that Spark expects.

    Args:
        schema: of the dataset.
        what: observations or labels.
        wanted: all columns or some of them, as from `.schema(...)`.

    Raises:
        InputError: a column is unknown, or has another type than the stored one.
    """
    stored = spark_columns(schema, what, wanted.fieldNames())
    return checked_columns(stored, wanted, of=f"dataset {schema.name!r}")


def checked_columns(stored: StructType, wanted: StructType, *, of: str) -> pa.Schema:
    """The Arrow schema of columns that Spark expects with the types in which they are stored.

    Raises:
        InputError: a column has another type.
    """
    for field in wanted.fields:
        kind = stored[field.name].dataType
        if field.dataType != kind:
            raise InputError(
                f"expected column {field.name!r} of {of} as {kind.simpleString()}, got "
                f"{field.dataType.simpleString()}; cast it in a select"
            )
    arrow: pa.Schema = to_arrow_schema(wanted, timezone="UTC")
    return arrow


def check_writable(schema: Schema, columns: StructType) -> None:
    """Raises InvalidObservations if a DataFrame has other columns than the dataset.

    Features that were added to the dataset may be missing.
    """
    wanted = schema.observation_schema.names
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
