"""Continuous queries as layers over HTTP: what matches while observations change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from gateway_serving import gateway
from scanning_node import without_spark
from sea import BUOYS, DAY_S, HIGH, PLACES, Sea, sea_of

import galileo
from galileo.gateway.options import GatewayOptions

PLAIN = galileo.Schema("buoys", BUOYS.features, geohash_precision=2, time_bucket="6h")
SCHEMAS = (pytest.param(BUOYS, id="keyed"), pytest.param(PLAIN, id="plain"))


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


async def change(sea: Sea, schema: galileo.Schema) -> None:
    """Writes, corrects and deletes; without a key, also some of the observations of a label."""
    if schema.is_keyed:
        return await sea.write(3)
    chance = sea.chance
    rows = 12
    places = [chance.choice(PLACES) for _ in range(rows)]
    await sea.client.ingest(
        "buoys",
        {
            "latitude": [latitude for latitude, _ in places],
            "longitude": [longitude for _, longitude in places],
            "time": [f"2024-01-01T{chance.randrange(12):02d}:15:00Z" for _ in range(rows)],
            "station": [f"s{chance.randrange(3)}" for _ in range(rows)],
            "level": [chance.randrange(6) for _ in range(rows)],
            "remark": ["" for _ in range(rows)],
        },
    )
    hour = chance.randrange(12)
    await sea.client.delete("buoys", f"station = 's{hour % 3}' AND level > {3 + hour % 2}")
    await sea.client.delete(
        "buoys",
        f"time >= TIMESTAMP('2024-01-01T{hour:02d}:00:00Z') AND "
        f"time < TIMESTAMP('2024-01-01T{hour + 1:02d}:00:00Z')",
    )


async def get(url: str) -> Any:
    def send() -> Any:
        with urlopen(url, timeout=60) as reply:
            return json.loads(reply.read())

    return await asyncio.to_thread(send)


def next_of(page: Any) -> str | None:
    return next((link["href"] for link in page["links"] if link["rel"] == "next"), None)


async def read_layer(
    url: str | None, then: Callable[[], Any] | None = None
) -> list[tuple[str, str, int]]:
    """Id, station and level of all features; `then` is called after the first pages."""
    features, pages = list[tuple[str, str, int]](), 0
    while url is not None:
        page = await get(url)
        for feature in page["features"]:
            named = feature["properties"]
            features.append((feature["id"], named["station"], named["level"]))
        url = next_of(page)
        pages += 1
        if then is not None and pages < 4:
            await then()
    assert len({name for name, *_ in features}) == len(features)
    return sorted(features)


async def matching(sea: Sea) -> list[tuple[str, int]]:
    """Station and level of each label, by a query."""
    table = (await sea.client.query("buoys", HIGH)).table
    return sorted(zip(table["station"].to_pylist(), table["level"].to_pylist(), strict=True))


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
async def test_a_layer_has_what_matches(tmp_path: Path, schema: galileo.Schema, seed: int) -> None:
    async with sea_of(tmp_path, seed, schema=schema) as sea:
        ccq = await sea.client.submit("buoys", HIGH, interval="50ms", expiration="1h")
        async with gateway(GatewayOptions(nodes=(sea.address,), port=0)) as url:
            items = f"{url}/collections/{ccq.id}/items"
            for number in range(4):
                await change(sea, schema)
                limit = sea.chance.choice((3, 7, 11, 1000))
                expected = await matching(sea)
                then = partial(change, sea, schema) if number % 2 else None
                features = await read_layer(f"{items}?limit={limit}", then)
                assert sorted(pair for _, *pair in features) == [[*pair] for pair in expected]


async def test_pages_that_were_cleaned_are_gone_and_the_layer_is_read_again(
    tmp_path: Path,
) -> None:
    async with sea_of(tmp_path, 1) as sea:
        await sea.write(20)
        ccq = await sea.client.submit("buoys", HIGH, interval="50ms", expiration="90d", hold="1h")
        async with gateway(GatewayOptions(nodes=(sea.address,), port=0)) as url:
            items = f"{url}/collections/{ccq.id}/items?limit=2"
            following = next_of(await get(items))
            assert following is not None
            await sea.write(60)
            sea.late_s = DAY_S
            await sea.clean()
            with pytest.raises(HTTPError) as caught:
                await read_layer(following)
            with caught.value as gone:
                assert gone.code == 410
            features = await read_layer(items)
            assert sorted(tuple(pair) for _, *pair in features) == await matching(sea)
