"""Validation of SPARQL texts before they are evaluated.

`SERVICE` and `LOAD` make engines call other servers; `FROM` names graphs that do not exist here. A
literal, comment or variable can contain these words. Queries for a worker are checked by tokens, in
time proportional to their length, since only the worker parses them; queries that this process
evaluates are checked by the parse tree of rdflib.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from galileo.errors import InputError, QuerySyntaxError, UnsupportedQuery
from galileo.rdf import lazy_imports, sparql_lexer, terms

QUERY_CHARS_MAX = 100_000
NESTED_MAX = 1_000
PARSED_MAX = 256

# A keyword that does not occur as text cannot occur as a keyword, unless it is escaped.
_SUSPECT = re.compile(r"service|from|load|\\u", re.IGNORECASE)
_LINE_AND_COLUMN = re.compile(r"(?:at |line:)(\d+)(?::|, col:)(\d+)")
# The part of an engine's message that states a reason; the rest names grammar rules, which can be
# beyond the error.
_REASON = re.compile(r"(?:expected (?:one of )?|, )([A-Z][A-Za-z]* (?:\w+ ){1,12}\w+)(?=,|$)")
SHOWN_CHARS = 40
"""Characters of a text in a message, before and after the position of an error."""
_REFUSED = {
    "ServiceGraphPattern": "SERVICE calls another server",
    "DatasetClause": "FROM names another graph, and there is only one",
    "Load": "LOAD reads another server or a file",
}
_NAMES = {"SERVICE": "ServiceGraphPattern", "FROM": "DatasetClause", "LOAD": "Load"}


def check_query(text: str) -> None:
    """Checks a SPARQL query for a worker, without parsing it.

    The declared prefixes are those of the text and `terms.PREFIXES`.

    Raises:
        QuerySyntaxError: one of the keywords is where none can be.
        UnsupportedQuery: it uses `SERVICE` or `FROM`, or is an update.
        InputError: it is not a text, longer than `QUERY_CHARS_MAX` or nested deeper than
            `NESTED_MAX`.
    """
    _check_text(text)
    try:
        if (
            sum(map(text.count, "{([")) > NESTED_MAX
            and sparql_lexer.nesting_depth(text) > NESTED_MAX
        ):
            raise InputError(f"expected SPARQL with at most {NESTED_MAX:,} nested brackets")
        if _SUSPECT.search(text):
            _check_keyword(text, _keyword(text))
    except sparql_lexer.Unlexable as error:
        raise _syntax_error_at(str(error), position=error.at) from error


def check_query_here(text: str) -> None:
    """Checks a SPARQL query that rdflib evaluates in this process.

    Raises:
        QuerySyntaxError: it contains a suspicious word and does not parse.
        UnsupportedQuery: it uses `SERVICE` or `FROM`, or is an update.
        InputError: it is not a text, or longer than `QUERY_CHARS_MAX`.
    """
    _check_text(text)
    if _SUSPECT.search(text):
        _refuse(_query_names(text))


def check_update(text: str) -> None:
    """Checks a SPARQL update: it uses neither `LOAD` nor `SERVICE`."""
    _check_text(text)
    if _SUSPECT.search(text):
        parse = lazy_imports.module(lazy_imports.PARSER).parseUpdate
        _refuse(_names(_parse(text, parse, error=_update_syntax_error)))


def _query_syntax_error(text: str, message: str) -> InputError:
    with suppress(sparql_lexer.Unlexable):
        if sparql_lexer.is_update(text):
            return _update_error()
    return _syntax_error_at(message, position=_position(text, message))


def _update_syntax_error(text: str, message: str) -> InputError:
    return _syntax_error_at(message, position=_position(text, message))


def check_algebra(tree: Any) -> None:
    """Checks a query or update that rdflib has prepared."""
    _refuse(_names(tree))


def syntax_error(text: str, message: str) -> InputError:
    """The error for a text that an engine refused with a message."""
    with suppress(sparql_lexer.Unlexable):
        if sparql_lexer.is_update(text):
            return _update_error()
        if (prefix := sparql_lexer.first_undeclared_prefix(text)) is not None:
            return _undeclared_prefix_error(text, prefix)
    position = _position(text, message)
    return _syntax_error_at(_place_and_reason(text, message, position), position=position)


def _undeclared_prefix_error(text: str, prefix: sparql_lexer.Prefix) -> QuerySyntaxError:
    line, column = _line_and_column(text, prefix.at)
    return QuerySyntaxError(
        f"prefix {prefix.name + ':'!r} at line {line}, column {column} is not declared; "
        f"begin the query with PREFIX {prefix.name}: <...>, or use one of "
        f"{', '.join(f'{name}:' for name in terms.PREFIXES)}, which need no declaration",
        position=prefix.at,
    )


def _place_and_reason(text: str, message: str, position: int) -> str:
    """The position of an error, and its reason if the engine's message has one.

    The engine reports the farthest position that it read, which is at the error or behind it.
    """
    line, column = _line_and_column(text, position)
    shown = text[max(0, position - SHOWN_CHARS) : position + SHOWN_CHARS]
    reasons = [match[1] for match in _REASON.finditer(message)]
    where = f"line {line}, column {column}, or a little before, in {' '.join(shown.split())!r}"
    return "; ".join([where, *reasons])


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    """Both from 1."""
    before = text[:position]
    return before.count("\n") + 1, position - before.rfind("\n")


def _syntax_error_at(message: str, *, position: int) -> QuerySyntaxError:
    return QuerySyntaxError(
        f"expected SPARQL 1.1, got text that does not parse: {message}", position=position
    )


def _update_error() -> UnsupportedQuery:
    return UnsupportedQuery(
        "expected a query (SELECT, ASK, CONSTRUCT, DESCRIBE), got an update; results are read-only",
        remedy="edit_graph",
        expected="query",
    )


@lru_cache(maxsize=PARSED_MAX)
def _keyword(text: str) -> sparql_lexer.Keyword | None:
    return sparql_lexer.find_keyword(text)


def _check_keyword(text: str, keyword: sparql_lexer.Keyword | None) -> None:
    if keyword is not None and keyword.named:
        _refuse(frozenset([_NAMES[keyword.name]]))
    if sparql_lexer.is_update(text):
        raise _update_error()
    if keyword is not None:
        raise _syntax_error_at(f"no name follows {keyword.name}", position=keyword.at)


def _position(text: str, message: str) -> int:
    """0-based offset of the line and column, both from 1, that a message names; else 0."""
    match = _LINE_AND_COLUMN.search(message)
    if match is None:
        return 0
    line, column = int(match[1]), int(match[2])
    return sum(len(before) + 1 for before in text.split("\n")[: line - 1]) + column - 1


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InputError(
            f"expected a SPARQL query as text, got {type(text).__name__}", expected="text"
        )
    if len(text) > QUERY_CHARS_MAX:
        raise InputError(
            f"expected a SPARQL query of at most {QUERY_CHARS_MAX:,} characters, got {len(text):,}",
            expected="characters",
            bound=QUERY_CHARS_MAX,
        )


def _refuse(names: frozenset[str]) -> None:
    for name, reason in _REFUSED.items():
        if name in names:
            raise UnsupportedQuery(
                f"expected a query of this result alone; {reason}. Leave it out, "
                "or load the other data yourself and join the tables",
                expected="query_of_result",
                name=name,
            )


@lru_cache(maxsize=PARSED_MAX)
def _query_names(text: str) -> frozenset[str]:
    return _names(
        _parse(text, lazy_imports.module(lazy_imports.PARSER).parseQuery, error=_query_syntax_error)
    )


def _parse(
    text: str, parse: Callable[[str], Any], *, error: Callable[[str, str], InputError]
) -> Any:
    try:
        return parse(text)
    except (
        lazy_imports.module(lazy_imports.PARSING).ParseException,
        RecursionError,
        ValueError,
    ) as why:
        raise error(text, str(why)) from why


def _names(tree: Any) -> frozenset[str]:
    return frozenset(_walk(tree))


def _walk(root: Any) -> Iterator[str]:
    """Names of all nodes of a parse tree or of an algebra, without recursion."""
    inner, results = (
        lazy_imports.module(lazy_imports.TREES).CompValue,
        lazy_imports.module(lazy_imports.PARSING).ParseResults,
    )
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, inner):
            yield node.name
            waiting.extend(node.values())
        elif isinstance(node, (list, tuple, set, results)):
            waiting.extend(node)
