"""A keyed dataset in several partitions of a cluster, changed by programs that speak HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

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
