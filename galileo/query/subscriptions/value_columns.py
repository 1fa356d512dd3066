"""Values of parameters in columns that grow, without an object for each.

A parameter has one field or several: a number, a time or a text is one; the centre of a circle two,
longitude and latitude; a region its bounds and, if it is no box, its shape.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from galileo.geo.regions import Mask
from galileo.model.times import column_micros
from galileo.query.columns import rounded_to_float32
from galileo.query.subscriptions.parameters import CENTRE, SINGLE, ParameterPlace
from galileo.query.subscriptions.wkb import read_areas, read_points

Field: TypeAlias = npt.NDArray[Any] | pa.Array
SHAPE_BYTES, VERTEX_BYTES = 700, 50
"""About so many bytes are taken by a shape and by each of its vertices, prepared for tests."""


class FieldColumn(Protocol):
    """One field of many values."""

    @property
    def nbytes(self) -> int: ...

    def extend(self, values: Any) -> None: ...

    def take(self, numbers: npt.NDArray[Any]) -> Any: ...

    def keep(self, kept: Mask) -> None: ...


class Vector:
    """A field in an array with room for more at its end.

    Args:
        values: the first ones; those that follow are of their type.
    """

    __slots__ = ("_array", "_length")

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._array, self._length = values.copy(), len(values)

    @property
    def nbytes(self) -> int:
        return int(self._array.nbytes)

    def extend(self, values: npt.NDArray[Any]) -> None:
        length = self._length + len(values)
        if length > len(self._array):
            longer = np.empty(length * 9 // 8 + 8, dtype=self._array.dtype)
            longer[: self._length] = self._array[: self._length]
            self._array = longer
        self._array[self._length : length] = values
        self._length = length

    def take(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._array.take(numbers)

    def keep(self, kept: Mask) -> None:
        self._array = self._array[: self._length][kept]
        self._length = len(self._array)


class ShapeColumn(Vector):
    """Geometries, of which those of boxes are None."""

    __slots__ = ("_shape_bytes",)

    def __init__(self, values: npt.NDArray[Any]) -> None:
        super().__init__(values)
        self._shape_bytes = _shape_bytes(values)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._shape_bytes

    def extend(self, values: npt.NDArray[Any]) -> None:
        super().extend(values)
        self._shape_bytes += _shape_bytes(values)

    def keep(self, kept: Mask) -> None:
        super().keep(kept)
        self._shape_bytes = _shape_bytes(self._array)


class Texts:
    """A field of texts, in Arrow arrays each of which is at least twice as long as the next."""

    __slots__ = ("_chunks",)

    def __init__(self, values: pa.Array) -> None:
        self._chunks = [values]

    @property
    def nbytes(self) -> int:
        return sum(int(chunk.nbytes) for chunk in self._chunks)

    def extend(self, values: pa.Array) -> None:
        chunks = [*self._chunks, values]
        while len(chunks) > 1 and len(chunks[-2]) < 2 * len(chunks[-1]):
            chunks[-2:] = [pa.concat_arrays(chunks[-2:])]
        self._chunks = chunks

    def take(self, numbers: npt.NDArray[Any]) -> pa.Array:
        taken = pa.chunked_array(self._chunks, type=pa.string()).take(pa.array(numbers))
        return pa.concat_arrays(taken.chunks) if taken.num_chunks else pa.array([], pa.string())

    def keep(self, kept: Mask) -> None:
        self._chunks = [pa.concat_arrays(self._chunks).filter(pa.array(kept))]


def column_of(field: Field) -> FieldColumn:
    """A column that begins with these values."""
    if isinstance(field, pa.Array):
        return Texts(field)
    return ShapeColumn(field) if field.dtype == np.object_ else Vector(field)


def fields_of(values: pa.Array, places: Set[ParameterPlace]) -> tuple[Field, ...]:
    """The fields of values.

    Args:
        values: of one parameter, without nulls.
        places: of the parameter.
    """
    kind = next(iter(places)).type
    if kind == "text":
        return (values,)
    if kind == "time":
        return (column_micros(values),)
    if kind == "geometry" and CENTRE in places:
        longitude, latitude = read_points(values).T
        turns = 360.0 * ((longitude > 180).astype(np.int8) - (longitude < -180))
        return longitude - turns + 0.0, latitude + 0.0
    if kind == "geometry":
        areas = read_areas(values)
        return areas.west, areas.south, areas.east, areas.north, areas.shapes
    numbers = np.asarray(values.cast(pa.float64())) + 0.0
    return (rounded_to_float32(numbers) if SINGLE in places else numbers,)


def hashed(field: Field) -> pa.Array:
    """What takes part in the hash of a value."""
    if isinstance(field, pa.Array):
        return field
    if field.dtype != np.object_:
        return pa.array(field)
    return pa.array(shapely.to_wkb(field), pa.binary()).fill_null(b"")


def equal_fields(left: Sequence[Field], right: Sequence[Field]) -> Mask:
    """Mask of equal values."""
    mask = np.ones(len(left[0]), dtype=np.bool_)
    for one, other in zip(left, right, strict=True):
        mask &= _equal(one, other)
    return mask


def _equal(left: Field, right: Field) -> Mask:
    if isinstance(left, pa.Array):
        equal = pc.equal(left, right).to_numpy(zero_copy_only=False)
        return np.asarray(equal, dtype=np.bool_)
    if left.dtype == np.object_:
        is_box = shapely.is_missing(left) & shapely.is_missing(right)
        return np.asarray(is_box | shapely.equals_exact(left, right, tolerance=0.0))
    return np.asarray(left == right)


def _shape_bytes(shapes: npt.NDArray[Any]) -> int:
    count = len(shapes) - int(np.count_nonzero(shapely.is_missing(shapes)))
    vertices = int(shapely.get_num_coordinates(shapes).sum())
    return SHAPE_BYTES * count + VERTEX_BYTES * vertices
