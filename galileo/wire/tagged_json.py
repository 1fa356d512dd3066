"""Tagged JSON: the encoding of machine messages and stored records.

A frozen dataclass becomes an object with its class name under `$`; tuples become lists and are
decoded as tuples. Only the given classes are decoded, with all their fields and no others.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.samplers import SamplerSpec

_TAG = "$"
_SCALARS = frozenset({str, int, float, bool, type(None)})


class TaggedJson:
    """Encodes and decodes values of the given dataclasses, Cursor and SamplerSpec.

    Args:
        classes: dataclasses that may occur.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = {cls.__name__: cls for cls in classes}
        self._fields = {
            cls: [field.name for field in dataclasses.fields(cls)] for cls in self._classes.values()
        }

    def encode(self, value: Any) -> bytes:
        return json.dumps(self._plain(value), separators=(",", ":")).encode()

    def decode(self, data: bytes) -> Any:
        """Decodes a value.

        Raises:
            InputError: the bytes are no such JSON, name an unknown class, or have other fields.
        """
        try:
            return self._value(json.loads(data))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise InputError(
                f"expected a tagged JSON value, got bytes that fail: {error}",
                expected="tagged_json",
            ) from error

    def _plain(self, value: Any) -> Any:
        cls = type(value)
        if cls in _SCALARS:
            return value
        names = self._fields.get(cls)
        if names is not None:
            plain = {name: self._plain(getattr(value, name)) for name in names}
            return {_TAG: cls.__name__, **plain}
        if isinstance(value, tuple | list):
            return [self._plain(item) for item in value]
        if isinstance(value, Cursor):
            return {_TAG: "Cursor", "at": list(value.items())}
        if isinstance(value, SamplerSpec):
            return {_TAG: "SamplerSpec", "json": value.to_json()}
        if dataclasses.is_dataclass(value):
            raise TypeError(f"expected one of {sorted(self._classes)}, got {cls.__name__}")
        return value

    def _value(self, plain: Any) -> Any:
        if type(plain) in _SCALARS:
            return plain
        if isinstance(plain, list):
            return tuple(self._value(item) for item in plain)
        if not isinstance(plain, dict):
            return plain
        name = plain.pop(_TAG)
        if name == "Cursor":
            return Cursor({int(p): int(s) for p, s in plain["at"]})
        if name == "SamplerSpec":
            return SamplerSpec.from_json(plain["json"])
        cls = self._classes[name]
        if len(plain) != len(self._fields[cls]):
            raise TypeError(f"{name} has the fields {self._fields[cls]}, got {list(plain)}")
        return cls(**{key: self._value(item) for key, item in plain.items()})
