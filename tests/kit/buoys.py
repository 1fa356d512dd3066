"""A keyed dataset of real nodes in this process, and a dict of what it has to have."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from galileo.cursor import EMPTY_CURSOR, Cursor, PageStart
from galileo.errors import DataExpired
from galileo.geo import geohash
from galileo.model.grouping import Grouping
from galileo.model.schema import Feature, Schema
from galileo.node.keyed_shard import KeyedShard
from galileo.node.peers import CommitAnswer
from galileo.node.select import CursorRange
from galileo.node.storage_node import StorageNode
from galileo.node.table_cleaner import TableCleaner
from galileo.query import parse
from galileo.query.questions import Aggregate, Describe, FindNearest, ListChildren, Summarise

BUOYS = Schema(
    "buoys",
    [
        Feature("station", type="text"),
        Feature("level", type="int"),
        Feature("remark", type="text", indexed=False),
    ],
    geohash_precision=2,
    time_bucket="6h",
    key="station",
)
START = dt.datetime(2012, 3, 1, tzinfo=dt.UTC)
STATIONS = (None, "a", "b")
PLACES = ((40.0, -100.0), (40.0, 100.0), (-40.0, -100.0), (-40.0, 100.0))

Key: TypeAlias = tuple[tuple[float, float], int, str | None]
Row: TypeAlias = dict[str, Any]

QUERIES: dict[str, Callable[[Row], bool]] = {
    "": lambda row: True,
    "level > 4": lambda row: row["level"] > 4,
    "station = 'a'": lambda row: row["station"] == "a",
    "station IS NULL": lambda row: row["station"] is None,
    "S_INTERSECTS(geometry, BBOX(0, -50, 101, 50))": lambda row: row["longitude"] > 0,
    "T_AFTER(datetime, TIMESTAMP('2012-03-01T06:00:00Z'))": lambda row: (
        row["time"] > START + dt.timedelta(hours=6)
    ),
}


class Buoys:
    """The dataset at the nodes, and a dict of what it has to have.

    Attributes:
        states: what it had at some cursors.
        partitions: those of the cluster.
    """

    partitions = frozenset(range(8))

    def __init__(self, cluster: Any, seed: int = 0) -> None:
        self.cluster, self.chance = cluster, random.Random(seed)
        self.expected: dict[Key, Row] = {}
        self.states: list[tuple[Cursor, list[Row]]] = []
        self.batches = 0

    @property
    def rows(self) -> list[Row]:
        return ordered([*self.expected.values()])

    @property
    def shards(self) -> list[KeyedShard]:
        return [node.catalog.shard("buoys") for node in self.cluster.nodes]

    def any_node(self) -> StorageNode:
        nodes: list[StorageNode] = self.cluster.nodes
        return self.chance.choice(nodes)

    async def write(self, count: int) -> None:
        """Batches of new, other and deleted rows, several of one key among them, at any node."""
        for _ in range(count):
            new = [self.new_row() for _ in range(self.chance.choice((1, 3, 8)))]
            deleted = [self.chance.random() < 0.2 for _ in new]
            await self.send([row for _, row in new], deleted)
            for (key, row), is_deleted in zip(new, deleted, strict=True):
                self.note(key, None if is_deleted else row)
            self.states.append((self.published(), self.rows))

    def note(self, key: Key, row: Row | None) -> None:
        """Notes what counts of a key now; None if it is deleted."""
        self.expected.pop(key, None)
        self.expected |= {} if row is None else {key: row}

    def new_row(self) -> tuple[Key, Row]:
        chance = self.chance
        place, bucket = chance.choice(PLACES), chance.randrange(2)
        station = chance.choice(STATIONS)
        minutes = 360 * bucket + chance.randrange(1, 359)
        row = {
            "latitude": place[0],
            "longitude": place[1],
            "time": START + dt.timedelta(minutes=minutes),
            "station": station,
            "level": chance.randrange(9),
            "remark": f"remark {chance.random()} " + 200 * "x",
        }
        return (place, bucket, station), row

    async def send(self, rows: list[Row], deleted: list[bool], **options: Any) -> CommitAnswer:
        self.batches += 1
        table = pa.Table.from_pylist(rows, BUOYS.observation_schema)
        table = table.append_column("deleted", pa.array(deleted, pa.bool_()))
        given: dict[str, Any] = {"producer": "p", "batch": self.batches} | options
        return await self.any_node().ingest.ingest("buoys", table, **given)

    def published(self) -> Cursor:
        return Cursor({p: s for one in self.shards for p, s in one.published().items()})

    def dropped(self) -> Cursor:
        return Cursor({p: s for one in self.shards for p, s in one.dropped().items() if s})

    async def clean(self, expired_us: int | None = None) -> None:
        """As nodes do in the background."""
        for node in self.cluster.nodes:
            shard = node.catalog.shard("buoys")
            for journal in shard.own.values():
                journal.seal()
            cleaner = TableCleaner(node.catalog)
            await asyncio.to_thread(
                cleaner.clean,
                shard,
                shard.published(),
                expired_us=expired_us,
                is_over=lambda: False,
            )

    async def restart(self) -> None:
        for name in "abc":
            await self.cluster.restart(name)

    # --- what is read ----------------------------------------------------------------------------

    async def check(self) -> None:
        for text in ("", self.chance.choice([*QUERIES])):
            await self.check_query(text, QUERIES[text])
        await self.check_states()

    async def check_query(self, text: str, matches: Callable[[Row], bool]) -> None:
        expected = [row for row in self.rows if matches(row)]
        node, query = self.any_node(), parse(text, BUOYS)
        assert await self.select(text) == expected
        assert await node.selection.count(query) == len(expected)
        assert ordered(await self.pages(text)) == expected
        assert (await self.labels(text)) == Counter(row["level"] for row in expected)
        await self.check_analytics(text, expected)

    async def select(
        self, text: str = "", until: Cursor | None = None, *, node: StorageNode | None = None
    ) -> list[Row]:
        """What a node finds, by default any one."""
        commits = None if until is None else CursorRange(self.partitions, EMPTY_CURSOR, until)
        node = node or self.any_node()
        tables = node.selection.select(parse(text, BUOYS), commits=commits)
        return ordered([row async for table in tables for row in table.to_pylist()])

    async def labels(self, text: str) -> Counter[int]:
        answer = await self.cluster.ask(text, at=self.any_node().name)
        return Counter(answer.table.column("level").to_pylist())

    async def pages(self, text: str, start: PageStart | None = None) -> list[Row]:
        """The rows of all pages, or of those that are left."""
        rows = list[Row]()
        while True:
            page = await self.any_node().paging.page(parse(text, BUOYS), limit=5, start=start)
            table = page.observations.select(BUOYS.observation_schema.names)
            rows, start = rows + table.to_pylist(), page.following
            if start is None:
                return [*rows]

    async def check_analytics(self, text: str, expected: list[Row]) -> None:
        node, query = self.any_node(), parse(text, BUOYS)

        async def ask(question: Any) -> Any:
            return await node.analytics.answer(query, question)

        grouped = await ask(Aggregate(Grouping.of(["cell:2"], {"level": "sum"})))
        found = [tuple(row.values()) for row in grouped.table.to_pylist()]
        cells = sorted({cell_of(row) for row in expected})
        levels = {c: [row["level"] for row in expected if cell_of(row) == c] for c in cells}
        assert sorted(found) == [(cell, len(levels[cell]), sum(levels[cell])) for cell in cells]
        summary = (await ask(Summarise("level"))).facts
        assert (summary["observations"], summary["paths"]) == (len(expected), len(expected))
        nearest = await ask(FindNearest(1.0, 2.0, 1_000, None))
        assert sorted(nearest.table.column("remark").to_pylist()) == sorted(
            row["remark"] for row in expected
        )
        if not text:
            assert (await ask(Describe())).facts["observations"] == len(expected)
            listed = (await ask(ListChildren(order=("station",)))).table
            counts = zip(*(listed.column(n).to_pylist() for n in ("value", "paths")), strict=True)
            assert dict(counts) == Counter(row["station"] for row in expected)

    async def check_states(self) -> None:
        """What there was at earlier cursors is there still, or said to be gone.

        Before its first commit a partition has nothing, whatever is dropped.
        """
        dropped = self.dropped()
        for cursor, expected in self.chance.sample(self.states, min(4, len(self.states))):
            if all(cursor[p] >= last for p, last in dropped.items() if cursor[p]):
                assert await self.select(until=cursor) == expected
            else:
                with pytest.raises(DataExpired):
                    await self.select(until=cursor)


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: str(row["remark"]))


def cell_of(row: Row) -> str:
    cells = geohash.encode(np.array([row["latitude"]]), np.array([row["longitude"]]), 2)
    text: str = geohash.to_text(cells, 2)[0].as_py()
    return text
