"""Nodes that are killed at random moments while clients send and segments are merged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from fault_injection.damage import observations, read_all
from fault_injection.ledger import Ledger, Producer
from fault_injection.nodes import MERGING, PATIENCE, one_node, wait_until
from fault_injection.requirements import SIGNALS

from faults.registry import Scenario, Trial
from galileo.cluster import LocalCluster
from galileo.storage.verify import verify

PRODUCERS = 2
LIFE_S = (0.0, 1.0)
"""How long a node that acknowledges is left alone before it is killed."""


def kill(trial: Trial) -> None:
    place = trial.directory / "cluster"
    with one_node(place, storage=MERGING) as (cluster, ledger):
        client = cluster.client(timeout=PATIENCE)
        with producing(cluster, ledger):
            for number in trial.each_round():
                wait_acknowledged(ledger)
                time.sleep(trial.random.uniform(*LIFE_S))
                cluster.nodes[0].kill()
                cluster.nodes[0].restart()
                trial.judge(ledger.audit(client), f"kill {number}")
        trial.judge(ledger.audit(client), "the last kill")
    judge_at_rest(trial, place / "node-1", ledger)


@contextlib.contextmanager
def producing(cluster: LocalCluster, ledger: Ledger) -> Iterator[None]:
    """Clients that send within the block and through every fault; each ends its last batch."""
    producers = [Producer(ledger, cluster.client(timeout=PATIENCE)) for _ in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    try:
        yield
    finally:
        for producer in producers:
            producer.stop()


def wait_acknowledged(ledger: Ledger) -> None:
    """Returns when the node has acknowledged something more."""
    seen = ledger.acknowledged
    wait_until(lambda: ledger.acknowledged > seen, what="an acknowledgement")


def judge_at_rest(trial: Trial, directory: Path, ledger: Ledger) -> None:
    """What a stopped node has on its disk: sound, and all that was acknowledged."""
    report = verify(directory)
    trial.counts["merged files"] += len(list(directory.rglob("*.merged")))
    trial.expect(report.ok, f"verify found {report.damages[:3]}")
    reading = read_all(directory)
    trial.expect(not reading.refusals, f"reading was refused: {reading.refusals[:3]}")
    trial.judge(ledger.compare(observations(reading)), "the end, read from the disk")


SCENARIOS = (
    Scenario(
        "kill",
        "SIGKILL at random moments of ingest and merging: everything acknowledged is there, once",
        (SIGNALS,),
        10,
        kill,
        row="crash",
    ),
)
