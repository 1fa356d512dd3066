"""How long a client takes a schema from its cache."""

from __future__ import annotations

import time

import galileo
from galileo.client.async_client import AsyncClient
from galileo.client.definitions import WIDER_KEPT_S, CachedSchema

NARROW = galileo.Schema("rain", [galileo.Feature("amount")])
WIDE = NARROW.with_features([galileo.Feature("gust")])
OTHER = galileo.Schema("rain", [galileo.Feature("depth")])


async def test_cached_schema_is_as_old_as_its_last_answer_and_keeps_wider_ones() -> None:
    client = AsyncClient("127.0.0.1:1")
    assert client._cache_schema(NARROW) == NARROW
    read_at = client._schemas["rain"].read_at
    assert client._cache_schema(NARROW) == NARROW
    assert client._schemas["rain"].read_at > read_at
    assert client._cache_schema(WIDE) == WIDE
    assert client._cache_schema(NARROW) == WIDE, "this answer comes from a node that is behind"
    assert client._cache_schema(OTHER) == OTHER
    client._schemas["rain"] = CachedSchema(WIDE, time.monotonic() - WIDER_KEPT_S)
    assert client._cache_schema(NARROW) == NARROW
    await client.close()
