"""Continuous queries over keyed datasets: what readers have to forget."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import galileo
from galileo.client.results import Labels

PLACES = ((40.0, -100.0), (52.0, 13.0), (-33.0, 151.0))
STATIONS = "abcdefgh"
WARM = "temperature > 50"

Key = tuple[int, object, str]


@pytest.fixture
def name(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """An empty keyed dataset."""
    name = fresh_name("buoys")
    features = [galileo.Feature("station", type="text"), galileo.Feature("temperature")]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=3, key="station"))
    return name


@pytest.fixture
def warm(client: galileo.Client, name: str) -> Iterator[galileo.Ccq]:
    ccq = client.submit(name, WARM, interval="1s", expiration="1h")
    yield ccq
    client.cancel(ccq)


def reports(chance: random.Random, count: int) -> dict[str, list[Any]]:
    places = [chance.choice(PLACES) for _ in range(count)]
    return {
        "latitude": [latitude for latitude, _ in places],
        "longitude": [longitude for _, longitude in places],
        "time": [f"2024-01-01T{chance.randrange(4):02d}:15:00Z" for _ in places],
        "station": [chance.choice(STATIONS) for _ in places],
        "temperature": [float(chance.randrange(100)) for _ in places],
    }


def report(station: str, temperature: float) -> dict[str, list[Any]]:
    return {
        "latitude": [40.0],
        "longitude": [-100.0],
        "time": ["2024-01-01T00:15:00Z"],
        "station": [station],
        "temperature": [temperature],
    }


def by_key(labels: Labels) -> dict[Key, float]:
    rows = labels.table.to_pylist()
    return {(row["cell"], row["bucket"], row["station"]): row["temperature"] for row in rows}


def fold(held: dict[Key, float], update: galileo.Update) -> None:
    """As the documentation tells readers."""
    assert update.withdrawn is not None
    if update.reset:
        held.clear()
    for key in by_key(update.withdrawn):
        held.pop(key, None)
    held.update(by_key(update.labels))


def current(client: galileo.Client, name: str, at: galileo.cursor.Cursor) -> list[tuple[str, Any]]:
    table = client.select(name, WARM, at=at)
    pairs = zip(*(table[column].to_pylist() for column in ("station", "temperature")), strict=True)
    return sorted(pairs)


def followed(held: dict[Key, float]) -> list[tuple[str, Any]]:
    return sorted((station, temperature) for (_, _, station), temperature in held.items())


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_who_folds_updates_by_key_has_what_matches_at_each_token(
    client: galileo.Client, name: str, seed: int
) -> None:
    chance = random.Random(seed)
    client.ingest(name, reports(chance, 60))
    ccq = client.submit(name, WARM, interval="1s", expiration="1h")
    held, token, withdrawn = by_key(ccq.initial), ccq.token, 0
    for number in range(8):
        for _ in range(chance.randrange(1, 4)):
            kind = chance.random()
            if kind < 0.6:
                client.ingest(name, reports(chance, chance.randrange(1, 10)))
            elif kind < 0.9:
                client.delete(name, reports(chance, chance.randrange(1, 6)))
            else:
                client.delete(name, f"temperature > {chance.randrange(80, 100)}")
        until = client.version(name).cursor
        while True:
            update = client.fetch(
                ccq, token=token, wait="1500ms" if chance.random() < 0.5 else None
            )
            assert update.withdrawn is not None
            fold(held, update)
            token, withdrawn = update.token, withdrawn + len(update.withdrawn)
            if not update.more and update.labels.frontier:
                assert followed(held) == current(client, name, update.labels.frontier)
            if number % 3 or update.labels.frontier.covers(until):
                break
            time.sleep(0.1)
    assert withdrawn > 2
    client.cancel(ccq)


@pytest.mark.slow
def test_a_fetch_that_waits_ends_when_a_label_is_withdrawn(
    client: galileo.Client, name: str, warm: galileo.Ccq
) -> None:
    client.ingest(name, report("a", 60.0))
    update = client.fetch(warm, token=warm.token, wait="30s")
    assert by_key(update.labels)
    for change in (
        lambda: client.ingest(name, report("b", 10.0)),  # Nothing that concerns the query.
        lambda: client.ingest(name, report("a", 40.0)),
    ):
        timer = threading.Timer(1.0, change)
        timer.start()
    update = client.fetch(warm, token=update.token, wait="60s")
    assert (len(update.labels), len(update.withdrawn or ())) == (0, 1)
    assert update.withdrawn is not None
    assert client.read(update.withdrawn)["temperature"].to_pylist() == [60.0]


def test_a_correction_that_still_matches_comes_as_a_label_alone(
    client: galileo.Client, name: str, warm: galileo.Ccq
) -> None:
    client.ingest(name, report("a", 60.0))
    update = client.fetch(warm, token=warm.token, wait="30s")
    client.ingest(name, report("a", 70.0))
    update = client.fetch(warm, token=update.token, wait="30s")
    assert [*by_key(update.labels).values()] == [70.0]
    assert not len(update.withdrawn or ())


def test_the_same_token_gives_the_same_changes_again(
    client: galileo.Client, name: str, warm: galileo.Ccq
) -> None:
    """The cache has dropped what the later token acknowledged."""
    client.ingest(name, report("a", 60.0))
    first = client.fetch(warm, token=warm.token, wait="30s")
    client.delete(name, report("a", 0.0))
    second = client.fetch(warm, token=first.token, wait="30s")
    client.fetch(warm, token=second.token)
    again = client.fetch(warm, token=first.token)
    assert second.withdrawn is not None
    assert again.withdrawn is not None
    assert by_key(again.withdrawn) == by_key(second.withdrawn) != {}
    whole = client.fetch(warm, token=warm.token)
    assert not by_key(whole.labels)


def test_a_spool_has_what_matches(
    client: galileo.Client, name: str, warm: galileo.Ccq, tmp_path: Path
) -> None:
    with galileo.Spool(tmp_path / "warm.spool") as spool:
        for change in ({"a": 60.0, "b": 70.0}, {"a": 40.0}, {"b": 80.0, "c": 90.0}):
            for station, temperature in change.items():
                client.ingest(name, report(station, temperature))
            until = client.version(name).cursor
            while True:
                update = client.fetch(warm, token=spool.token, wait="10s")
                spool.store(warm.id, update)
                if update.labels.frontier.covers(until):
                    break
        held = {row["station"]: row["temperature"] for row in spool.labels().table.to_pylist()}
        assert held == {"b": 80.0, "c": 90.0}
        assert sum(len(update.withdrawn) for update in spool.updates()) == 1
