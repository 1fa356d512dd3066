"""The documents of OGC API as HTML pages, for people who open the API in a browser.

A page is made of the JSON document, so both have the same content. Pages have no scripts and no
forms, and take their style from the files of the map. A text becomes HTML in `markup` alone, which
escapes it; addresses of links are those of documents, never values of observations.

Addresses of this gateway are relative, since a proxy may serve it below a path or by TLS.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

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
LONG_TEXT = 48
"""Characters of a text that may become several lines of a table."""
PAGE_ROWS = 100
"""Observations of a page by default."""
PAGE_ROWS_MAX = 1_000
"""Observations of a page at most.

The elements of a page are objects of Python. The garbage collection of millions of them stops the
event loop for some tenths of a second.
"""
_NAMES = {
    "collections": "Collections",
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
_VOID = ("link", "meta", "img")
_NOTHING = "-"


class Markup(str):
    """HTML, whose texts are escaped."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content]"


def markup(content: Content) -> Markup:
    """Texts and elements, one after the other."""
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(escape(content))
    return Markup("".join(map(markup, content)))


def element(tag: str, *content: Content, **attributes: str) -> Markup:
    """An element; the attribute `class` is named `class_`, and `aria-label` is `aria_label`."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
    )
    end = "" if tag in _VOID else f"{markup(content)}</{tag}>"
    return Markup(f"<{tag}{written}>{end}")


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
    title, content = _BODIES.get(route.name, _other)(document, address)
    return _whole(title, content, address, json_format=_json_format(route))


def problem_page(route: RouteInfo, problem: Mapping[str, Any], address: Address) -> bytes:
    """The page of problem details."""
    content = [element("section", element("p", str(problem["detail"])))]
    if problem["status"] == 401:
        link = element("a", "the map", href=address.to("/map"))
        shown = f"curl -H 'Authorization: Bearer TOKEN' '{address.url}{quote(address.path)}'"
        content.append(
            element(
                "section",
                element("h2", "This cluster asks for a token"),
                element("p", "Browsers send none to these pages. Enter it on ", link, ", or use:"),
                element("pre", shown),
            )
        )
    if request := problem.get("request"):
        content.append(element("p", "Request ", element("code", str(request)), class_="muted"))
    title = f"{problem['status']} {problem['title']}"
    return _whole(title, content, address, json_format=_json_format(route))


def _json_format(route: RouteInfo) -> str:
    """The value of `f` for the document of a page."""
    return "geojson" if GEOJSON in route.media_types else "json"


def _whole(title: str, content: Content, address: Address, *, json_format: str) -> bytes:
    files = f"/web/{address.version}"
    document = address.as_format(json_format)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title if title == "Galileo" else f"{title} - Galileo"),
        element("link", rel="icon", href=address.to(f"{files}/icon.svg"), type="image/svg+xml"),
        element("link", rel="stylesheet", href=address.to(f"{files}/style.css")),
        element("link", rel="alternate", href=document, type=JSON),
    )
    main = element("main", _crumbs(address), element("h1", title), content)
    foot = element(
        "footer",
        element(
            "a", f"This page as {'GeoJSON' if json_format == 'geojson' else 'JSON'}", href=document
        ),
        element("a", "Conformance", href=address.to("/conformance")),
        element("span", f"Galileo {VERSION}"),
    )
    body = element("body", _top(address), main, foot, class_="documents")
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n".encode()


def _top(address: Address) -> Markup:
    icon = element("img", src=address.to(f"/web/{address.version}/icon.svg"), alt="", width="24")
    first = address.path.split("/")[1]
    links = [
        element(
            "a",
            "Map" if name == "map" else _NAMES[name],
            href=address.to(f"/{name}"),
            **({"aria_current": "true"} if name == first else {}),
        )
        for name in _MENU
    ]
    home = element("p", element("a", icon, "Galileo", href=address.to("/")), class_="brand")
    return element("header", home, element("nav", links, aria_label="API"), class_="top")


def _crumbs(address: Address) -> Markup | str:
    """Links to the documents above the page."""
    parts = address.path.strip("/").split("/")
    above = [
        (_NAMES.get(part, part), "/" + "/".join(map(quote, parts[: number + 1])))
        for number, part in enumerate(parts[:-1])
    ]
    items = [element("li", element("a", name, href=address.to(at))) for name, at in above]
    return element("ul", items, class_="crumbs", aria_label="Above") if items else ""


# --- documents -------------------------------------------------------------------------------


def _landing(document: Any, address: Address) -> tuple[str, Content]:
    cards = {"/map": "The map"}
    for link in document["links"]:
        if link["rel"] not in ("self", "alternate"):
            path, title = link["href"].partition("?")[0], link["title"]
            cards.setdefault(path, title[0].upper() + title[1:])
    return document["title"], [
        element("p", document["description"], class_="muted"),
        element(
            "div", [_card(title, href, address) for href, title in cards.items()], class_="cards"
        ),
    ]


def _card(title: str, href: str, address: Address) -> Markup:
    path = element("span", href.removeprefix(address.url), class_="mono")
    # The documents of the API have pages, too, which a browser prefers.
    return element("a", element("b", title), path, href=address.to(href))


def _conformance(document: Any, address: Address) -> tuple[str, Content]:
    items = [element("li", element("code", uri)) for uri in document["conformsTo"]]
    text = f"{len(items)} classes of OGC API standards hold."
    return "Conformance", [
        element("p", text, class_="muted"),
        element("section", element("ul", items, class_="codes")),
    ]


def _collections(document: Any, address: Address) -> tuple[str, Content]:
    listed = document["collections"]
    datasets = [one for one in listed if "extent" in one]
    queries = [one for one in listed if "extent" not in one]
    rows = [_dataset_row(one, address) for one in datasets]
    columns = ("name", "from", "to", "west, south, east, north", "features", "")
    tables: list[Content] = [
        element("section", element("h2", "Datasets"), _table(columns, rows))
        if rows
        else element("section", element("p", "There are no datasets that you may read."))
    ]
    if queries:
        rows = [
            [_linked(one, address), one["title"], _condition(one["description"])] for one in queries
        ]
        table = _table(("id", "title", "query"), rows)
        tables.append(element("section", element("h2", "Continuous queries"), table))
    return "Collections", tables


def _dataset_row(one: Any, address: Address) -> list[Content | float]:
    [start, end] = one["extent"]["temporal"]["interval"][0]
    links = [
        element("a", "items", href=address.to(f"/collections/{quote(one['id'])}/items")),
        " ",
        _map_link(one["id"], address, "map"),
    ]
    box = _box(one["extent"]["spatial"]["bbox"][0])
    return [
        _linked(one, address),
        start or _NOTHING,
        end or _NOTHING,
        box,
        len(one["parameter_names"]),
        links,
    ]


def _linked(collection: Any, address: Address) -> Markup:
    href = address.to(f"/collections/{quote(collection['id'])}")
    return element("a", collection["id"], href=href)


def _map_link(dataset: str, address: Address, text: str, **attributes: str) -> Markup:
    href = address.to(f"/map#{urlencode({'dataset': dataset})}")
    return element("a", text, href=href, **attributes)


def _box(bounds: Iterable[float]) -> str:
    return ", ".join(f"{bound:.6g}" for bound in bounds)


def _collection(document: Any, address: Address) -> tuple[str, Content]:
    name = document["id"]
    if "extent" not in document:  # a continuous query
        facts: dict[str, Content] = {"query": _condition(document["description"]), "id": name}
        items = element(
            "a", "Labels", href=address.to(f"/collections/{quote(name)}/items"), class_="primary"
        )
        return document["title"], [
            element("div", items, class_="buttons"),
            _facts_section(facts),
            _links(document["links"], address),
        ]
    [start, end] = document["extent"]["temporal"]["interval"][0]
    facts = {
        "time": f"{start or '..'} / {end or '..'}",
        "west, south, east, north": _box(document["extent"]["spatial"]["bbox"][0]),
        "cells": f"geohashes of {document['geohashPrecision']} characters",
        "time buckets": f"{document['timeBucket']:g} s",
        "coordinate reference systems": [element("div", uri) for uri in document["crs"]],
        "queries by place": ", ".join(document["data_queries"]),
    }
    features = [
        [one, parameter["data-type"], parameter.get("unit", {}).get("label", _NOTHING)]
        for one, parameter in document["parameter_names"].items()
    ]
    buttons = [
        element(
            "a",
            "Observations",
            href=address.to(f"/collections/{quote(name)}/items"),
            class_="primary",
        ),
        _map_link(name, address, "On the map"),
    ]
    files = [link for link in document["links"] if link["rel"] == "items"]
    formats = [
        element("a", link["href"].rpartition("f=")[2], href=address.to(link["href"]))
        for link in files
        if link["type"] != HTML
    ]
    others = [link for link in document["links"] if link not in files]
    return name, [
        element("div", buttons, class_="buttons"),
        _facts_section(facts),
        element("section", element("h2", "Features"), _table(("name", "type", "unit"), features)),
        element(
            "section",
            element("h2", "Observations in other formats"),
            element("div", formats, class_="buttons"),
        ),
        _links(others, address),
    ]


def _items(document: Any, address: Address) -> tuple[str, Content]:
    features = document["features"]
    names = list(dict.fromkeys(name for one in features for name in one["properties"]))
    name = address.path.split("/")[2]
    is_ccq = bool(CCQ_ID.fullmatch(name))  # Its items are labels, which have no documents.
    rows = [
        [
            *([one["id"]] if is_ccq else _observation(one, address)),
            *(_number_or_value(one["properties"].get(column), address) for column in names),
        ]
        for one in features
    ]
    following = next((link["href"] for link in document["links"] if link["rel"] == "next"), None)
    next_page = {"class_": "primary", "rel": "next"}
    buttons = [
        element("a", "Next page", href=address.to(following), **next_page) if following else "",
        "" if is_ccq else _map_link(name, address, "On the map"),
        element("span", f"{len(features)} on this page", class_="muted"),
    ]
    table = _table(("id", *([] if is_ccq else ["longitude, latitude"]), *names), rows)
    return f"{'Labels' if is_ccq else 'Observations'} of {name}", [
        element("div", buttons, class_="buttons"),
        element("section", table if rows else element("p", "There are none.")),
    ]


def _observation(feature: Any, address: Address) -> list[Content]:
    href = address.to(f"{quote(address.path)}/{feature['id']}")
    return [element("a", feature["id"], href=href), _position(feature["geometry"])]


def _position(geometry: Any) -> str:
    return _NOTHING if geometry is None else _box(geometry["coordinates"])


def _item(document: Any, address: Address) -> tuple[str, Content]:
    facts = {
        "longitude, latitude": _position(document["geometry"]),
        **{name: _value(value, address) for name, value in document["properties"].items()},
    }
    return str(document["id"]), [_facts_section(facts)]


def _ccqs(document: Any, address: Address) -> tuple[str, Content]:
    rows = [
        [
            element("a", one["id"], href=address.to(f"/ccqs/{quote(one['id'])}")),
            element("a", one["dataset"], href=address.to(f"/collections/{quote(one['dataset'])}")),
            _condition(one["query"]),
            element("span", one["state"], class_=f"state {one['state']}"),
            f"{one['interval']:g} s",
            one["expires"],
            element("a", "labels", href=address.to(f"/collections/{quote(one['id'])}/items")),
        ]
        for one in document["ccqs"]
    ]
    columns = ("id", "dataset", "query", "state", "interval", "expires", "")
    none = element(
        "p", "There are none. Submit one on ", element("a", "the map", href=address.to("/map")), "."
    )
    return "Continuous queries", element("section", _table(columns, rows) if rows else none)


def _channels(document: Any, address: Address) -> tuple[str, Content]:
    rows = [
        [
            element("a", one["id"], href=address.to(f"/channels/{quote(one['id'])}")),
            element("a", one["dataset"], href=address.to(f"/collections/{quote(one['dataset'])}")),
            element("code", one["template"], class_="condition"),
            ", ".join(parameter["name"] for parameter in one["parameters"]),
            f"{one['period']:g} s",
        ]
        for one in document["channels"]
    ]
    table = _table(("id", "dataset", "template", "parameters", "period"), rows)
    none = element("p", "There are no channels that you may read.")
    return "Channels", element("section", table if rows else none)


def _channel(document: Any, address: Address) -> tuple[str, Content]:
    shown = {name: value for name, value in document.items() if name != "linkTemplates"}
    return _other(shown, address)


def _api(document: Any, address: Address) -> tuple[str, Content]:
    rows = [
        [
            element("code", method.upper()),
            element("code", path),
            operation["summary"],
            ", ".join(
                one["$ref"].rpartition("/")[2] if "$ref" in one else one["name"]
                for one in operation["parameters"]
            ),
        ]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return "API", [
        element(
            "p",
            "The OpenAPI document, with all parameters, is ",
            element("a", "this page as JSON", href=address.as_format("json")),
            ".",
            class_="muted",
        ),
        element("section", _table(("method", "path", "summary", "parameters"), rows)),
    ]


def _other(document: Any, address: Address) -> tuple[str, Content]:
    last = address.path.rpartition("/")[2]
    title = document.get("title") or document.get("id") or _NAMES.get(last, last)
    members = {name: value for name, value in document.items() if name != "links"}
    facts = {name: _value(value, address) for name, value in members.items()}
    return str(title), [_facts_section(facts), _links(document.get("links", ()), address)]


_BODIES: dict[str, Callable[[Any, Address], tuple[str, Content]]] = {
    "landing": _landing,
    "conformance": _conformance,
    "collections": _collections,
    "collection": _collection,
    "items": _items,
    "item": _item,
    "ccqs": _ccqs,
    "channels": _channels,
    "channel": _channel,
    "api": _api,
}
"""By the names of routes: the title and the content of a document."""

# --- parts -----------------------------------------------------------------------------------


def _facts_section(facts: Mapping[str, Content]) -> Markup:
    return element("section", _facts(facts))


def _facts(facts: Mapping[str, Content]) -> Markup:
    pairs = [(element("dt", name), element("dd", value)) for name, value in facts.items()]
    return element("dl", pairs, class_="facts")


def _table(columns: Iterable[str], rows: Iterable[Iterable[Content | float]]) -> Markup:
    """A table; numbers are at the right of their columns."""
    cells = [[_cell(value) for value in row] for row in rows]
    names = list(columns)
    firsts = [attributes for _, attributes in cells[0]] if cells else [{} for _ in names]
    head = [element("th", name, **own) for name, own in zip(names, firsts, strict=True)]
    body = [
        element("tr", [element("td", content, **attributes) for content, attributes in row])
        for row in cells
    ]
    table = element("table", element("thead", element("tr", head)), element("tbody", body))
    return element("div", table, class_="table", tabindex="0")


def _cell(value: Content | float) -> tuple[Content, dict[str, str]]:
    """The content and the attributes of a cell."""
    if isinstance(value, int | float):
        return str(value), {"class_": "right"}
    is_long = isinstance(value, str) and len(value) > LONG_TEXT
    return value, {"class_": "long"} if is_long and not isinstance(value, Markup) else {}


def _links(links: Iterable[Any], address: Address) -> Markup | str:
    """A section of the links that lead elsewhere."""
    rows = [
        [
            element("a", link.get("title") or link["href"], href=address.to(link["href"])),
            element("code", link.get("type", "")),
        ]
        for link in links
        if link["rel"] not in ("self", "alternate")
    ]
    return (
        element("section", element("h2", "Links"), _table(("title", "type"), rows)) if rows else ""
    )


def _condition(query: Any) -> Markup:
    """A query: CQL2 text, or JSON as text or value."""
    if isinstance(query, str) and query.startswith("{"):
        query = json.loads(query)
    text = query if isinstance(query, str) else to_text(query)
    return element("code", text or "all labels", class_="condition")


def _number_or_value(value: Any, address: Address) -> Content | float:
    """A value of a cell, which may be a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else _value(value, address)


def _value(value: Any, address: Address) -> Content:
    """A value of JSON."""
    if value is None or value in ("", [], {}):
        return _NOTHING
    if isinstance(value, Mapping):
        return _facts({name: _value(one, address) for name, one in value.items()})
    if not isinstance(value, list):
        return json.dumps(value) if isinstance(value, bool) else str(value)
    if all(isinstance(one, dict) for one in value):
        names = list(dict.fromkeys(name for one in value for name in one))
        return _table(
            names,
            [[_number_or_value(one.get(name), address) for name in names] for one in value],
        )
    if not any(isinstance(one, dict | list) for one in value):
        return ", ".join(str(_value(one, address)) for one in value)
    return [element("div", _value(one, address)) for one in value]
