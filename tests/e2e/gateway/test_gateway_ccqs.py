"""Continuous queries over HTTP: requests, events, and exactly once whatever is killed."""

from __future__ import annotations

import http.client
import io
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import numpy as np
import pandas as pd
import pyarrow.feather
import pyogrio
import pytest

import galileo
from galileo.errors import TransientError
from galileo.local_services import LocalGateway

TIMEOUT_S = 120.0
EXACT_TIMEOUT_S = 300.0
READERS = 20
MERGED_READERS = 5
BATCHES = 40


def ask(
    url: str, *, method: str = "GET", body: Any = None, **headers: str
) -> tuple[int, Any, bytes]:
    """Status, headers and body."""
    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(url, data, {**given, **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def rows(count: int, *, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "latitude": rng.uniform(30, 50, count),
            "longitude": rng.uniform(-110, -80, count),
            "time": pd.Timestamp("2014-03-01T00:00Z") + pd.to_timedelta(np.arange(count), "s"),
            "temperature": rng.normal(280, 10, count),
        }
    )


def created(client: galileo.Client, name: str) -> str:
    features = [galileo.Feature("temperature", unit="K")]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=4))
    return name


def identities(properties: list[dict[str, Any]]) -> list[str]:
    return [one["label"] for one in properties]


def identities_of(labels: galileo.Labels) -> list[str]:
    return list(labels.to_arrow().column("label").to_pylist())


def drained(client: galileo.Client, ccq_id: str) -> Counter[str]:
    """All labels of a query, by fetches."""
    found, token = Counter[str](), ""
    while True:
        update = client.fetch(ccq_id, token=token)
        found.update(identities_of(update.labels))
        token = update.token
        if not update.more:
            return found


@pytest.fixture
def submitted(
    cluster: galileo.LocalCluster, gateway: LocalGateway, fresh_name: Callable[[str], str]
) -> Iterator[tuple[galileo.Client, str, str]]:
    """A client, the name of a dataset, and the URL of a query of it that finds all of it."""
    client = cluster.client()
    name = created(client, fresh_name("live"))
    client.ingest(name, rows(50, seed=1))
    body = {"dataset": name, "interval": "250ms", "expiration": "10m"}
    status, headers, answer = ask(f"{gateway.url}/ccqs", method="POST", body=body)
    assert status == 201, answer
    yield client, name, headers["Location"]
    ask(headers["Location"], method="DELETE")


def test_submit_list_fetch_and_cancel(
    cluster: galileo.LocalCluster, gateway: LocalGateway, fresh_name: Callable[[str], str]
) -> None:
    client = cluster.client()
    name = created(client, fresh_name("live"))
    client.ingest(name, rows(500, seed=1))
    body = {
        "dataset": name,
        "query": "temperature > 280",
        "interval": "250ms",
        "expiration": 600,
        "window": "tumbling:1h",
    }
    status, headers, answer = ask(f"{gateway.url}/ccqs", method="POST", body=body)
    submitted, url = json.loads(answer), headers["Location"]
    assert status == 201
    assert url == f"{gateway.url}/ccqs/{submitted['id']}"
    assert len(submitted["labels"]) == len(client.query(name, "temperature > 280")) > 50
    assert sum(window["labels"] for window in submitted["windows"]) == len(submitted["labels"])
    listed = json.loads(ask(f"{gateway.url}/ccqs")[2])["ccqs"]
    assert submitted["id"] in {one["id"] for one in listed}
    described = json.loads(ask(url)[2])
    assert (described["dataset"], described["window"]) == (name, "tumbling:1h")

    after = submitted["token"]
    assert json.loads(ask(f"{url}/labels?after={after}")[2])["features"] == []
    client.ingest(name, rows(500, seed=2))
    status, headers, answer = ask(f"{url}/labels?after={after}&wait=60")
    update = json.loads(answer)
    assert status == 200
    assert headers["Galileo-Token"] == update["token"] != after
    assert update["features"][0]["geometry"]["type"] == "Polygon"
    assert update["windows"]

    wanted = Counter(identities_of(client.query(name, "temperature > 280")))
    while (everything := drained(client, submitted["id"])) != wanted:
        time.sleep(0.05)
    whole = json.loads(ask(f"{url}/labels?f=json")[2])
    assert Counter(identities(whole["labels"])) == everything
    _, headers, data = ask(f"{url}/labels?f=arrow")
    table = pyarrow.feather.read_table(io.BytesIO(data))
    assert table.num_rows == everything.total()
    assert json.loads(table.schema.metadata[b"galileo"])["token"] == headers["Galileo-Token"]
    until = json.loads(ask(f"{url}/labels?until={after}&f=json")[2])
    assert (until["token"], until["more"]) == (after, False)
    first = identities(until["labels"])
    rest = identities([feature["properties"] for feature in update["features"]])
    assert Counter(first) == Counter(identities(submitted["labels"]))
    assert set(rest) <= set(everything) - set(first)

    assert ask(url, method="DELETE")[0] == 204
    status, _, answer = ask(f"{url}/labels")
    assert (status, json.loads(answer)["kind"]) == (410, "ccq_cancelled")
    assert ask(f"{url}/events")[0] == 410


def test_wrong_requests_are_problems(
    gateway: LocalGateway, submitted: tuple[galileo.Client, str, str]
) -> None:
    _, name, url = submitted
    for body, kind in (
        ({"dataset": name, "intervall": "1s"}, "invalid_input"),
        ({"dataset": name, "interval": "soon"}, "invalid_input"),
        ({"dataset": name, "query": 1}, "invalid_input"),
        ({"dataset": name, "query": "temp >"}, "query_syntax"),
        ({"dataset": name, "window": "hourly"}, "invalid_input"),
        ({"dataset": name, "window": {"windows": "tumbling:1h", "x": 1}}, "invalid_input"),
        ({"dataset": name, "sampler": "uniform"}, "invalid_input"),
        ([name], "invalid_input"),
    ):
        status, _, answer = ask(f"{gateway.url}/ccqs", method="POST", body=body)
        assert (status, json.loads(answer)["kind"]) == (400, kind), body
    assert ask(f"{gateway.url}/ccqs", method="POST", body={"dataset": f"{name}-x"})[0] == 404
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert ask(f"{gateway.url}/ccqs", method="POST", body={"dataset": name}, **form)[0] == 415
    for path, status in (
        ("/labels?wait=61", 400),
        ("/labels?wait=x", 400),
        ("/labels?after=x", 400),
        ("/labels?until=x", 400),
        ("/labels?f=csv", 400),
        ("/events?after=x", 400),
        ("/events?since=x", 400),
        ("x/events", 404),
        ("x/labels", 404),
        ("x", 404),
    ):
        assert ask(f"{url}{path}")[0] == status, path
    assert ask(f"{url}x/events", method="HEAD")[0] == 404
    status, headers, body_of_head = ask(f"{url}/events", method="HEAD")
    assert (status, headers["content-type"], body_of_head) == (200, "text/event-stream", b"")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_follows_a_query(submitted: tuple[galileo.Client, str, str]) -> None:
    client, name, url = submitted
    command = ["curl", "-sSfN", f"{url}/events"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        watchdog = threading.Timer(TIMEOUT_S, curl.kill)
        watchdog.start()
        assert curl.stdout is not None
        assert curl.stdout.readline() == "retry: 1000\n"
        found, token, first_token, ingested = Counter[str](), "", "", False
        wanted = Counter(identities_of(client.query(name)))
        while found != wanted or not ingested:
            line = curl.stdout.readline()
            assert line, "the stream ended"
            token = line.removeprefix("id: ").strip() if line.startswith("id: ") else token
            first_token = first_token or token
            if line.startswith("data: "):
                update = json.loads(line.removeprefix("data: "))
                assert update["token"] == token
                found.update(identities([one["properties"] for one in update["features"]]))
            if found == wanted and not ingested:
                client.ingest(name, rows(50, seed=2))
                wanted, ingested = Counter(identities_of(client.query(name))), True
        watchdog.cancel()
        curl.kill()
    # A reader that comes back has nothing again; it sees the end of the query.
    with subprocess.Popen(
        ["curl", "-sSfN", "-H", f"Last-Event-ID: {token}", f"{url}/events?after={first_token}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as curl:
        assert curl.stdout is not None
        assert curl.stdout.readline() == "retry: 1000\n"
        assert ask(url, method="DELETE")[0] == 204
        text, _ = curl.communicate(timeout=TIMEOUT_S)
    assert '"features": [' not in text
    name_line, data = text.strip().split("\n")[-2:]
    assert name_line == "event: end"
    assert json.loads(data.removeprefix("data: "))["kind"] == "ccq_cancelled"


def test_one_stream_of_several_queries(
    gateway: LocalGateway, submitted: tuple[galileo.Client, str, str]
) -> None:
    client, name, url = submitted
    other = client.submit(name, "temperature > 280", interval="250ms", expiration="10m")
    first = url.rpartition("/")[2]
    where = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
    body = json.dumps({"ccqs": {first: "", other.id: other.token, "ccq-none": "", "x": "x"}})
    connection.request("POST", "/events", body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
    ends: dict[str, str] = {}
    found: Counter[str] = Counter()

    def read_until(is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            line = reply.readline()
            assert line, "the stream ended"
            assert not line.startswith(b"id:")
            if line.startswith(b"event: "):
                event = line.removeprefix(b"event: ").strip().decode()
            if line.startswith(b"data: "):
                document = json.loads(line.removeprefix(b"data: "))
                if event == "end":
                    ends[document["ccq"]] = document["kind"]
                else:
                    found[document["ccq"]] += len(document["features"])

    try:
        read_until(lambda: found[first] == 50 and len(ends) == 2)
        assert ends.keys() == {"ccq-none", "x"}
        client.cancel(other)
        read_until(lambda: ends.get(other.id) == "ccq_cancelled")
        client.ingest(name, rows(50, seed=2))
        read_until(lambda: found[first] == 100)
        assert ask(url, method="DELETE")[0] == 204
        read_until(lambda: ends.get(first) == "ccq_cancelled")
        assert reply.read() == b"\n", "it ends with the last query"
    finally:
        connection.close()
    wrongs: list[Any] = [
        {},
        {"ccqs": {}},
        {"ccqs": [first]},
        {"ccqs": {first: 1}},
        {"ccqs": {}, "f": 1},
    ]
    for wrong in wrongs:
        status, _, answer = ask(f"{gateway.url}/events", method="POST", body=wrong)
        assert (status, json.loads(answer)["kind"]) == (400, "invalid_input"), wrong
    many = {"ccqs": {f"ccq-{number}": "" for number in range(65)}}
    assert ask(f"{gateway.url}/events", method="POST", body=many)[0] == 400
    assert ask(f"{gateway.url}/events")[0] == 405


@pytest.mark.slow
def test_gdal_opens_a_query_as_a_layer(
    gateway: LocalGateway, submitted: tuple[galileo.Client, str, str]
) -> None:
    client, name, url = submitted
    ccq_id, source = url.rpartition("/")[2], f"OAPIF:{gateway.url}"
    layers = {str(layer) for layer in pyogrio.list_layers(source)[:, 0]}
    assert {name, ccq_id} <= layers
    client.ingest(name, rows(3_000, seed=2))
    wanted = Counter(identities_of(client.query(name)))
    deadline = time.monotonic() + TIMEOUT_S
    while drained(client, ccq_id) != wanted:
        assert time.monotonic() < deadline
    meta, _, geometry, columns = pyogrio.raw.read(source, layer=ccq_id)
    fields = dict(zip(meta["fields"], columns, strict=True))
    assert meta["geometry_type"] == "Polygon"
    assert Counter(fields["label"]) == wanted, "several pages"
    assert len(set(fields["id"])) == len(geometry) == wanted.total()
    west, south, east, north = box = (-100.0, 35.0, -90.0, 45.0)
    inside = pyogrio.raw.read(source, layer=ccq_id, bbox=box)
    expected = client.query(name, galileo.within((west, south, east, north)))
    assert set(identities_of(expected)) <= set(inside[3][list(inside[0]["fields"]).index("label")])
    assert len(inside[2]) < wanted.total()
    page = json.loads(ask(f"{gateway.url}/collections/{ccq_id}/items?limit=7")[2])
    assert 0 < len(page["features"]) == page["numberReturned"] <= 7
    for path, status in (
        ("", 200),
        ("/schema", 200),
        ("/queryables", 200),
        ("/items?limit=0", 400),
        ("/items?after=x", 400),
        ("/items?after=0.x.y", 400),
        ("/items?filter=true", 400),
        ("/items?f=csv", 400),
        ("/sparql?query=ASK{}", 404),
    ):
        assert ask(f"{gateway.url}/collections/{ccq_id}{path}")[0] == status, path
    other = f"ccq-{'0' * 32}"
    assert ask(f"{gateway.url}/collections/{other}/items")[0] == 404
    body = {"type": "FeatureCollection", "features": []}
    assert ask(f"{gateway.url}/collections/{ccq_id}/items", method="POST", body=body)[0] == 404


class Reader(threading.Thread):
    """Follows a query as an EventSource does, drops connections at random, and comes back."""

    def __init__(self, gateway: Callable[[], str], path: str, *, seed: int) -> None:
        super().__init__(daemon=True)
        self.found = Counter[str]()
        self.connections = 0
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._gateway = gateway
        self._path = path
        self._rng = random.Random(seed)
        self._token = ""

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    self._read(urlsplit(self._gateway()), self._rng.randint(1, 8))
                except (OSError, http.client.HTTPException):
                    time.sleep(self._rng.uniform(0.01, 0.2))
        except BaseException as error:
            self.failure = error

    def _read(self, where: Any, events: int) -> None:
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=TIMEOUT_S)
        headers = {"Last-Event-ID": self._token} if self._token else {}
        try:
            connection.request("GET", self._path, headers=headers)
            reply = connection.getresponse()
            self.connections += 1
            if reply.status in (503, 504):
                raise http.client.HTTPException("come back")
            assert reply.status == 200, reply.read()
            for line in reply:
                if self.stopping.is_set():
                    return
                if line.startswith(b"id: "):
                    token = line.removeprefix(b"id: ").decode().strip()
                if line.startswith(b"data: "):
                    self._take(json.loads(line.removeprefix(b"data: ")), token)
                    events -= 1
                    if events == 0:
                        return
        finally:
            connection.close()

    def _take(self, update: dict[str, Any], token: str) -> None:
        assert update["after"] == self._token
        features = update["features"] if "features" in update else self._linked(update)
        self.found.update(identities([one["properties"] for one in features]))
        self._token = token

    def _linked(self, update: dict[str, Any]) -> list[Any]:
        """The labels that an event has a link for, and whose last token is that of the event."""
        features: list[Any] = []
        after = update["after"]
        while True:
            href = f"labels?after={quote(after)}&until={quote(update['token'])}"
            answer = json.loads(ask(urljoin(self._gateway() + self._path, href))[2])
            features += answer["features"]
            after = answer["token"]
            if not answer["more"]:
                assert len(features) == update["numberMatched"]
                return features


class MergedReader(Reader):
    """The same for several queries in one stream."""

    def __init__(self, gateway: Callable[[], str], ccqs: list[str], *, seed: int) -> None:
        super().__init__(gateway, "/events", seed=seed)
        self.found_of = {ccq: Counter[str]() for ccq in ccqs}
        self._tokens = dict.fromkeys(ccqs, "")

    def _read(self, where: Any, events: int) -> None:
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=TIMEOUT_S)
        try:
            body = json.dumps({"ccqs": self._tokens})
            connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            self.connections += 1
            if reply.status in (503, 504):
                raise http.client.HTTPException("come back")
            assert reply.status == 200, reply.read()
            for line in reply:
                if self.stopping.is_set():
                    return
                assert line != b"event: end\n"
                if line.startswith(b"data: "):
                    self._take_of_several(json.loads(line.removeprefix(b"data: ")))
                    events -= 1
                    if events == 0:
                        return
        finally:
            connection.close()

    def _take_of_several(self, update: dict[str, Any]) -> None:
        ccq = update["ccq"]
        assert update["after"] == self._tokens[ccq]
        if "features" not in update:
            self._path, path = f"/ccqs/{ccq}/events", self._path
            update["features"], self._path = self._linked(update), path
        self.found_of[ccq].update(identities([one["properties"] for one in update["features"]]))
        self._tokens[ccq] = update["token"]


def ingest(client: galileo.Client, name: str, batches: range) -> None:
    for number in batches:
        frame = rows(2_000 if number % 10 == 0 else 200, seed=number)
        deadline = time.monotonic() + EXACT_TIMEOUT_S
        while True:
            try:
                client.ingest(name, frame, producer=f"batch-{number}")
                break
            except TransientError:
                assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_reader_has_each_label_once_whatever_is_killed(evaluator: dict[str, Any]) -> None:
    settings = {"membership": {"failure_timeout_s": 4.0}, "evaluator": evaluator}
    with galileo.LocalCluster(nodes=3, settings=settings) as cluster:
        client = cluster.client(timeout="60s")
        name = created(client, "live")
        gateways = [cluster.gateway() for _ in range(2)]
        gateways[0].start()
        current = [gateways[0].url]
        try:
            body = {"dataset": name, "query": "temperature > 270", "interval": "500ms"}
            status, _, answer = ask(f"{current[0]}/ccqs", method="POST", body=body)
            assert status == 201, answer
            ccq_id = json.loads(answer)["id"]
            path = f"/ccqs/{ccq_id}/events"
            readers = [Reader(lambda: current[0], path, seed=seed) for seed in range(READERS)]
            warm = client.submit(name, "temperature > 285", interval="500ms", expiration="1h").id
            merged = [
                MergedReader(lambda: current[0], [ccq_id, warm], seed=seed)
                for seed in range(MERGED_READERS)
            ]
            for reader in (*readers, *merged):
                reader.start()
            ingest(client, name, range(10))
            gateways[1].start()
            killed = gateways[0].pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            current[0] = gateways[1].url
            ingest(client, name, range(10, 20))
            coordinator = next(i.coordinator for i in client.list_ccqs() if i.id == ccq_id)
            cluster.node(coordinator).kill()
            ingest(client, name, range(20, 30))
            cluster.node(coordinator).restart()
            ingest(client, name, range(30, BATCHES))

            def is_behind(reader: Reader) -> bool:
                return reader.failure is None and reader.found.total() < wanted.total()

            def is_merged_behind(reader: MergedReader) -> bool:
                return reader.failure is None and any(
                    labels.total() < wanted_of[one].total()
                    for one, labels in reader.found_of.items()
                )

            deadline = time.monotonic() + EXACT_TIMEOUT_S
            wanted = Counter(identities_of(client.query(name, "temperature > 270")))
            wanted_of = {
                ccq_id: wanted,
                warm: Counter(identities_of(client.query(name, "temperature > 285"))),
            }
            while time.monotonic() < deadline and (
                any(map(is_behind, readers)) or any(map(is_merged_behind, merged))
            ):
                time.sleep(0.2)
            assert drained(client, ccq_id) == wanted
            assert [reader.failure for reader in readers] == [None] * READERS
            for reader in readers:
                missing, repeated = wanted - reader.found, reader.found - wanted
                assert (missing, repeated) == (Counter(), Counter())
            for several in merged:
                assert several.failure is None
                for one, labels in several.found_of.items():
                    missing, repeated = wanted_of[one] - labels, labels - wanted_of[one]
                    assert (missing, repeated) == (Counter(), Counter())
            assert min(reader.connections for reader in (*readers, *merged)) > 2
            print(f"\n{wanted.total():,} labels, {sum(r.connections for r in readers)} connections")
            for reader in (*readers, *merged):
                reader.stopping.set()
        finally:
            for gateway in gateways:
                gateway.stop()
