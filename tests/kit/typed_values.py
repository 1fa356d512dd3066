"""Random values of the types that nodes send one another, made of their annotations."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.errors import GalileoError, InputError

INTS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: INTS,
    float: st.floats(allow_nan=False),
    str: TEXTS,
    bytes: st.binary(max_size=99),
    type(None): st.none(),
    pa.Buffer: st.binary(max_size=99).map(pa.py_buffer),
    pa.Table: st.binary(max_size=99).map(pa.py_buffer),  # As it arrives.
    Cursor: st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63), max_size=9).map(
        Cursor
    ),
    GalileoError: st.builds(InputError, TEXTS, name=TEXTS),
}
MANY_MAX = 3


def as_plain(value: Any) -> Any:
    """A value that equals another one of equal content, whatever classes say of equality."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return type(value), [as_plain(getattr(value, field.name)) for field in fields]
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if isinstance(value, GalileoError):
        return type(value), value.message, value.details
    return [as_plain(one) for one in value] if isinstance(value, tuple | list) else value


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type; sequences are tuples, as they are decoded."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, *(values_of(hint) for hint in hints.values()))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is np.ndarray:
        return _columns(np.dtype(typing.get_args(inner[1])[0]))
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, inner))
    if origin is Mapping:
        return st.dictionaries(*map(values_of, inner), max_size=MANY_MAX)
    if origin is frozenset:
        return st.frozensets(values_of(inner[0]), max_size=MANY_MAX)
    if origin is Sequence or inner[-1] is Ellipsis:
        return st.lists(values_of(inner[0]), max_size=MANY_MAX).map(tuple)
    assert origin is tuple, f"expected a type that nodes send, got {kind}"
    return st.tuples(*map(values_of, inner))


def _columns(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    sizes = st.integers(0, MANY_MAX)
    data = sizes.flatmap(
        lambda n: st.binary(min_size=n * dtype.itemsize, max_size=n * dtype.itemsize)
    )
    numbers = data.map(lambda some: np.frombuffer(some, dtype))
    return numbers.map(lambda some: some.view(np.uint8) % 2 == 1) if dtype.kind == "b" else numbers
