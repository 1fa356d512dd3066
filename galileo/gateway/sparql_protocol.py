"""The SPARQL 1.1 Protocol without a network: parses requests, negotiates formats.

Source: W3C, "SPARQL 1.1 Protocol", section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

from galileo.errors import InputError
from galileo.gateway.problems import RequestRefused

FIELDS_MAX = 16
"""Parameters of a request; the protocol knows three."""
FORM = "application/x-www-form-urlencoded"
QUERY = "application/sparql-query"
UPDATE = "application/sparql-update"

SOLUTION_TYPES = {
    "application/sparql-results+json": "json",
    "application/sparql-results+xml": "xml",
    "text/csv": "csv",
    "text/tab-separated-values": "tsv",
    "application/json": "json",
    "application/xml": "xml",
    "text/xml": "xml",
}
BOOLEAN_TYPES = {name: form for name, form in SOLUTION_TYPES.items() if form in ("json", "xml")}
TRIPLE_TYPES = {
    "text/turtle": "turtle",
    "application/n-triples": "nt",
    "application/ld+json": "json-ld",
    "application/rdf+xml": "xml",
    "application/x-turtle": "turtle",
    "text/plain": "nt",
    "application/json": "json-ld",
    "application/xml": "xml",
    "text/xml": "xml",
}
TYPES = {"solutions": SOLUTION_TYPES, "boolean": BOOLEAN_TYPES, "triples": TRIPLE_TYPES}
"""Media types and formats for each kind of answer; the first is the default."""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; `query` is that of its URL, header names are in lower case."""

    method: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def query_text(request: Request) -> str:
    """The text of the query that a request asks.

    Raises:
        InputError: the request has no parameters.
        Refused: it is no query of the one graph.
    """
    fields = _fields(request.query)
    if request.method == "POST":
        fields += _fields_of_body(request)
    elif not fields:
        raise InputError("expected the parameter query, got none", parameter="query")
    return _single_query(fields)


def _fields_of_body(request: Request) -> list[tuple[str, str]]:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    kind = kind.strip().lower()
    if kind == UPDATE:
        raise _updates_refused()
    if kind not in (FORM, QUERY) or "content-encoding" in request.headers:
        raise RequestRefused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"expected a body of {QUERY} or {FORM}, not compressed, got {kind or 'no type'!r}",
        )
    _, _, charset = parameters.partition("charset=")
    if charset.strip('" ').lower() not in ("", "utf-8"):
        raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected UTF-8, got {charset!r}")
    try:
        text = request.body.decode()
    except UnicodeDecodeError as error:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"expected UTF-8: {error}") from error
    return _fields(text) if kind == FORM else [("query", text)]


def _fields(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"expected parameters: {error}") from error


def _single_query(fields: Sequence[tuple[str, str]]) -> str:
    names = [name for name, _ in fields]
    if "update" in names:
        raise _updates_refused()
    for name in ("default-graph-uri", "named-graph-uri"):
        if name in names:
            raise RequestRefused(
                HTTPStatus.BAD_REQUEST,
                f"expected a query of the one graph that is served, got {name}; leave it out",
            )
    queries = [value for name, value in fields if name == "query"]
    if len(queries) != 1:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, f"expected one parameter 'query', got {len(queries)}"
        )
    return queries[0]


def _updates_refused() -> RequestRefused:
    return RequestRefused(
        HTTPStatus.BAD_REQUEST, "expected a query, got an update; results are read-only"
    )


def negotiate(accept: str, kind: str) -> tuple[str, str]:
    """The media type and format that a client prefers for a kind of answer.

    Args:
        accept: its `Accept` header; empty accepts all.
        kind: "solutions", "boolean" or "triples".

    Raises:
        Refused: the client accepts none of the media types.
    """
    offered = TYPES[kind]
    ranges = list(_media_ranges(accept or "*/*"))
    best, quality_max = "", 0.0
    for name in offered:
        quality = _quality(name, ranges)
        if quality > quality_max:
            best, quality_max = name, quality
    if not best:
        raise RequestRefused(
            HTTPStatus.NOT_ACCEPTABLE,
            f"expected to answer with {kind} as one of {', '.join(offered)}, got {accept!r}",
        )
    return best, offered[best]


def _media_ranges(accept: str) -> Iterable[tuple[str, float]]:
    for part in accept.split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        yield name.lower(), _q(parameters)


def _q(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def _quality(name: str, ranges: Iterable[tuple[str, float]]) -> float:
    """The quality of the most specific range that a media type matches (RFC 9110, 12.5.1)."""
    kinds = {name: 2, f"{name.partition('/')[0]}/*": 1, "*/*": 0}
    matching = [
        (kinds[media_range], quality) for media_range, quality in ranges if media_range in kinds
    ]
    return max(matching)[1] if matching else 0.0
