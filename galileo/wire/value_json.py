"""JSON codec for the values of a tree's levels."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from galileo.errors import InputError
from galileo.model.times import iso, micros

CHARACTERS_MAX = 262_144
"""Characters of values as JSON."""


def values_to_json(values: Iterable[Any]) -> str:
    """Encodes values as a JSON list; times become ISO 8601 texts.

    Raises:
        InputError: a value has no JSON form.
    """
    return json.dumps(list(values), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        return value.item()
    return iso(micros(value))


def values_from_json(text: str) -> tuple[Any, ...]:
    """Decodes `values_to_json`; an empty text gives no values.

    Raises:
        InputError: the text is no list of plain values, or too long.
    """
    if len(text) > CHARACTERS_MAX:
        raise InputError(
            f"expected at most {CHARACTERS_MAX:,} characters of values, got {len(text):,}",
            bound=CHARACTERS_MAX,
        )
    try:
        values = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"expected a JSON list of values: {error}", expected="json_list"
        ) from error
    plain = str | int | float | bool | None
    if not isinstance(values, list) or not all(isinstance(value, plain) for value in values):
        raise InputError(
            f"expected a JSON list of values, got {text[:200]!r}", expected="json_list"
        )
    return tuple(values)
