"""The variables of a file: their names, and the resolution of short names.

A variable on several levels is one variable for each level, such as `t@isobaricInhPa:850`: a base
name and qualifiers, which have a kind and most often a value. A shorter name is valid if it matches
one variable only.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from galileo.errors import InputError, UnknownProperty, listed
from galileo.formats.expressions import FUNCTIONS
from galileo.model.feature_metadata import NO_METADATA, FeatureMetadata
from galileo.model.schema import FEATURES_MAX, RESERVED, FeatureType, nearest_name

CANDIDATES_SHOWN_MAX = 12
NAME_LENGTH_MAX = 64

Qualifiers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """A variable of a file.

    Attributes:
        name: full name.
        about: what the file says of it, such as its unit.
        dims: names and sizes of its dimensions, such as `("time:9", "y:129", "x:185")`.
        type: of its feature; None if the file has no value, so that any type fits.
        aliases: further base names, for mappings; the first is the default feature name.
        default: whether it becomes a feature without a mapping.
        auxiliary: whether it says something about the values of others, such as a level or the name
            of a station, so that it makes no row alone.
        identifier: whether nearly all rows have distinct values, such as ids or URLs.
        role: its coordinate; empty for a variable that can be a feature.
        reason: why a column of numbers is text, or has no type; empty for others.
        words: the texts in a column of numbers that make it text, if they are few.
    """

    name: str
    about: FeatureMetadata = NO_METADATA
    dims: tuple[str, ...] = ()
    type: FeatureType | None = "float"
    aliases: tuple[str, ...] = ()
    default: bool = True
    auxiliary: bool = False
    identifier: bool = False
    role: str = ""
    reason: str = ""
    words: tuple[str, ...] = ()


def qualified_name(base: str, qualifiers: Qualifiers) -> str:
    """The full name of a variable; omits empty values."""
    parts = [f"@{kind}" if not value else f"@{kind}:{value}" for kind, value in qualifiers]
    return base + "".join(parts)


def split_name(name: str) -> tuple[str, Qualifiers]:
    base, *parts = name.split("@")
    pairs = [part.partition(":") for part in parts]
    return base, tuple((kind, value) for kind, _, value in pairs)


def resolve(variables: Sequence[VariableInfo], text: str) -> VariableInfo:
    """The variable that a full or short name matches.

    Raises:
        UnknownProperty: it matches none; names the nearest.
        InputError: it matches several; lists them.
    """
    candidates = (
        [variable for variable in variables if variable.name == text]
        or [variable for variable in variables if _matches(variable, text, by_alias=False)]
        or [variable for variable in variables if _matches(variable, text, by_alias=True)]
    )
    if len(candidates) == 1:
        return candidates[0]
    if len({variable.name for variable in candidates}) == 1:
        raise InputError(
            f"expected each column of the file once, got {text!r} {len(candidates)} times; rename "
            "the others",
            expected="unique",
            variable=text,
        )
    if candidates:
        raise InputError(
            f"{text!r} matches {len(candidates)} variables of the file; name one of them: "
            f"{format_names([variable.name for variable in candidates])}",
            expected="one_variable",
            variable=text,
            candidates=[variable.name for variable in candidates[:CANDIDATES_SHOWN_MAX]],
        )
    raise _unknown(variables, text)


def unknown_name(kind: str, name: str, names: Sequence[str]) -> UnknownProperty:
    """An error for a name that is none of `names`, which are those of columns or variables."""
    close = nearest_name(name, names)
    hint = f"; did you mean {close!r}?" if close else "."
    words = f"there is no {kind} {name!r}{hint} The {kind}s are {format_names(names)}"
    return UnknownProperty(words, nearest=close, **{kind: name})


def _unknown(variables: Sequence[VariableInfo], text: str) -> UnknownProperty:
    names = [variable.name for variable in variables]
    close = nearest_name(text, names)
    hint = f" (did you mean {close!r}?)" if close else ""
    return UnknownProperty(
        f"the file has no variable {text!r}{hint}; its variables are {format_names(names)}. "
        f"Expressions combine them with + - * / and {', '.join(sorted(FUNCTIONS))}",
        nearest=close,
        variable=text,
    )


def format_names(names: Sequence[str]) -> str:
    """The first `CANDIDATES_SHOWN_MAX` names, and the number of others."""
    return listed(names, most=CANDIDATES_SHOWN_MAX) or "nothing"


def _matches(variable: VariableInfo, text: str, *, by_alias: bool) -> bool:
    wanted_base, level = split_name(text)
    base, qualifiers = split_name(variable.name)
    if wanted_base not in (variable.aliases if by_alias else (base,)):
        return False
    return all(
        any(kind == k and (not value or value == (v or "0")) for k, v in qualifiers)
        for kind, value in level
    )


def default_features(
    variables: Sequence[VariableInfo], others: Sequence[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Pairs of feature and variable for a file without a mapping; errors name the `others` too.

    Raises:
        InputError: there are no default variables, or too many.
    """
    defaults = {variable.name for variable in variables if variable.default}
    if not 1 <= len(defaults) <= FEATURES_MAX:
        empty = [variable.name for variable in variables if variable.type is None]
        hint = f", and without usable values {format_names([*empty, *others])}"
        raise InputError(
            f"expected 1 to {FEATURES_MAX} variables to take as features, got {len(defaults)}; "
            "map those that you want. The file has "
            f"{format_names([v.name for v in variables])}{hint * bool([*empty, *others])}",
            expected="features",
            bound=FEATURES_MAX,
        )
    return tuple(pair for pair in derived_names(variables) if pair[1] in defaults)


def derived_names(variables: Sequence[VariableInfo]) -> tuple[tuple[str, str], ...]:
    """Pairs of a feature name and a default variable, each name once.

    They do not depend on which columns have values, and a variable whose name is a feature name
    keeps it, so that a dataset that was created from a file finds its features there again.
    """
    named = [variable for variable in variables if variable.default or variable.type is None]
    bases = Counter(map(_base, named))
    taken = {variable.name for variable in variables}
    pairs: list[tuple[str, str]] = []
    for variable in named:
        base = _base(variable)
        whole = variable.name if bases[base] > 1 else base
        name = feature_name(whole.replace(split_name(whole)[0], base, 1))
        name = name if name == variable.name else _unused(name, taken)
        taken.add(name)
        pairs.append((name, variable.name))
    return tuple(pairs)


def _base(variable: VariableInfo) -> str:
    return variable.aliases[0] if variable.aliases else split_name(variable.name)[0]


def feature_name(text: str) -> str:
    """A valid feature name of lower-case letters, digits and underscores, from any text."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if not name or name[0].isdigit():
        name = f"v_{name}"
    name = name[:NAME_LENGTH_MAX]
    return f"{name}_value" if name in RESERVED else name


def _unused(name: str, taken: Collection[str]) -> str:
    if name not in taken:
        return name
    stem = name[: NAME_LENGTH_MAX - 5]
    numbered = (f"{stem}_{number}" for number in itertools.count(2))
    return next(candidate for candidate in numbered if candidate not in taken)
