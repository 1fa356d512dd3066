"""Links of a gateway behind a proxy: each is below the URL that the proxy's client used."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
from gateway_serving import gateway, node

import galileo
from galileo.gateway.options import GatewayOptions
from galileo.gateway.routes import ROUTES

TIMEOUT_S = 60.0
OUTSIDE = "https://maps.example/geo"
PROXIED = {
    "X-Forwarded-For": "192.0.2.7",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "maps.example",
}
FEATURES = [galileo.Feature("amount"), galileo.Feature("station", type="text")]
MADE_ELSEWHERE = re.compile(r"https?://(www\.opengis\.net|json-schema\.org)/")


async def ask(
    url: str, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and document of an answer; of events the text of the first ones."""
    where = urlsplit(url)
    assert where.hostname is not None
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    data = b"" if body is None else json.dumps(body).encode()
    given = {"Host": where.netloc, "Content-Type": "application/json", **headers}
    given |= {"Content-Length": str(len(data)), "Connection": "close"}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {one}" for name, one in given.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    async with asyncio.timeout(TIMEOUT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        names = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        is_stream = "event-stream" in names.get("content-type", "")
        text = b"" if is_stream else await reader.read()
    writer.close()
    if names.get("transfer-encoding") == "chunked":
        text = b"".join(piece for piece in text.split(b"\r\n")[1::2])
    is_json = "json" in names.get("content-type", "")
    locations = [line.split(": ", 1)[1] for line in head if line.lower().startswith("location:")]
    return (
        int(head[0].split()[1]),
        {**names, "location": "".join(locations)},
        (json.loads(text) if is_json and text else text.decode(errors="replace")),
    )


def urls_in(value: Any) -> Iterator[str]:
    """Texts of a document that are absolute URLs."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from urls_in(one)
    elif isinstance(value, str) and re.match(r"https?:", value):
        yield value


async def test_every_link_of_every_route_is_below_the_address_of_the_proxy(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    sections = {"evaluator": no_evaluator}
    async with (
        node(tmp_path, sections) as address,
        galileo.AsyncClient(address, timeout="60s") as client,
    ):
        await client.create_dataset(galileo.Schema("rain", FEATURES))
        options = GatewayOptions(
            nodes=(address,),
            port=0,
            patience_s=60.0,
            hosts=("maps.example",),
            root_path="/geo",
            proxies=("127.0.0.1",),
        )
        times = pd.Timestamp("2014-03-01T06:00Z") + pd.to_timedelta([0, 1, 2], "s")
        rows = {"latitude": 40.0, "longitude": 8.0, "time": times, "amount": 1.0, "station": "a b"}
        await client.ingest("rain", pd.DataFrame(rows))
        async with gateway(options) as url:
            made = {
                "PUT /channels/hot": {"dataset": "rain", "template": "amount > :least"},
                "POST /ccqs": {"dataset": "rain", "expiration": "10m"},
            }
            locations = {}
            for request, body in made.items():
                status, headers, _ = await ask(url, *request.split(), body, **PROXIED)
                assert status == 201, request
                assert headers["location"].startswith(f"{OUTSIDE}/")
                locations[request] = headers["location"]
            ccq = locations["POST /ccqs"].rpartition("/")[2]
            subscription = {"id": "s", "broker": "me", "least": 0.5}
            path = "/channels/hot/subscriptions"
            assert (await ask(url, "POST", path, subscription, **PROXIED))[0] == 201
            [feature, *_] = (await client.select_page("rain", limit=1)).table.column(0).to_pylist()
            ids = {
                "featureId": feature,
                "locationId": "a%20b",
                "ccqId": ccq,
                "channelId": "hot",
                "subscriptionId": "s",
                "brokerId": "me",
                "tileMatrixSetId": "WebMercatorQuad",
                **dict.fromkeys(("tileMatrix", "tileRow", "tileCol"), "0"),
            }
            queries = {
                "items": "limit=1",
                "position": "coords=POINT(8%2040)&f=geojson",
                "area": "coords=POLYGON((0%2030,20%2030,20%2050,0%2030))&f=geojson",
                "cube": "bbox=0,30,20,50&f=geojson",
                "radius": "coords=POINT(8%2040)&within=9&within-units=km&f=geojson",
                "trajectory": "coords=LINESTRING(8%2040,9%2041)&f=geojson",
                "corridor": "coords=LINESTRING(8%2040,9%2041)&corridor-width=9&width-units=km"
                "&corridor-height=1&height-units=m&f=geojson",
                "location": "f=geojson",
                "cells": "precision=3",
                "series": "window=1h",
                "latest": "by=station",
                "sparql": "query=ASK%20%7B%7D",
            }
            linked = set()
            for route in ROUTES:
                collections = ["rain", ccq] if route.name in ("collection", "items") else ["rain"]
                for collection in collections if "GET" in route.methods else ():
                    path = route.path.format(**ids, collectionId=collection)
                    query = queries.get(route.name, "")
                    status, _, document = await ask(url, "GET", f"{path}?{query}", **PROXIED)
                    assert status == 200, (path, document)
                    urls = [one for one in urls_in(document) if not MADE_ELSEWHERE.match(one)]
                    wrong = [one for one in urls if not f"{one}/".startswith(f"{OUTSIDE}/")]
                    assert not wrong, (path, wrong)
                    assert url not in json.dumps(document), path
                    linked |= {route.name} if urls else set()
                    for link in document.get("links", ()) if isinstance(document, dict) else ():
                        if link["rel"] in ("self", "next"):
                            at = link["href"].removeprefix(OUTSIDE)
                            assert (await ask(url, "GET", at, **PROXIED))[0] == 200, link
            assert linked >= {
                *("landing", "api", "collections", "collection", "queryables", "schema", "items"),
                *("item", "position", "locations", "location", "tile_matrix_sets"),
                *("tile_matrix_set", "tilesets", "tileset", "ccqs", "ccq", "channels", "channel"),
                "notifications",
            }
            [server] = (await ask(url, "GET", "/asyncapi", **PROXIED))[2]["servers"].values()
            assert (server["protocol"], server["host"]) == ("https", "maps.example")
            assert server["pathname"] == "/geo"
            status, _, page = await ask(
                url, "GET", "/collections/rain", Accept="text/html", **PROXIED
            )
            assert status == 200
            assert 'href="../collections/rain/items"' in page
            assert OUTSIDE not in page.replace(f"{OUTSIDE}/collections/rain", "")
