"""Tiles are kept while what they were made of stays the same, and equal calls are made once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

import galileo
from galileo.client.analytics_results import DatasetVersion
from galileo.errors import Unavailable
from galileo.gateway.shared_calls import SharedCalls
from galileo.gateway.tile_cache import ClientVersions, EncodedTile, KnownVersion, TileCache, TileKey
from galileo.model.versions import PartitionVersion

SCHEMA = galileo.Schema("air", [galileo.Feature("temperature")])
VERSION = DatasetVersion(SCHEMA, {p: PartitionVersion(1, 0, 10 + p) for p in range(4)}, 7, ())
KEY = TileKey("air", ("WebMercatorQuad", 3, 1, 2), "")
OF = (1, 2)


def known(version: DatasetVersion = VERSION) -> KnownVersion:
    return KnownVersion(version, 0.0)


def changed(partition: int, **members: int) -> DatasetVersion:
    partitions = dict(VERSION.partitions)
    partitions[partition] = replace(partitions[partition], **members)
    return replace(VERSION, partitions=partitions)


def made(version: DatasetVersion = VERSION, frontier: dict[int, int] | None = None) -> EncodedTile:
    state = known(version).state_of(OF, ranges=version.ranges, frontier=frontier)
    return EncodedTile(b"tile", state, OF)


def test_tile_is_valid_while_its_partitions_are_the_same() -> None:
    cache = TileCache()
    cache.put(KEY, made())
    assert cache.get(KEY, known()) is not None
    assert cache.get(replace(KEY, query="a=1"), known()) is None
    for same in (changed(0, last=99), changed(3, dropped=5), replace(VERSION, missing=(9,))):
        assert cache.get(KEY, known(same)) is not None
    without = {p: v for p, v in VERSION.partitions.items() if p != 2}
    for other in (
        changed(1, last=12),
        changed(2, dropped=1),
        changed(1, epoch=2),
        replace(VERSION, ranges=8),
        replace(VERSION, partitions=without, missing=(2,)),
        replace(VERSION, schema=replace_name("air2")),
    ):
        assert cache.get(KEY, known(other)) is None, other


def replace_name(name: str) -> galileo.Schema:
    return galileo.Schema(name, SCHEMA.features)


def test_tile_that_is_newer_than_the_known_version_is_valid_for_a_later_one() -> None:
    cache = TileCache()
    cache.put(KEY, made(frontier={0: 99, 1: 11, 2: 13}))
    assert cache.get(KEY, known()) is None
    assert cache.get(KEY, known(changed(2, last=13))) is not None


def test_tile_of_a_partition_that_is_not_known_is_not_kept() -> None:
    cache = TileCache()
    cache.put(KEY, made())
    assert known().state_of((1, 9), ranges=7) is None
    cache.put(KEY, EncodedTile(b"part", None, (1, 9), missing=(9,)))
    assert (len(cache), cache.bytes) == (0, 0)


def test_cache_holds_a_bounded_number_of_bytes() -> None:
    cache, version = TileCache(bytes_max=20_000), known()
    for number in range(100):
        cache.put(replace(KEY, query=str(number)), replace(made(), body=bytes(number * 10)))
        cache.get(replace(KEY, query="60"), version)
        assert cache.bytes <= 20_000
    assert cache.get(replace(KEY, query="99"), version) is not None
    assert cache.get(replace(KEY, query="60"), version) is not None, "it was asked for last"
    assert cache.get(replace(KEY, query="61"), version) is None
    cache.put(KEY, replace(made(), body=bytes(30_000)))
    assert (len(cache), cache.bytes) == (0, 0)


async def settled() -> None:
    """Lets other tasks of the loop run until they wait for something."""
    for _ in range(10):
        await asyncio.sleep(0)


@dataclass(eq=False)
class Client:
    """Answers when it is open."""

    version_now: DatasetVersion = VERSION
    calls: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    error: Unavailable | None = None

    async def version(self, dataset: str) -> DatasetVersion:
        self.calls += 1
        await self.open.wait()
        if self.error:
            raise self.error
        return self.version_now


async def test_version_is_asked_for_once_in_its_age_by_each_client() -> None:
    now, client, other = 0.0, Client(), Client()
    versions = ClientVersions(monotonic=lambda: now, age_max_s=1.0)
    client.open.set()
    other.open.set()
    for at, calls in ((0.0, 1), (0.9, 1), (1.0, 2), (1.9, 2)):
        now = at
        assert (await versions.known(client, "air")).version == VERSION
        assert client.calls == calls
    assert other.calls == 0
    await versions.known(other, "air")
    await versions.known(client, "wind")
    assert (client.calls, other.calls) == (3, 1)


async def test_version_is_as_old_as_its_question() -> None:
    now, client = 0.0, Client()
    versions = ClientVersions(monotonic=lambda: now, age_max_s=1.0)
    asking = [asyncio.create_task(versions.known(client, "air")) for _ in range(5)]
    await settled()
    now = 5.0
    client.open.set()
    assert len({id(await task) for task in asking}) == client.calls == 1
    await versions.known(client, "air")
    assert client.calls == 2


async def test_version_that_cannot_be_had_is_an_error_each_time() -> None:
    now, client = 0.0, Client()
    client.open.set()
    versions = ClientVersions(monotonic=lambda: now, age_max_s=1.0)
    await versions.known(client, "air")
    now, client.error = 2.0, Unavailable("no node answers")
    for calls in (2, 3):
        with pytest.raises(Unavailable):
            await versions.known(client, "air")
        assert client.calls == calls


async def test_equal_calls_are_made_once_and_cancelled_with_the_last_caller() -> None:
    shared, begun, ended = SharedCalls[str, int](), list[str](), list[str]()
    opened = asyncio.Event()

    async def work(name: str) -> int:
        begun.append(name)
        try:
            await opened.wait()
            return len(begun)
        except asyncio.CancelledError:
            ended.append(name)
            raise

    def call(key: str) -> asyncio.Task[int]:
        return asyncio.create_task(shared.call(key, lambda: work(key)))

    first, second, other = call("a"), call("a"), call("b")
    await settled()
    assert begun == ["a", "b"]
    first.cancel(), other.cancel()
    await asyncio.wait({first, other})
    again = call("b")
    await settled()
    assert (ended, begun) == (["b"], ["a", "b", "b"]), "one that is cancelled gets no callers"
    opened.set()
    assert (await second, await again) == (3, 3)
    assert len(shared) == 0


async def test_error_of_a_shared_call_is_that_of_all_its_callers() -> None:
    shared = SharedCalls[str, int]()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise Unavailable("no node answers")

    results = await asyncio.gather(
        *(shared.call("a", fail) for _ in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [Unavailable] * 3
    assert len(shared) == 0
