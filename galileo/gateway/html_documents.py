"""The documents of OGC API as HTML pages, for people who open the API in a browser.

A page is made of the JSON document by a template of `galileo/gateway/templates`, so both have the
same content. Pages have no scripts and no forms, and take their style from the files of the map.
Templates escape all that they write; addresses of links are those of documents, never values of
observations.

Addresses of this gateway are relative, since a proxy may serve it below a path or by TLS.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from galileo.errors import InputError
from galileo.gateway import parameters
from galileo.gateway.ccq_collections import CCQ_ID
from galileo.gateway.documents import GEOJSON, HTML, JSON
from galileo.gateway.formats import preferred
from galileo.gateway.json_answers import url_of
from galileo.gateway.page import digest
from galileo.gateway.routes import RouteInfo
from galileo.query.cql_text import to_text
from galileo.version import VERSION

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""What a page may load: the style and the icon of its own gateway."""
PAGE_ROWS = 100
"""Observations of a page by default."""
PAGE_ROWS_MAX = 1_000
"""Observations of a page at most; a page is made whole, in memory."""
_NAMES = {
    "collections": "Collections",
    "map": "Map",
    "items": "Items",
    "ccqs": "Continuous queries",
    "channels": "Channels",
    "api": "API",
    "asyncapi": "Events",
    "conformance": "Conformance",
    "tileMatrixSets": "Tile matrix sets",
    "tiles": "Tiles",
    "locations": "Locations",
    "queryables": "Queryables",
    "schema": "Schema",
    "cluster": "Cluster",
    "whoami": "Caller",
    "samplers": "Samplers",
}
"""Of parts of paths."""
_MENU = ("collections", "ccqs", "map", "api")
_TEMPLATES = ("landing", "conformance", "collections", "items", "item", "ccqs", "channels", "api")
"""Routes with a template of their name; the others, but for collections, have that of any."""
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a page is, for the links in it.

    Attributes:
        url: of the gateway, without a slash at the end.
        path: of the page, decoded.
        query: parameters of the request, but for `f`.
        version: of the files of the map.
    """

    url: str
    path: str
    query: tuple[tuple[str, str], ...]
    version: str

    def to(self, href: str) -> str:
        """The address of a link of a document, or of a path of the gateway, for the page."""
        if not href.startswith(("/", f"{self.url}/")):
            return href
        root = "../" * (self.path.count("/") - 1)
        return root + href.removeprefix(self.url).removeprefix("/") or "./"

    @property
    def above(self) -> list[tuple[str, str]]:
        """Names and paths of the documents above the page."""
        parts = self.path.strip("/").split("/")
        return [
            (_NAMES.get(part, part), "/" + "/".join(map(quote, parts[: number + 1])))
            for number, part in enumerate(parts[:-1])
        ]

    def file(self, name: str) -> str:
        """The address of a file of the map."""
        return self.to(f"/web/{self.version}/{name}")

    def as_format(self, name: str) -> str:
        """The address of the page's content in another format."""
        return f"?{urlencode([*self.query, ('f', name)])}"


def is_wanted(route: RouteInfo, format: str | None, accept: str) -> bool:
    """Whether a request for a route wants a page.

    Args:
        route: of the request.
        format: the value of `f`; None if it is not given.
        accept: the header.
    """
    if HTML not in route.media_types:
        return False
    if format is not None:
        return format == "html"
    others = (name for name in (*route.media_types, JSON) if name != HTML)
    offered = {name: name for name in (*others, HTML)}
    return preferred(None, accept, offered) == HTML


def as_document(request: Request, route: RouteInfo) -> Request:
    """The request for the JSON document of a page."""
    given = [pair for pair in request.query_params.multi_items() if pair[0] != "f"]
    if route.name == "items":
        given = _with_limit(given)
    headers = [pair for pair in request.scope["headers"] if pair[0] != b"accept"]
    query = urlencode(given).encode()
    scope = {**request.scope, "query_string": query, "headers": headers}
    return Request(scope, request.receive)


def _with_limit(given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The parameters of the items of a page; a limit that is none is left for its error."""
    limits = [value for name, value in given if name == "limit"] or [str(PAGE_ROWS)]
    with contextlib.suppress(InputError):
        limits = [str(min(parameters.page_limit(value), PAGE_ROWS_MAX)) for value in limits]
    return [
        *(pair for pair in given if pair[0] != "limit"),
        *(("limit", value) for value in limits),
    ]


def page_answer(answer: Response, request: Request, route: RouteInfo) -> Response:
    """The page that has the content of an answer in JSON."""
    address = Address(
        url_of(request),
        request.scope["path"].removeprefix(request.scope["root_path"]),
        tuple(pair for pair in request.query_params.multi_items() if pair[0] != "f"),
        digest(),
    )
    document = json.loads(bytes(answer.body))
    made = problem_page if answer.status_code >= 400 else page
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in ("content-type", "content-length")
    }
    headers["Content-Security-Policy"] = POLICY
    body = made(route, document, address)
    return Response(body, answer.status_code, headers=headers, media_type=HTML)


def page(route: RouteInfo, document: Any, address: Address) -> bytes:
    """The page of a document that a route answers."""
    template = route.name if route.name in _TEMPLATES else "other"
    if route.name == "collection":
        template = "collection" if "extent" in document else "ccq_collection"
    return _rendered(template, route, document, address)


def problem_page(route: RouteInfo, problem: Mapping[str, Any], address: Address) -> bytes:
    """The page of problem details."""
    return _rendered("problem", route, problem, address)


def _rendered(template: str, route: RouteInfo, document: Any, address: Address) -> bytes:
    page = _environment().get_template(f"{template}.html")
    json_format = "geojson" if GEOJSON in route.media_types else "json"
    return page.render(document=document, address=address, json_format=json_format).encode()


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("galileo.gateway"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"names": _NAMES, "menu": _MENU, "version": VERSION}
    environment.filters |= {
        "box": _box,
        "cards": _cards,
        "columns": _columns,
        "condition": _condition,
        "parameter_names": _parameter_names,
        "position": _position,
        "text": _text,
        "without": _without,
    }
    environment.tests |= {"ccq": CCQ_ID.fullmatch, "plain": _is_plain}
    return environment


def _cards(links: Iterable[Any]) -> dict[str, str]:
    """Titles of the documents that the landing page links, by their addresses."""
    cards = {"/map": "The map"}
    for link in links:
        if link["rel"] not in ("self", "alternate"):
            path, title = link["href"].partition("?")[0], link["title"]
            cards.setdefault(path, title[0].upper() + title[1:])
    return cards


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of all members, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _parameter_names(listed: Iterable[Any]) -> str:
    """The names of the parameters of an operation of OpenAPI."""
    return ", ".join(
        one["$ref"].rpartition("/")[2] if "$ref" in one else one["name"] for one in listed
    )


def _without(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def _box(bounds: Iterable[float]) -> str:
    return ", ".join(f"{bound:.6g}" for bound in bounds)


def _position(geometry: Any) -> str:
    return _NOTHING if geometry is None else _box(geometry["coordinates"])


def _condition(query: Any) -> str:
    """A query as CQL2 text, from that, or from JSON as text or value."""
    if isinstance(query, str) and query.startswith("{"):
        query = json.loads(query)
    return query if isinstance(query, str) else to_text(query)


def _is_plain(value: Any) -> bool:
    """Whether a value of JSON is shown as a text: it has neither members nor lists of lists."""
    if isinstance(value, list):
        return not any(isinstance(one, dict | list) for one in value)
    return not value or not isinstance(value, dict)


def _text(value: Any) -> str:
    """A plain value of JSON."""
    if value is None or value in ("", [], {}):
        return _NOTHING
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return json.dumps(value) if isinstance(value, bool) else str(value)
