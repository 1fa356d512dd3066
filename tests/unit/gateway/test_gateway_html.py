"""HTML pages of a gateway: which requests want them, and that texts of users stay texts."""

from __future__ import annotations

import datetime as dt
import html.parser
from typing import Any

import pytest
from starlette.requests import Request

import galileo
from galileo.client.descriptions import DatasetDescription
from galileo.gateway import documents, html_documents
from galileo.gateway.html_documents import Address, as_document, is_wanted
from galileo.gateway.openapi import openapi
from galileo.gateway.routes import ROUTES

URL = "http://gateway.example"
DESCRIBED = DatasetDescription(
    galileo.Schema("weather", [galileo.Feature("temperature", unit="K")]),
    observations=1,
    paths=1,
    bytes=1,
    bbox=(-110.0, 35.0, -100.0, 42.0),
    start=dt.datetime(2014, 3, 1, 6, tzinfo=dt.UTC),
    end=dt.datetime(2014, 3, 1, 7, tzinfo=dt.UTC),
    features=(),
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
BY_NAME = {route.name: route for route in ROUTES}
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;javascript:alert(1)"
VOID = {"link", "meta", "img"}


class Parser(html.parser.HTMLParser):
    """Reads a page strictly: the names of its elements, its links, its text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page.decode())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def check_is_harmless(self) -> None:
        assert not self.tags & {"script", "iframe", "object", "form", "style"}
        for name, value in self.attributes:
            assert not name.startswith("on")
            if name in ("href", "src"):
                assert not value.lower().startswith(("javascript:", "data:", "//"))


def address(path: str, *query: tuple[str, str]) -> Address:
    return Address(URL, path, query, "0123")


@pytest.mark.parametrize(
    ("route", "format", "accept", "expected"),
    [
        ("landing", None, BROWSER, True),
        ("landing", None, "", False),
        ("landing", None, "*/*", False),
        ("landing", "json", BROWSER, False),
        ("landing", "html", "application/json", True),
        ("items", None, BROWSER, True),
        ("items", None, "application/geo+json, text/html;q=0.9", False),
        ("items", None, "application/json, text/html;q=0.5", False),
        ("items", None, "text/csv;q=0.4, text/html;q=0.5", True),
        ("tile", None, BROWSER, False),
        ("position", "html", BROWSER, False),
    ],
)
def test_pages_are_for_those_who_prefer_them(
    route: str, format: str | None, accept: str, expected: bool
) -> None:
    assert is_wanted(BY_NAME[route], format, accept) == expected


@pytest.mark.parametrize(
    ("route", "query", "expected"),
    [
        ("items", "f=html&bbox=1,2,3,4", [("bbox", "1,2,3,4"), ("limit", "100")]),
        ("items", "limit=7", [("limit", "7")]),
        ("items", "limit=10000&f=html", [("limit", "1000")]),
        ("items", "limit=" + 18 * "9", [("limit", "1000")]),
        ("items", "limit=-1", [("limit", "-1")]),
        ("items", "limit=" + 5_000 * "9", [("limit", 5_000 * "9")]),
        ("items", "limit=2000&limit=3", [("limit", "1000"), ("limit", "3")]),
        ("collections", "limit=10000", [("limit", "10000")]),
    ],
)
def test_pages_of_items_have_at_most_a_thousand(
    route: str, query: str, expected: list[tuple[str, str]]
) -> None:
    scope = {"type": "http", "headers": [(b"accept", b"text/html")], "query_string": query.encode()}
    document = as_document(Request(scope), BY_NAME[route])
    assert document.query_params.multi_items() == expected
    assert not document.headers


def hostile_documents() -> dict[str, tuple[str, Any]]:
    """By the name of a route: the path of a page, and a document with hostile texts."""
    collection = documents.collection(URL, DESCRIBED)
    parameter = {**collection["parameter_names"]["temperature"], "unit": {"label": HOSTILE}}
    collection |= {"id": HOSTILE, "parameter_names": {HOSTILE: parameter}}
    ccq = {"id": HOSTILE, "description": HOSTILE, "title": HOSTILE, "links": []}
    properties = {HOSTILE: HOSTILE, "none": None, "wet": True, "list": [HOSTILE, {"a": HOSTILE}]}
    geometry = {"type": "Point", "coordinates": [8.0, 40.0]}
    item = {"id": HOSTILE, "geometry": geometry, "properties": properties}
    listed = {
        "id": HOSTILE,
        "dataset": HOSTILE,
        "query": {"op": "=", "args": [{"property": HOSTILE}, HOSTILE]},
        "state": HOSTILE,
        "interval": 1.0,
        "expires": HOSTILE,
    }
    channel = {
        "id": HOSTILE,
        "dataset": HOSTILE,
        "template": HOSTILE,
        "parameters": [{"name": HOSTILE, "type": HOSTILE}],
        "period": 1.0,
        "links": [],
        "linkTemplates": [{"uriTemplate": HOSTILE}],
    }
    return {
        "collections": ("/collections", {"collections": [collection, ccq]}),
        "collection": (f"/collections/{HOSTILE}", collection),
        "items": (f"/collections/{HOSTILE}/items", {"features": [item], "links": []}),
        "item": (f"/collections/{HOSTILE}/items/p0.1.0", item),
        "ccqs": ("/ccqs", {"ccqs": [listed]}),
        "ccq": (f"/ccqs/{HOSTILE}", {**listed, "sampler": {HOSTILE: [HOSTILE]}, "links": []}),
        "channels": ("/channels", {"channels": [channel]}),
        "channel": (f"/channels/{HOSTILE}", {**channel, "failures": [HOSTILE]}),
        "cluster": ("/cluster", {"nodes": [{"name": HOSTILE}, {"problems": [HOSTILE]}]}),
    }


@pytest.mark.parametrize("name", hostile_documents())
def test_hostile_names_and_values_stay_texts(name: str) -> None:
    path, document = hostile_documents()[name]
    page = html_documents.page(BY_NAME[name], document, address(path, (HOSTILE, HOSTILE)))
    parsed = Parser(page)
    parsed.check_is_harmless()
    assert HOSTILE in parsed.text


def test_hostile_problems_stay_texts() -> None:
    problem = {"status": 401, "title": "Unauthorized", "detail": HOSTILE, "request": HOSTILE}
    page = html_documents.problem_page(
        BY_NAME["items"], problem, address(f"/collections/{HOSTILE}")
    )
    parsed = Parser(page)
    parsed.check_is_harmless()
    assert HOSTILE in parsed.text
    assert "the map" in parsed.text, "where a token can be given"


@pytest.mark.parametrize(
    ("path", "to", "expected"),
    [
        ("/", f"{URL}/collections", "collections"),
        ("/", "/", "./"),
        ("/collections", f"{URL}/collections/nam", "collections/nam"),
        ("/collections/nam/items", f"{URL}/ccqs?f=html", "../../ccqs?f=html"),
        ("/collections/nam", "/map#dataset=nam", "../map#dataset=nam"),
        ("/collections", "http://gateway.example.org/x", "http://gateway.example.org/x"),
    ],
)
def test_addresses_of_the_gateway_are_relative(path: str, to: str, expected: str) -> None:
    assert address(path).to(to) == expected


@pytest.mark.parametrize("name", ["landing", "conformance", "api", "collections", "collection"])
def test_pages_have_the_content_of_their_documents(name: str) -> None:
    made: dict[str, tuple[str, Any]] = {
        "landing": ("/", documents.landing(URL)),
        "conformance": ("/conformance", documents.conformance()),
        "api": ("/api", openapi(URL)),
        "collections": ("/collections", documents.collections(URL, [DESCRIBED])),
        "collection": ("/collections/weather", documents.collection(URL, DESCRIBED)),
    }
    path, document = made[name]
    parsed = Parser(html_documents.page(BY_NAME[name], document, address(path, ("a", "b"))))
    parsed.check_is_harmless()
    links = [value for attribute, value in parsed.attributes if attribute == "href"]
    assert "?a=b&f=json" in links, "the same as JSON, with the same parameters"
    expected = {
        "landing": ["The map", "Continuous queries", "/asyncapi"],
        "conformance": list(documents.CONFORMANCE),
        "api": [route.summary for route in ROUTES],
        "collections": ["weather", "-110, 35, -100, 42", "2014-03-01T06:00:00Z"],
        "collection": ["temperature", "K", "geoparquet", "properties to filter by"],
    }
    assert [one for one in expected[name] if one not in parsed.text] == []
