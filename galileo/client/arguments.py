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


CALLS_OF_COMMANDS = {
    "stats": "summarise",
    "page": "select_page",
    "show": "describe",
    "list": "datasets",
    "create": "create_dataset",
    "drop": "drop_dataset",
}


def no_such_call(client: object, name: str) -> AttributeError:
    """The error about a missing attribute, which knows the calls that commands make."""
    call = CALLS_OF_COMMANDS.get(name)
    hint = f"; the call of that command is {call}()" if call else ""
    fault = f"{type(client).__name__!r} object has no attribute {name!r}{hint}"
    return AttributeError(fault) if call else AttributeError(fault, name=name, obj=client)


def dataset_name(value: Any) -> str:
    """The name of a dataset, whether or not there is one of that name."""
    return instance_of(str, value, "the name of a dataset")


def check_progress(value: Any) -> None:
    """Raises `InputError` for what is neither None nor can be called."""
    if value is not None and not callable(value):
        raise InputError(f"expected a function to call with progress, got {shown(value)}")
