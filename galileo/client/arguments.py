"""Checks of arguments before anything is sent, so that an error says what to hand over."""

from __future__ import annotations

from typing import Any, TypeVar

from galileo.errors import InputError

Kind = TypeVar("Kind")
SHOWN_CHARS = 80


def shown(value: object) -> str:
    """A value as part of a message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"a {type(value).__name__}"


def instance_of(kind: type[Kind], value: Any, wanted: str) -> Kind:
    """The value.

    Raises:
        InputError: it is of another kind.
    """
    if isinstance(value, kind):
        return value
    raise InputError(f"expected {wanted}, got {shown(value)}")


def dataset_name(value: Any) -> str:
    """The name of a dataset, whether or not there is one of that name."""
    return instance_of(str, value, "the name of a dataset")


def check_progress(value: Any) -> None:
    """Raises `InputError` for what is neither None nor can be called."""
    if value is not None and not callable(value):
        raise InputError(f"expected a function to call with progress, got {shown(value)}")
