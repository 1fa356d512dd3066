"""Reads a file of observations, and refuses it at its first mistake.

`Source` reads files of others and skips rows without a place, a time or a value. Here each row has
a place and a time, each column is known, and an error names the row and the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from galileo.arrays import rebatch
from galileo.errors import InputError, InvalidObservations
from galileo.formats.detection import READERS
from galileo.formats.expressions import FileColumns, Name
from galileo.formats.geojson import ELEVATION
from galileo.formats.mapping import Mapping
from galileo.formats.reader import Reader, table_of
from galileo.formats.source import BATCH_ROWS
from galileo.formats.text_mistakes import first_mistake
from galileo.geo.regions import Floats
from galileo.model.observations import normalise
from galileo.model.schema import ARROW_TYPES, Schema, nearest_name

FORMATS = ("geojson", "csv", "ndjson", "arrow", "parquet")
IGNORED = ("id", "geometry", ELEVATION)
"""Columns that are no features and do no harm: those of GeoJSON and GeoParquet."""


class StrictSource:
    """An open file of observations of a dataset.

    A feature that no row has is null; one feature at least is there.

    Args:
        path: of the file; it stays open for as long as it is read.
        format: one of `FORMATS`.
        schema: of the dataset.
        to_degrees: longitudes and latitudes of the positions in the file, shape (k, 2).

    Raises:
        InputError: the file is damaged; `details` have `row` and `column` where they are known.
    """

    def __init__(
        self,
        path: Path,
        format: str,
        schema: Schema,
        *,
        to_degrees: Callable[[Floats], Floats] | None = None,
    ) -> None:
        self._to_degrees = to_degrees
        self._path = path
        self._format = format
        self._schema = schema
        try:
            reader = READERS[format].open(path, Mapping())
            if reader.coordinates.error is not None:
                raise reader.coordinates.error
            reader.variables()
        except InputError as error:
            self._explain(error)
        self._reader = replace(reader, line_of=None)  # The rows of a body have no lines.
        self._names = _features_of(reader, schema)

    def batches(self, rows_max: int = BATCH_ROWS) -> Iterator[pa.Table]:
        """The observations as tables of `schema.observation_schema`; the same each time.

        Raises:
            InvalidObservations: a value is wrong; `details` have its `row` and `column`.
            InputError: the file is damaged.
        """
        return rebatch(self._tables(), rows_max=rows_max)

    def _tables(self) -> Iterator[pa.Table]:
        try:
            yield from self._reader.evaluate(self._names, self._observations)
        except InputError as error:
            self._explain(error)

    def _observations(self, columns: FileColumns) -> pa.Table:
        coordinates = self._reader.coordinates.evaluate(columns)
        features = [
            columns.evaluate(Name(feature.name), feature.type)
            if feature.name in self._names
            else pa.nulls(columns.rows, ARROW_TYPES[feature.type])
            for feature in self._schema.features
        ]
        names = [feature.name for feature in self._schema.features]
        if self._to_degrees is not None:
            given = [one.to_numpy(zero_copy_only=False) for one in coordinates[1::-1]]
            degrees = self._to_degrees(np.stack(given, axis=1)).T[::-1]
            coordinates[:2] = [pa.array(one, from_pandas=True) for one in degrees]
        return normalise(self._schema, table_of(coordinates, features, names=names))

    def _explain(self, error: InputError) -> NoReturn:
        """Raises the error, with the row of the first mistake if the reader did not name it."""
        is_known = {"row", "bound"} & error.details.keys()  # A bound of the whole file has no row.
        if not is_known and (mistake := first_mistake(self._path, self._format, self._schema)):
            raise mistake from error
        raise error


def _features_of(reader: Reader, schema: Schema) -> tuple[str, ...]:
    """The features that a file has.

    Raises:
        InvalidObservations: it has none, or columns that the dataset does not have.
    """
    names = [feature.name for feature in schema.features]
    columns = {info.name: info.type for info in reader.variables()}
    given = [name for name, kind in columns.items() if kind is not None]
    unknown = [
        name for name in (*given, *reader.others) if name not in names and name not in IGNORED
    ]
    if unknown:
        close = nearest_name(unknown[0], names)
        hint = f"; did you mean {close!r}?" if close else ""
        raise InvalidObservations(
            f"dataset {schema.name!r} has no feature {unknown[0]!r}{hint}, expected some of "
            f"{', '.join(names)}",
            column=unknown[0],
            nearest=close,
        )
    lists = [name for name in reader.others if name in names]
    if lists:
        raise InvalidObservations(
            f"expected a single value in each row of column {lists[0]!r}", column=lists[0]
        )
    found = tuple(name for name in names if name in columns)
    if names and not found and reader.rows != 0:
        raise InvalidObservations(
            f"expected at least one of the features {', '.join(names)} of dataset "
            f"{schema.name!r}, got none",
            expected="feature",
        )
    return found
