"""A keyed dataset in several partitions of a cluster, changed by programs that speak HTTP."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit, urlunsplit

import galileo
from galileo.local_services import LocalGateway

TIMEOUT_S = 120.0
PLACES = ((-33.9, 151.2), (40.0, -105.0), (52.5, 13.4), (-1.3, 36.8), (64.1, -21.9), (35.7, 139.7))
FEATURES = [galileo.Feature("station", type="text"), galileo.Feature("waves", "m")]


def ask(url: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and document."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None if body is None else json.dumps(body).encode()
    given |= {"Content-Type": "application/geo+json"} if data else {}
    request = urllib.request.Request(url, data, given, method=method)
    try:
        reply = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        reply = error
    with reply:
        text = reply.read()
        return reply.status, reply.headers, json.loads(text) if text else None


def test_observations_of_all_partitions_are_replaced_and_deleted(
    client: galileo.Client, gateway: LocalGateway, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("buoys")
    client.create_dataset(galileo.Schema(name, FEATURES, key="station"))
    url = f"{gateway.url}/collections/{name}/items"
    rows: dict[str, Any] = {
        "latitude": [latitude for latitude, _ in PLACES],
        "longitude": [longitude for _, longitude in PLACES],
        "time": ["2014-03-01T06:00:00Z"] * len(PLACES),
        "station": [f"s{number}" for number in range(len(PLACES))],
        "waves": [float(number) for number in range(len(PLACES))],
    }
    client.ingest(name, rows)
    _, headers, seen = ask(url)
    before = f'"{headers["Galileo-Token"]}"'
    for feature in seen["features"]:  # What a program has read it can change and send back.
        feature["properties"]["waves"] += 10.0
    status, _, stored = ask(url, "POST", seen, If_Match=before)
    assert (status, stored["observations"]) == (201, len(PLACES))
    assert len(stored["commits"]) > 1
    assert ask(url, "POST", seen, If_Match=before)[0] == 412
    _, _, changed = ask(url)
    waves = sorted(one["properties"]["waves"] for one in changed["features"])
    assert waves == [number + 10.0 for number in range(len(PLACES))]
    first, second = changed["features"][0]["id"], seen["features"][0]["id"]
    assert ask(f"{url}/{first}", "DELETE")[0] == 204
    assert ask(f"{url}/{second}", "DELETE")[0] == 404
    status, _, deleted = ask(f"{url}?filter={quote('waves >= 0')}", "DELETE")
    assert (status, deleted["deleted"]) == (200, len(PLACES) - 1)
    assert client.count(name) == 0


class Follower(threading.Thread):
    """Keeps what matches by the ids of features, from events; leaves at random and comes back."""

    def __init__(self, url: str, *, seed: int) -> None:
        super().__init__(daemon=True)
        self.url, self.chance = url, random.Random(seed)
        self.token, self.held = "", dict[str, float]()
        self.counts = Counter[str]()
        self.is_stopping = False

    def run(self) -> None:
        while not self.is_stopping:
            request = urllib.request.Request(f"{self.url}/events")
            request.add_header("Last-Event-ID", self.token)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as stream:
                self.read(stream, self.chance.randrange(1, 20))

    def read(self, stream: Iterable[bytes], lasting: int) -> None:
        lines = (line.decode().rstrip("\n") for line in stream)
        while lasting and (frame := [*takewhile(bool, lines)]):
            fields = dict(line.split(": ", 1) for line in frame if not line.startswith(":"))
            self.counts[fields.get("event", "")] += 1
            if "event" not in fields:
                continue
            document, lasting = json.loads(fields["data"]), lasting - 1
            if fields["event"] == "end":
                self.is_stopping = True
                return
            assert document["after"] == self.token
            if fields["event"] == "behind":
                self.catch_up(document["links"][0]["href"])
                return
            assert fields["event"] == "update"
            assert fields["id"] == document["token"]
            self.store(document)

    def catch_up(self, href: str) -> None:
        """Reads what an event has no room for, until nothing more is there."""
        parts = urlsplit(urljoin(f"{self.url}/events", href))
        while True:
            query = urlencode({**dict(parse_qsl(parts.query)), "after": self.token})
            status, _, document = ask(urlunsplit(parts._replace(query=query)))
            assert status == 200
            self.store(document)
            if not document["more"]:
                return

    def store(self, update: Any) -> None:
        self.counts["withdrawn"] += len(update["withdrawn"])
        if update["reset"]:
            self.held.clear()
        for feature in update["withdrawn"]:
            self.held.pop(feature["id"], None)
        self.held |= {one["id"]: one["properties"]["waves"] for one in update["features"]}
        self.token = update["token"]


def test_who_folds_events_by_id_has_what_matches(
    client: galileo.Client, gateway: LocalGateway, fresh_name: Callable[[str], str]
) -> None:
    name, chance = fresh_name("buoys"), random.Random(5)
    client.create_dataset(galileo.Schema(name, FEATURES, key="station"))
    many = [f"m{number}" for number in range(700)]  # In one commit, too large for an event.

    def rows(stations: list[str], places: list[tuple[float, float]]) -> dict[str, Any]:
        return {
            "latitude": [latitude for latitude, _ in places],
            "longitude": [longitude for _, longitude in places],
            "time": ["2014-03-01T06:00:00Z"] * len(places),
            "station": stations,
            "waves": [float(chance.randrange(100)) for _ in places],
        }

    client.ingest(name, rows(many, [PLACES[0]] * 700) | {"waves": [60.0] * 700})
    body = {"dataset": name, "query": "waves >= 50", "interval": "1s", "expiration": "1h"}
    request = urllib.request.Request(
        f"{gateway.url}/ccqs", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        ccq, url = json.load(reply), reply.headers["Location"]
    followers = [Follower(url, seed=seed) for seed in range(2)]
    for follower in followers:
        follower.start()
    deadline = time.monotonic() + TIMEOUT_S
    for step in itertools.count():
        if step > 20 and all(follower.counts["update"] > 8 for follower in followers):
            break
        assert time.monotonic() < deadline, [follower.counts for follower in followers]
        stations = [f"s{chance.randrange(12)}" for _ in range(chance.randrange(1, 9))]
        places = [PLACES[int(station[1:]) % len(PLACES)] for station in stations]
        if chance.random() < 0.7:
            client.ingest(name, rows(stations, places))
        else:
            client.delete(name, rows(stations, places))
        if step == 12:
            client.delete(name, "station LIKE 'm%' AND station <> 'm7'")
        time.sleep(chance.choice((0, 0.1, 0.4)))
    items = f"{gateway.url}/collections/{name}/items?limit=1000&filter={quote('waves >= 50')}"
    _, _, page = ask(items)
    current = {one["id"]: one["properties"]["waves"] for one in page["features"]}
    assert 60.0 in current.values()
    while any(follower.held != current for follower in followers):
        assert time.monotonic() < deadline, [len(follower.held) for follower in followers]
        assert all(follower.is_alive() for follower in followers)
        time.sleep(0.1)
    for follower in followers:
        assert follower.counts["behind"] > 0
        assert follower.counts["withdrawn"] > 700
    assert ask(f"{url}/labels?{urlencode({'until': followers[0].token})}")[0] == 400
    feature = page["features"][0]["id"]
    assert ask(f"{gateway.url}/collections/{name}/items/{feature}")[0] == 200
    _, _, listed = ask(f"{gateway.url}/collections")
    assert name in {one["id"] for one in listed["collections"]} - {ccq["id"]}
    assert ccq["id"] in {one["id"] for one in listed["collections"]}
    _, _, layer = ask(f"{gateway.url}/collections/{ccq['id']}/items")
    assert {one["id"]: one["properties"]["waves"] for one in layer["features"]} == current
    client.cancel(ccq["id"])
    for follower in followers:
        follower.join(TIMEOUT_S)
        assert follower.is_stopping, "the event end ends it"
