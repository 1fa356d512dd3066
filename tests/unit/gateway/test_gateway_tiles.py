"""Tiles that several requests ask for while one is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
from starlette.requests import Request

import galileo
from galileo.client.analytics_results import Aggregates, DatasetVersion
from galileo.cursor import Cursor
from galileo.gateway.formats import Encoders
from galileo.gateway.tile_cache import ClientVersions
from galileo.gateway.tiles import TileRoutes
from galileo.model.versions import PartitionVersion

SCHEMA = galileo.Schema("air", [galileo.Feature("temperature")])
PATH = {"collectionId": "air", "tileMatrixSetId": "WebMercatorQuad"}
PATH |= dict.fromkeys(("tileMatrix", "tileRow", "tileCol"), "0")


class SlowClient:
    """A client whose groups are made when the test lets them, and its own callers."""

    def __init__(self) -> None:
        self.made = 0
        self.may_end = asyncio.Event()

    @contextlib.asynccontextmanager
    async def client(self, request: Request) -> AsyncIterator[Any]:
        yield self

    async def schema(self, name: str) -> galileo.Schema:
        return SCHEMA

    async def version(self, name: str) -> DatasetVersion:
        return DatasetVersion(SCHEMA, {0: PartitionVersion(1, 0, 10)}, 1, ())

    async def aggregate(self, *args: Any, **keywords: Any) -> Aggregates:
        self.made += 1
        await self.may_end.wait()
        table = pa.table({"geohash": ["u"], "observations": [3]})
        return Aggregates(table, "", Cursor({0: 10}), (), (0,), 1)


async def test_request_with_a_newer_version_does_not_share_an_older_tile() -> None:
    client, now = SlowClient(), 0.0
    encoders = Encoders()
    routes = TileRoutes(client, encoders)  # type: ignore[arg-type]
    routes._versions = ClientVersions(monotonic=lambda: now)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    scope |= {"path_params": PATH, "server": ("127.0.0.1", 80), "scheme": "http"}

    async def ask() -> asyncio.Task[Any]:
        asked = asyncio.create_task(routes.tile(Request(scope)))
        for _ in range(100):  # Until it waits for its tile.
            await asyncio.sleep(0)
        return asked

    first, same = await ask(), await ask()
    assert client.made == 1, "requests that know the same version share a tile"
    now = 2.0  # A caller who has just stored rows learns of a version that has them.
    newer = await ask()
    client.may_end.set()
    answers = await asyncio.gather(first, same, newer)
    assert {answer.status_code for answer in answers} == {200}
    assert client.made == 2
    encoders.close()
