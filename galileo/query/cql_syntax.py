"""Parses CQL2 text or JSON to plain JSON values; errors point at the place.

The `cql2` package parses text by recursion in native code, where deep nesting ends the process.
`_check_nesting` bounds the depth of that recursion. In a wrong text the parser tries both readings
of each group in parentheses, as a condition and as a value, and so reads the contents of n nested
groups 2^n times. `_check_groups` bounds that; CQL2 JSON is not affected. Both see the text that the
parser reads, with stand-ins for coordinates (`galileo.query.cql_geometries`).

The parser knows neither the escapes of texts, nor names that begin with an underscore: `_parsable`
writes another character for both.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from galileo.errors import QuerySyntaxError
from galileo.optional_imports import LateModule
from galileo.query.cql_geometries import ParsableText, end_of_shape

cql2 = LateModule("cql2", purpose="reading a query")

TEXT_MAX = 1_000_000
"""Characters of a query, as sent and as canonical CQL2 JSON."""
NESTING_MAX = 64
"""Levels of nested parentheses and operators."""
OPERATORS_MAX = 2_000
"""ANDs and ORs of a query."""
READINGS_MAX = 1 << 19
"""Characters in parentheses, those in n groups counted 2^n times; so many take the parser a second.
"""

TEXT_LITERAL = r"'(?:[^'\\]|\\[\s\S]|'')*'"

_WINDOW = 60
_QUOTE, _UNDERSCORE = "\uffff", "\ua7f7"
"""Stand for a quote behind a backslash, and for the underscore at the start of a name, while the
text is parsed; names of features are ASCII."""
_MAY_BE_UNKNOWN = re.compile(r"\\|_(?<![\w.:]_)")
_UNKNOWN_TO_PARSER = re.compile(rf"""(?P<text>{TEXT_LITERAL})|"[^"]*"|(?<![\w.:])(?P<name>_)""")
_ESCAPE = re.compile(r"\\([\s\S]?)")
_CHARACTERS = dict(zip(f"abtnvfr\\{_QUOTE}", "\a\b\t\n\v\f\r\\'", strict=True))
"""By the letter behind the backslash."""
_TOKENS = re.compile(
    r"""'(?:[^']|'')*'|"[^"]*"|[(),]|(?:AND|OR)|(?:NOT|BETWEEN|IN|LIKE|IS|DIV)|[-+*/%^=<>]""",
    re.IGNORECASE,
)
_NESTING_WORDS = (*"(-+*/%^=<>", "NOT", "BETWEEN", "IN", "LIKE", "IS", "DIV", "AND", "OR")
"""The tokens of `_TOKENS` that nest; counted in names and strings, too."""
_SHAPE_EASE = 4
"""Coordinates are parsed some sixteen times as fast as other tokens."""
_GROUPS = re.compile(
    r"""'(?:[^']|'')*'|"[^"]*"|
    (?P<shape>\b(?:(?:MULTI)?(?:POINT|LINESTRING|POLYGON)|BBOX)\s*\([\s(]{,4})(?=[-+.\d])[-+.,\dE\s()]*\)|
    (?<![\w.:])(?!(?:AND|OR|NOT|BETWEEN|IN|LIKE|IS|DIV)\b)[A-Z_][\w:.]*\s*(?P<call>\()|
    [()]""",
    re.IGNORECASE | re.VERBOSE,
)
"""Parentheses outside of texts and quoted names; a geometry, which is read once, is one token if
nothing follows it that could not be part of one.
"""
_LONG_NUMBER = re.compile(r"[0-9]{640,}")
_PLACE = re.compile(r"-->\s*(\d+):(\d+)")
_EXPECTED = re.compile(r"= expected (.*)", re.DOTALL)

_EMPTY_POINT = re.compile(r"""(?:'[^']*'|"[^"]*"|[^'"])*?\b(POINT\s++(?:ZM?|M)?\s*+EMPTY)""", re.I)

_STATEMENT = re.compile(r"\s*(?:SELECT|WITH|FROM|WHERE)\b", re.IGNORECASE)
NO_NOW = (
    "there is no now() here: only a query that is asked once has a time of its own; write the time "
    "itself, such as TIMESTAMP('2012-03-01T06:00:00Z')"
)
_DURATIONS = "expected now() without arguments, and durations as texts, such as now() - '1d'"
_INSTEAD = {"==": "=", "&&": "AND", "||": "OR"}
_FOREIGN = re.compile(
    r"""'(?:[^']|'')*'|"[^"]*"|(?P<operator>==|&&|\|\|)|(?<![\w.:]):(?P<parameter>[A-Za-z_]\w*)|
    (?<![\w.:])(?P<now>(?:now|today)\s*\(|current_(?:timestamp|date)\b)""",
    re.IGNORECASE | re.VERBOSE,
)

_LISTLESS_IN = re.compile(
    r"""'(?:[^']|'')*'|"[^"]*"|
    (?<![\w.:])IN\b\s*(?!(?:IS|IN|NOT|LIKE|BETWEEN|AND|OR|DIV)\b)(?P<operand>['"\w.+-])""",
    re.IGNORECASE | re.VERBOSE,
)
"""The operator IN without parentheses, which the parser takes for a list of one value. A property
can have the name `in`; an operator follows it."""

_VALUE = {"GEOMETRY", "Identifier", "Negative", "UnaryNot", "True", "False", "Null", "DECIMAL"}
_VALUE |= {"Double", "SingleQuotedString", "ExpressionInParentheses", "Array"}
_ARITHMETIC = {"Add", "Subtract", "Multiply", "Divide", "Modulo", "Power"}
_INFIX = {"NotFlag", "And", "Or", "Eq", "Gt", "GtEq", "Lt", "LtEq", "NotEq", "IsNullPostfix"}
_INFIX |= _ARITHMETIC


def read(source: str) -> Any:
    """The JSON value of a query in CQL2 text or CQL2 JSON; blank text is `True`.

    Raises:
        QuerySyntaxError: the text does not parse, is too long or nested too deep.
    """
    check_length(source)
    if not source.strip():
        return True
    return _read_json(source) if source.lstrip().startswith("{") else _read_text(source)


def check_length(source: str) -> None:
    """Raise `QuerySyntaxError` if a query is too long, as CQL2 text or as CQL2 JSON."""
    if len(source) > TEXT_MAX:
        raise QuerySyntaxError(
            f"expected a query of at most {TEXT_MAX:,} characters, written out as CQL2 JSON too, "
            f"got {len(source):,}; simplify its polygons or shorten its lists",
            position=TEXT_MAX,
            bound=TEXT_MAX,
        )


def refuse(source: str, position: int, fault: str, **details: Any) -> NoReturn:
    """Raise the error for a fault at an offset of the text."""
    raise QuerySyntaxError(f"{fault}\n{pointed(source, position)}", position=position, **details)


def pointed(source: str, position: int) -> str:
    """The line around an offset, and below it a caret at the offset."""
    begin = source.rfind("\n", 0, position) + 1
    end = source.find("\n", position)
    end = len(source) if end < 0 else end
    first, last = max(begin, position - _WINDOW), min(end, position + _WINDOW)
    head = "…" if first > begin else ""
    tail = "…" if last < end else ""
    line = source[first:last].replace("\t", " ").replace("\r", " ")
    line = line.replace(_QUOTE, "'").replace(_UNDERSCORE, "_")
    return f"  {head}{line}{tail}\n  {' ' * (position - first + len(head))}^"


def place(source: str, position: int) -> str:
    """Line and column, both from 1, of an offset."""
    line = source.count("\n", 0, position) + 1
    column = position - (source.rfind("\n", 0, position) + 1) + 1
    return f"line {line}, column {column}"


def find_name(source: str, name: str) -> int | None:
    """The offset of a property's name in a query's text, outside of strings."""
    pattern = re.compile(rf"""{TEXT_LITERAL}|(?<![\w.:])({re.escape(name)})(?![\w.:])""")
    return next((match.start(1) for match in pattern.finditer(source) if match[1]), None)


def _read_text(written: str) -> Any:
    source = _parsable(written)
    parsable = ParsableText(source)
    _check_nesting(source, parsable)
    _check_groups(source, parsable)
    try:
        parsed = cql2.parse_text(parsable.text)
    except cql2.ParseError as error:
        _refuse_other_languages(source)
        position, expected = _offset(parsable.text, str(error)), _in_words(str(error))
        position = parsable.original(position)
        where = place(source, position)
        refuse(source, position, f"expected {expected} at {where} of the query")
    _check_lists(source, parsable)
    try:
        tree = parsed.to_json()
    except Exception:  # the package raises no narrower class; GeoJSON has no form for POINT EMPTY
        match = _EMPTY_POINT.match(source)
        position = match.start(1) if match else 0
        where = place(source, position)
        refuse(source, position, f"expected a geometry with coordinates at {where} of the query")
    if (infinite := parsable.infinite()) is not None:
        refuse(source, infinite, "expected numbers that a double holds")
    tree = parsable.restored(tree)
    return tree if source == written and "\\" not in source else _decoded(tree, source)


def names_now(tree: Any) -> bool:
    """Whether a query that was read calls now()."""
    if isinstance(tree, list):
        return any(map(names_now, tree))
    return isinstance(tree, dict) and (_is_now(tree) or any(map(names_now, tree.values())))


def with_now(tree: Any, now: str) -> Any:
    """A query that was read with a timestamp in place of now()."""
    if isinstance(tree, list):
        return [with_now(item, now) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _is_now(tree):
        return {"timestamp": now}
    return {name: with_now(item, now) for name, item in tree.items()}


def _is_now(tree: dict[str, Any]) -> bool:
    return str(tree.get("op")).lower() == "now" and tree.get("args") == []


def _parsable(source: str) -> str:
    """A text of the same length that the parser reads; `_decoded` takes its result back."""
    if _QUOTE in source:
        refuse(source, source.index(_QUOTE), "expected a query without the character U+FFFF")

    if not _MAY_BE_UNKNOWN.search(source):  # Most texts pass this cheap test.
        return source

    def stand_in(token: re.Match[str]) -> str:
        if token["text"]:
            return _ESCAPE.sub(unquoted, token[0])
        return _UNDERSCORE if token["name"] else token[0]

    def unquoted(escape: re.Match[str]) -> str:
        return f"\\{_QUOTE}" if escape[1] == "'" else escape[0]

    return _UNKNOWN_TO_PARSER.sub(stand_in, source)


def _decoded(tree: Any, source: str, *, in_like: bool = False) -> Any:
    """The parsed text with the characters that escapes stand for.

    In a pattern of LIKE a backslash before any other character stays: LIKE has its own rule for it.
    """
    if isinstance(tree, list):
        return [_decoded(item, source, in_like=in_like) for item in tree]
    if isinstance(tree, dict):
        in_like = in_like or tree.get("op") == "like"
        return {
            name: item.replace(_UNDERSCORE, "_")
            if name in ("op", "property")
            else _decoded(item, source, in_like=in_like)
            for name, item in tree.items()
        }
    if not isinstance(tree, str):
        return tree

    def character(escape: re.Match[str]) -> str:
        letter = escape[1]
        if letter in ("%", "_") or (in_like and _CHARACTERS.get(letter, "\\") == "\\"):
            return escape[0]
        if letter not in _CHARACTERS:
            fault = f"there is no escape {escape[0]} in texts; write \\\\ for a backslash"
            refuse(source, source.find(escape[0] if letter else "\\'"), fault)
        return _CHARACTERS[letter]

    return _ESCAPE.sub(character, tree)


def _refuse_other_languages(source: str) -> None:
    """Suggest the CQL2 form of SQL statements and operators of programming languages."""
    if _STATEMENT.match(source):
        refuse(source, 0, "this is CQL2, not SQL; write only the part after WHERE")
    for match in _FOREIGN.finditer(source):
        if operator := match["operator"]:
            refuse(source, match.start(), f"write {_INSTEAD[operator]} in place of {operator}")
        if match["now"]:
            refuse(source, match.start(), _DURATIONS)
        if name := match["parameter"]:
            fault = f"expected a value, got the parameter :{name}; galileo.Template gives it one"
            refuse(source, match.start(), fault, parameter=name)


def _check_lists(source: str, parsable: ParsableText) -> None:
    for token in _LISTLESS_IN.finditer(parsable.text):
        if token["operand"]:
            position = parsable.original(token.start("operand"))
            where = place(source, position)
            fault = f"expected a list of values in parentheses after IN, at {where} of the query"
            refuse(source, position, f"{fault}; write IN (1, 2), or = for a single value")


def _read_json(source: str) -> Any:
    try:
        return json.loads(source, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = place(source, error.pos)
        refuse(source, error.pos, f"expected CQL2 JSON; {error.msg} at {where} of the query")
    except _ConstantError as error:
        position = source.find(error.args[0])
        refuse(source, position, f"expected a finite number, got {error.args[0]}")
    except RecursionError:
        refuse(source, 0, f"expected at most {NESTING_MAX} levels of nesting")
    except ValueError:  # A whole number with thousands of digits.
        digits = _LONG_NUMBER.search(source)
        refuse(source, digits.start() if digits else 0, "expected numbers that a double holds")


class _ConstantError(Exception):
    pass


def _no_constant(name: str) -> NoReturn:
    raise _ConstantError(name)


def _check_nesting(source: str, parsable: ParsableText) -> None:
    """Bound the recursion of the parser: chained and nested operators."""
    upper = parsable.text.upper()
    if sum(map(upper.count, _NESTING_WORDS)) <= NESTING_MAX:  # Most texts pass this cheap test.
        return
    outer: list[int] = []
    here = depth = joined = 0
    for token in _TOKENS.finditer(parsable.text):
        kind = token[0].upper()
        if kind == "(":
            outer.append(here)
            depth, here = depth + here + 1, 0
        elif kind == ")" and outer:
            here = outer.pop()
            depth -= here + 1
        elif kind in (",", "AND", "OR"):
            here = 0
            joined += kind != ","
        elif kind[0] not in "'\")":
            here += 1
        if depth + here > NESTING_MAX or joined > OPERATORS_MAX:
            _refuse_nesting(source, parsable.original(token.start()))


def _check_groups(source: str, parsable: ParsableText) -> None:
    """Bound the repeated readings of the parser."""
    text = parsable.text
    if len(text) << min(text.count("("), 64) <= READINGS_MAX:  # Most texts pass this cheap test.
        return
    levels: list[int] = []
    groups = readings = start = behind = 0
    while (token := _GROUPS.search(text, behind)) is not None:
        readings += (token.start() - start) << groups
        start, behind = token.start(), token.end()
        if readings > READINGS_MAX:
            break
        if token["shape"] and (end := end_of_shape(token)):
            readings += (end - start) << groups >> _SHAPE_EASE
            start = behind = end
        elif token["shape"]:
            behind = text.index("(", start) + 1
            levels.append(groups)
            groups += 1
        elif token[0] == ")" and levels:
            groups = levels.pop()
        elif token[0][-1] == "(":
            levels.append(groups)
            groups += token["call"] is None
    if readings + ((len(text) - start) << groups) > READINGS_MAX:
        position = parsable.original(start)
        place_ = place(source, position)
        refuse(
            source,
            position,
            f"expected fewer parentheses within each other, or less text in them, at {place_} of "
            "the query; leave out those that change nothing, or send CQL2 JSON",
        )


def _refuse_nesting(source: str, position: int) -> NoReturn:
    limits = f"at most {NESTING_MAX} levels of nesting and {OPERATORS_MAX:,} ANDs and ORs"
    refuse(source, position, f"expected {limits} in a query; split it")


def _offset(source: str, error: str) -> int:
    match = _PLACE.search(error)
    if match is None:
        return 0
    lines = source.split("\n")[: int(match[1]) - 1]
    return min(sum(len(line) + 1 for line in lines) + int(match[2]) - 1, len(source))


def _in_words(error: str) -> str:
    """A readable description of the grammar's rule names."""
    match = _EXPECTED.search(error)
    if match is None:
        return "CQL2"
    rules = {rule for rule in re.split(r",\s*(?:or\s+)?|\s+or\s+", match[1].strip()) if rule}
    words = []
    if rules >= {"Identifier", "DECIMAL"} or "Expr" in rules:
        words.append("a property, a number, a text in single quotes, a geometry or '('")
        rules -= _VALUE | {"Expr"}
    if rules >= _ARITHMETIC and "And" not in rules:
        words.append("AND and the upper bound of BETWEEN")
        rules -= _INFIX
    if "And" in rules:
        closing = "the end of the query" if "EOI" in rules else "')'"
        words.append(
            f"an operator such as AND, OR, =, <, BETWEEN, IN, LIKE or IS NULL, or {closing}"
        )
        rules -= _INFIX | {"EOI"}
    names = {"DECIMAL": "a number", "NotFlag": "NULL or NOT NULL", "EOI": "the end of the query"}
    return " or ".join([*words, *(names.get(rule, rule) for rule in sorted(rules))])
