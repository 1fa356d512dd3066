"""Answers about datasets that get more features are compared with a list of rows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from cycle_requests import cycle_request
from expected_errors import raises
from node_cluster import make_observations
from parameters import keep_quick

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.errors import (
    DatasetExists,
    InvalidSchema,
    Unavailable,
    UnknownDataset,
    UnknownProperty,
)
from galileo.labels import LabelSet
from galileo.model.rows import RowOptions
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.node import system_tables
from galileo.node.cluster_scan import ScanEnd
from galileo.node.peers import PARTS_SCHEMA, ReadTask
from galileo.node.storage_node import StorageNode
from galileo.query import parse
from galileo.query.questions import Summarise
from galileo.samplers import numbered_parts, observed_schema

GUST = Feature("gust", "m/s")
MORE = [
    GUST,
    Feature("count", type="int"),
    Feature("remark", type="text", indexed=False),
    Feature("site", type="text"),
    Feature("wet", type="bool"),
]
VALUES: dict[str, list[Any]] = {
    "temperature": [261.5, 275.0, 299.0, None],
    "station": ["KDEN", "EDDB", None],
    "gust": [-1.0, 4.5, 12.0, None],
    "count": [3, -(2**60), None],
    "remark": ["calm", None],
    "site": ["a", "b", None],
    "wet": [True, False, None],
}
Row = dict[str, Any]


def exceeds(name: str, bound: float) -> Callable[[Row], bool]:
    return lambda row: row.get(name) is not None and row[name] > bound


QUERIES: dict[str, tuple[set[str], Callable[[Row], bool]]] = {
    "": (set(), lambda row: True),
    "temperature > 270": (set(), exceeds("temperature", 270)),
    "gust > 0": ({"gust"}, exceeds("gust", 0)),
    "NOT (gust > 0)": (
        {"gust"},
        lambda row: row.get("gust") is not None and row["gust"] <= 0,
    ),
    "gust IS NULL AND temperature > 270": (
        {"gust"},
        lambda row: row.get("gust") is None and exceeds("temperature", 270)(row),
    ),
    "count < 0 OR gust > 5": (
        {"gust", "count"},
        lambda row: exceeds("gust", 5)(row) or (row.get("count") or 0) < 0,
    ),
    "site = 'a' AND wet = TRUE": (
        {"site", "wet"},
        lambda row: row.get("site") == "a" and row.get("wet") is True,
    ),
    "site IS NULL": ({"site"}, lambda row: row.get("site") is None),
}


def rows_of(schema: Schema, chance: random.Random) -> list[Row]:
    rows = []
    for _ in range(chance.randint(1, 12)):
        row: Row = {
            "latitude": round(chance.uniform(-90, 90), 3),
            "longitude": round(chance.uniform(-180, 179), 3),
            "time": 1_330_560_000_000_000 + chance.randrange(48) * 3_600_000_000,
        }
        rows.append(row | {f.name: chance.choice(VALUES[f.name]) for f in schema.features})
    return rows


def table_of(rows: list[Row], schema: Schema) -> pa.Table:
    columns = [pa.array([row.get(f.name) for row in rows]) for f in schema.observation_schema]
    typed = [
        column.cast(pa.int64()).cast(TIME_TYPE) if f.name == "time" else column.cast(f.type)
        for column, f in zip(columns, schema.observation_schema, strict=True)
    ]
    return pa.table(typed, schema=schema.observation_schema)


def comparable(rows: list[Row], names: list[str]) -> list[str]:
    """Rows as sorted texts, in which an absent feature is None."""
    return sorted(repr([row.get(name) for name in names]) for row in rows)


@dataclass
class Continuous:
    """A continuous query: its labels since its submission, cycle by cycle."""

    text: str
    schema: Schema
    after: dict[int, int]
    since: int
    places: set[tuple[int, int, int]] = field(default_factory=set)
    rows: int = 0


@dataclass
class History:
    """A cluster, and the list of all rows with which its answers are compared."""

    cluster: Any
    chance: random.Random
    schemas: list[Schema]
    rows: list[Row] = field(default_factory=list)
    sent: list[tuple[Schema, list[Row]]] = field(default_factory=list)
    running: list[Continuous] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)

    @property
    def node(self) -> StorageNode:
        """Some node."""
        node: StorageNode = self.chance.choice(self.cluster.nodes)
        return node

    async def step(self) -> None:
        steps = [self.ingest] * 4 + [self.repeat, self.add, self.restart, self.submit]
        await self.chance.choice([*steps, self.select, self.labels, self.summarise, self.cycle])()

    async def ingest(self) -> None:
        schema = self.chance.choice(self.schemas)
        rows = rows_of(schema, self.chance)
        await self._send(len(self.sent), schema, rows)
        self.sent.append((schema, rows))
        self.rows += rows

    async def repeat(self) -> None:
        """A producer sends a batch again, which may have learned of features meanwhile."""
        if self.sent:
            number = self.chance.randrange(len(self.sent))
            schema, rows = self.sent[number]
            wider = self.chance.choice([one for one in self.schemas if one.extends(schema)])
            answer = await self._send(number, wider, rows)
            assert answer.duplicate_rows == answer.rows == len(rows)

    async def _send(self, number: int, schema: Schema, rows: list[Row]) -> Any:
        node, table = self.node, table_of(rows, schema)
        await node.schema_with(node.catalog.schema("nam"), table.column_names)
        return await node.ingest.ingest("nam", table, producer="radar", batch=number)

    async def add(self) -> None:
        """Adds a feature; a node that is not reached learns of it when it has to."""
        at = self.schemas[-1].added
        if at == len(MORE):
            return
        away = self.chance.choice(["", *self.cluster.followers])
        self.cluster.network.away = {away} - {""}
        asked = self.chance.choice([n for n in self.cluster.nodes if n.name != away])
        schema = await asked.add_features("nam", MORE[at : at + 1])
        self.cluster.network.away = set()
        assert schema == self.schemas[-1].with_features(MORE[at : at + 1])
        self.schemas.append(schema)

    async def restart(self) -> None:
        name = self.node.name
        before = self.cluster[name].catalog.schema("nam")
        node = await self.cluster.restart(name)
        assert node.catalog.schema("nam") == before

    def _query(self, schema: Schema | None = None) -> tuple[str, Callable[[Row], bool]]:
        """A query whose features the dataset has, or has in an earlier schema."""
        known = {feature.name for feature in (schema or self.schemas[-1]).features}
        usable = [text for text, (needed, _) in QUERIES.items() if needed <= known]
        text = self.chance.choice(usable)
        return text, QUERIES[text][1]

    async def select(self) -> None:
        (text, matches), node = self._query(), self.node
        query = await node.bind(text, node.catalog.schema("nam"))
        tables = [table async for table in node.selection.select(query, RowOptions())]
        found = [row for table in tables for row in table.to_pylist()]
        names = [f.name for f in query.schema.features]
        assert comparable(found, names) == comparable(list(filter(matches, self.rows)), names)
        assert await node.selection.count(query) == len(found)

    async def labels(self) -> None:
        """Labels, and the observations behind them, of a query of any schema that there was."""
        schema, node = self.chance.choice(self.schemas), self.node
        text, matches = self._query(schema)
        query = parse(text, schema)
        await node.schema("nam", added=schema.added)
        tables = [schema.label_schema.empty_table()]
        async for part in node.scans.run(query):
            if isinstance(part, ScanEnd):
                assert not part.missing
            else:
                tables.append(part)
        labels, expected = pa.concat_tables(tables), list(filter(matches, self.rows))
        assert sum(labels.column("rows").to_pylist()) == len(expected)
        parts, columns = labels.select(PARTS_SCHEMA.names), schema.observation_schema
        if self.chance.random() < 0.5:  # As a sampler reads them.
            parts, columns = numbered_parts(LabelSet(schema, labels)), observed_schema(schema)
        task = ReadTask("nam", parts, query.to_json(), added=schema.added)
        read = [columns.empty_table()]
        read += [table async for table in node.reading.read(task)]
        names = [f.name for f in schema.features]
        found = pa.concat_tables(read).to_pylist()
        assert comparable(found, names) == comparable(expected, names)

    async def summarise(self) -> None:
        text, matches = self._query()
        feature = self.chance.choice(["temperature", *[f.name for f in MORE[:2]]])
        if self.schemas[-1].feature(feature) is None:
            return
        for node in self.cluster.nodes:  # As their servicers do.
            await node.schema("nam", added=self.schemas[-1].added)
        query = parse(text, self.schemas[-1])
        summary = (await self.node.analytics.answer(query, Summarise(feature))).facts
        values = [row.get(feature) for row in self.rows if matches(row)]
        present = [value for value in values if value is not None]
        assert (summary["observations"], summary["missing"]) == (len(values), values.count(None))
        assert summary["minimum"] == (min(present) if present else None)
        assert summary["maximum"] == (max(present) if present else None)

    # --- continuous queries ----------------------------------------------------------------------

    async def submit(self) -> None:
        """A continuous query that begins here, in the schema of now or as another client has it."""
        schema = self.chance.choice(self.schemas)
        known = {feature.name for feature in schema.features}
        usable = [text for text, (needed, _) in QUERIES.items() if needed <= known]
        text = parse(self.chance.choice(usable), schema).to_json()
        after = {p: s for node in self.cluster.nodes for p, s in own(node).items()}
        self.running.append(Continuous(text, schema, after, since=len(self.rows)))

    async def cycle(self) -> None:
        for continuous in self.running:
            for node in self.cluster.nodes:
                await self._match(node, continuous)

    async def _match(self, node: StorageNode, one: Continuous) -> None:
        partitions = sorted(placement.partitions_by_node(self.cluster.topology)[node.name])
        after = [[one.after.get(p, 0) for p in partitions]]
        task = cycle_request(
            one.schema, [one.text], after=after, partitions=partitions, dataset="nam"
        )
        await node.schema("nam", added=one.schema.added)
        answer = await node.matching.match(task)
        if len(answer.unknown):
            await node.matching.register_queries("nam", [one.text])
            answer = await node.matching.match(task)
        assert not answer.failures
        for part in answer.parts:
            assert part.matches.rows.schema == one.schema.label_schema
            for label in part.matches.rows.to_pylist():
                place = (label["partition"], label["sequence"], label["row"])
                assert place not in one.places, "a label came twice"
                one.places.add(place)
                one.rows += label["rows"]
            one.after |= dict(part.reached)

    async def check_continuous(self) -> None:
        await self.cycle()
        for one in self.running:
            [matches] = [
                matches
                for text, (needed, matches) in QUERIES.items()
                if needed <= {f.name for f in one.schema.features}
                and parse(text, one.schema).to_json() == one.text
            ]
            assert one.rows == sum(map(matches, self.rows[one.since :])), one.text


def own(node: StorageNode) -> Cursor:
    return node.catalog.shard("nam").own_published().sequences


@pytest.mark.parametrize("seed", keep_quick(range(6), 2))
async def test_histories_with_added_features_equal_rows_with_nulls(cluster, seed: int) -> None:
    history = History(cluster, random.Random(seed), [cluster.schema])
    for _ in range(60):
        await history.step()
    while history.schemas[-1].added < len(MORE):
        await history.add()
    for last in (history.ingest, history.select, history.labels, history.summarise):
        await last()
    await history.check_continuous()
    for node in cluster.nodes:
        assert await node.schema("nam", added=len(MORE)) == history.schemas[-1]


# --- single steps --------------------------------------------------------------------------------


async def test_features_added_at_any_node_are_known_at_all(cluster) -> None:
    for name, feature in zip("abc", MORE, strict=False):
        schema = await cluster[name].add_features("nam", [feature])
        assert {node.catalog.schema("nam") for node in cluster.nodes} == {schema}


async def test_a_node_that_was_away_learns_features_by_their_number(cluster) -> None:
    first, late = cluster.followers
    cluster.network.away = {late}
    schema = await cluster[first].add_features("nam", [GUST])
    cluster.network.away = set()
    assert cluster[late].catalog.schema("nam").added == 0
    assert cluster[late].catalog.lacks("nam", 1)
    assert await cluster[late].schema("nam", added=1) == schema


async def test_a_node_that_cannot_learn_features_is_unavailable(cluster) -> None:
    with raises(Unavailable, node="b"):
        await cluster["b"].schema("nam", added=1)


async def test_without_a_leader_of_the_system_partition_no_features_are_added(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_tables, "PATIENCE_S", 0.0)
    asked, _ = cluster.followers
    cluster.network.away = {cluster.leader}
    with raises(Unavailable):
        await cluster[asked].add_features("nam", [GUST])
    assert {node.catalog.schema("nam").added for node in cluster.nodes} == {0}


@pytest.mark.parametrize("name", ["temperature", "gust"])
async def test_a_feature_is_added_once(cluster, name: str) -> None:
    await cluster["a"].add_features("nam", [GUST])
    with raises(InvalidSchema, expected="free_name", feature=name):
        await cluster["b"].add_features("nam", [Feature(name, type="int")])


async def test_features_of_an_unknown_dataset_are_refused(cluster) -> None:
    with raises(UnknownDataset):
        await cluster["a"].add_features("sea", [GUST])


async def test_two_calls_at_once_add_both_features(cluster) -> None:
    names = ["gust", "site"]
    calls = (
        cluster[node].add_features("nam", [Feature(name)])
        for node, name in zip("ab", names, strict=True)
    )
    await asyncio.gather(*calls)
    schema = cluster["c"].catalog.schema("nam")
    assert {f.name for f in schema.features[-2:]} == {*names}


async def test_commits_of_both_schemas_in_one_group_are_indexed(cluster) -> None:
    node, chance = cluster["a"], random.Random(1)
    wider = await node.add_features("nam", [GUST])
    sent = [(schema, rows_of(schema, chance)) for schema in [cluster.schema, wider] * 8]
    await asyncio.gather(
        *(
            node.ingest.ingest("nam", table_of(rows, schema), producer="radar", batch=number)
            for number, (schema, rows) in enumerate(sent)
        )
    )
    query = parse("gust > 0", wider)
    tables = [table async for table in node.selection.select(query, RowOptions())]
    expected = [row for _, rows in sent for row in rows if exceeds("gust", 0)(row)]
    assert sum(table.num_rows for table in tables) == len(expected)
    for one in cluster.nodes:
        for synopsis in one.catalog.shard("nam").synopses().values():
            synopsis.check()
            assert synopsis.schema == wider


@pytest.mark.parametrize("more", [[], [Feature("site")]])
async def test_a_schema_that_is_no_extension_is_not_adopted(cluster, more) -> None:
    await cluster["a"].add_features("nam", [GUST])
    other = cluster.schema.with_features([Feature("gust", "km/h"), *more])
    with raises(DatasetExists):
        await cluster["a"].adopt(other)
    assert cluster["a"].catalog.schema("nam").feature("gust") == GUST


async def test_a_query_that_names_no_feature_is_refused_after_looking_for_it(cluster) -> None:
    node = cluster["a"]
    with raises(UnknownProperty, property="gust"):
        await node.bind("gust > 3", node.catalog.schema("nam"))


async def test_a_scan_that_has_begun_goes_on_with_its_features(cluster) -> None:
    await cluster.ingest(make_observations(100, seed=1))
    before = parse("temperature > 0", cluster.schema)
    await cluster["a"].add_features("nam", [GUST])
    parts = [part async for part in cluster["b"].scans.run(before)]
    tables = [part for part in parts if not isinstance(part, ScanEnd)]
    assert {tuple(table.column_names) for table in tables} == {
        tuple(cluster.schema.label_schema.names)
    }
