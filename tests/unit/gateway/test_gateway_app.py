"""The ASGI application of a gateway without a cluster: hosts, origins and paths."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pytest
from expected_errors import raises
from starlette.responses import Response
from starlette.routing import Match

from galileo import errors
from galileo.client.results import CallerIdentity
from galileo.connection_limits import OpenConnection
from galileo.errors import ConfigError
from galileo.gateway.app import Gateway, _Outer
from galileo.gateway.events import refused_stream
from galileo.gateway.metrics import GatewayMetrics
from galileo.gateway.options import GatewayOptions
from galileo.gateway.parameters import TABLE
from galileo.gateway.problems import problem_of, status_of
from galileo.gateway.rights import Principals
from galileo.gateway.routes import ROUTES, path_parameters

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


@contextlib.asynccontextmanager
async def app_of(**options: Any) -> AsyncIterator[Any]:
    """An application that knows the rights of its callers, and whose nodes are away."""
    gateway = Gateway(GatewayOptions(nodes=("127.0.0.1:1",), patience_s=0.1, **options))

    async def open_cluster(_: str) -> CallerIdentity:
        return CallerIdentity("", (), (), None, {})

    gateway.callers._principals = Principals(open_cluster)
    yield gateway.app
    await gateway.close()


async def test_pages_of_an_origin_may_send_and_read_the_documented_headers() -> None:
    async with app_of(origins=(ORIGIN,)) as app:
        await check_origins(app)


async def check_origins(nowhere: Any) -> None:
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
        *("Galileo-Request", "Galileo-Token", "Galileo-Missing", "Galileo-Rank-Error"),
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


async def self_link(app: Any, *, peer: str = "127.0.0.1", **headers: str) -> str:
    answer = await ask(app, "/", peer=peer, **headers)
    assert answer.status == 200, answer
    return str(json.loads(answer.body)["links"][0]["href"])


async def test_links_are_below_the_root_path_and_where_a_named_proxy_says() -> None:
    forwarded = {"x_forwarded_host": "maps.example", "x_forwarded_proto": "https"}
    names = ("maps.example", "other.example")
    async with app_of(root_path="/geo", proxies=("127.0.0.1",), hosts=names) as app:
        assert await self_link(app) == "http://127.0.0.1:7790/geo/"
        assert await self_link(app, **forwarded) == "https://maps.example/geo/"
        prefixed = {**forwarded, "x_forwarded_prefix": "/maps"}
        assert await self_link(app, **prefixed) == "https://maps.example/maps/"
        standard = {"forwarded": 'for=192.0.2.7;proto=https;host="maps.example:8443"'}
        assert await self_link(app, **standard) == "https://maps.example:8443/geo/"
        assert await self_link(app, peer="192.0.2.1", **forwarded) == "http://127.0.0.1:7790/geo/"
        assert (await ask(app, "/", **forwarded, **standard)).status == 400
        for given in ({"host": "evil"}, {"x_forwarded_host": "evil"}):
            assert (await ask(app, "/", **{**forwarded, **given})).status == 421, given
    async with app_of() as app:
        assert await self_link(app, **forwarded) == "http://127.0.0.1:7790/", "none is named"


async def test_turns_of_hosts_are_those_of_the_clients_of_a_proxy() -> None:
    seen = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])
        await Response()(scope, receive, send)

    options = GatewayOptions(nodes=("127.0.0.1:1",), proxies=("127.0.0.1",))
    outer = _Outer(inner, options, GatewayMetrics())
    await ask(outer, "/", x_forwarded_for="192.0.2.7")
    await ask(outer, "/", peer="192.0.2.1", x_forwarded_for="192.0.2.7")
    assert seen == ["192.0.2.7", "192.0.2.1"]


async def test_connection_of_a_named_proxy_is_one_of_the_host_that_it_says() -> None:
    connection = OpenConnection("127.0.0.1", lambda: None)
    scope = {"type": "http", "path": "/", "scheme": "http", "client": ("127.0.0.1", 1)}
    scope |= {"headers": [(b"x-forwarded-for", b"192.0.2.7")], "galileo_connection": connection}
    options = GatewayOptions(nodes=("127.0.0.1:1",), host="0.0.0.0", insecure=True)
    for proxies, host in (((), "127.0.0.1"), (("127.0.0.1",), "192.0.2.7")):
        outer = _Outer(Response(), replace(options, proxies=proxies), GatewayMetrics())

        async def send(_: Any) -> None: ...

        await outer(dict(scope), send, send)
        assert connection.host == host


@pytest.mark.parametrize("root_path", ["geo", "/geo/", "/", "/a b", "//evil"])
def test_root_path_that_is_none_is_refused(root_path: str) -> None:
    with raises(ConfigError, expected="root_path"):
        GatewayOptions(nodes=(), root_path=root_path)


@pytest.mark.parametrize("path", ["/ccqs/ccq-1/events", "/channels/hot/brokers/me/events"])
async def test_stream_that_cannot_be_opened_now_ends_so_that_its_reader_comes_back(
    path: str,
) -> None:
    """An `EventSource` ends for good at any other status than 200."""
    async with app_of() as app:
        answer = await ask(app, path)
        assert (answer.status, answer.body) == (200, b"retry: 1000\n\n")
        assert answer.headers["content-type"] == "text/event-stream"
        assert (await ask(app, f"{path}?x=1")).status == 400
        assert (await ask(app, path, authorization="Bearer")).status == 401
    async with app_of(connections_max=1) as app:
        assert (await ask(app, path)).body == b"retry: 5000\n\n", "no room for readers"


@pytest.mark.parametrize(
    ("error", "retry_ms"),
    [
        (errors.Unavailable("away"), 1_000),
        (errors.Unavailable("away", after_s=7.5), 7_500),
        (errors.Overloaded("full"), 5_000),
        (errors.Throttled("slow", after_s=3e7), 60_000),
        (errors.DeadlineExceeded("late"), 1_000),
        (errors.UnknownCcq("none"), None),
        (errors.Forbidden("no"), None),
        (errors.CcqExpired("over"), None),
        (errors.InternalError("bug"), None),
    ],
)
async def test_errors_that_pass_let_readers_of_events_come_back(
    error: errors.GalileoError, retry_ms: int | None
) -> None:
    answer = await ask(refused_stream(error), "/")
    if retry_ms is None:
        assert answer.status == status_of(error)
        return
    assert (answer.status, answer.body) == (200, f"retry: {retry_ms}\n\n".encode())


async def matched(gateway: Gateway, path: str) -> dict[str, str] | None:
    """The parameters of the route that a path has; None for none."""
    for route in gateway._routes:
        match, child = route.matches({"type": "http", "method": "GET", "path": path})
        if match is Match.FULL:
            return dict(child["path_params"])
    return None


async def test_line_feeds_belong_to_the_parameters_of_a_path() -> None:
    gateway = Gateway(GatewayOptions(nodes=("127.0.0.1:1",)))
    parts = {name: "1" for route in ROUTES for name in path_parameters(route)}
    for route in ROUTES:
        path, own = route.path.format(**parts), path_parameters(route)
        if "GET" not in route.methods:
            continue
        assert await matched(gateway, path) == dict.fromkeys(own, "1")
        odd = await matched(gateway, f"{path}\n")
        assert odd is None or "1\n" in odd.values(), path
        for name in own:
            inside = await matched(gateway, route.path.format(**{**parts, name: "a\nb"}))
            assert inside is not None
            assert inside[name] == "a\nb", (path, name)
    await gateway.close()


async def test_slash_at_the_end_of_a_path_leads_to_the_path_without_it() -> None:
    async with app_of(root_path="/geo", proxies=("127.0.0.1",), hosts=("maps.example",)) as app:
        forwarded = {"x_forwarded_host": "maps.example", "x_forwarded_proto": "https"}
        for path in ("/conformance", "/collections/rain/items", "/map"):
            answer = await ask(app, f"{path}/?f=json", **forwarded)
            location = f"https://maps.example/geo{path}?f=json"
            assert (answer.status, answer.headers["location"]) == (308, location)
        assert (
            (await ask(app, "//evil.example/", **forwarded))
            .headers["location"]
            .startswith("https://maps.example/geo/")
        )
        assert (await ask(app, "/nowhere")).status == 404
        assert (await ask(app, "/", **forwarded)).status == 200


async def test_answers_by_tls_ask_for_tls_from_then_on() -> None:
    """By TLS of the gateway itself, which sets the scheme, or of a named proxy."""
    options = GatewayOptions(nodes=("n:1",), proxies=("127.0.0.1",), hosts=("maps.example",))
    app = _Outer(Response(b""), options, GatewayMetrics())
    plain = await ask(app, "/")
    forwarded = {"x_forwarded_proto": "https", "x_forwarded_host": "maps.example"}
    secure = await ask(app, "/", x_forwarded_for="192.0.2.1", **forwarded)
    stranger = await ask(app, "/", peer="192.0.2.9", **forwarded)
    assert "strict-transport-security" not in plain.headers
    assert secure.headers["strict-transport-security"] == "max-age=31536000"
    assert "strict-transport-security" not in stranger.headers


async def test_problems_do_not_say_a_token_again() -> None:
    answer = problem_of(errors.QuerySyntaxError("got 'glt_planted'", query="glt_planted"))
    assert b"planted" not in bytes(answer.body)
    assert json.loads(bytes(answer.body))["detail"] == "got '(a token)'"
