"""Between Galileo's columns and Spark's: the same Arrow types, so no value is converted.

Only the cell of a label is another: Spark has no unsigned integers, and a geohash is what people
read, so it becomes text.
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
    """All columns that a read of observations or labels can give."""
    if what != LABELS:
        return schema.observation_schema
    label = schema.label_schema
    place = label.get_field_index("cell")
    return label.set(place, pa.field(GEOHASH, pa.string(), nullable=False))


def spark_columns(schema: Schema, what: str, columns: Sequence[str]) -> StructType:
    """The columns of a read, for Spark; all where none is named.

    Raises:
        InputError: there is no such column, or it is named twice.
    """
    whole = arrow_columns(schema, what)
    for name in columns:
        if name not in whole.names or list(columns).count(name) > 1:
            close = nearest_name(name, whole.names)
            hint = f"; did you mean {close!r}?" if close and close != name else ""
            raise InputError(
                f"expected columns of the {what} of dataset {schema.name!r}, each once, of "
                f"{', '.join(whole.names)}; got {name!r}{hint}"
            )
    chosen = pa.schema([whole.field(name) for name in columns]) if columns else whole
    return from_arrow_schema(chosen)


def asked_columns(schema: Schema, what: str, wanted: StructType) -> pa.Schema:
    """The Arrow schema of the batches that Spark expects.

    Args:
        schema: of the dataset.
        what: observations or labels.
        wanted: all columns or some of them, as `.schema(...)` may say.

    Raises:
        InputError: a column is unknown, or of another type than it is stored with.
    """
    stored = spark_columns(schema, what, wanted.fieldNames())
    for field in wanted.fields:
        kind = stored[field.name].dataType
        if field.dataType != kind:
            raise InputError(
                f"expected column {field.name!r} of dataset {schema.name!r} as "
                f"{kind.simpleString()}, got {field.dataType.simpleString()}; cast it in a select"
            )
    arrow: pa.Schema = to_arrow_schema(wanted, timezone="UTC")
    return arrow


def check_writable(schema: Schema, given: StructType) -> None:
    """Raises InvalidObservations where the columns of a DataFrame are not those of the dataset."""
    wanted = schema.observation_schema.names
    missing = [name for name in wanted if name not in given.fieldNames()]
    unknown = [name for name in given.fieldNames() if name not in wanted]
    if missing or unknown:
        parts = [f"missing: {', '.join(missing)}"] * bool(missing)
        parts += [f"unknown: {', '.join(unknown)}"] * bool(unknown)
        raise InvalidObservations(
            f"expected the columns {', '.join(wanted)} for dataset {schema.name!r}; "
            f"{'; '.join(parts)}. Rename or drop columns, or fill a missing feature with nulls"
        )


def of_observations(batch: pa.RecordBatch, arrow: pa.Schema) -> pa.RecordBatch:
    """The same columns under Spark's schema, not copied."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=arrow)


def of_labels(batch: pa.RecordBatch, arrow: pa.Schema, *, precision: int) -> pa.RecordBatch:
    """The columns of labels that are wanted, cells as text."""
    arrays = [
        geohash.to_text(batch.column("cell").to_numpy(), precision)
        if name == GEOHASH
        else batch.column(name)
        for name in arrow.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
