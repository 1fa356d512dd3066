"""A standing question under a stream, its coordinator killed twice: no miss, no repeat."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from expected_errors import raises

import galileo
from galileo import samplers
from galileo.cli.main import main
from galileo.client import Client, Labels, Update
from galileo.errors import InputError, TransientError
from galileo.generate import NamLike
from galileo.labels import LabelSet
from galileo.spark.launcher import EvaluatorClient, JobCounts
from galileo.spark.options import EvaluatorOptions
from galileo.spark.runtime_dir import RuntimeDir

KILLS = 1
QUERY = (
    "temperature > 280 AND S_INTERSECTS(geometry, POLYGON((-115 25,-80 25,-80 45,-115 45,-115 25)))"
)
FIRST_UPDATE_TIMEOUT_S = 120.0
UPDATE_TIMEOUT_S = 300.0
RETRIES_TOGETHER = 3


@pytest.fixture(scope="module")
def fragile(evaluator: dict[str, Any]) -> Iterator[galileo.LocalCluster]:
    # A machine that is busy with something else makes no node miss another one.
    settings = {"membership": {"failure_timeout_s": 4.0}, "evaluator": evaluator}
    with galileo.LocalCluster(nodes=3, groups=2, settings=settings) as running:
        yield running


def whole_answer(client: Client, dataset: str, query: str) -> Labels:
    """Of all nodes, as soon as all of them are there."""
    deadline = time.monotonic() + UPDATE_TIMEOUT_S
    while not (answer := client.query(dataset, query)).complete:
        assert time.monotonic() < deadline, "a node does not come back"
        time.sleep(0.1)
    return answer


class Reader(threading.Thread):
    """Watches a CCQ; remembers each update and when it came."""

    def __init__(self, client: Client, ccq: galileo.Ccq) -> None:
        super().__init__(daemon=True)
        self.updates: list[tuple[float, Update]] = []
        self.ended: galileo.GalileoError | None = None
        self._client = client
        self._ccq = ccq

    def run(self) -> None:
        try:
            for update in self._client.watch(self._ccq.id, token=self._ccq.token):
                self.updates.append((time.monotonic(), update))
        except galileo.GalileoError as error:
            self.ended = error

    def wait_for_next(self, since: float, timeout_s: float) -> float:
        """Seconds from `since` to the first update after it."""
        while time.monotonic() - since < timeout_s:
            later = [at for at, _ in self.updates if at > since]
            if later:
                return later[0] - since
            time.sleep(0.02)
        raise AssertionError(f"no update within {timeout_s} s")


class Stream(threading.Thread):
    """Ingests forecast tables, one after the other, until it is stopped.

    While a node is down, the rows that it keeps wait; those of live nodes are stored at once.
    What failed is sent again under its name, so nothing of it is stored twice.
    """

    def __init__(self, client: Client, dataset: str) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._client = client
        self._dataset = dataset

    def run(self) -> None:
        model = NamLike(seed=5, stride=8)
        tables = model.stream("2014-03-01T00:00:00Z", hours=10_000, rows_per_batch=1_000)
        waiting: dict[str, pa.Table] = {}
        try:
            for number, table in enumerate(tables):
                waiting[f"stream-{number}"] = table
                self._send(waiting)
                if self.stopping.wait(0.4):
                    break
            while waiting:
                self._send(waiting)
        except BaseException as error:
            self.failure = error

    def _send(self, waiting: dict[str, pa.Table]) -> None:
        for producer in sorted(waiting, reverse=True)[:RETRIES_TOGETHER]:
            try:
                self._client.ingest(self._dataset, waiting[producer], producer=producer)
            except TransientError:
                continue
            del waiting[producer]


def identities(labels: LabelSet) -> set[tuple[int, int, int]]:
    columns = (labels.partitions, labels.sequences, labels.rows)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def follow_through_kills(cluster: galileo.LocalCluster, ccq: galileo.Ccq) -> Reader:
    """Streams, kills the coordinator `KILLS` times, restarts it, and drains."""
    client = cluster.client(timeout="60s")
    reader = Reader(cluster.client(timeout="60s"), ccq)
    stream = Stream(cluster.client(timeout="200ms"), ccq.info.dataset)
    reader.start()
    stream.start()
    reader.wait_for_next(time.monotonic(), FIRST_UPDATE_TIMEOUT_S)
    for number in range(KILLS):
        node = cluster.node(next(i.coordinator for i in client.list_ccqs() if i.id == ccq.id))
        node.kill()
        took_s = reader.wait_for_next(time.monotonic(), UPDATE_TIMEOUT_S)
        print(f"\nkill {number + 1} of {node.name}: next update after {took_s:.2f} s", end="")
        node.restart()
        reader.wait_for_next(time.monotonic(), UPDATE_TIMEOUT_S)
    stream.stopping.set()
    stream.join(timeout=120)
    assert stream.failure is None
    return reader


@pytest.mark.slow(120)
@pytest.mark.timeout(600)
def test_watch_with_a_killed_coordinator_delivers_exactly_once(
    fragile: galileo.LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    client = fragile.client(timeout="60s")
    schema = NamLike(seed=5, stride=8).schema("stream")
    client.create_dataset(schema)
    spec = galileo.sampler("uniform", fraction=0.5, seed=11)
    ccq = client.submit(
        "stream", QUERY, interval="1s", expiration="1h", sampler=spec, compression="lz4"
    )
    with capsys.disabled():
        reader = follow_through_kills(fragile, ccq)

    full = whole_answer(client, "stream", QUERY)
    wanted = identities(samplers.apply(samplers.load(spec), full, seed=spec.seed))
    deadline = time.monotonic() + UPDATE_TIMEOUT_S
    got: list[tuple[int, int, int]] = []
    while len(got) < len(wanted) and time.monotonic() < deadline:
        parts = [ccq.initial, *(update.labels for _, update in list(reader.updates))]
        got = [one for part in parts for one in identities(part)]
        time.sleep(0.1)
    assert len(got) == len(set(got)), "delivered twice"
    assert set(got) == wanted
    assert len(wanted) > 100

    client.cancel(ccq.id)
    reader.join(timeout=60)
    assert reader.ended is not None
    assert reader.ended.kind == "ccq_cancelled"


def _ingest_values(client: Client, dataset: str, rows: int, *, seed: int) -> None:
    rng = np.random.default_rng(seed)
    client.ingest(
        dataset,
        pa.table(
            {
                "latitude": rng.uniform(-80, 80, rows),
                "longitude": rng.uniform(-180, 180, rows),
                "time": pa.array(np.full(rows, 1_393_632_000_000_000), pa.timestamp("us")),
                "value": rng.uniform(0, 1, rows),
            }
        ),
    )


@pytest.mark.slow
def test_ccqs_without_new_commits_run_no_job(
    fragile: galileo.LocalCluster, evaluator: dict[str, Any]
) -> None:
    """Ten intervals without a commit, for many queries at three nodes: the evaluator runs nothing.

    One commit later it does, so what is counted is what one means to count.
    """
    client = fragile.client(timeout="60s")
    client.create_dataset(galileo.Schema("quiet", [galileo.Feature("value")], geohash_precision=4))
    ccqs = [
        client.submit("quiet", f"value > 0.{number}", interval="250ms", expiration="10m")
        for number in range(6)
    ]
    _ingest_values(client, "quiet", 500, seed=5)
    updates = _wait_for_rest(client, ccqs)
    assert all(len(update.labels) and update.interval_s >= 0.25 for update in updates)
    directory = Path(evaluator["directory"])
    before, process = _settled(directory), RuntimeDir(directory).holder()
    time.sleep(2.5)
    quiet = _jobs(directory)
    assert quiet.evaluations == before.evaluations
    assert RuntimeDir(directory).holder() == process, "the same evaluator"
    _ingest_values(client, "quiet", 500, seed=6)
    for one, update in zip(ccqs, updates, strict=True):
        assert len(client.fetch(one.id, token=update.token, wait="60s").labels)
        client.cancel(one.id)
    assert _jobs(directory).evaluations > quiet.evaluations


def _wait_for_rest(client: Client, ccqs: list[galileo.Ccq]) -> list[Update]:
    """What each query found, once it is evaluated up to the newest commit, and knows of no other.

    What comes after these updates is found by a later job. An update that came first may be
    of a part of the commits, and the rest of them lie in the cache.
    """
    reached = client.query("quiet").frontier
    deadline = time.monotonic() + FIRST_UPDATE_TIMEOUT_S
    updates = []
    for one in ccqs:
        while True:
            update = client.fetch(one.id, token=one.token)
            if update.frontier.covers(reached) and update.age_s == 0.0:
                updates.append(update)
                break
            assert time.monotonic() < deadline, f"{one.id} does not come to rest: {update}"
            time.sleep(0.1)
    return updates


def _settled(directory: Path) -> JobCounts:
    """The evaluator's counts, once no job has come for two seconds."""
    counts, since = _jobs(directory), time.monotonic()
    deadline = since + UPDATE_TIMEOUT_S
    while time.monotonic() - since < 2.0:
        assert time.monotonic() < deadline, "the evaluator does not come to rest"
        time.sleep(0.1)
        now = _jobs(directory)
        if now.evaluations != counts.evaluations:
            counts, since = now, time.monotonic()
    return counts


def _jobs(directory: Path) -> JobCounts:
    async def ask() -> JobCounts:
        async with EvaluatorClient(EvaluatorOptions(directory)) as handle:
            return await handle.ping()

    return asyncio.run(ask())


@pytest.mark.slow
def test_submit_with_a_stopped_node_is_completed_later(
    fragile: galileo.LocalCluster,
) -> None:
    client = fragile.client(timeout="60s")
    schema = galileo.Schema("partial", [galileo.Feature("value")], geohash_precision=4)
    client.create_dataset(schema)
    _ingest_values(client, "partial", 3_000, seed=3)
    whole = whole_answer(client, "partial", "value > 0.5")
    down = fragile.nodes[1]
    down.kill()
    ccq = client.submit("partial", "value > 0.5", interval="250ms", expiration="10m")
    assert not ccq.initial.complete
    assert identities(ccq.initial) < identities(whole)
    down.restart()
    got, token = [ccq.initial], ccq.token
    deadline = time.monotonic() + UPDATE_TIMEOUT_S
    while sum(map(len, got)) < len(whole) and time.monotonic() < deadline:
        update = client.fetch(ccq.id, token=token, wait="5s")
        got.append(update.labels)
        token = update.token
    assert identities(Labels.concat(schema, got)) == identities(whole)
    assert sum(map(len, got)) == len(whole)
    client.cancel(ccq.id)


@pytest.mark.slow
def test_drain_of_a_coordinator_moves_its_ccqs_first(
    fragile: galileo.LocalCluster,
) -> None:
    """The watch goes on at the next coordinator before the node is stopped, and not after it."""
    client = fragile.client(timeout="60s")
    client.create_dataset(galileo.Schema("drained", [galileo.Feature("value")]))
    ccq = client.submit("drained", "value > 0.5", interval="250ms", expiration="10m")
    reader = Reader(fragile.client(timeout="60s"), ccq)
    reader.start()
    started = time.monotonic()
    _ingest_values(client, "drained", 500, seed=4)
    reader.wait_for_next(started, FIRST_UPDATE_TIMEOUT_S)
    words = ["--node", fragile.addresses[0], "drain", ccq.coordinator, "--json"]
    done = CliRunner().invoke(main, words)
    assert json.loads(done.output) == {"node": ccq.coordinator, "draining": True}
    states = {node.name: node for node in client.status().nodes}
    assert states[ccq.coordinator].state == "draining"
    assert states[ccq.coordinator].ccqs_coordinated == 0
    assert client.status().complete
    (now,) = [one.coordinator for one in client.list_ccqs() if one.id == ccq.id]
    assert now != ccq.coordinator
    _ingest_values(client, "drained", 500, seed=5)
    reader.wait_for_next(reader.updates[-1][0], UPDATE_TIMEOUT_S)
    node = fragile.node(ccq.coordinator)
    node.stop()
    node.restart()
    _ingest_values(client, "drained", 500, seed=6)
    wanted = identities(whole_answer(client, "drained", "value > 0.5"))
    deadline = time.monotonic() + UPDATE_TIMEOUT_S
    while sum(len(update.labels) for _, update in reader.updates) < len(wanted):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    got = [one for _, update in reader.updates for one in identities(update.labels)]
    assert sorted(got) == sorted(wanted)
    assert client.status().nodes[fragile.nodes.index(node)].state == "up"
    client.cancel(ccq.id)


@pytest.mark.slow
def test_drain_can_be_undone(
    fragile: galileo.LocalCluster,
) -> None:
    client = fragile.client()
    client.drain("node-2")
    client.drain("node-2", undo=True)
    assert [node.state for node in client.status().nodes] == ["up"] * 3
    with raises(InputError, node="node-9"):
        client.drain("node-9")


@pytest.mark.slow
def test_local_cluster_stop_ends_its_evaluator() -> None:
    """Also one that was only starting, which has not said yet where it listens."""
    with galileo.LocalCluster(nodes=1, groups=1) as running:
        client = running.client()
        client.create_dataset(galileo.Schema("brief", [galileo.Feature("value")]))
        client.submit("brief", interval="1s", expiration="1m")
        runtime = RuntimeDir(running.evaluator_directory)
        deadline = time.monotonic() + UPDATE_TIMEOUT_S
        while (evaluator := runtime.holder()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
    assert evaluator is not None
    assert not evaluator.is_running()
