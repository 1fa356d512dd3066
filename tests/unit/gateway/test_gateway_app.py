"""The ASGI application of a gateway without a cluster: hosts, origins and paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pytest

from galileo.gateway.app import Gateway
from galileo.gateway.options import GatewayOptions
from galileo.gateway.parameters import TABLE
from galileo.gateway.routes import ROUTES

ORIGIN = "https://maps.example"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


async def ask(
    app: Any, path: str, method: str = "GET", *, peer: str = "127.0.0.1", **headers: str
) -> Answer:
    """The answer of an application to a request without a body."""
    sent: list[Any] = []
    path, _, query = path.partition("?")
    given = {"host": "127.0.0.1:7790"} | {k.replace("_", "-"): v for k, v in headers.items()}
    scope = {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": (peer, 40_000),
        "server": ("127.0.0.1", 7790),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(60):
        await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(one.get("body", b"") for one in sent[1:]))


@pytest.fixture
async def nowhere() -> AsyncIterator[Any]:
    """An application whose cluster does not answer, with an origin."""
    options = GatewayOptions(nodes=("127.0.0.1:1",), patience_s=0.1, origins=(ORIGIN,))
    gateway = Gateway(options)
    yield gateway.app
    await gateway.close()


async def test_pages_of_an_origin_may_send_and_read_the_documented_headers(nowhere: Any) -> None:
    in_headers = [name for name, one in TABLE.items() if one["in"] == "header"]
    for name in ("Authorization", "Content-Type", "Galileo-Request", *in_headers):
        preflight = {
            "origin": ORIGIN,
            "access_control_request_method": "POST",
            "access_control_request_headers": name.lower(),
        }
        assert (await ask(nowhere, "/ccqs", "OPTIONS", **preflight)).status == 200, name
    preflight["access_control_request_headers"] = "x-other"
    assert (await ask(nowhere, "/ccqs", "OPTIONS", **preflight)).status == 400
    exposed = (await ask(nowhere, "/conformance", origin=ORIGIN)).headers
    assert exposed["access-control-allow-origin"] == ORIGIN
    assert {name.strip() for name in exposed["access-control-expose-headers"].split(",")} == {
        *("Content-Crs", "ETag", "Location", "Retry-After"),
        *("Galileo-Request", "Galileo-Token", "Galileo-Missing"),
    }
    others = (await ask(nowhere, "/conformance", origin="https://other.example")).headers
    assert "access-control-allow-origin" not in others
    assert {method for route in ROUTES for method in route.methods} == {
        "GET",
        "POST",
        "PUT",
        "DELETE",
    }
    for method in ("GET", "POST", "PUT", "DELETE"):
        preflight = {"origin": ORIGIN, "access_control_request_method": method}
        assert (await ask(nowhere, "/ccqs", "OPTIONS", **preflight)).status == 200, method
