"""Expressions of a mapping: names, numbers, texts, arithmetic and functions over whole columns.

    wind = hypot(u10, v10)    depth = nullif(snow_depth, -9999) / 100    station = "A12"

A name is what a file calls a variable, such as `10u` or `t@isobaricInhPa:850`; one with other
characters stands in backquotes: `` `Temp (C)` * 2 ``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.formats.csv_options import CsvOptions
from galileo.formats.type_conversion import convert, null_sentinels, plain_texts
from galileo.model.feature_metadata import NO_METADATA, FeatureMetadata
from galileo.model.schema import NUMBERS, FeatureType

Floats = npt.NDArray[np.float64]

ZERO_CELSIUS_K = 273.15
TOKENS_MAX = 200
ARGUMENTS_MAX = 16
NULLIF, COALESCE, NEGATIVE = "nullif", "coalesce", "negative"


@dataclass(frozen=True, slots=True)
class Name:
    """A variable."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or a text, the same in every row."""

    value: float | int | str

    def __str__(self) -> str:
        return f'"{self.value}"' if isinstance(self.value, str) else repr(self.value)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function, or an operator, of expressions."""

    function: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        texts = [str(argument) for argument in self.arguments]
        if self.function in _SIGNS.values():
            return f"({texts[0]} {self.function} {texts[1]})"
        return f"{self.function}({', '.join(texts)})"


Expression: TypeAlias = Name | Literal | FunctionCall


@dataclass(frozen=True, slots=True)
class Function:
    """A function of float arrays, elementwise; NaN is a missing value.

    Attributes:
        least: number of arguments; `most` likewise.
        apply: None for those that keep the type of their arguments.
        unit: of the result; None for that of the first variable.
    """

    least: int
    most: int
    apply: Callable[..., Floats] | None
    unit: str | None = None


def _divide(dividend: Floats, divisor: Floats) -> Floats:
    """The quotient, missing where the divisor is 0."""
    return dividend / np.where(divisor == 0, np.nan, divisor)


FUNCTIONS = {
    "hypot": Function(2, 2, np.hypot),
    "wind_speed": Function(2, 2, np.hypot),
    "celsius_to_kelvin": Function(1, 1, lambda c: c + ZERO_CELSIUS_K, "K"),
    "fahrenheit_to_kelvin": Function(1, 1, lambda f: (f - 32) * 5 / 9 + ZERO_CELSIUS_K, "K"),
    NULLIF: Function(2, ARGUMENTS_MAX, None),
    COALESCE: Function(2, ARGUMENTS_MAX, None),
}
_OPERATORS = {
    "+": Function(2, 2, np.add),
    "-": Function(2, 2, np.subtract),
    "*": Function(2, 2, np.multiply),
    "/": Function(2, 2, _divide),
    NEGATIVE: Function(1, 1, np.negative),
}
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


# --- parsing ---------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w@.]))
    | (?P<name>\w+(?:\.\w+)*(?:@\w+(?::-?[\w.]+(?:-\d[\w.]*)?)?)*)
    | `(?P<quoted>[^`]+)`
    | "(?P<text>[^"]*)"
    | '(?P<single>[^']*)'
    | (?P<sign>[-+*/(),])
    )""",
    re.VERBOSE,
)
Token = tuple[str, str]


def parse(text: str) -> Expression:
    """The expression that a text writes.

    Raises:
        InputError: it writes none; says where, and what was expected there.
    """
    tokens = list(_tokens(text))
    # Names and texts are written as Python does not write them, so Python parses their numbers.
    words = [token if kind == "sign" else f"_{i}" for i, (kind, token) in enumerate(tokens)]
    try:
        return _from_tree(ast.parse(" ".join(words), mode="eval").body, tokens, text=text)
    except SyntaxError as error:
        raise InputError(
            "expected an expression such as hypot(u10, v10) or (t - 32) * 5 / 9, got "
            f"{text!r}: {error.msg}",
            expected="expression",
        ) from error


def _tokens(text: str) -> Iterator[Token]:
    position, count = 0, 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise InputError(
                "expected a name, a number, a text in quotation marks or one of + - * / ( ) at "
                f"character {position + 1} of {text!r}; write other names in backquotes: "
                "`Temp (C)`",
                expected="expression",
                position=position,
            )
        count += 1
        if count > TOKENS_MAX:
            raise InputError(
                f"expected an expression of at most {TOKENS_MAX} words, got more",
                expected="expression",
                bound=TOKENS_MAX,
            )
        yield match.lastgroup, match[match.lastgroup]
        position = match.end()


def _from_tree(tree: ast.expr, tokens: list[Token], *, text: str) -> Expression:
    """The expression of a syntax tree whose names are the numbers of tokens."""

    def token(name: str) -> Token:
        return tokens[int(name[1:])]

    def build(tree: ast.expr) -> Expression:
        match tree:
            case ast.Name(name):
                kind, word = token(name)
                if kind == "number":
                    return Literal(int(word) if word.isdigit() else float(word))
                return Name(word) if kind in ("name", "quoted") else Literal(word)
            case ast.BinOp(left, operator, right) if type(operator) in _SIGNS:
                return FunctionCall(_SIGNS[type(operator)], (build(left), build(right)))
            case ast.UnaryOp(ast.USub(), operand):
                negated = build(operand)
                if isinstance(negated, Literal) and not isinstance(negated.value, str):
                    return Literal(-negated.value)
                return FunctionCall(NEGATIVE, (negated,))
            case ast.Call(ast.Name(name), arguments, []) if token(name)[0] == "name":
                built = [build(argument) for argument in arguments]
                _check_call(token(name)[1], built, text=text)
                return FunctionCall(token(name)[1], tuple(built))
        raise SyntaxError("it has something other than names, numbers, texts and functions")

    return build(tree)


def _check_call(name: str, arguments: list[Expression], *, text: str) -> None:
    function = FUNCTIONS.get(name)
    if function is None:
        raise InputError(
            f"expected one of the functions {', '.join(sorted(FUNCTIONS))}, got {name!r} in "
            f"{text!r}",
            expected="function",
            name=name,
        )
    if not function.least <= len(arguments) <= function.most:
        count = f"{function.least}"
        if function.most != function.least:
            count = f"{function.least} to {function.most}"
        raise InputError(
            f"expected {count} arguments of {name}(...), got {len(arguments)} in {text!r}",
            expected="arguments",
            name=name,
        )
    if name == NULLIF and not all(isinstance(argument, Literal) for argument in arguments[1:]):
        raise InputError(
            "expected numbers or texts behind the first argument of nullif, such as "
            f"nullif(t, -9999), got {text!r}",
            expected="constants",
            name="nullif",
        )


# --- names and types -------------------------------------------------------------------------


def names(expression: Expression) -> tuple[str, ...]:
    """The variables that an expression reads, each once."""
    if isinstance(expression, FunctionCall):
        return tuple(
            dict.fromkeys(name for argument in expression.arguments for name in names(argument))
        )
    return (expression.text,) if isinstance(expression, Name) else ()


def renamed(expression: Expression, new: Mapping[str, str]) -> Expression:
    """The expression with other names of its variables."""
    if isinstance(expression, FunctionCall):
        return FunctionCall(
            expression.function, tuple(renamed(argument, new) for argument in expression.arguments)
        )
    return Name(new[expression.text]) if isinstance(expression, Name) else expression


def kind_of(expression: Expression, kinds: Mapping[str, FeatureType | None]) -> FeatureType | None:
    """The type of the values, from those of the variables; None if these have no values.

    Raises:
        InputError: `coalesce` mixes texts or truth values with others.
    """
    if isinstance(expression, Name):
        return kinds[expression.text]
    if isinstance(expression, Literal):
        value = expression.value
        return "text" if isinstance(value, str) else "int" if isinstance(value, int) else "float"
    if expression.function == NULLIF:
        return kind_of(expression.arguments[0], kinds)
    if expression.function != COALESCE:
        return "float"
    argument_kinds = {kind_of(argument, kinds) for argument in expression.arguments} - {None}
    if len(argument_kinds) > 1 and not argument_kinds <= {*NUMBERS}:
        raise InputError(
            f"expected values of one type in {expression}, got {sorted(map(str, argument_kinds))}"
        )
    return "float" if len(argument_kinds) > 1 else next(iter(argument_kinds), None)


def metadata_of(
    expression: Expression, variables: Mapping[str, FeatureMetadata]
) -> FeatureMetadata:
    """What is known of the values: what the file says of the variable, if they are its own, or
    else the unit, where arithmetic has not changed it.
    """
    if isinstance(expression, Name):
        return variables[expression.text]
    if isinstance(expression, Literal) or expression.function in _OPERATORS:
        return NO_METADATA
    function = FUNCTIONS[expression.function]
    if function.unit is not None:
        return FeatureMetadata(unit=function.unit)
    first = metadata_of(expression.arguments[0], variables)
    return first if function.apply is None else FeatureMetadata(unit=first.unit)


def _keeps_type(expression: Expression) -> bool:
    return not isinstance(expression, FunctionCall) or expression.function in (NULLIF, COALESCE)


# --- values ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The variables of some rows, as their file has them.

    Attributes:
        csv: how a CSV file writes them; None for other files.
    """

    arrays: Mapping[str, pa.Array]
    rows: int
    csv: CsvOptions | None = None

    def take(self, rows: npt.NDArray[np.int64]) -> FileColumns:
        """Some of the rows, by their numbers."""
        arrays = {name: array.take(pa.array(rows)) for name, array in self.arrays.items()}
        return FileColumns(arrays, len(rows), self.csv)

    def evaluate(self, expression: Expression, kind: FeatureType) -> pa.Array:
        """The values of an expression, of the Arrow type of `kind`.

        Raises:
            InvalidObservations: a value does not fit the type; names the row.
        """
        if isinstance(expression, Literal):
            constant = self._converted(pa.array([expression.value]), kind, expression)
            return pa.repeat(constant[0], self.rows)
        if isinstance(expression, Name):
            return self._converted(self.arrays[expression.text], kind, expression)
        if expression.function == COALESCE:
            return pc.coalesce(
                *(self.evaluate(argument, kind) for argument in expression.arguments)
            )
        if expression.function == NULLIF:
            first, *others = expression.arguments
            values = (
                self.arrays[first.text]
                if isinstance(first, Name)
                else self.evaluate(first, kind if _keeps_type(first) else "float")
            )
            sentinels = [
                str(argument.value) for argument in others if isinstance(argument, Literal)
            ]
            return self._converted(null_sentinels(values, sentinels), kind, expression)
        return self._converted(self._computed(expression), kind, expression)

    def _computed(self, call: FunctionCall) -> pa.Array:
        function = _OPERATORS.get(call.function) or FUNCTIONS[call.function]
        assert function.apply is not None, "the others are handled by type"
        numbers: list[Any] = [
            self.evaluate(argument, "float").to_numpy(zero_copy_only=False)
            for argument in call.arguments
        ]
        with np.errstate(all="ignore"):
            return pa.array(function.apply(*numbers), from_pandas=True)

    def _converted(self, array: pa.Array, kind: FeatureType, source: Expression) -> pa.Array:
        if self.csv is not None and kind != "text":
            array = plain_texts(array, self.csv)
        return convert(array, kind, name=str(source))
