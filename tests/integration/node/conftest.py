"""A cluster of three storage nodes, empty or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
from node_cluster import SCHEMA, Cluster, make_observations

from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Nodes a and c in the west, b in the east, with an empty dataset."""
    a, b, c = (NodeInfo(name, f"127.0.0.1:{port}") for port, name in enumerate("abc", start=1))
    topology = Topology("test", (Group("west", (a, c)), Group("east", (b,))), even_ranges(2), 4)
    made = Cluster(tmp_path, topology)
    for name in "abc":
        made.start(name)
    await made["a"].create_dataset(SCHEMA)
    yield made
    await made.close()


@pytest.fixture
async def loaded(cluster: Cluster) -> tuple[Cluster, list[pa.Table]]:
    """The cluster with two batches in it."""
    sent = [make_observations(200, seed) for seed in range(2)]
    for number, table in enumerate(sent):
        await cluster.ingest(table, batch=number)
    return cluster, sent
