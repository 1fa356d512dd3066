"""Gateways that are killed under many readers of events."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter

import pytest
from fault_injection.event_readers import EventReaders
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.nodes import DATASET, PATIENCE
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.local_services import LocalGateway

READERS = 200
ROWS, PAUSE_S = 40, 0.2
CONDITION = "temperature > 250"
CALM_S = (0.2, 2.0)
SETTLE_S = 180.0


class Sender(threading.Thread):
    """Ingests small batches until it is stopped."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self._client = client

    def run(self) -> None:
        for batch in itertools.count():
            self._client.ingest(DATASET, numbered(batch * ROWS, ROWS), producer=f"batch-{batch}")
            if self.stopping.wait(PAUSE_S):
                return


@pytest.mark.slow
@pytest.mark.fault(
    "gateway-kills",
    "crash",
    rounds=20,
    holds=f"{READERS} readers follow a query over two gateways, of which one at a time is killed "
    "and started again: each reader goes on at the other one, and has each label once",
)
def test_gateway_kills(trial: Trial) -> None:
    """Readers continue at the other gateway with the token of their last event."""
    with LocalCluster(nodes=3, directory=trial.directory / "cluster") as cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(numbered_schema(DATASET))
        ccq = client.submit(DATASET, CONDITION, interval="500ms", expiration="2h")
        gateways = [_gateway(cluster) for _ in range(2)]
        for gateway in gateways:
            gateway.start()
        urls = [gateway.url for gateway in gateways]
        ports = [int(url.rpartition(":")[2]) for url in urls]
        sender = Sender(cluster.client(timeout=PATIENCE))
        try:
            with EventReaders(
                urls, ccq.id, count=READERS, seed=trial.random.randrange(2**31)
            ) as reading:
                sender.start()
                wait_until(
                    lambda: reading.connected == READERS or bool(reading.failures),
                    what="readers are connected",
                    timeout_s=SETTLE_S,
                )
                for _ in trial.each_round():
                    which = trial.random.randrange(2)
                    pid = gateways[which].pid
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                    gateways[which].stop()
                    wait_until(
                        lambda: reading.connected == READERS or bool(reading.failures),
                        what="readers are at the other gateway",
                        timeout_s=SETTLE_S,
                    )
                    gateways[which] = _gateway(cluster, port=ports[which])
                    gateways[which].start()
                    trial.expect(not reading.failures, f"a reader failed: {reading.failures[:1]}")
                    time.sleep(trial.random.uniform(*CALM_S))
                sender.stopping.set()
                sender.join()
                _judge(trial, client, reading)
        finally:
            sender.stopping.set()
            for gateway in gateways:
                gateway.stop()


def _gateway(cluster: LocalCluster, *, port: int = 0) -> LocalGateway:
    """One that takes all readers, which are one caller."""
    log = cluster.directory / "gateway.log"
    connections = ("--connections", str(3 * READERS))
    return LocalGateway(cluster.addresses, log=log, port=port, arguments=connections)


def _judge(trial: Trial, client: Client, reading: EventReaders) -> None:
    """Compares what each reader has with what a query finds."""
    labels = client.query(DATASET, CONDITION, require_complete=True)
    wanted = Counter(labels.to_arrow().column("label").to_pylist())
    wait_until(
        lambda: (
            bool(reading.failures)
            or all(reader.found.total() >= wanted.total() for reader in reading.readers)
        ),
        what="readers have all labels",
        timeout_s=SETTLE_S,
    )
    for reader in reading.readers:
        missed, repeated = wanted - reader.found, reader.found - wanted
        trial.counts["missed"] += missed.total()
        trial.counts["repeated"] += repeated.total()
        trial.counts["connections"] += reader.connections
        for away_s in reader.away_s:
            trial.note_longest("longest without a gateway, ms", away_s)
    trial.counts["labels"] = wanted.total()
    trial.counts["readers"] = len(reading.readers)
    trial.expect(trial.counts["missed"] == 0, f"{trial.counts['missed']} labels were missed")
    trial.expect(trial.counts["repeated"] == 0, f"{trial.counts['repeated']} came twice")
    trial.expect(trial.counts["connections"] > 2 * READERS, "no reader lost its gateway")
