"""How long a continuous query has no coordinator when that one's process is killed.

A run: SIGKILL of the coordinator; at once observations are ingested that live nodes keep; a reader
fetches on, as it did before. It ends when an answer has them, so it holds the failure detector's
wait, the first cycle of the standby and the reader's way there. Then the killed node starts again,
which takes about as long as the next coordinator is not missed yet; so at most two of the five
nodes are away at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Ccq, Client
from galileo.config import MembershipSection
from galileo.cursor import Cursor
from galileo.dht.placement import owners, partitions_from_cells
from galileo.dht.topology import Topology
from galileo.geo import geohash
from galileo.local_node import LocalNode
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros

NODES = 5
INTERVAL, EXPIRATION = "250ms", "1h"
FETCH_WAIT = "5s"
TIMEOUT_S = 60.0
SETTLED_S = 1.0
"""Between two kills: everybody has heard of the new coordinator."""
P99_S = 3.0
SCHEMA = Schema("gauges", [Feature("level")], geohash_precision=3)
PLACES = 500
AT_US = micros("2014-03-01T00:00:00Z")


def measure(bench: Bench) -> Iterator[Figure]:
    with (
        clusters.cluster(bench.directory, nodes=NODES) as running,
        clusters.warm_evaluator(running),
    ):
        client = running.client(timeout=clusters.PATIENCE)
        client.create_dataset(SCHEMA)
        owned = _cells_of_nodes(client)
        ccq = client.submit(SCHEMA.name, "level > 0", interval=INTERVAL, expiration=EXPIRATION)
        reader = _Reader(running, client, ccq)
        reader.until(client.ingest(SCHEMA.name, _observations(owned.values())).reached)
        bench.say(f"killing the coordinator {bench.sizes.kills} times")
        taken = [_one(running, reader, owned) for _ in range(bench.sizes.kills)]
        for node in running.nodes:
            if not node.running:
                node.restart()
        clusters.wait_whole(client)
        reader.check()
    failure_timeout_s = MembershipSection().failure_timeout_s
    peer = Peer("the failure detector's wait", Spread.of([failure_timeout_s]))
    name = f"SIGKILL of a coordinator to the next answer with new labels, {NODES} nodes"
    yield Figure(name, "s", Spread.of(taken), (peer,))
    p99 = Spread.of([float(np.quantile(taken, 0.99))])
    yield Figure(
        f"the same, 99th percentile of {len(taken)} kills",
        "s",
        p99,
        (peer,),
        (Goal("at most", P99_S),),
    )


@dataclass(slots=True)
class _Reader:
    """Fetches a continuous query from its submission on, and keeps what it was handed."""

    running: galileo.LocalCluster
    client: Client
    ccq: Ccq
    token: str = ""
    labels: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.token = self.ccq.token

    def coordinator(self) -> LocalNode:
        (name,) = [one.coordinator for one in self.client.list_ccqs() if one.id == self.ccq.id]
        return self.running.node(name)

    def until(self, reached: Cursor) -> None:
        """Returns when all labels up to `reached` have come."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            update = self.client.fetch(self.ccq.id, token=self.token, wait=FETCH_WAIT)
            self.token = update.token
            self.labels.append(update.labels.table)
            if update.labels.frontier.covers(reached):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer up to {reached} within {TIMEOUT_S:.0f} s")

    def check(self) -> None:
        """All that is stored has come once."""
        stored = self.client.query(SCHEMA.name)
        table = pa.concat_tables(self.labels)
        found = table.group_by(["partition", "sequence", "row"]).aggregate([])
        if not stored.complete or not len(stored) == table.num_rows == found.num_rows:
            raise AssertionError(f"expected {stored} once, got {table.num_rows} labels")


def _one(
    running: galileo.LocalCluster, reader: _Reader, owned: dict[str, tuple[float, float]]
) -> float:
    """Seconds from the kill to the answer that has what was ingested right after it."""
    starting = [node.name for node in running.nodes if not node.running]
    for name in starting:
        running.node(name).start()
    node = reader.coordinator()
    node.wait()
    time.sleep(SETTLED_S)
    started = time.perf_counter()
    node.kill()
    places = [place for name, place in owned.items() if name not in (node.name, *starting)]
    reader.until(reader.client.ingest(SCHEMA.name, _observations(places)).reached)
    return time.perf_counter() - started


def _cells_of_nodes(client: Client) -> dict[str, tuple[float, float]]:
    """For each node a place, as latitude and longitude, whose observations it keeps."""
    topology = Topology.from_json(client.topology_json())
    generator = np.random.default_rng(3)
    latitude, longitude = generator.uniform(-80, 80, PLACES), generator.uniform(-180, 180, PLACES)
    cells = geohash.encode(latitude, longitude, SCHEMA.geohash_precision)
    buckets = np.full(PLACES, AT_US, dtype=np.int64)
    partitions = partitions_from_cells(topology, SCHEMA, cells, buckets).tolist()
    names = [owners(topology)[partition] for partition in partitions]
    places = zip(latitude.tolist(), longitude.tolist(), strict=True)
    return dict(zip(names, places, strict=True))


def _observations(places: Iterable[tuple[float, float]]) -> pa.Table:
    latitude, longitude = zip(*places, strict=True)
    count = len(latitude)
    times = times_from_micros(np.full(count, AT_US, dtype=np.int64))
    columns = [pa.array(latitude), pa.array(longitude), times, pa.array(np.ones(count))]
    return pa.table(columns, schema=SCHEMA.observation_schema)
