"""Which variable of a file becomes which feature, and by what conversion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from galileo.errors import InputError
from galileo.model.schema import COORDINATES

Floats = npt.NDArray[np.float64]

CONSTANT = "@"
ZERO_CELSIUS_K = 273.15


@dataclass(frozen=True, slots=True)
class Mapping:
    """How the variables of a file become the columns of a dataset.

    Args:
        features: pairs of a feature and its source: a variable's name, or one of `FUNCTIONS`
            applied to names, as in `hypot(u10, v10)`. Empty: by name, or everything there is.
        latitude: name of the variable that holds it; None finds it by its usual names.
        longitude: the same.
        time: the same; several names separated by commas are year, month, day and so on;
            `epoch_s(x)` and `epoch_ms(x)` read numbers of seconds and milliseconds.
        constant_time: the time of every row, for files that do not say it.
    """

    features: tuple[tuple[str, str], ...] = ()
    latitude: str | None = None
    longitude: str | None = None
    time: str | None = None
    constant_time: str | None = None

    @staticmethod
    def parse(texts: Iterable[str]) -> Mapping:
        """A mapping from texts such as `temperature=2t` or `time=@2012-03-01T06:00Z`.

        The names `latitude`, `longitude` and `time` map the coordinates; `@` before a time
        makes it the time of every row.

        Raises:
            InputError: a text has no `=`, or two name the same target.
        """
        pairs = [_pair(text) for text in texts]
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"expected each feature mapped once, got {', '.join(twice)} again")
        found = dict(pairs)
        time = found.get("time")
        constant = time.removeprefix(CONSTANT) if time and time.startswith(CONSTANT) else None
        return Mapping(
            features=tuple(pair for pair in pairs if pair[0] not in COORDINATES),
            latitude=found.get("latitude"),
            longitude=found.get("longitude"),
            time=time if constant is None else None,
            constant_time=constant,
        )


def _pair(text: str) -> tuple[str, str]:
    feature, sign, source = text.partition("=")
    if not sign or not feature.strip() or not source.strip():
        raise InputError(f"expected a mapping such as temperature=2t, got {text!r}")
    return feature.strip(), source.strip()


@dataclass(frozen=True, slots=True)
class Function:
    """A conversion that a mapping may name: of `arity` arrays, elementwise, NaN stays NaN."""

    arity: int
    apply: Callable[..., Floats]
    unit: str | None = None


def _hypot(u: Floats, v: Floats) -> Floats:
    return np.hypot(u, v)


def _celsius_to_kelvin(values: Floats) -> Floats:
    return values + ZERO_CELSIUS_K


def _fahrenheit_to_kelvin(values: Floats) -> Floats:
    return (values - 32.0) * 5.0 / 9.0 + ZERO_CELSIUS_K


FUNCTIONS = {
    "hypot": Function(2, _hypot),
    "wind_speed": Function(2, _hypot),
    "celsius_to_kelvin": Function(1, _celsius_to_kelvin, "K"),
    "fahrenheit_to_kelvin": Function(1, _fahrenheit_to_kelvin, "K"),
}

_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*")


@dataclass(frozen=True, slots=True)
class Expression:
    """A variable (`function` is empty) or a function of variables."""

    function: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        if not self.function:
            return self.arguments[0]
        return f"{self.function}({', '.join(self.arguments)})"

    def evaluate(self, *arguments: Any) -> Floats:
        return FUNCTIONS[self.function].apply(*arguments)


def parse_expression(text: str) -> Expression:
    """The expression of a mapping's right-hand side.

    A text that calls none of `FUNCTIONS` is a name, for columns may be called `Temp (C)`.

    Raises:
        InputError: a function has the wrong number of arguments.
    """
    call = _CALL.fullmatch(text)
    if call is None or call[1] not in FUNCTIONS:
        return Expression("", (text.strip(),))
    arguments = tuple(part.strip() for part in call[2].split(","))
    arity = FUNCTIONS[call[1]].arity
    if len(arguments) != arity or not all(arguments):
        raise InputError(f"expected {arity} variables in {call[1]}(...), got {text!r}")
    return Expression(call[1], arguments)
