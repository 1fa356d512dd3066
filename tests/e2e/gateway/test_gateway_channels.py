"""Channels over HTTP with a real cluster: curl, and each notification once whatever is killed."""

from __future__ import annotations

import http.client
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
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import pandas as pd
import pytest

import galileo
from galileo.errors import TransientError
from galileo.local_services import LocalGateway

TIMEOUT_S = 120.0
EXACT_TIMEOUT_S = 300.0
SUBSCRIPTIONS, READERS, BATCHES = 2_000, 4, 24
AWAY_S = 3.0
BROKERS = ("east", "west")
Pair = tuple[str, int]


def ask(url: str, *, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    """Status and document."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            text = reply.read()
            return reply.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def created(client: galileo.Client, url: str, name: str) -> str:
    """The URL of a channel of a dataset with numbered observations."""
    features = [galileo.Feature("number", type="int"), galileo.Feature("temperature", unit="K")]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=3))
    at = f"{url}/channels/{name}-hot"
    body = {"dataset": name, "template": "temperature > :least", "period": "200ms"}
    store(at, method="PUT", body=body)
    return at


def store(url: str, *, method: str, body: Any) -> None:
    """Sends a request again until the nodes of a busy machine answer it in time."""
    status, document = ask(url, method=method, body=body)
    while status in (503, 504):
        status, document = ask(url, method=method, body=body)
    assert status in (200, 201), document


def rows(first: int, count: int) -> pd.DataFrame:
    rng = np.random.default_rng(first)
    return pd.DataFrame(
        {
            "latitude": rng.uniform(-80, 80, count),
            "longitude": rng.uniform(-170, 170, count),
            "time": pd.Timestamp("2026-05-02T12:00Z"),
            "number": np.arange(first, first + count),
            "temperature": rng.integers(0, 100, count).astype(float),
        }
    )


def pairs_of(item: Any) -> list[Pair]:
    """Subscription and number of each pair of an item."""
    return [
        (name, item["features"][row]["properties"]["number"])
        for match in item["matches"]
        for row in match["rows"]
        for name in match["subscriptions"]
    ]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_subscribes_and_follows(
    cluster: galileo.LocalCluster, gateway: LocalGateway, fresh_name: Callable[[str], str]
) -> None:
    client = cluster.client()
    name = fresh_name("air")
    url = created(client, gateway.url, name)
    body = json.dumps({"id": "anna", "broker": "mail", "least": 50})
    command = ["curl", "-sSf", "-H", "Content-Type: application/json", "-d", body]
    stored = subprocess.run([*command, f"{url}/subscriptions"], capture_output=True, check=True)
    assert json.loads(stored.stdout)["subscriptions"] == 1
    assert ask(f"{url}/subscriptions/anna") == (200, json.loads(body))
    frame = rows(0, 100)
    wanted = {("anna", number) for number in frame["number"][frame["temperature"] > 50].tolist()}
    found: list[Pair] = []
    events, token = f"{url}/brokers/mail/events", ""
    for part in (frame[:50], frame[50:]):
        command = ["curl", "-sSfN", "-H", f"Last-Event-ID: {token}", events]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
            watchdog = threading.Timer(TIMEOUT_S, curl.kill)
            watchdog.start()
            assert curl.stdout is not None
            assert curl.stdout.readline() == "retry: 1000\n"
            client.ingest(name, part)
            due = {pair for pair in wanted if pair[1] <= part["number"].max()}
            while not due <= set(found):
                line = curl.stdout.readline()
                assert line, "the stream ended"
                token = line.removeprefix("id: ").strip() if line.startswith("id: ") else token
                if line.startswith("data: "):
                    found += pairs_of(json.loads(line.removeprefix("data: ")))
            watchdog.cancel()
            curl.kill()
    assert sorted(found) == sorted(wanted), "each once"
    assert ask(f"{url}/brokers/mail/position", method="PUT", body={"token": token})[0] == 204
    assert ask(f"{url}/brokers/mail/notifications?token={token}")[1]["notifications"] == []
    assert ask(url, method="DELETE") == (204, None)


class Reader(threading.Thread):
    """Reads a broker by pages and events, a few at a time, at the gateway of the moment."""

    def __init__(self, url: Callable[[], str], broker: str, *, seed: int) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.found = Counter[Pair]()
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._url = url
        self._chance = random.Random(seed)
        self._token = ""

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    way = self._chance.choice([self._read_page, self._read_events])
                    way(f"{self._url()}/brokers/{self.broker}")
                except (OSError, http.client.HTTPException):
                    time.sleep(self._chance.uniform(0.01, 0.2))
        except BaseException as error:
            self.failure = error

    def _read_page(self, url: str) -> None:
        given = {"token": self._token, "limit": self._chance.randint(1, 500), "wait": 0.2}
        status, page = ask(f"{url}/notifications?{urlencode(given)}")
        if status in (503, 504):
            raise http.client.HTTPException("come back")
        assert status == 200, page
        for item in page["notifications"]:
            self._take(item)
        self._token = page["next"]

    def _read_events(self, url: str) -> None:
        where, left = urlsplit(f"{url}/events"), self._chance.randint(1, 6)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
        headers = {"Last-Event-ID": self._token} if self._token else {}
        try:
            connection.request("GET", where.path, headers=headers)
            reply = connection.getresponse()
            if reply.status in (503, 504):
                raise http.client.HTTPException("come back")
            assert reply.status == 200, reply.read()
            token = self._token
            for line in reply:
                if self.stopping.is_set() or left == 0:
                    return
                if line.startswith(b"id: "):
                    token = line.removeprefix(b"id: ").decode().strip()
                if line.startswith(b"data: "):
                    item = json.loads(line.removeprefix(b"data: "))
                    assert item["token"] == token
                    self._take(item)
                    left -= 1
                elif line == b"\n":  # The event is complete, or it was an id alone.
                    self._token = token
        finally:
            connection.close()

    def _take(self, item: Any) -> None:
        assert item["after"] == self._token
        pairs = pairs_of(item)
        assert len(pairs) == item["notifications"]
        self.found.update(pairs)
        self._token = item["token"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_reader_has_each_notification_once_whatever_is_killed(
    no_evaluator: dict[str, Any],
) -> None:
    settings = {"membership": {"failure_timeout_s": 4.0}, "evaluator": no_evaluator}
    with galileo.LocalCluster(nodes=3, settings=settings) as cluster:
        client = cluster.client(timeout="60s")
        gateways = [cluster.gateway() for _ in range(2)]
        gateways[0].start()
        try:
            current = [created(client, gateways[0].url, "air")]
            subscriptions = [
                {"id": f"s{n}", "broker": BROKERS[n % 2], "least": n % 97}
                for n in range(SUBSCRIPTIONS)
            ]
            store(f"{current[0]}/subscriptions", method="POST", body=subscriptions)
            readers = [
                Reader(lambda: current[0], BROKERS[seed % 2], seed=seed) for seed in range(READERS)
            ]
            for reader in readers:
                reader.start()
            for number in range(BATCHES):
                if number == BATCHES // 3:
                    gateways[1].start()
                    killed = gateways[0].pid
                    assert killed is not None
                    os.kill(killed, signal.SIGKILL)
                    current[0] = current[0].replace(gateways[0].url, gateways[1].url)
                if number == BATCHES // 2:
                    cluster.node("node-2").kill()
                    time.sleep(AWAY_S)  # Its subscriptions and observations cannot be read.
                    cluster.node("node-2").restart()
                ingest(client, number)
            frame = pd.concat([rows(5 * number, 5) for number in range(BATCHES)])
            wanted = {broker: Counter[Pair]() for broker in BROKERS}
            for one in subscriptions:
                matching = frame["number"][frame["temperature"] > one["least"]]
                wanted[one["broker"]].update((one["id"], number) for number in matching.tolist())
            deadline = time.monotonic() + EXACT_TIMEOUT_S
            while time.monotonic() < deadline and any(
                reader.failure is None and reader.found.total() < wanted[reader.broker].total()
                for reader in readers
            ):
                time.sleep(0.2)
            for reader in readers:
                assert reader.failure is None, reader.failure
                due = wanted[reader.broker]
                missing, repeated = due - reader.found, reader.found - due
                assert (missing, repeated) == (Counter(), Counter())
                reader.stopping.set()
        finally:
            for gateway in gateways:
                gateway.stop()


def ingest(client: galileo.Client, number: int) -> None:
    """Stores a batch once."""
    deadline = time.monotonic() + EXACT_TIMEOUT_S
    while True:
        try:
            client.ingest("air", rows(5 * number, 5), producer=f"batch-{number}")
            return
        except TransientError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
