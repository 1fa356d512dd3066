"""Clients of a node whose logs were set back: each reader gets an error once, and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from set_back import begin_history

import galileo
from galileo.clock import SystemClock
from galileo.config import Config, from_dict
from galileo.errors import HistoryChanged
from galileo.server.node_process import NodeProcess

SCHEMA = galileo.Schema("air", [galileo.Feature("rain", "mm")], geohash_precision=2)
TABLE = galileo.Table("beds", {"id": "int", "beds": "int"}, key="id")
CHANNEL = galileo.Channel("wet", "air", "rain > :least", period="100ms")
ROWS = 8
HISTORY = 7


class Node:
    """A node that is stopped, copied, set back and started again.

    Attributes:
        client: of the node while it serves.
    """

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        group = {"name": "g", "nodes": [{"name": "n", "address": address}]}
        self.config: Config = from_dict(
            {
                "node": {"name": "n", "directory": str(directory / "node")},
                "cluster": {"groups": [group], "partitions_per_group": 3},
            }
        )
        self.journals, self.copy = directory / "node" / "journals", directory / "copy"
        self.client: galileo.AsyncClient

    @contextlib.asynccontextmanager
    async def serving(self, *, history: int = 0) -> AsyncIterator[galileo.AsyncClient]:
        process, stop = NodeProcess(self.config, clock=SystemClock()), asyncio.Event()
        running = asyncio.create_task(process.run(stop))
        try:
            async with galileo.AsyncClient(self.config.listen, timeout="60s") as client:
                await client.datasets()
                if history:
                    begin_history(process.node, history)
                yield client
        finally:
            stop.set()
            await running

    def save(self) -> None:
        shutil.copytree(self.journals, self.copy)

    def restore(self, *names: str) -> None:
        """Sets logs back: those of some datasets, or all but those of the system partition."""
        every = [one.name for one in self.copy.iterdir() if one.is_dir()]
        for name in names or [name for name in every if not name.startswith("galileo.")]:
            shutil.rmtree(self.journals / name)
            shutil.copytree(self.copy / name, self.journals / name)


async def observe(client: galileo.AsyncClient, number: int) -> None:
    columns = {
        "latitude": np.linspace(-80, 80, ROWS),
        "longitude": np.linspace(-170, 170, ROWS),
        "time": pd.date_range("2024-06-01", periods=ROWS, freq="h", tz="UTC"),
        "rain": np.full(ROWS, float(number)),
    }
    await client.ingest("air", pd.DataFrame(columns))


async def upsert(client: galileo.AsyncClient, number: int) -> None:
    await client.upsert("beds", {"id": list(range(ROWS)), "beds": [number] * ROWS})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_readers_of_tables_go_on_with_the_cursor_of_the_error(node: Node) -> None:
    async with node.serving() as client:
        await client.create_table(TABLE)
        await upsert(client, 0)
    node.save()
    async with node.serving() as client:
        await upsert(client, 1)
        read = (await client.table("beds")).cursor
    node.restore()
    async with node.serving(history=HISTORY) as client:
        with pytest.raises(HistoryChanged) as caught:
            await client.table("beds", at=read)
        earlier = caught.value.details["cursor"]
        assert (await client.table("beds", at=earlier)).rows["beds"].to_pylist() == [0] * ROWS
        await upsert(client, 2)
        with pytest.raises(HistoryChanged) as caught:
            await client.changes("beds", read)
        assert caught.value.details["dataset"] == "beds"
        assert "go on with error.details['cursor']" in str(caught.value)
        after = caught.value.details["cursor"]
        changes = await client.changes("beds", after)
        assert changes.rows["beds"].to_pylist() == [2] * ROWS
        assert (await client.changes("beds", changes.cursor)).rows.num_rows == 0


async def test_pages_go_on_with_the_token_of_the_error(node: Node) -> None:
    async with node.serving() as client:
        await client.create_dataset(SCHEMA)
        await observe(client, 0)
    node.save()
    async with node.serving() as client:
        await observe(client, 1)
        page = await client.select_page("air", limit=3)
        lost = (await client.select_page("air", "rain = 1", limit=1)).table["id"].to_pylist()
    node.restore()
    async with node.serving(history=HISTORY) as client:
        await observe(client, 2)
        with pytest.raises(HistoryChanged) as caught:
            await client.select_page("air", limit=100, after=page.next)
        rest = await client.select_page("air", limit=100, after=caught.value.details["token"])
        found = [*page.table["id"].to_pylist(), *rest.table["id"].to_pylist()]
        assert len(set(found)) == len(found)
        assert rest.table["rain"].to_pylist() == [0.0] * len(rest)
        assert page.table["rain"].to_pylist().count(0.0) + len(rest) == ROWS
        with pytest.raises(HistoryChanged):
            await client.read_ids("air", lost)


async def take(batches: Any, rain: float, *names: str) -> tuple[list[HistoryChanged], Any]:
    """The errors until subscriptions have got observations of so much rain, and the last batch."""
    errors, missing = list[HistoryChanged](), set(names)
    async with asyncio.timeout(20.0):
        while True:
            try:
                batch = await anext(batches)
            except HistoryChanged as error:
                errors.append(error)
                continue
            rows = batch.to_arrow().to_pylist() if len(batch) else []
            missing -= {row["subscription"] for row in rows if row["rain"] == rain}
            if not missing:
                return errors, batch


async def test_followers_of_a_channel_go_on_by_themselves(node: Node) -> None:
    async with node.serving() as client:
        await client.create_dataset(SCHEMA)
        await client.create_channel(CHANNEL)
        await client.subscribe("wet", {"id": ["a"], "least": [-1.0]}, broker="me")
        await observe(client, 0)
        _, batch = await take(client.follow("wet", "me"), 0.0, "a")
    node.save()
    async with node.serving() as client:
        await observe(client, 1)
        errors, batch = await take(client.follow("wet", "me", token=batch.token), 1.0, "a")
        assert errors == []
    node.restore()
    async with node.serving(history=HISTORY) as client:
        await observe(client, 2)
        followed = client.follow("wet", "me", token=batch.token)
        errors, later = await take(followed, 2.0, "a")
        assert len(errors) == 1
        assert errors[0].details["token"] not in (batch.token, "")
        await observe(client, 3)
        assert (await take(followed, 3.0, "a"))[0] == []
        with pytest.raises(HistoryChanged):
            await client.fetch_notifications("wet", "me", token=batch.token)
        assert await client.fetch_notifications("wet", "me", token=later.token)


async def labels_until(updates: Any, count: int) -> tuple[list[HistoryChanged], list[Any]]:
    """The errors until so many labels came, and the updates with these."""
    errors, found = list[HistoryChanged](), list[Any]()
    async with asyncio.timeout(120.0):
        while sum(len(update.labels) for update in found) < count:
            try:
                found.append(await anext(updates))
            except HistoryChanged as error:
                errors.append(error)
    return errors, found


@pytest.mark.slow
@pytest.mark.parametrize("has_spool", [False, True])
async def test_watchers_of_a_continuous_query_go_on_by_themselves(
    node: Node, tmp_path: Path, has_spool: bool
) -> None:
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(galileo.Spool(tmp_path / "spool")) if has_spool else None
        async with node.serving() as client:
            await client.create_dataset(SCHEMA)
            await observe(client, 0)
            ccq = await client.submit("air", "rain >= 0", interval="100ms")
            old = ccq.token
        node.save()
        async with node.serving() as client:
            await observe(client, 1)
            token = "" if has_spool else old
            watched = client.watch(ccq, token=token, spool=spool)
            _, updates = await labels_until(watched, 2 * ROWS if has_spool else ROWS)
            token = updates[-1].token
            assert (await client.fetch(ccq, token=token)).labels.table.num_rows == 0
        node.restore()
        async with node.serving(history=HISTORY) as client:
            with pytest.raises(HistoryChanged):  # Also where nothing was stored since.
                await client.fetch(ccq, token=token)
            await observe(client, 2)
            watched = client.watch(ccq, token="" if has_spool else token, spool=spool)
            errors, updates = await labels_until(watched, ROWS)
            assert len(errors) == 1
            tables = [await client.read(update.labels) for update in updates]
            assert [t["rain"].to_pylist() for t in tables if t.num_rows] == [[2.0] * ROWS]
            if spool is not None:
                assert spool.token == updates[-1].token
            with pytest.raises(HistoryChanged) as caught:
                await client.fetch(ccq, token=token)
            update = await client.fetch(ccq, token=caught.value.details["token"])
            assert len(update.labels) == ROWS
            update = await client.fetch(ccq, token=old, wait="10s")
            assert len(update.labels) == ROWS, "what is kept needs no error"


LEVELS = galileo.Table("levels", {"id": "int", "least": "float"}, key="id")
CHANNELS = {
    "observations": galileo.Channel("wet", "air", "rain > :least", period="100ms"),
    "either": galileo.Channel("wet", "air", "rain > :least", period="100ms", new="either"),
    "none": galileo.Channel(
        "wet", "air", "rain > :least", period="100ms", new="none", age_max="3650d"
    ),
    "lookup": galileo.Channel(
        *("wet", "air", "rain > levels.least"),
        period="100ms",
        new="either",
        leave=True,
        lookup={"levels": ":level"},
    ),
}


SET_BACK = [
    *(f"{kind}/{log}" for kind in CHANNELS for log in ("air", "wet.subscriptions")),
    "lookup/levels",
]


@pytest.mark.parametrize("case", SET_BACK)
@pytest.mark.slow
async def test_channels_go_on_where_a_log_that_they_read_is_set_back(node: Node, case: str) -> None:
    """The log of the channel itself is as it was, and so are the positions of its brokers."""
    kind, log = case.split("/")
    channel, is_lookup = CHANNELS[kind], kind == "lookup"

    async def subscribe(client: galileo.AsyncClient, name: str) -> None:
        value = {"level": [1]} if is_lookup else {"least": [0.5]}
        await client.subscribe("wet", {"id": [name], **value}, broker="me")

    async with node.serving() as client:
        await client.create_dataset(SCHEMA)
        if is_lookup:
            await client.create_table(LEVELS)
            await client.upsert("levels", {"id": [1], "least": [0.5]})
        await client.create_channel(channel)
        await subscribe(client, "a")
        await observe(client, 1)
        _, batch = await take(client.follow("wet", "me"), 1.0, "a")
    node.save()
    async with node.serving() as client:
        await subscribe(client, "b")
        if is_lookup:
            await client.upsert("levels", {"id": [1], "least": [0.75]})
        await observe(client, 2)
        errors, batch = await take(client.follow("wet", "me", token=batch.token), 2.0, "a", "b")
        assert errors == []
    node.restore(log)
    async with node.serving(history=HISTORY) as client:
        followed = client.follow("wet", "me", token=batch.token)
        if is_lookup:
            await client.upsert("levels", {"id": [1], "least": [0.25]})
        await subscribe(client, "c")
        for rain in (3, 4):
            await observe(client, rain)
            names = ("a", "c") if log == "wet.subscriptions" else ("a", "b", "c")
            assert (await take(followed, float(rain), *names))[0] == []
        assert all(not one.failure for one in await client.describe_channel("wet"))
