"""The variables that a file offers: their names, and how a user's name finds one of them.

A variable that exists on several levels is several variables here, `t@isobaricInhPa:850`: a
base name and qualifiers of a kind and mostly a value. A shorter name is enough wherever it
fits one variable only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from galileo.errors import InputError, UnknownProperty
from galileo.formats.expressions import FUNCTIONS
from galileo.model.schema import FEATURES_MAX, RESERVED, FeatureType, nearest_name

CANDIDATES_SHOWN_MAX = 12
NAME_LENGTH_MAX = 64

Qualifiers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """One variable that a file offers.

    Attributes:
        name: what a mapping calls it.
        units: as the file writes them, empty where it does not.
        dims: names and sizes of its dimensions, such as `("time:9", "y:129", "x:185")`.
        description: the file's long name for it.
        type: of the feature that it would become.
        aliases: base names that a mapping may use where nothing has them as its own; the first
            is the best feature name.
        default: whether it becomes a feature when no mapping is given.
        identifier: whether nearly every row has a value of its own, such as an id or a URL.
        role: the coordinate that it is for; empty for what may be a feature.
    """

    name: str
    units: str = ""
    dims: tuple[str, ...] = ()
    description: str = ""
    type: FeatureType = "float"
    aliases: tuple[str, ...] = ()
    default: bool = True
    identifier: bool = False
    role: str = ""


def qualified(base: str, qualifiers: Qualifiers) -> str:
    """The name of a variable; an empty value is left out."""
    parts = [f"@{kind}" if not value else f"@{kind}:{value}" for kind, value in qualifiers]
    return base + "".join(parts)


def split_name(name: str) -> tuple[str, Qualifiers]:
    base, *parts = name.split("@")
    pairs = [part.partition(":") for part in parts]
    return base, tuple((kind, value) for kind, _, value in pairs)


def resolve(variables: Sequence[VariableInfo], text: str) -> VariableInfo:
    """The one variable that `text` names, in full or in short.

    Raises:
        UnknownProperty: none does; names the nearest.
        InputError: several do; lists them.
    """
    found = (
        [variable for variable in variables if variable.name == text]
        or [variable for variable in variables if _matches(variable, text, by_alias=False)]
        or [variable for variable in variables if _matches(variable, text, by_alias=True)]
    )
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{text!r} fits {len(found)} variables of the file; name one of them: "
            f"{listed([variable.name for variable in found])}"
        )
    raise _unknown(variables, text)


def _unknown(variables: Sequence[VariableInfo], text: str) -> UnknownProperty:
    names = [variable.name for variable in variables]
    close = nearest_name(text, names)
    hint = f" (did you mean {close!r}?)" if close else ""
    return UnknownProperty(
        f"the file has no variable {text!r}{hint}; its variables are {listed(names)}. Expressions "
        f"combine them with + - * / and {', '.join(sorted(FUNCTIONS))}",
        nearest=close,
    )


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - CANDIDATES_SHOWN_MAX
    shown = ", ".join(names[:CANDIDATES_SHOWN_MAX])
    return f"{shown} and {more} more" if more > 0 else shown or "nothing"


def _matches(variable: VariableInfo, text: str, *, by_alias: bool) -> bool:
    wanted_base, wanted = split_name(text)
    base, qualifiers = split_name(variable.name)
    if wanted_base not in (variable.aliases if by_alias else (base,)):
        return False
    return all(
        any(kind == k and (not value or value == (v or "0")) for k, v in qualifiers)
        for kind, value in wanted
    )


def default_features(variables: Sequence[VariableInfo]) -> tuple[tuple[str, str], ...]:
    """Pairs of feature and variable for a file that comes without a mapping.

    Raises:
        InputError: there are none, or too many.
    """
    chosen = [variable for variable in variables if variable.default]
    if not 1 <= len(chosen) <= FEATURES_MAX:
        raise InputError(
            f"expected 1 to {FEATURES_MAX} variables to take as features, found {len(chosen)}; "
            f"map those that you want. The file offers {listed([v.name for v in variables])}"
        )
    bases = [_base(variable) for variable in chosen]
    features: list[str] = []
    for variable, base in zip(chosen, bases, strict=True):
        whole = variable.name if bases.count(base) > 1 else base
        features.append(
            _unused(feature_name(whole.replace(split_name(whole)[0], base, 1)), features)
        )
    return tuple(zip(features, (variable.name for variable in chosen), strict=True))


def _base(variable: VariableInfo) -> str:
    return variable.aliases[0] if variable.aliases else split_name(variable.name)[0]


def feature_name(text: str) -> str:
    """A feature name of lower-case letters, digits and underscores made of any text."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if not name or name[0].isdigit():
        name = f"v_{name}"
    name = name[:NAME_LENGTH_MAX]
    return f"{name}_value" if name in RESERVED else name


def _unused(name: str, taken: Sequence[str]) -> str:
    if name not in taken:
        return name
    stem = name[: NAME_LENGTH_MAX - 4]
    numbered = (f"{stem}_{number}" for number in range(2, FEATURES_MAX + 2))
    return next(candidate for candidate in numbered if candidate not in taken)
