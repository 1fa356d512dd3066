"""What is known of a feature, as attributes of the CF conventions: the one mapping of both.

Files of NetCDF, fields of Arrow and Datasets of xarray all carry these attributes: `units`,
`standard_name`, `long_name`, `flag_values` and `flag_meanings` (CF 1.11, sections 3.1 to 3.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.model.schema import FLAGS_MAX, MEANING, TEXTS_MAX, Feature

UNITS, STANDARD_NAME, LONG_NAME = "units", "standard_name", "long_name"
FLAG_VALUES, FLAG_MEANINGS, FLAG_MASKS = "flag_values", "flag_meanings", "flag_masks"
_TEXTS = {"unit": UNITS, "standard_name": STANDARD_NAME, "description": LONG_NAME}
"""Attributes by the fields of a feature that are texts."""


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """What a variable of a file says of itself.

    Attributes:
        unit: as in the file; "" if it has none.
        standard_name: of the CF conventions.
        description: its long name.
        flags: pairs of a value and its meaning.
        left_out: what no feature can have, and why; "" if nothing is left out.
    """

    unit: str = ""
    standard_name: str = ""
    description: str = ""
    flags: tuple[tuple[int, str], ...] = ()
    left_out: str = ""


NO_METADATA = FeatureMetadata()


def attributes_of(feature: Feature) -> dict[str, str | list[int]]:
    """The attributes of a feature, without empty ones; the inverse of `from_attributes`."""
    texts = {name: getattr(feature, field) for field, name in _TEXTS.items()}
    attributes: dict[str, str | list[int]] = {name: text for name, text in texts.items() if text}
    if feature.flags:
        attributes[FLAG_VALUES] = list(feature.flags)
        attributes[FLAG_MEANINGS] = " ".join(feature.flags.values())
    return attributes


def from_attributes(attributes: Mapping[str, Any]) -> FeatureMetadata:
    """What attributes say; of other types than they should have, they say nothing.

    Attributes with `flag_masks` alone are left out: their values are sets of meanings, of which no
    condition could name one.
    """
    texts = {
        field: _one_line(text)[: TEXTS_MAX[field]]
        for field, name in _TEXTS.items()
        if isinstance(text := attributes.get(name), str)
    }
    flags, left_out = _flags(attributes)
    return FeatureMetadata(**texts, flags=flags, left_out=left_out)


def _one_line(text: str) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def _flags(attributes: Mapping[str, Any]) -> tuple[tuple[tuple[int, str], ...], str]:
    """The flags of attributes, and what is left out of them."""
    if FLAG_MEANINGS not in attributes:
        return (), ""
    meanings = str(attributes[FLAG_MEANINGS]).split()
    values = _whole_numbers(attributes.get(FLAG_VALUES))
    if not values:
        which = FLAG_MASKS if FLAG_MASKS in attributes else FLAG_MEANINGS
        return (), f"{which} without {FLAG_VALUES}"
    if len({*values}) < len(values) or len({*meanings}) < len(meanings):
        return (), f"{FLAG_VALUES} of which two are equal, or have one meaning"
    if len(values) != len(meanings) or len(values) > FLAGS_MAX:
        return (), f"{len(meanings)} {FLAG_MEANINGS} for {len(values)} {FLAG_VALUES}"
    if not all(map(MEANING.fullmatch, meanings)):
        return (), f"{FLAG_MEANINGS} with characters that CF does not permit"
    return tuple(zip(values, meanings, strict=True)), ""


def _whole_numbers(given: Any) -> list[int]:
    """The numbers of an attribute, which Arrow has as text; none if they are no 64-bit integers."""
    try:
        if isinstance(given, str):
            given = [int(word) for word in given.replace(",", " ").split()]
        numbers = np.atleast_1d(np.asarray(given))
    except ValueError:
        return []
    is_whole = numbers.dtype.kind in "iu" and not (numbers > np.iinfo(np.int64).max).any()
    return numbers.tolist() if is_whole else []


def with_metadata(columns: pa.Schema, features: Iterable[Feature]) -> pa.Schema:
    """The columns, of which those of the features have their attributes as metadata."""
    fields = {
        feature.name: {
            name: value if isinstance(value, str) else " ".join(map(str, value))
            for name, value in attributes_of(feature).items()
        }
        for feature in features
    }
    return pa.schema(
        [
            field.with_metadata(fields[field.name]) if fields.get(field.name) else field
            for field in columns
        ],
        metadata=columns.metadata,
    )


def from_field(field: pa.Field) -> FeatureMetadata:
    """What the metadata of a column says."""
    raw = field.metadata or {}
    return from_attributes(
        {
            name.decode(errors="replace"): value.decode(errors="replace")
            for name, value in raw.items()
        }
    )


def described(table: pa.Table, features: Sequence[Feature]) -> pa.Table:
    """The table, whose columns have the metadata of the features with their names; not copied."""
    wanted = with_metadata(table.schema, features)
    return pa.Table.from_arrays(table.columns, schema=wanted)
