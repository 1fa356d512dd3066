"""The judge that reads disks: it agrees with queries where nothing is wrong, and sees what is."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fault_injection import ccq_world
from fault_injection.delivery import Deliveries
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.trial import Trial

from galileo import samplers
from galileo.cluster import LocalCluster
from galileo.labels import LabelSet

pytestmark = pytest.mark.slow

ROWS = 3_000
QUERIES = {
    "watch": ccq_world.WATCHED,
    "fetch": ccq_world.FETCHED,
    "spool": ccq_world.SPOOLED,
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, LabelSet]]:
    """The directory of a node that has ended, and what it answered to each query."""
    place = tmp_path_factory.mktemp("ccqs") / "cluster"
    with LocalCluster(1, 1, place) as running:
        client = running.client()
        client.create_dataset(numbered_schema(ccq_world.DATASET))
        for first in range(0, ROWS, 1_000):
            client.ingest(ccq_world.DATASET, numbered(first, 1_000))
        found = {way: client.query(ccq_world.DATASET, text) for way, text in QUERIES.items()}
    return place / "node-1", found


def reader(way: str, labels: LabelSet) -> Any:
    """One that was handed all of these at once, but for what its sampler leaves out."""
    spec = ccq_world.SAMPLER if way == "fetch" else None
    sampled = samplers.apply(samplers.load(spec), labels, seed=spec.seed) if spec else labels
    deliveries = Deliveries()
    deliveries.begin(sampled.answering(frontier=labels.frontier, missing=(), query=""))
    info = SimpleNamespace(sampler=spec)
    return SimpleNamespace(way=way, deliveries=deliveries, ccq=SimpleNamespace(info=info))


def judged(directory: Path, readers: list[Any], *, sent: int = ROWS) -> Trial:
    trial = Trial(directory, 1, random.Random(1))
    ccq_world.judge_by_disks(
        trial,
        [directory],
        readers,
        dataset=ccq_world.DATASET,
        predicates=ccq_world.PREDICATES,
        sent=sent,
    )
    return trial


def test_checker_of_complete_deliveries_finds_nothing(
    stored: tuple[Path, dict[str, LabelSet]],
) -> None:
    directory, found = stored
    assert all(0 < len(labels) < ROWS for labels in found.values())
    trial = judged(directory, [reader(way, labels) for way, labels in found.items()])
    assert trial.complaints == []
    assert trial.counts["commits read from disk"] > 3
    assert trial.counts["labels due by the disks"] < sum(map(len, found.values()))


@pytest.mark.parametrize("way", QUERIES)
def test_checker_finds_a_label_that_was_not_delivered(
    stored: tuple[Path, dict[str, LabelSet]], way: str
) -> None:
    directory, found = stored
    labels = found[way]
    less = LabelSet(labels.schema, labels.table.slice(10), frontier=labels.frontier)
    (complaint,) = judged(directory, [reader(way, less)]).complaints
    assert way in complaint
    assert "'missed': " in complaint
    assert "'lied': " in complaint


def test_checker_finds_observations_that_are_not_stored(
    stored: tuple[Path, dict[str, LabelSet]],
) -> None:
    (complaint,) = judged(stored[0], [], sent=ROWS + 1).complaints
    assert complaint == f"sent {ROWS + 1} observations, the disks have {ROWS}"
    assert judged(stored[0], []).complaints == []
