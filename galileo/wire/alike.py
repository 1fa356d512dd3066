"""Conversion between a message and a dataclass, whose fields have equal names for the most part."""

from __future__ import annotations

import dataclasses
from collections.abc import MutableSequence
from typing import Any, TypeVar

from google.protobuf.message import Message

T = TypeVar("T")


def alike(kind: type[T], source: Any, **others: Any) -> T:
    """A value of a class, or a message, that has the fields of another.

    Args:
        kind: a dataclass, or the class of a message.
        source: has an attribute of the name of each field; sequences of messages become tuples.
        **others: fields of `kind` that `source` does not have, or has in another form.
    """
    if issubclass(kind, Message):
        names = set(kind.DESCRIPTOR.fields_by_name)
    else:
        names = {field.name for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    values = {name: getattr(source, name) for name in names - others.keys()}
    for name, value in values.items():
        if isinstance(value, MutableSequence):
            values[name] = tuple(value)
    return kind(**values, **others)
