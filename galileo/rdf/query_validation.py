"""Validation of SPARQL texts: what is not allowed is found in the tokens or the parse tree.

`SERVICE` and `LOAD` make engines call out to the network; `FROM` names graphs that are not
here. A literal, a comment or a variable may contain these words. What a process of its own
answers is looked at token by token, in a time that is bound by the text's length, and parsed there
alone; what is answered here is looked at in the tree of rdflib's parser.
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
# Of the engine's own words; what else it says is what its grammar looked at last, which can lie
# beyond what is wrong.
_REASON = re.compile(r"(?:expected (?:one of )?|, )([A-Z][A-Za-z]* (?:\w+ ){1,12}\w+)(?=,|$)")
SHOWN_CHARS = 40
"""Of a text, before and behind the place where it is wrong."""
_REFUSED = {
    "ServiceGraphPattern": "SERVICE asks another server",
    "DatasetClause": "FROM names another graph, and there is one only",
    "Load": "LOAD reads another server or a file",
}
_NAMES = {"SERVICE": "ServiceGraphPattern", "FROM": "DatasetClause", "LOAD": "Load"}


def check_query(text: str) -> None:
    """Accepts a SPARQL query that stays within the one graph it is asked of; does not parse it.

    The prefixes that are declared are its own and `terms.PREFIXES`.

    Raises:
        QuerySyntaxError: it has one of the keywords where none can be.
        UnsupportedQuery: it uses `SERVICE` or `FROM`, or is an update.
        InputError: it is no text, longer than `QUERY_CHARS_MAX` or nested deeper than `NESTED_MAX`.
    """
    _check_text(text)
    try:
        if sum(map(text.count, "{([")) > NESTED_MAX and sparql_lexer.depth(text) > NESTED_MAX:
            raise InputError(f"expected SPARQL with at most {NESTED_MAX:,} nested brackets")
        if _SUSPECT.search(text):
            _check_keyword(text, _keyword(text))
    except sparql_lexer.Unlexable as error:
        raise _no_sparql(str(error), position=error.at) from error


def check_query_here(text: str) -> None:
    """Accepts a SPARQL query that this process is to answer, with prefixes of its own.

    Raises:
        QuerySyntaxError: it contains a suspicious word and does not parse.
        UnsupportedQuery: it uses `SERVICE` or `FROM`, or is an update.
        InputError: it is no text, or longer than `QUERY_CHARS_MAX`.
    """
    _check_text(text)
    if _SUSPECT.search(text):
        _refuse(_query_names(text))


def check_update(text: str) -> None:
    """Accepts a SPARQL update that neither loads nor asks elsewhere."""
    _check_text(text)
    if _SUSPECT.search(text):
        _refuse(
            _names(
                _parsed(
                    text, lazy_imports.module(lazy_imports.PARSER).parseUpdate, error=_no_update
                )
            )
        )


def _no_query(text: str, message: str) -> InputError:
    with suppress(sparql_lexer.Unlexable):
        if sparql_lexer.is_update(text):
            return _update_error()
    return _no_sparql(message, position=_position(text, message))


def _no_update(text: str, message: str) -> InputError:
    return _no_sparql(message, position=_position(text, message))


def check_algebra(tree: Any) -> None:
    """Accepts a query or update that rdflib has already prepared."""
    _refuse(_names(tree))


def syntax_error(text: str, message: str) -> InputError:
    """The error for a text that is no query, as the engine says; updates get a better one."""
    with suppress(sparql_lexer.Unlexable):
        if sparql_lexer.is_update(text):
            return _update_error()
        if (prefix := sparql_lexer.first_undeclared_prefix(text)) is not None:
            return _no_prefix(text, prefix)
    position = _position(text, message)
    return _no_sparql(_place_and_reason(text, message, position), position=position)


def _no_prefix(text: str, prefix: sparql_lexer.Prefix) -> QuerySyntaxError:
    line, column = _line_and_column(text, prefix.at)
    return QuerySyntaxError(
        f"prefix {prefix.name + ':'!r} at line {line}, column {column} is not declared; "
        f"begin the query with PREFIX {prefix.name}: <...>, or use one of "
        f"{', '.join(f'{name}:' for name in terms.PREFIXES)}, which need no declaration",
        position=prefix.at,
    )


def _place_and_reason(text: str, message: str, position: int) -> str:
    """Where it is wrong, and why where the engine's message has words for that.

    The engine tells the farthest place that it looked at, which is the wrong one or behind it.
    """
    line, column = _line_and_column(text, position)
    shown = text[max(0, position - SHOWN_CHARS) : position + SHOWN_CHARS]
    reasons = [found[1] for found in _REASON.finditer(message)]
    told = f"line {line}, column {column}, or a little before, in {' '.join(shown.split())!r}"
    return "; ".join([told, *reasons])


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    """Both from 1."""
    before = text[:position]
    return before.count("\n") + 1, position - before.rfind("\n")


def _no_sparql(message: str, *, position: int) -> QuerySyntaxError:
    return QuerySyntaxError(
        f"expected SPARQL 1.1, got text that does not parse: {message}", position=position
    )


def _update_error() -> UnsupportedQuery:
    return UnsupportedQuery(
        "expected a query (SELECT, ASK, CONSTRUCT, DESCRIBE), got an update; results are read-only",
        remedy="edit_graph",
    )


@lru_cache(maxsize=PARSED_MAX)
def _keyword(text: str) -> sparql_lexer.Keyword | None:
    return sparql_lexer.keyword(text)


def _check_keyword(text: str, found: sparql_lexer.Keyword | None) -> None:
    if found is not None and found.named:
        _refuse(frozenset([_NAMES[found.name]]))
    if sparql_lexer.is_update(text):
        raise _update_error()
    if found is not None:
        raise _no_sparql(f"no name follows {found.name}", position=found.at)


def _position(text: str, message: str) -> int:
    """0-based offset of the line and column, both from 1, that a message names; else 0."""
    found = _LINE_AND_COLUMN.search(message)
    if found is None:
        return 0
    line, column = int(found[1]), int(found[2])
    return sum(len(before) + 1 for before in text.split("\n")[: line - 1]) + column - 1


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InputError(f"expected a SPARQL query as text, got {type(text).__name__}")
    if len(text) > QUERY_CHARS_MAX:
        raise InputError(
            f"expected a SPARQL query of at most {QUERY_CHARS_MAX:,} characters, got {len(text):,}"
        )


def _refuse(names: frozenset[str]) -> None:
    for name, reason in _REFUSED.items():
        if name in names:
            raise UnsupportedQuery(
                f"expected a query of this result alone; {reason}. Leave it out, "
                "or load the other data yourself and join the tables"
            )


@lru_cache(maxsize=PARSED_MAX)
def _query_names(text: str) -> frozenset[str]:
    return _names(
        _parsed(text, lazy_imports.module(lazy_imports.PARSER).parseQuery, error=_no_query)
    )


def _parsed(
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
