"""Nodes die and come back in the middle of an ingest: what was acknowledged is there, once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import galileo

ROUNDS = 10
ROWS = 400
START_US = 1_393_632_000_000_000


@pytest.fixture(scope="module")
def fragile() -> Iterator[galileo.LocalCluster]:
    with galileo.LocalCluster(nodes=3, groups=2) as running:
        yield running


def numbered(first: int, rng: np.random.Generator) -> pa.Table:
    """Observations that carry their own number, all over the world."""
    return pa.table(
        {
            "latitude": rng.uniform(-80, 80, ROWS),
            "longitude": rng.uniform(-180, 180, ROWS),
            "time": pa.array(
                START_US + rng.integers(0, 86_400_000_000, ROWS), pa.timestamp("us", tz="UTC")
            ),
            "temperature": rng.normal(283, 12, ROWS),
            "number": np.arange(first, first + ROWS),
        }
    )


class Producer(threading.Thread):
    """Ingests numbered tables until it is told to stop; remembers what was acknowledged."""

    def __init__(self, cluster: galileo.LocalCluster, dataset: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._client = cluster.client(patience="120s")
        self._dataset = dataset

    def run(self) -> None:
        rng = np.random.default_rng(3)
        try:
            for batch in itertools.count():
                if self.stopping.is_set():
                    return
                table = numbered(batch * ROWS, rng)
                assert self._client.ingest(self._dataset, table).rows == ROWS
                self.acknowledged += ROWS
        except BaseException as error:
            self.failure = error


@pytest.mark.timeout(280)
def test_acknowledged_observations_survive_ten_kills_and_none_is_there_twice(
    fragile: galileo.LocalCluster,
) -> None:
    client = fragile.client(patience="60s")
    features = [
        galileo.Feature("temperature", unit="K"),
        galileo.Feature("number", type="int", indexed=False),
    ]
    client.create_dataset(galileo.Schema("numbered", features, geohash_precision=4))
    producer = Producer(fragile, "numbered")
    producer.start()
    for round_number in range(ROUNDS):
        seen = producer.acknowledged
        while producer.acknowledged < seen + 2 * ROWS and producer.failure is None:
            threading.Event().wait(0.01)
        node = fragile.nodes[round_number % len(fragile.nodes)]
        node.kill()
        node.restart()
    producer.stopping.set()
    producer.join(timeout=120)

    assert producer.failure is None
    labels = client.query("numbered")
    assert labels.complete
    numbers = client.read(labels).column("number").to_numpy()
    assert len(numbers) == producer.acknowledged > ROUNDS * ROWS
    assert np.array_equal(np.sort(numbers), np.arange(producer.acknowledged))
