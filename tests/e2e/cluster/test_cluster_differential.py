"""Random conditions, asked of a cluster with copies while a node is down.

DuckDB, a naive evaluator and the cluster select the same rows. `scripts/differential --against
cluster` asks more.
"""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest
from conditions import Maker, by_duckdb, by_row
from fault_injection.nodes import kill_another

from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.model.schema import Schema

CASES = int(os.environ.get("GALILEO_DIFFERENTIAL_CASES", "60"))
SEED = int(os.environ.get("GALILEO_DIFFERENTIAL_SEED", "1"))
WORLDS = 6

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]


class World:
    """A dataset in the cluster, and all its observations."""

    def __init__(self, client: Client, maker: Maker, number: int) -> None:
        schema, table = maker.world()
        self.schema = Schema(f"world-{number}", schema.features)
        self.table = table.slice(0, 0)
        self._client = client
        client.create_dataset(self.schema)
        self.add(table)

    def add(self, table: pa.Table) -> None:
        """Ingests observations under the next numbers."""
        ids = pa.array(range(len(self.table), len(self.table) + len(table)), pa.int64())
        names = self.schema.observation_schema.names
        fresh = table.select(names).set_column(names.index("id"), "id", ids)
        fresh = fresh.cast(self.schema.observation_schema)
        assert self._client.ingest(self.schema.name, fresh).rows == len(fresh)
        self.table = pa.concat_tables([self.table, fresh])

    def selected(self, cql2: str) -> list[int]:
        """The numbers of the observations that the cluster selects, by each way to ask."""
        labels = self._client.query(self.schema.name, cql2)
        assert labels.complete, f"{cql2}: no answer from {labels.missing}"
        read = sorted(self._client.read(labels).column("id").to_pylist())
        assert self._client.count(self.schema.name, cql2) == len(read)
        rows = self._client.select(self.schema.name, cql2, columns=["id"])
        assert sorted(rows.column("id").to_pylist()) == read
        return read


def test_cluster_answers_equal_those_of_duckdb_while_a_node_is_down(capsys) -> None:
    drawn = random.Random(SEED)
    counts = dict.fromkeys(("conditions", "telling", "nodes killed", "observations"), 0)
    with LocalCluster(3, 1, replicas=3, partitions_per_group=4) as cluster:
        client = cluster.client(timeout="60s")
        makers = [Maker(SEED * 1_000 + number) for number in range(WORLDS)]
        worlds = [World(client, maker, number) for number, maker in enumerate(makers)]
        for case in range(CASES):
            if case % 20 == 0:
                kill_another(cluster, client, drawn.randrange(len(cluster.nodes)))
                counts["nodes killed"] += 1
            number = drawn.randrange(WORLDS)
            maker, world = makers[number], worlds[number]
            if drawn.random() < 0.3:
                world.add(maker.observations(world.schema))
            condition = maker.condition()
            found = {
                "DuckDB": by_duckdb(condition, world.table),
                "row by row": by_row(condition, world.table),
                "cluster": world.selected(condition.cql2),
            }
            assert len({tuple(ids) for ids in found.values()}) == 1, (
                f"case {case} of seed {SEED}: {condition.cql2}\n{condition.sql}\n{found}"
            )
            counts["conditions"] += 1
            counts["telling"] += 0 < len(found["cluster"]) < len(world.table)
        counts["observations"] = sum(len(world.table) for world in worlds)
    assert counts["telling"] >= CASES // 3
    with capsys.disabled():
        print("\n" + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
