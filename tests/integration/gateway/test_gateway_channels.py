"""Channels over HTTP: what may be created, subscribed to and followed, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pandas as pd
import pytest
from gateway_serving import site

import galileo
from galileo.gateway import (
    channels,
    notifications,
    request_bodies,
    subscription_bodies,
    subscriptions,
)

FEATURES = [galileo.Feature("amount"), galileo.Feature("station", type="text")]
HOT = {"dataset": "rain", "template": "amount > :least AND station = :at", "period": "100ms"}
TIMEOUT_S = 60.0
NDJSON = "application/x-ndjson"


class Served:
    """A gateway, and a client of its node."""

    def __init__(self, url: str, client: galileo.AsyncClient) -> None:
        self.url = url
        self.client = client

    async def ask(
        self, method: str, path: str, body: Any = None, media_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Status and document; a body that is no bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return await asyncio.to_thread(self._ask, method, path, data, media_type)

    def _ask(self, method: str, path: str, body: bytes | None, media_type: str) -> tuple[int, Any]:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
        headers = {} if body is None else {"Content-Type": media_type}
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            data = reply.read()
            if reply.status == 201 and method == "PUT":
                assert reply.headers["Location"] == self.url + path
        return reply.status, json.loads(data) if data else None

    async def ingest(self, *amounts: float, station: str = "a") -> None:
        frame = {"latitude": 40.0, "longitude": 8.0, "time": pd.Timestamp("2026-05-02T12:00Z")}
        await self.client.ingest(
            "rain", pd.DataFrame([{**frame, "amount": one, "station": station} for one in amounts])
        )

    async def subscriptions(self) -> list[dict[str, Any]]:
        table = (await self.client.table("hot.subscriptions")).rows
        return sorted(table.to_pylist(), key=lambda row: str(row["id"]))


@contextlib.asynccontextmanager
async def serving(directory: Path, no_evaluator: dict[str, Any]) -> AsyncIterator[Served]:
    """A gateway with the channel "hot" of the dataset "rain"."""
    schema = galileo.Schema("rain", FEATURES)
    async with site(directory, {"evaluator": no_evaluator}, schema) as (url, client):
        served = Served(url, client)
        status, document = await served.ask("PUT", "/channels/hot", HOT)
        assert status == 201, document
        yield served


def row(name: str, least: float, *, broker: str = "me", at: str = "a") -> dict[str, Any]:
    return {"id": name, "broker": broker, "least": least, "at": at}


def pairs(items: list[Any]) -> list[tuple[str, float]]:
    """Subscription and amount of each pair of some items."""
    return [
        (name, item["features"][number]["properties"]["amount"])
        for item in items
        for match in item["matches"]
        for number in match["rows"]
        for name in match["subscriptions"]
    ]


async def test_channels_are_created_once_described_and_dropped(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    async with serving(tmp_path, no_evaluator) as served:
        status, same = await served.ask("PUT", "/channels/hot", HOT)
        assert (status, same["id"]) == (200, "hot")
        status, problem = await served.ask("PUT", "/channels/hot", {**HOT, "period": "1s"})
        assert (status, problem["kind"]) == (409, "dataset_exists")
        status, problem = await served.ask("PUT", "/channels/rain", HOT)
        assert (status, problem["kind"]) == (409, "dataset_exists"), "the name of a dataset"
        whole = {
            **HOT,
            "columns": ["time", "amount"],
            "keep": "1h",
            "period": 60,
            "new": "either",
            "leave": True,
        }
        status, made = await served.ask("PUT", "/channels/whole", whole)
        assert status == 201, made
        expected = {"id": "whole", **whole, "keep": 3600.0, "period": 60.0}
        assert {name: made[name] for name in expected} == expected
        assert made["parameters"] == [
            {"name": "least", "type": "float"},
            {"name": "at", "type": "text"},
        ]
        assert made["age_max"] is None
        repetitive = {**HOT, "new": "none", "age_max": "1h"}
        status, made = await served.ask("PUT", "/channels/now", repetitive)
        assert (status, made["new"], made["age_max"]) == (201, "none", 3600.0), made
        page = await asyncio.to_thread(http_page, served.url, "/channels/now")
        assert "age_max" in page
        _, listed = await served.ask("GET", "/channels")
        assert [one["id"] for one in listed["channels"]] == ["hot", "now", "whole"]
        await served.ask("POST", "/channels/hot/subscriptions", [row("s", 1.0), row("t", 2.0)])
        await served.ingest(0.0)
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                status, seen = await served.ask("GET", "/channels/hot")
                if (seen["complete"], seen["subscriptions"], seen["behind"]) == (True, 2, 0):
                    break
                await asyncio.sleep(0.05)
        assert (status, seen["failures"]) == (200, [])
        assert seen["columns"] == ["latitude", "longitude", "time", "amount", "station"]
        page = await asyncio.to_thread(http_page, served.url, "/channels/hot")
        assert "amount &gt; :least AND station = :at" in page
        for _ in range(2):  # A gateway knows no channel that was dropped.
            status, answer = await served.ask("DELETE", "/channels/hot")
            assert (status, answer) == (204, None)
            for path in ("/channels/hot", "/channels/hot/subscriptions/s"):
                status, problem = await served.ask("GET", path)
                assert (status, problem["kind"]) == (404, "unknown_dataset")
            body = {**HOT, "template": "amount < :most"}
            assert (await served.ask("PUT", "/channels/hot", body))[0] == 201
            new = {"id": "s", "broker": "me", "most": 5}
            status, stored = await served.ask("POST", "/channels/hot/subscriptions", new)
            assert (status, stored["subscriptions"]) == (201, 1), stored
        for name in ("rain", "hot.subscriptions", "none"):
            assert (await served.ask("DELETE", f"/channels/{name}"))[0] == 404
        assert await served.client.count("rain") == 1, "the dataset is there"


async def test_notifications_have_what_enriches_observations(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    async with serving(tmp_path, no_evaluator) as served:
        columns = {"id": "text", "stars": "int", "at": "geometry"}
        await served.client.create_table(galileo.Table("gauges", columns, "id"))
        gauge = {"id": ["a"], "stars": [3], "at": ["POINT (8 40.01)"]}
        await served.client.upsert("gauges", gauge)
        zones = galileo.Table("zones", {"id": "text", "at": "geometry"}, "id")
        await served.client.create_table(zones)
        lookup = {"step": "lookup", "table": "gauges", "on": "station"}
        near = {"step": "near", "table": "zones", "within": "5km"}
        body = {**HOT, "enrich": [lookup, near]}
        status, made = await served.ask("PUT", "/channels/rated", body)
        assert status == 201, made
        assert made["enrich"] == [lookup, near | {"within": 5000.0}]
        assert made["columns"][-3:] == ["gauges.stars", "gauges.at", "zones"]
        assert "gauges" in await asyncio.to_thread(http_page, served.url, "/channels/rated")
        wrong = [{}, [{"step": "lookup"}], [lookup | {"on": "amount"}], [near | {"table": "gauge"}]]
        for enrich in wrong:
            status, problem = await served.ask("PUT", "/channels/more", {**HOT, "enrich": enrich})
            assert status in (400, 404), problem
        await served.ask("POST", "/channels/rated/subscriptions", row("s", 1.0))
        await served.ingest(2.0)
        path = "/channels/rated/brokers/me/notifications?wait=30"
        status, page = await served.ask("GET", path)
        [feature] = page["notifications"][0]["features"]
        place = {"type": "Point", "coordinates": [8.0, 40.01]}
        expected = {"gauges.stars": 3, "gauges.at": place, "zones": []}
        assert {name: feature["properties"][name] for name in expected} == expected


async def test_subscriptions_have_rows_of_tables(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    async with serving(tmp_path, no_evaluator) as served:
        limits = galileo.Table("limits", {"id": "text", "least": "float"}, "id")
        await served.client.create_table(limits)
        await served.client.upsert("limits", {"id": ["low"], "least": [1.0]})
        body = {**HOT, "template": "amount > limits.least", "lookup": {"limits": ":limit"}}
        status, made = await served.ask("PUT", "/channels/above", body)
        assert status == 201, made
        assert made["lookup"] == {"limits": ":limit"}
        assert made["parameters"] == [{"name": "limit", "type": "text"}]
        for lookup in ({"limits": "limit"}, {"others": ":limit"}, "limits"):
            wrong = body | {"lookup": lookup}
            assert (await served.ask("PUT", "/channels/more", wrong))[0] in (400, 404)
        given = [{"id": "s", "limit": "low"}, {"id": "t", "limit": "none"}]
        for one in given:
            body = one | {"broker": "me"}
            status, stored = await served.ask("POST", "/channels/above/subscriptions", body)
            assert status == 201, stored
        await served.ingest(2.0)
        path = "/channels/above/brokers/me/notifications?wait=30"
        status, page = await served.ask("GET", path)
        assert [match["subscriptions"] for match in page["notifications"][0]["matches"]] == [["s"]]


def http_page(url: str, path: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", f"{path}?f=html")
        return connection.getresponse().read().decode()


async def test_wrong_definitions_are_problems(tmp_path: Path, no_evaluator: dict[str, Any]) -> None:
    async with serving(tmp_path, no_evaluator) as served:
        for body, expected, kind in (
            ({**HOT, "dataset": "snow"}, 404, "unknown_dataset"),
            ({**HOT, "dataset": 7}, 400, "invalid_schema"),
            ({**HOT, "template": None}, 400, "invalid_schema"),
            ({**HOT, "period": "1 fortnight"}, 400, "invalid_input"),
            ({**HOT, "period": True}, 400, "invalid_input"),
            ({**HOT, "keep": -1}, 400, "invalid_input"),
            ({**HOT, "columns": "time"}, 400, "invalid_input"),
            ({**HOT, "columns": 7}, 400, "invalid_input"),
            ({**HOT, "columns": [["time"]]}, 400, "invalid_schema"),
            ({**HOT, "new": ["both"]}, 400, "invalid_schema"),
            ({**HOT, "leave": True}, 400, "invalid_schema"),
            ({**HOT, "age_max": "1h"}, 400, "invalid_schema"),
            ({**HOT, "new": "none", "age_max": [1]}, 400, "invalid_input"),
            ({**HOT, "name": "hot"}, 400, "invalid_input"),
            ({"dataset": "rain"}, 400, "invalid_input"),
            ([HOT], 400, "invalid_input"),
        ):
            status, problem = await served.ask("PUT", "/channels/new", body)
            assert (status, problem["kind"]) == (expected, kind), (body, problem)
        assert (await served.ask("PUT", "/channels/New", HOT))[0] == 400
        assert (await served.ask("PUT", "/channels/new", b"{}", "text/plain"))[0] == 415
        assert (await served.ask("PUT", "/channels/new?x=1", HOT))[0] == 400
        assert (await served.ask("POST", "/channels/new", HOT))[0] == 405
        _, listed = await served.ask("GET", "/channels")
        assert [one["id"] for one in listed["channels"]] == ["hot"]


async def test_subscriptions_are_stored_in_each_format_read_and_removed(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    async with serving(tmp_path, no_evaluator) as served:
        path = "/channels/hot/subscriptions"
        whole = [row(f"w{number}", number) for number in range(3)]
        odd = row("a/b c?é", 7.5, at="x,y")
        lines = b"\n".join(json.dumps(one).encode() for one in whole[:2])
        for body, media_type, rows in (
            (odd, "application/json", 1),
            (whole, "application/json", 3),
            (lines, NDJSON, 2),
            (b"id,broker,least,at\n7,me,4,b\n8,me,5,b\n", "text/csv", 2),
        ):
            status, stored = await served.ask("POST", path, body, media_type)
            assert (status, stored["subscriptions"], stored["duplicates"]) == (201, rows, 0), stored
        every = [row("7", 4.0, at="b"), row("8", 5.0, at="b"), odd, *whole]
        assert await served.subscriptions() == every
        name = quote(odd["id"], safe="")
        assert await served.ask("GET", f"{path}/{name}") == (200, odd)
        assert await served.ask("POST", path, {**odd, "least": 9}) is not None
        assert (await served.ask("GET", f"{path}/{name}"))[1]["least"] == 9.0, "it is replaced"
        for one in ("7", name, "absent"):
            assert await served.ask("DELETE", f"{path}/{one}") == (204, None)
            assert (await served.ask("GET", f"{path}/{one}"))[0] == 404
        assert await served.subscriptions() == [every[1], *whole]


async def test_a_mistake_in_a_body_stores_nothing(
    tmp_path: Path, no_evaluator: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, no_evaluator) as served:
        path = "/channels/hot/subscriptions"
        good = [row(f"s{number}", number) for number in range(70_000)]
        lines = b"\n".join(json.dumps(one).encode() for one in good)
        wrong = {**row("last", 1.0), "least": None}
        status, problem = await served.ask(
            "POST", path, lines + b"\n" + json.dumps(wrong).encode(), NDJSON
        )
        assert (status, problem["details"]["row"]) == (400, 70_000), problem
        for body, media_type, kind in (
            ([{**good[0], "leest": 1}], "application/json", "invalid_observations"),
            ([{**good[0], "least": "much"}], "application/json", "invalid_observations"),
            ([{**good[0], "id": None}], "application/json", "invalid_observations"),
            ([{"id": "a", "least": 1, "at": "b"}], "application/json", "invalid_observations"),
            ([7], "application/json", "invalid_observations"),
            (b"", "application/json", "invalid_input"),
            (b"[", "application/json", "invalid_input"),
            (b"", "text/csv", "invalid_input"),
            (b"id,broker,least,at\na,me,much,b\n", "text/csv", "invalid_observations"),
            (b"id,broker,least,at\na,me,1\n", "text/csv", "invalid_observations"),
            (b"id,broker,least,at\n\xff,me,1,b\n", "text/csv", "invalid_observations"),
        ):
            status, problem = await served.ask("POST", path, body, media_type)
            assert (status, problem["kind"]) == (400, kind), (body, problem)
            assert "--" not in problem["detail"], "options of commands mean nothing here"
            assert "/proc" not in problem["detail"]
        for body, media_type in (
            ([], "application/json"),
            (b"", NDJSON),
            (b"id,broker,least,at\n", "text/csv"),
        ):
            status, stored = await served.ask("POST", path, body, media_type)
            assert (status, stored.get("subscriptions")) == (201, 0), (body, stored)
        one = json.dumps(good[0]).encode()
        assert (await served.ask("POST", path, one, "text/plain"))[0] == 415
        assert (await served.ask("POST", f"{path}?f=json", one))[0] == 400
        assert (await served.ask("POST", "/channels/none/subscriptions", one))[0] == 404
        monkeypatch.setattr(request_bodies, "BODY_BYTES_MAX", 1_000)
        assert (await served.ask("POST", path, lines[:2_000], NDJSON))[0] == 413
        monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_MAX", 1)
        assert (await served.ask("POST", path, good[:2]))[0] == 400
        assert await served.subscriptions() == []


async def test_columns_that_later_rows_lack_count_towards_the_size_of_subscriptions(
    tmp_path: Path, no_evaluator: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_bodies, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(subscriptions, "BODY_UNPACKED_BYTES_MAX", 64_000)
    body = b"\n".join([json.dumps(row("s", 1.0)).encode(), *[b'{"id":"a"}'] * 4_000])
    async with serving(tmp_path, no_evaluator) as served:
        status, problem = await served.ask("POST", "/channels/hot/subscriptions", body, NDJSON)
        assert (status, problem["details"].get("bound")) == (400, subscriptions.SUBSCRIPTIONS_MAX)
        assert problem["kind"] == "invalid_input"


async def test_a_request_under_a_key_is_stored_once(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    async with serving(tmp_path, no_evaluator) as served:

        def post(key: str) -> tuple[int, Any]:
            connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=TIMEOUT_S)
            headers = {"Content-Type": "application/json", "Idempotency-Key": key}
            with contextlib.closing(connection):
                body = json.dumps(row("s", 1.0))
                connection.request("POST", "/channels/hot/subscriptions", body, headers)
                reply = connection.getresponse()
                return reply.status, json.loads(reply.read())

        for duplicates in (0, 1):
            status, stored = await asyncio.to_thread(post, "site:4")
            assert (status, stored["batch"]) == (201, "site:4")
            assert stored["duplicates"] == duplicates
            await served.ask("DELETE", "/channels/hot/subscriptions/s")
        assert await served.subscriptions() == []
        assert (await asyncio.to_thread(post, "x y"))[0] == 400


async def test_pages_have_each_pair_once_and_wait_for_new_ones(
    tmp_path: Path, no_evaluator: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "ANSWER_BYTES", 1)  # So each page has one execution.
    async with serving(tmp_path, no_evaluator) as served:
        many = [row(f"s{number}", number % 5) for number in range(40)]
        await served.ask("POST", "/channels/hot/subscriptions", many)
        await served.ask("POST", "/channels/hot/subscriptions", row("other", 0.0, broker="you"))
        path = "/channels/hot/brokers/me/notifications"
        status, page = await served.ask("GET", path)
        assert (status, page["notifications"]) == (200, [])
        await served.ingest(2.0, 3.0)
        await served.ingest(9.0, station="b")
        expected = [
            (one["id"], amount) for one in many for amount in (2, 3) if amount > one["least"]
        ]
        found: list[tuple[str, float]] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < len(expected):
                status, page = await served.ask(
                    "GET", f"{path}?token={page['next']}&wait=10&limit=1"
                )
                assert status == 200, page
                found += pairs(page["notifications"])
        assert sorted(found) == sorted(expected)
        [link] = page["links"]
        assert f"token={page['next']}" in link["href"]
        whole = await served.ask("GET", path)
        assert pairs(whole[1]["notifications"]), "all that is kept"
        for query, expected_status in (
            ("limit=0", 400),
            ("wait=61", 400),
            ("token=x", 400),
            (f"token={page['next']}&x=1", 400),
        ):
            assert (await served.ask("GET", f"{path}?{query}"))[0] == expected_status, query
        other = f"/channels/hot/brokers/you/notifications?token={page['next']}"
        assert (await served.ask("GET", other))[1]["kind"] == "invalid_token"
        assert (await served.ask("GET", path.replace("hot", "none")))[0] == 404


async def test_positions_are_stored_for_each_broker(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    async with serving(tmp_path, no_evaluator) as served:
        path = "/channels/hot/brokers/me/position"
        assert await served.ask("GET", path) == (200, {"token": ""})
        _, page = await served.ask("GET", "/channels/hot/brokers/me/notifications")
        assert await served.ask("PUT", path, {"token": page["next"]}) == (204, None)
        assert await served.ask("GET", path) == (200, {"token": page["next"]})
        assert await served.client.position("hot", "me") == page["next"]
        other = path.replace("/me/", "/you/")
        assert await served.ask("GET", other) == (200, {"token": ""})
        for target, body in (
            (other, {"token": page["next"]}),
            (path, {"token": "x"}),
            (path, {"token": 7}),
            (path, {"token": page["next"], "x": 1}),
            (path, [page["next"]]),
        ):
            assert (await served.ask("PUT", target, body))[0] == 400, body


async def test_events_go_on_at_their_ids_and_end_with_the_channel(
    tmp_path: Path, no_evaluator: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "WAIT_S", 0.5)
    async with serving(tmp_path, no_evaluator) as served:
        await served.ask("POST", "/channels/hot/subscriptions", [row("s", 0.0), row("t", 1.0)])
        target = "/channels/hot/brokers/me/events"
        _, page = await served.ask("GET", "/channels/hot/brokers/me/notifications")
        async with asyncio.timeout(TIMEOUT_S):
            since = f"{target}?token={page['next']}"
            first, head = await stream(served.url, since)
            assert "200 OK" in head
            assert "text/event-stream" in head
            await served.ingest(1.0, 2.0)
            found, token = list[tuple[str, float]](), ""
            while len(found) < 3:
                name, data, token = await next_event(first)
                assert (name, data["token"]) == ("notifications", token)
                found += pairs([data])
            assert sorted(found) == [("s", 1.0), ("s", 2.0), ("t", 2.0)]
            first.close()
            await served.ingest(3.0)
            second, _ = await stream(served.url, since, f"Last-Event-ID: {token}\r\n")
            found = []
            while len(found) < 2:
                name, data, _ = await next_event(second)
                found += pairs([data])
            assert sorted(found) == [("s", 3.0), ("t", 3.0)], "nothing comes twice"
            assert (await served.ask("DELETE", "/channels/hot"))[0] == 204
            name, data, _ = await next_event(second)
            assert (name, data["kind"]) == ("end", "unknown_dataset")
            second.close()
        for path, status in ((target, 404), (f"{target}?after=x", 400)):
            assert (await served.ask("GET", path))[0] == status


class Stream:
    """The connection of a reader of events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.close = writer.close


async def stream(url: str, target: str, headers: str = "") -> tuple[Stream, str]:
    """A reader, and the head of its answer."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: {where.netloc}\r\n{headers}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    return Stream(reader, writer), head.decode()


async def next_event(one: Stream) -> tuple[str, Any, str]:
    """Name, data and id of the next event with data."""
    token = ""
    while True:
        line = (await one.reader.readuntil(b"\n")).decode()
        if line.startswith("id: "):
            token = line.removeprefix("id: ").strip()
        if line.startswith("event: "):
            data = (await one.reader.readuntil(b"\n")).decode()
            return line.removeprefix("event: ").strip(), json.loads(data[len("data: ") :]), token
