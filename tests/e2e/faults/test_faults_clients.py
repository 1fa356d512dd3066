"""Clients that share a name or a token, and many that repeat their requests."""

from __future__ import annotations

import threading
import time

import pytest
from fault_injection.ccq_readers import FetchReader
from fault_injection.ledger import Ledger, Producer, numbered, numbered_schema
from fault_injection.nodes import DATASET, PATIENCE
from fault_injection.proxies import proxied
from fault_injection.stream import Stream
from fault_injection.trial import Trial

from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.errors import BatchConflict

PRODUCERS = 8
SILENT_S, CALM_S = (0.1, 1.0), 0.3
BATCHES, ROWS = 20, 100
STREAMED_S, DRAIN_S = 3.0, 120.0


@pytest.mark.slow
@pytest.mark.fault(
    "retry-storm",
    "retry storm",
    rounds=6,
    quick=1,
    holds=f"the answers to {PRODUCERS} producers are dropped again and again, and all send again: "
    "everything acknowledged is there, once",
)
def test_retry_storm(trial: Trial) -> None:
    """Batches arrive, answers do not, and all clients send again what may be there already."""
    cluster = LocalCluster(2, 1, trial.directory / "cluster")
    with proxied(cluster, seed=trial.random.randrange(2**31)) as proxies, cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(numbered_schema(DATASET))
        ledger = Ledger(DATASET)
        clients = [cluster.client(timeout=PATIENCE) for _ in range(PRODUCERS)]
        producers = [Producer(ledger, one, pause_s=0.01) for one in clients]
        for producer in producers:
            producer.start()
        for _ in trial.each_round():
            proxies.cut_answers()
            time.sleep(trial.random.uniform(*SILENT_S))
            proxies.heal()
            time.sleep(CALM_S)
        for producer in producers:
            producer.stop()
        trial.judge(ledger.audit(client), "all answers that were lost")
        trial.counts.update(proxies.counts)
        trial.expect(proxies.counts["answers dropped"] > 0, "no answer was lost")


@pytest.mark.slow
@pytest.mark.fault(
    "two-producers",
    "two producers with one name",
    rounds=3,
    quick=1,
    holds="two clients send different batches under one producer's name: no batch of both is "
    "acknowledged, the other is refused, nothing is there twice",
)
def test_two_producers(trial: Trial) -> None:
    """Each sends batches of its own under the one name, at the same time."""
    with LocalCluster(2, 1, trial.directory / "cluster") as cluster:
        for _ in trial.each_round():
            _one_name(trial, cluster, f"numbered-{trial.counts['rounds']}")


def _one_name(trial: Trial, cluster: LocalCluster, dataset: str) -> None:
    client = cluster.client(timeout=PATIENCE)
    client.create_dataset(numbered_schema(dataset))
    outcomes: list[list[bool]] = [[], []]
    failures: list[BaseException] = []

    def send(which: int, own: Client) -> None:
        try:
            for batch in range(BATCHES):
                data = numbered((2 * batch + which) * ROWS, ROWS)
                try:
                    own.ingest(dataset, data, producer=f"shared-{batch}")
                    outcomes[which].append(True)
                except BatchConflict:
                    outcomes[which].append(False)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=send, args=(which, cluster.client(timeout=PATIENCE)))
        for which in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trial.expect(not failures, f"a producer failed: {failures}")
    _judge_names(trial, client, dataset, outcomes)


def _judge_names(trial: Trial, client: Client, dataset: str, outcomes: list[list[bool]]) -> None:
    """Nothing is stored twice, acknowledged batches are whole, and one producer is refused."""
    numbers = client.read(client.query(dataset)).column("number").to_pylist()
    trial.expect(len(numbers) == len(set(numbers)), "observations are there twice")
    there = set(numbers)
    for batch, acknowledged in enumerate(zip(*outcomes, strict=True)):
        trial.counts["batches acknowledged"] += sum(acknowledged)
        trial.counts["producers refused"] += 2 - sum(acknowledged)
        trial.expect(not all(acknowledged), f"batch {batch}: both producers were acknowledged")
        for which, is_acknowledged in enumerate(acknowledged):
            first = (2 * batch + which) * ROWS
            found = sum(number in there for number in range(first, first + ROWS))
            lost = is_acknowledged and found < ROWS
            trial.expect(not lost, f"batch {batch}: {found} of {ROWS} acknowledged are there")
            trial.counts["batches in part"] += 0 < found < ROWS


@pytest.mark.fault(
    "two-readers",
    "two readers with one token",
    rounds=2,
    holds="two readers begin with one token: each is handed every label once, in order",
)
def test_two_readers(trial: Trial) -> None:
    """Both begin with the token of the submission, and each goes on with its own answers."""
    with LocalCluster(2, 1, trial.directory / "cluster") as cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(numbered_schema(DATASET))
        stream = Stream(cluster.client(timeout=PATIENCE), DATASET)
        ccq = client.submit(DATASET, "temperature > 260", interval="250ms", expiration="1h")
        readers = [FetchReader(cluster.client(timeout=PATIENCE), ccq) for _ in range(2)]
        readers[0].start()
        stream.start()
        for _ in trial.each_round():
            _wait_for_more(readers[:1])
        readers[1].start()
        _wait_for_more(readers)
        time.sleep(STREAMED_S)
        stream.finish()
        wanted = client.query(DATASET, "temperature > 260")
        deadline = time.monotonic() + DRAIN_S
        while min(one.count() for one in readers) < len(wanted) and time.monotonic() < deadline:
            time.sleep(0.1)
        client.cancel(ccq.id)
        for number, reader in enumerate(readers, start=1):
            reader.join(DRAIN_S)
            audit = reader.deliveries.audit(wanted)
            trial.counts[f"labels of reader {number}"] += audit.labels
            trial.expect(not audit.wrong, f"reader {number}: {audit.wrong} of {audit}")
            trial.expect(audit.labels > 0, f"reader {number} was handed nothing")


def _wait_for_more(readers: list[FetchReader]) -> None:
    before = [one.count() for one in readers]
    deadline = time.monotonic() + DRAIN_S
    while any(one.count() <= had for one, had in zip(readers, before, strict=True)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a reader was handed nothing for {DRAIN_S:.0f} s")
        time.sleep(0.05)
