"""Hostile values of parameters, headers and bodies get an answer of the documented kind, never 500.

`scripts/test --all tests/integration/gateway/test_gateway_fuzz.py` generates more of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from gateway_serving import site
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.gateway import parameters
from galileo.gateway.documents import HTML
from galileo.gateway.openapi import openapi
from galileo.gateway.problems import MEDIA_TYPE as PROBLEM
from galileo.gateway.routes import ROUTES, RouteInfo

TIMEOUT_S = 60.0
DOCUMENT = openapi("http://gateway")
FEATURES = [
    galileo.Feature("amount"),
    galileo.Feature("level", type="int", indexed=True),
    galileo.Feature("station", type="text", indexed=True),
    galileo.Feature("wet", type="bool", indexed=True),
]
NUMBERS = ("-1", "0", "1", "9" * 30, "1e999", "-0.0", "NaN", "inf", "0x10", "\u0661", " 1", "1_0")
TIMES = ("2014-03-01T06:00:00Z", "9999-12-31T23:59:60Z", "-2014-01-01", "../..", "/", "1/2/3")
BOXES = ("-180,-90,180,90", "170,0,-170,1", "1,2,3", "nan,0,1,1", "0,0,0,inf", "0,9,1,1", ",,,")
QUERIES = (
    "amount > 1",
    "S_INTERSECTS(geometry, POLYGON((0 0, 1 1, 1 0, 0 0)))",
    "NOT (" * 60 + "amount > 1" + ")" * 60,
    "amount > 'x'",
    "nothing = 1",
    '{"op": "and", "args": [true, {"op": "not"}]}',
    '{"op": "=", "args": [{"property": "level"}, 1e999]}',
    "[" * 500,
    "amount IN (" + ",".join("1" * 300) + ")",
    "station LIKE '%_%%'",
    "ASK {}",
    "SELECT * { ?a ?b ?c } LIMIT 1",
)
TOKENS = ("AQRjY3E", "0..", "0.a.b", "99999999999.a.b", "p0.1.0", "=" * 50)
NAMES = (
    "amount,level",
    "station",
    "latitude,latitude",
    ",",
    "geometry",
    "csv",
    "arrow",
    "json",
    "html",
)
WORDS = st.sampled_from((*NUMBERS, *TIMES, *BOXES, *QUERIES, *TOKENS, *NAMES, ""))
VALUES = st.one_of(WORDS, st.text(max_size=60), st.text("\x00\n\r'\"%;\\/.", max_size=8))
BODIES = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | VALUES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(VALUES, inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)


class Names(dict[str, str]):
    """Parameters of paths; those that it does not have are numbers."""

    def __missing__(self, name: str) -> str:
        return "1"


@dataclass(frozen=True)
class Served:
    """A gateway, and names for the paths of its routes."""

    url: str
    names: Names


@contextlib.asynccontextmanager
async def serving(directory: Path, sections: dict[str, Any]) -> AsyncIterator[Served]:
    schema = galileo.Schema("rain", FEATURES)
    async with site(directory, sections, schema) as (url, client):
        frame = pd.DataFrame(
            {
                "latitude": [40.0, 41.0],
                "longitude": [8.0, 9.0],
                "time": pd.Timestamp("2014-03-01T06:00Z"),
                "amount": [1.0, None],
                "level": [1, 2],
                "station": ["a", "b"],
                "wet": [True, False],
            }
        )
        await client.ingest("rain", frame)
        ccq = await client.submit("rain", expiration="1d")
        await client.create_channel(galileo.Channel("hot", "rain", "amount > :least"))
        names = Names(collectionId="rain", featureId="p0.1.0", ccqId=ccq.id)
        names |= {"channelId": "hot", "brokerId": "me", "subscriptionId": "s"}
        names |= {"tileMatrixSetId": "WebMercatorQuad", "locationId": "a"}
        yield Served(url, names)


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, no_evaluator: dict[str, Any]
) -> Iterator[Served]:
    """A node and a gateway on an event loop in a thread."""
    directory = tmp_path_factory.mktemp("fuzz")
    is_ready, found = threading.Event(), list[Served]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with serving(directory, {"evaluator": no_evaluator}) as one:
            found.append(one)
            is_ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert is_ready.wait(TIMEOUT_S)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(TIMEOUT_S)
    loop.close()


def check(
    served: Served,
    route: RouteInfo,
    method: str,
    *,
    path: str,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> int:
    """Sends a request, and returns the status of an answer that is as the API says."""
    where = urlsplit(served.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        media_type = reply.headers.get("Content-Type", "")
        if reply.status == 308:  # From a name that ends in a slash.
            assert reply.headers["Location"].startswith(f"{served.url}/")
        elif reply.status < 400:
            operation = DOCUMENT["paths"][route.path][method.lower()]
            documented = operation["responses"][str(reply.status)].get("content", {})
            plain = {name.partition(";")[0] for name in documented}
            assert media_type.partition(";")[0] in plain | ({""} - plain), (method, path)
            if media_type != "text/event-stream":
                reply.read()
        else:
            problem = reply.read()
            assert reply.status not in (500, 501, 502), (method, path, headers, body, problem)
            if media_type.startswith(HTML):
                assert HTML in route.media_types
                assert "f=html" in path
            else:
                assert media_type == PROBLEM, (method, path)
                assert json.loads(problem)["status"] == reply.status
        return int(reply.status)
    finally:
        connection.close()


@pytest.mark.parametrize("route", [r for r in ROUTES if "GET" in r.methods], ids=lambda r: r.name)
@given(data=st.data())
def test_get_with_hostile_values(served: Served, route: RouteInfo, data: st.DataObject) -> None:
    listed = [name for name in route.parameters if parameters.TABLE[name]["in"] == "query"]
    features = ["level", "station", "wet", "amount"] if route.more_parameters else []
    names = st.sampled_from([*listed, *features, "nothing"])
    pairs = data.draw(st.lists(st.tuples(names, VALUES), max_size=3))
    # A wait would last, and is tested elsewhere.
    query = "&".join(f"{n}={quote(v, safe='')}" for n, v in pairs if n != "wait")
    path = route.path.format_map(served.names)
    check(served, route, "GET", path=f"{path}?{query}")


@pytest.mark.parametrize("route", [r for r in ROUTES if "{" in r.path], ids=lambda r: r.name)
@given(name=st.one_of(VALUES.filter(bool), st.just("ccq-" + "0" * 32)))
def test_get_with_hostile_names(served: Served, route: RouteInfo, name: str) -> None:
    if name in (".", ".."):
        return
    replaced = route.path.rpartition("{")[2].partition("}")[0]
    names = Names({**served.names, replaced: quote(name, safe="")})
    query = "query=ASK%7B%7D" if route.name == "sparql" else ""
    method = "GET" if "GET" in route.methods else route.methods[0]
    check(served, route, method, path=f"{route.path.format_map(names)}?{query}")


BODY_ROUTES = [
    pytest.param(route, method, id=f"{method} {route.name}")
    for route in ROUTES
    for method in route.methods
    if method in ("POST", "PUT")
]


@pytest.mark.parametrize(("route", "method"), BODY_ROUTES)
@given(data=st.data())
def test_hostile_bodies(served: Served, route: RouteInfo, method: str, data: st.DataObject) -> None:
    media_type = data.draw(st.sampled_from((*route.request_types, "text/plain")))
    body = data.draw(BODIES)
    headers = {"Content-Type": media_type}
    for name in route.body_parameters:
        text = data.draw(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30))
        headers[name] = text
    path = route.path.format_map(served.names)
    check(served, route, method, path=path, headers=headers, body=body)


def parquet() -> bytes:
    columns = {"lat": [40.0], "lon": [8.0], "time": ["2014-03-01"], "amount": [1.0], "level": [1]}
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


FEATURE = {
    "type": "Feature",
    "geometry": {"type": "Point", "coordinates": [8, 40]},
    "properties": {"time": "2014-03-01", "amount": 1, "level": 1},
}
CHANNEL = {"dataset": "rain", "template": "amount > :least", "columns": ["time"], "keep": "1d"}
LINE = b'{"lat": 40, "lon": 8, "time": "2014-03-01", "level": 1}'
CSV = b"lat,lon,time,level,station\n40,8,2014-03-01,1,a\n40,8,2014-03-01,2,b\n"
GOOD = {
    ("items", "application/geo+json"): json.dumps(FEATURE).encode(),
    ("items", "application/x-ndjson"): b"\n".join([LINE, LINE]),
    ("items", "text/csv"): CSV,
    ("items", "application/vnd.apache.parquet"): parquet(),
    ("subscriptions", "application/json"): b'[{"id": "a", "broker": "me", "least": 1.5}]',
    ("subscriptions", "application/x-ndjson"): b'{"id": "a", "broker": "me", "least": 1}\n' * 2,
    ("subscriptions", "text/csv"): b"id,broker,least\na,me,1.5\nb,me,2\n",
    ("channel", "application/json"): json.dumps(CHANNEL).encode(),
}
"""By the name of a route and the media type."""


@pytest.mark.parametrize(("name", "media_type"), GOOD)
@given(data=st.data())
def test_damaged_bodies(served: Served, name: str, media_type: str, data: st.DataObject) -> None:
    [route] = [route for route in ROUTES if route.name == name]
    good, method = GOOD[name, media_type], "POST" if "POST" in route.methods else "PUT"
    at = data.draw(st.integers(0, len(good)))
    removed = data.draw(st.integers(0, 8))
    inserted = data.draw(st.one_of(st.binary(max_size=8), VALUES.map(str.encode)))
    body = good[:at] + inserted + good[at + removed :]
    path = route.path.format_map(served.names)
    check(served, route, method, path=path, headers={"Content-Type": media_type}, body=body)


def test_hostile_values_would_be_found(served: Served) -> None:
    """The good bodies are stored, so that damaged ones are near to some that are."""
    by_name = {route.name: route for route in ROUTES}
    names = Names({**served.names, "channelId": "good"})
    for name, media_type in reversed(GOOD):  # The channel is the last one.
        route, headers = by_name[name], {"Content-Type": media_type}
        method, path = "POST" if "POST" in route.methods else "PUT", route.path.format_map(names)
        body = GOOD[name, media_type]
        assert check(served, route, method, path=path, headers=headers, body=body) == 201
