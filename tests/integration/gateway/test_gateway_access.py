"""The gateway passes the caller's token on: the nodes decide, and it has no rights of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import ssl
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pandas as pd
import pytest
from gateway_serving import gateway, node
from prometheus_client.parser import text_string_to_metric_families
from proving import Certified, Tokens, auth_section, keys_in, tls_section

import galileo
from galileo.client import Credentials
from galileo.gateway import sparql
from galileo.gateway.app import Gateway
from galileo.gateway.options import GatewayOptions
from galileo.gateway.routes import ROUTES
from galileo.gateway.serving import GatewayServer
from galileo.private_ca import AUTHORITY, CERTIFICATE, KEY
from galileo.rpc import token_store
from galileo.rpc.access import Role
from galileo.samplers import installed

TIMEOUT_S = 120.0
THREADS = ThreadPoolExecutor(32, thread_name_prefix="callers")
RAIN, WIND = "/collections/rain/items", "/collections/wind/items"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified.made(tmp_path_factory.mktemp("certified"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    made = Tokens.of_all_roles(tmp_path_factory.mktemp("tokens") / "principals.toml")
    made.add("ann", Role.READER, datasets=("rain",))
    return made


async def get(
    url: str, authorization: str = "", *, context: ssl.SSLContext | None = None
) -> tuple[int, Any]:
    """Status, and the document or text."""
    headers = {"Authorization": authorization} if authorization else {}
    request = urllib.request.Request(url, headers=headers)

    def ask() -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    # The node and the gateway of a test have the threads of its event loop.
    status, body = await asyncio.get_running_loop().run_in_executor(THREADS, ask)
    return status, json.loads(body) if body.startswith(b"{") else body.decode()


def basic(token: str) -> str:
    return "Basic " + base64.b64encode(f"ann:{token}".encode()).decode()


async def fill(address: str, proof: Credentials) -> None:
    """Makes the datasets "rain" and "wind", with an observation each, and "tide" with a key."""
    row = {"latitude": [40.0], "longitude": [8.0], "time": [pd.Timestamp("2014-03-01T06:00Z")]}
    async with galileo.AsyncClient(address, timeout="60s", proof=proof) as client:
        for name in ("rain", "wind"):
            await client.create_dataset(galileo.Schema(name, [galileo.Feature("amount")]))
            await client.ingest(name, pd.DataFrame({**row, "amount": [1.0]}))
        tide = galileo.Schema("tide", [galileo.Feature("gauge", type="int")], key="gauge")
        await client.create_dataset(tide)


async def deletable(client: galileo.AsyncClient) -> str:
    """The id of a new observation of "tide"."""
    row = {"latitude": [40.0], "longitude": [8.0], "time": [pd.Timestamp("2014-03-01T06:00Z")]}
    await client.ingest("tide", pd.DataFrame({**row, "gauge": [1]}))
    page = await client.select_page("tide")
    return str(page.table.column("id")[0].as_py())


async def test_gateway_callers_have_the_rights_of_their_tokens(
    tmp_path: Path, tokens: Tokens
) -> None:
    auth = auth_section(tokens, tokens.tokens["node"])
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", {"auth": auth}))
        await fill(address, tokens.proof("writer"))
        options = GatewayOptions(nodes=(address,), port=0, metrics="127.0.0.1:0", patience_s=60.0)
        url = await stack.enter_async_context(gateway(options))
        status, document = await get(url + RAIN)
        assert (status, document["kind"]) == (401, "unauthenticated")
        assert (await get(url + RAIN, "Bearer glt_unknown"))[0] == 401
        ann = tokens.tokens["ann"]
        for authorization in (f"Bearer {ann}", basic(ann)):
            assert (await get(url + RAIN, authorization))[1]["numberReturned"] == 1
            status, document = await get(url + WIND, authorization)
            assert (status, document["kind"]) == (403, "forbidden"), "not granted"
            _, listed = await get(f"{url}/collections", authorization)
            assert [one["id"] for one in listed["collections"]] == ["rain"]
        reader = f"Bearer {tokens.tokens['reader']}"
        assert (await get(url + WIND, reader))[1]["numberReturned"] == 1
        assert (await get(url + WIND, basic(ann)))[0] == 403, "over the same connections"
        assert (await get(f"{url}/"))[0] == (await get(f"{url}/api"))[0] == 200
        _, seen = await get(f"{url}/cluster", f"Bearer {ann}")
        assert [one["id"] for one in seen["nodes"][0]["datasets"]] == ["rain"]
        assert (seen["complete"], seen["coordinators"]) == (True, [])
        _, who = await get(f"{url}/whoami", f"Bearer {ann}")
        assert (who["name"], who["roles"], who["datasets"]) == ("ann", ["reader"], ["rain"])
        status, listed = await get(f"{url}/samplers", f"Bearer {ann}")
        assert status == 200
        assert {one["name"] for one in listed["installed"]} == set(installed())
        anonymous = replace(options, anonymous_token=ann)
        url = await stack.enter_async_context(gateway(anonymous))
        assert (await get(url + RAIN))[1]["numberReturned"] == 1
        assert (await get(url + WIND))[0] == 403


async def test_page_of_a_cluster_with_tokens_leads_to_the_map(
    tmp_path: Path, tokens: Tokens
) -> None:
    auth = auth_section(tokens, tokens.tokens["node"])
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", {"auth": auth}))
        options = GatewayOptions(nodes=(address,), port=0, patience_s=60.0)
        url = await stack.enter_async_context(gateway(options))
        request = urllib.request.Request(f"{url}/collections", headers={"Accept": "text/html"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, request, timeout=TIMEOUT_S)
        with refused.value as reply:
            assert (reply.code, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert b'href="map"' in reply.read()


async def test_gateway_metrics_count_requests_and_readiness_follows_the_cluster(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", {}))
        await fill(address, Credentials())
        options = GatewayOptions(nodes=(address,), port=0, metrics="127.0.0.1:0", patience_s=60.0)
        server = GatewayServer(options)
        serving = asyncio.create_task(server.serve())
        stack.callback(serving.cancel)
        for path, status in ((RAIN, 200), (RAIN, 200), (f"{RAIN}?x=1", 400), ("/nowhere", 404)):
            assert (await get(server.url + path))[0] == status
        status, text = await get(f"{server.metrics_url}/metrics")
        assert status == 200
        families = {one.name: one for one in text_string_to_metric_families(text)}
        requests = {
            (sample.labels["route"], sample.labels["status"]): sample.value
            for sample in families["galileo_gateway_requests"].samples
        }
        assert requests == {("items", "200"): 2, ("items", "400"): 1, ("none", "404"): 1}
        seconds = families["galileo_gateway_request_seconds"]
        assert seconds.type == "histogram"
        assert [s.value for s in seconds.samples if s.name.endswith("_count")] == [3, 1]
        assert (await get(f"{server.metrics_url}/live"))[1] == "alive\n"
        assert (await get(f"{server.metrics_url}/ready"))[0] == 200
        assert (await get(f"{server.metrics_url}/items"))[0] == 404
    nowhere = GatewayOptions(nodes=("127.0.0.1:1",), port=0, metrics="127.0.0.1:0", patience_s=0.1)
    server = GatewayServer(nowhere)
    serving = asyncio.create_task(server.serve())
    assert (await get(f"{server.metrics_url}/ready"))[0] == 503
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def test_gateway_certificate_gives_callers_no_rights(
    tmp_path: Path, certified: Certified, tokens: Tokens
) -> None:
    server, client = certified.of("node", "n"), certified.of("client", "gateway")
    auth = {"token_file": str(tokens.path)}
    sections = {"auth": auth, "tls": tls_section(server)}
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", sections))
        await fill(address, tokens.proof("writer", tls=client))
        certificate, key = str(server / CERTIFICATE), str(server / KEY)
        options = GatewayOptions(
            nodes=(address,),
            cluster_keys=keys_in(client),
            port=0,
            certificate=certificate,
            key=key,
            patience_s=60.0,
        )
        trusting = ssl.create_default_context(cafile=str(server / AUTHORITY))
        url = await stack.enter_async_context(gateway(options))
        assert url.startswith("https://")
        reader = f"Bearer {tokens.tokens['reader']}"
        assert (await get(url + RAIN, context=trusting))[0] == 401
        assert (await get(url + RAIN, reader, context=trusting))[1]["numberReturned"] == 1
        of_node = replace(options, cluster_keys=keys_in(server))
        for anonymous in (False, True):
            url = await stack.enter_async_context(gateway(replace(of_node, anonymous=anonymous)))
            for path, authorization in product((RAIN, "/whoami"), ("", reader)):
                status, document = await get(url + path, authorization, context=trusting)
                assert (status, document["kind"]) == (403, "forbidden"), path


async def test_gateway_of_a_cluster_without_tokens_needs_anonymous(
    tmp_path: Path, certified: Certified
) -> None:
    server, client = certified.of("node", "n"), certified.of("client", "gateway")
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(
            node(tmp_path / "node", {"tls": tls_section(server)})
        )
        await fill(address, Credentials(tls=client))
        options = GatewayOptions(
            nodes=(address,), cluster_keys=keys_in(client), port=0, patience_s=60.0
        )
        url = await stack.enter_async_context(gateway(options))
        for authorization in ("", "Bearer anything"):
            assert (await get(url + RAIN, authorization))[0] == 403
        url = await stack.enter_async_context(gateway(replace(options, anonymous=True)))
        assert (await get(url + RAIN))[1]["numberReturned"] == 1


async def test_continuous_queries_belong_to_their_owner(
    tmp_path: Path, tokens: Tokens, no_evaluator: dict[str, Any]
) -> None:
    sections = {"auth": auth_section(tokens, tokens.tokens["node"]), "evaluator": no_evaluator}
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", sections))
        await fill(address, tokens.proof("writer"))
        # Three readers at most.
        options = GatewayOptions(nodes=(address,), port=0, patience_s=60.0, connections_max=4)
        url = await stack.enter_async_context(gateway(options))
        ann, other = (f"Bearer {tokens.tokens[name]}" for name in ("ann", "reader"))
        async with galileo.AsyncClient(address, proof=tokens.proof("ann")) as client:
            ccq = await client.submit("rain")
        of_ann = f"/ccqs/{ccq.id}"
        status, listed = await get(f"{url}/ccqs", ann)
        assert status == 200, listed
        assert [one["id"] for one in listed["ccqs"]] == [ccq.id]
        assert (await get(f"{url}/ccqs", other))[1]["ccqs"] == []
        for path in (of_ann, f"{of_ann}/labels", f"{of_ann}/events"):
            assert (await get(url + path, other))[0] in (403, 404), path
            assert (await get(url + path))[0] == 401, path
        assert len((await get(f"{url}{of_ann}/labels", ann))[1]["features"]) == 1
        for _ in range(3):
            stream = await events(url + of_ann, ann)
            stack.callback(stream.close)
        # An EventSource would end for good at another status.
        assert await get(f"{url}{of_ann}/events", ann) == (200, "retry: 5000\n\n")


async def events(url: str, authorization: str) -> asyncio.StreamWriter:
    """The connection of a reader that has had its first event."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"GET {where.path}/events HTTP/1.1\r\nHost: {where.netloc}\r\n"
    writer.write(f"{head}Authorization: {authorization}\r\n\r\n".encode())
    async with asyncio.timeout(TIMEOUT_S):
        await reader.readuntil(b"event: update\n")
    return writer


# --- every path, method and caller -----------------------------------------------------------

CALLERS = (
    *("", "wrong", "revoked", "expired"),
    *("ann", "reader", "writer", "admin"),
    *("me", "fax"),
)
"""Callers of each request: without a token, with three that do not hold, and principals. "ann" is
an administrator whose grants name the dataset "rain" only; the requests are about "wind", and about
the broker "me" of its channel "hot". "me" and "fax" are subscribers to this channel."""
_REFUSED = dict.fromkeys(CALLERS[:4], 401)


def _access(*statuses: int) -> dict[str, int]:
    """Statuses by caller: of the principals, in their order."""
    return {**_REFUSED, **dict(zip(CALLERS[4:], statuses, strict=True))}


ACCESS: dict[str, dict[str, int]] = {
    "open": dict.fromkeys(CALLERS, 200),
    "every principal": _access(200, 200, 200, 200, 200, 200),
    "principal": _access(200, 200, 200, 200, 403, 403),
    "reader": _access(403, 200, 200, 200, 403, 403),
    "reader of the channel": _access(403, 200, 200, 200, 200, 200),
    "reader of the broker": _access(403, 200, 200, 200, 200, 403),
    "reader of the table": _access(403, 200, 200, 200, 403, 403),
    "asker": _access(403, 200, 200, 200, 403, 403),
    "writer": _access(403, 403, 200, 200, 403, 403),
    "writer to the broker": _access(403, 403, 200, 200, 200, 403),
    "writer to any broker": _access(403, 403, 200, 200, 200, 200),
    "creator": _access(403, 403, 200, 200, 403, 403),
    "owner": _access(404, 200, 404, 200, 403, 403),
    "fetch": _access(403, 200, 403, 200, 403, 403),
}
"""Status of each caller by who may do it; 200 stands for any success."""


@dataclass(frozen=True)
class Row:
    """A request of a route, and who may send it; `names` are further parameters of the path."""

    access: str
    query: str = ""
    body: bytes = b""
    media_type: str = "application/json"
    names: tuple[tuple[str, str], ...] = ()


CHANNEL = {"dataset": "wind", "template": "amount > :least"}
_CHANNEL = (("channelId", "cold"),)
_SUBSCRIPTION = b'{"id": "s", "broker": "me", "least": 1}'
_CSV = b"latitude,longitude,time,amount\n40,8,2014-03-01T06:00Z,1\n"
_TIDE = (("collectionId", "tide"),)
_TILESET = (("tileMatrixSetId", "WebMercatorQuad"),)
_TILE = (*_TILESET, ("tileMatrix", "0"), ("tileRow", "0"), ("tileCol", "0"))
REQUESTS: dict[tuple[str, str], Row] = {
    ("landing", "GET"): Row("open"),
    ("conformance", "GET"): Row("open"),
    ("api", "GET"): Row("open"),
    ("asyncapi", "GET"): Row("open"),
    ("collections", "GET"): Row("every principal"),
    ("collection", "GET"): Row("reader"),
    ("queryables", "GET"): Row("reader"),
    ("schema", "GET"): Row("reader"),
    ("items", "GET"): Row("reader"),
    ("items", "POST"): Row("writer", body=_CSV, media_type="text/csv"),
    ("items", "DELETE"): Row("writer", query="filter=gauge%3D2", names=_TIDE),
    ("item", "GET"): Row("reader"),
    ("item", "DELETE"): Row("writer", names=_TIDE),
    ("sparql", "GET"): Row("asker", query="query=ASK%7B%7D"),
    ("sparql", "POST"): Row("asker", body=b"ASK {}", media_type="application/sparql-query"),
    ("cells", "GET"): Row("reader", query="precision=2"),
    ("series", "GET"): Row("reader", query="window=1h"),
    ("latest", "GET"): Row("reader", query="by=amount"),
    ("summary", "GET"): Row("reader"),
    ("estimate", "GET"): Row("reader"),
    ("explain", "GET"): Row("reader"),
    ("tile_matrix_sets", "GET"): Row("open"),
    ("tile_matrix_set", "GET"): Row("open", names=_TILESET),
    ("tilesets", "GET"): Row("reader"),
    ("tileset", "GET"): Row("reader", names=_TILESET),
    ("tile", "GET"): Row("reader", names=_TILE),
    ("position", "GET"): Row("reader", query="coords=POINT(8%2040)"),
    ("area", "GET"): Row("reader", query="coords=POLYGON((0%200,9%200,9%209,0%200))"),
    ("cube", "GET"): Row("reader", query="bbox=0,0,9,9"),
    ("radius", "GET"): Row("reader", query="coords=POINT(1%201)&within=9&within-units=km"),
    ("trajectory", "GET"): Row("reader", query="coords=LINESTRING(0%200,9%209)"),
    ("corridor", "GET"): Row(
        "reader", query="coords=LINESTRING(0%200,9%209)&corridor-width=9&width-units=km"
    ),
    ("locations", "GET"): Row("reader"),
    ("location", "GET"): Row("reader", names=(("locationId", "s"),)),
    ("ccqs", "GET"): Row("principal"),
    ("ccqs", "POST"): Row("asker", body=b'{"dataset": "wind"}'),
    ("ccq", "GET"): Row("owner"),
    ("ccq", "DELETE"): Row("fetch"),
    ("ccq_labels", "GET"): Row("fetch"),
    ("ccq_events", "GET"): Row("fetch"),
    ("events", "POST"): Row("principal", body=b'{"ccqs": {"ccq-1": ""}}'),
    ("channels", "GET"): Row("every principal"),
    ("channel", "GET"): Row("reader of the channel"),
    ("channel", "PUT"): Row("creator", body=json.dumps(CHANNEL).encode(), names=_CHANNEL),
    ("channel", "DELETE"): Row("writer", names=_CHANNEL),
    ("subscriptions", "POST"): Row("writer to the broker", body=_SUBSCRIPTION),
    ("subscription", "GET"): Row("reader of the table"),
    ("subscription", "DELETE"): Row("writer to any broker", names=(("subscriptionId", "none"),)),
    ("notifications", "GET"): Row("reader of the broker"),
    ("notification_events", "GET"): Row("reader of the broker"),
    ("broker_position", "GET"): Row("reader of the broker"),
    ("broker_position", "PUT"): Row("writer to the broker", body=b'{"token": "TOKEN"}'),
    ("cluster", "GET"): Row("principal"),
    ("whoami", "GET"): Row("every principal"),
    ("samplers", "GET"): Row("principal"),
}
"""One row for each method of each route."""


def test_every_route_has_a_row_of_access() -> None:
    assert set(REQUESTS) == {(route.name, method) for route in ROUTES for method in route.methods}


OF_BROKERS = {"subscriptions", "subscription", "broker_position"}
"""Routes about rows of brokers, whose names are in the rows."""


class Unread:
    """An ASGI request whose body must not be asked for."""

    def __init__(self, method: str, target: str, token: str, media_type: str) -> None:
        path, _, query = target.partition("?")
        headers = {"host": "localhost", "content-type": media_type, "content-length": "1000000"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
        self.scope |= {"query_string": query.encode(), "headers": raw, "scheme": "http"}
        self.scope |= {"client": ("127.0.0.1", 1), "http_version": "1.1", "root_path": ""}
        self.is_read, self.status = False, 0

    async def receive(self) -> dict[str, Any]:
        self.is_read = True
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)


async def test_no_body_is_read_of_a_caller_without_the_right(tmp_path: Path) -> None:
    """Each method of each route: no byte of a body is read of a caller whom the headers refuse."""
    tokens = Tokens.of_all_roles(tmp_path / "principals.toml")
    tokens.add("ann", Role.ADMIN, datasets=("rain",))
    for subscriber in ("me", "fax"):
        tokens.add(subscriber, Role.SUBSCRIBER, datasets=("hot",))
    tokens.tokens["wrong"] = "glt_" + "x" * 43
    names = {"collectionId": "wind", "featureId": "1", "ccqId": "ccq-1", "channelId": "hot"}
    names |= {"subscriptionId": "s", "brokerId": "me"}
    refused = 0
    async with contextlib.AsyncExitStack() as stack:
        sections = {"auth": auth_section(tokens, tokens.tokens["node"])}
        address = await stack.enter_async_context(node(tmp_path / "node", sections))
        served = Gateway(GatewayOptions(nodes=(address,), patience_s=60.0))
        stack.push_async_callback(served.close)
        for (name, method), row in REQUESTS.items():
            [path] = [route.path for route in ROUTES if route.name == name]
            target = f"{path.format_map(names | dict(row.names))}?{row.query}"
            for caller in ("", "wrong", "ann", "reader", "me", "fax"):
                # Nodes decide by what a body says, and by the owner of an object.
                by_nodes = {"ccqs", "ccq", "ccq_labels", "ccq_events"}
                by_nodes |= OF_BROKERS if caller in ("me", "fax") else set()
                if caller not in ("", "wrong") and name in by_nodes:
                    continue
                if ACCESS[row.access].get(caller) not in (401, 403):
                    continue
                token = tokens.tokens.get(caller, "")
                request = Unread(method, target, token, row.media_type)
                await served.app(request.scope, request.receive, request.send)
                assert not request.is_read, (name, method, caller)
                assert request.status in (401, 403), (name, method, caller)
                refused += 1
    assert refused > 150


@pytest.mark.slow
async def test_every_request_of_every_caller_has_the_rights_of_its_token(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    tokens = Tokens.of_all_roles(tmp_path / "principals.toml")
    tokens.add("ann", Role.ADMIN, datasets=("rain",))
    for subscriber in ("me", "fax"):
        tokens.add(subscriber, Role.SUBSCRIBER, datasets=("hot",))
    tokens.add("expired", Role.ADMIN, expires_at=1_400_000_000.0)
    tokens.add("revoked", Role.ADMIN)
    token_store.remove(tokens.path, "revoked")
    tokens.tokens["wrong"] = "glt_" + "x" * 43
    sections = {"auth": auth_section(tokens, tokens.tokens["node"]), "evaluator": no_evaluator}
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", sections))
        await fill(address, tokens.proof("writer"))
        options = GatewayOptions(nodes=(address,), port=0, patience_s=60.0)
        url = await stack.enter_async_context(gateway(options))
        reader = galileo.AsyncClient(address, proof=tokens.proof("reader"))
        client = await stack.enter_async_context(reader)
        page = await client.select_page("wind", limit=1)
        feature = page.table.column("id")[0].as_py()
        writer = galileo.AsyncClient(address, proof=tokens.proof("writer"))
        writing = await stack.enter_async_context(writer)
        await writing.create_channel(galileo.Channel("hot", **CHANNEL))
        subscription = {"id": ["s"], "least": [1.0]}
        await writing.subscribe("hot", subscription, broker="me")
        position = (await client.fetch_notifications("hot", "me"))[-1].token
        found: dict[tuple[str, str, str], int] = {}
        wanted: dict[tuple[str, str, str], int] = {}
        for route in ROUTES:
            for method in route.methods:
                row = REQUESTS[route.name, method]
                row = replace(row, body=row.body.replace(b"TOKEN", position.encode()))
                for caller in CALLERS:
                    ccq = (await client.submit("wind")).id if "ccqId" in route.path else ""
                    names = {"collectionId": "wind", "featureId": feature, "ccqId": ccq}
                    names |= {"channelId": "hot", "subscriptionId": "s", "brokerId": "me"}
                    names |= dict(row.names)
                    if (route.name, method) == ("item", "DELETE"):
                        names["featureId"] = await deletable(writing)
                    if (route.name, method) == ("channel", "DELETE"):
                        with contextlib.suppress(galileo.errors.DatasetExists):
                            await writing.create_channel(galileo.Channel("cold", **CHANNEL))
                    path = f"{route.path.format_map(names)}?{row.query}"
                    token = tokens.tokens.get(caller, "")
                    status = await asyncio.to_thread(status_of, url, method, path, row, token)
                    key = (route.name, method, caller or "none")
                    found[key] = 200 if 200 <= status < 300 else status
                    wanted[key] = ACCESS[row.access][caller]
                    if ccq:
                        with contextlib.suppress(galileo.errors.GalileoError):
                            await client.cancel(ccq)
        differing = {key: (found[key], wanted[key]) for key in found if found[key] != wanted[key]}
        assert not differing, "status, and the one that was expected"


def status_of(url: str, method: str, path: str, row: Row, token: str) -> int:
    """The status of a request; a stream is left after its head."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if row.body:
        headers["Content-Type"] = row.media_type
    try:
        connection.request(method, path, row.body or None, headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.slow(90)
async def test_sparql_queries_of_one_caller_do_not_stop_those_of_another(
    tmp_path: Path, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparql, "TIMEOUT_S", 20.0)
    cross = "?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l . ?m ?n ?o . ?p ?q ?r"
    auth = auth_section(tokens, tokens.tokens["node"])
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(node(tmp_path / "node", {"auth": auth}))
        async with galileo.AsyncClient(address, proof=tokens.proof("writer")) as client:
            await client.create_dataset(galileo.Schema("rain", [galileo.Feature("amount")]))
            row = {"latitude": 40.0, "longitude": 8.0, "time": pd.Timestamp("2014-03-01T06:00Z")}
            rows = pd.DataFrame([{**row, "amount": float(n)} for n in range(100)])
            await client.ingest("rain", rows)
        options = GatewayOptions(nodes=(address,), port=0, patience_s=60.0)
        url = await stack.enter_async_context(gateway(options))
        queries = [
            f"{url}/collections/rain/sparql?query={quote(text)}"
            for text in (f"SELECT (COUNT(*) AS ?all) WHERE {{ {cross} }}", "ASK {}")
        ]
        writer, reader = (f"Bearer {tokens.tokens[name]}" for name in ("writer", "reader"))
        greedy = [asyncio.create_task(get(queries[0], writer)) for _ in range(10)]
        await asyncio.sleep(0.5)
        for _ in range(2):
            assert (await get(queries[1], reader))[0] == 200
        for status, document in await asyncio.gather(*greedy):
            assert (status, document["kind"]) in ((503, "overloaded"), (504, "deadline_exceeded"))
