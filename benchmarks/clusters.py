"""Clusters for the benchmarks, their data, evaluator and readers."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa

import galileo
from benchmarks.sizes import Bench
from galileo.client import Ccq, Client, Update
from galileo.cursor import Cursor
from galileo.errors import Cancelled, CcqCancelled
from galileo.generate import NamLike
from galileo.spark.launcher import EvaluatorClient
from galileo.spark.options import EvaluatorOptions
from galileo.spark.runtime_dir import RuntimeDir

DATASET = "nam"
FIRST_HOUR = "T_BEFORE(datetime, TIMESTAMP('2014-03-01T01:00:00Z'))"
SMALL = f"S_INTERSECTS(geometry, BBOX(-105, 38, -102, 41)) AND {FIRST_HOUR}"
START = "2014-03-01T00:00:00Z"
READY = "ready"
PATIENCE = "60s"
CACHED_TIMEOUT_S = 120.0
END_TIMEOUT_S = 15.0
KNOWN_TIMEOUT_S = 15.0
_LOOK_S = 0.05


def forecast(rows: int, *, stride: int) -> pa.Table:
    """The first rows of a generated forecast of as many hours as that takes."""
    model = NamLike(seed=7, stride=stride)
    hours = -(-rows // model.rows)
    return pa.concat_tables(model.stream(START, hours=hours)).slice(0, rows).combine_chunks()


def schema(name: str) -> galileo.Schema:
    return NamLike(stride=64).schema(name)


@contextlib.contextmanager
def cluster(
    directory: Path,
    *,
    nodes: int,
    settings: dict[str, dict[str, int]] | None = None,
    groups: int = 2,
    partitions: int = 4,
    replicas: int = 1,
) -> Iterator[galileo.LocalCluster]:
    """A running cluster in a new directory below `directory`.

    Args:
        directory: on the disk to be measured.
        nodes: how many.
        settings: of the nodes.
        groups: at most; there are no more than nodes.
        partitions: of each group.
        replicas: copies of the data.
    """
    place = directory / f"cluster-{nodes}-{time.monotonic_ns()}"
    with galileo.LocalCluster(
        nodes,
        min(nodes, groups),
        place,
        settings=settings,
        partitions_per_group=partitions,
        replicas=replicas,
    ) as running:
        yield running


def create_dataset(running: galileo.LocalCluster, client: Client, name: str) -> None:
    """Creates a dataset of forecasts and waits until every node knows it.

    A node that the creation could not reach, since it had only just started, learns of it with
    a heartbeat.
    """
    client.create_dataset(schema(name))
    for address in running.addresses:
        with galileo.connect(address, timeout=PATIENCE) as one:
            deadline = time.monotonic() + KNOWN_TIMEOUT_S
            while name not in {known.name for known in one.datasets()}:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the node at {address} does not know dataset {name!r}")
                time.sleep(_LOOK_S)


@contextlib.contextmanager
def warm_evaluator(running: galileo.LocalCluster) -> Iterator[psutil.Process]:
    """The cluster's evaluator, warm; a child of this process, so that it ends with the block."""
    with ending_children():
        yield asyncio.run(ensured(running))


async def ensured(running: galileo.LocalCluster) -> psutil.Process:
    """The evaluator's process, warm; started where there is none."""
    async with EvaluatorClient(evaluator_options(running)) as handle:
        await handle.ensure()
        return psutil.Process(handle.pid)


def evaluator_process(running: galileo.LocalCluster) -> psutil.Process | None:
    """The process that is the evaluator, started by any node."""
    return RuntimeDir(running.evaluator_directory).holder()


def evaluator_options(running: galileo.LocalCluster) -> EvaluatorOptions:
    """Those with which the cluster's nodes would start it."""
    return EvaluatorOptions(running.evaluator_directory)


@contextlib.contextmanager
def ending_children() -> Iterator[None]:
    """Ends the processes that the block started and left behind, and theirs."""
    before = {process.pid for process in psutil.Process().children()}
    try:
        yield
    finally:
        started = [one for one in psutil.Process().children() if one.pid not in before]
        for process in started:
            end(process)


def end(process: psutil.Process) -> None:
    """Ends a process and its children, by force where they do not go."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        process.terminate()
        _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
        for one in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


@contextlib.contextmanager
def child(module: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A benchmark program in a process of its own, which has printed `READY`."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != READY:
                raise AssertionError(f"expected {module} to get ready, it failed")
            yield process
        except BaseException:
            process.kill()
            raise


def wait_whole(client: Client) -> None:
    """Returns when every node answers, and knows that the others do."""
    deadline = time.monotonic() + KNOWN_TIMEOUT_S
    while not client.status().complete:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all nodes answer after {KNOWN_TIMEOUT_S:.0f} s")
        time.sleep(_LOOK_S)


def wait_cached(client: Client, ccq_id: str, *, token: str, reached: Cursor) -> None:
    """Returns when the coordinator's cache knows all commits up to `reached`."""
    deadline = time.monotonic() + CACHED_TIMEOUT_S
    while not client.fetch(ccq_id, token=token, labels_max=1).frontier.covers(reached):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ccq_id} has not reached {reached} in {CACHED_TIMEOUT_S:.0f} s")
        time.sleep(_LOOK_S)


def drain(client: Client, ccq_id: str, *, token: str, labels_max: int = 0) -> list[Update]:
    """Fetches until nothing is left; each fetch acknowledges the one before."""
    updates = [client.fetch(ccq_id, token=token, labels_max=labels_max)]
    while updates[-1].more:
        updates.append(client.fetch(ccq_id, token=updates[-1].token, labels_max=labels_max))
    return updates


def fill(client: Client, bench: Bench, *, labels: int) -> None:
    """Stores as many observations of a forecast, each of which makes one label."""
    model = NamLike(seed=7, stride=bench.sizes.stride)
    bench.say(f"storing {labels:,} observations")
    tables = model.stream(START, hours=-(-labels // model.rows))
    client.ingest(DATASET, _first(tables, labels))


def _first(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    for table in tables:
        yield table.slice(0, rows)
        rows = max(0, rows - table.num_rows)


def ingesting(client: Client, table: pa.Table, *, dataset: str, rows: int) -> Callable[[], None]:
    """Stores a table in batches of `rows` at each call; all of it is new each time."""

    def ingest() -> None:
        receipt = client.ingest(dataset, table, batch_rows=rows)
        if receipt.rows != table.num_rows or receipt.duplicate_rows:
            raise AssertionError(f"expected {table.num_rows} new observations, got {receipt}")

    return ingest


class Watcher(threading.Thread):
    """Follows a continuous query from a thread of its own, which it starts.

    Attributes:
        labels: that came.
        arrived: when each update came, on the monotonic clock, and its frontier.
    """

    def __init__(self, client: Client, ccq: Ccq) -> None:
        super().__init__(daemon=True)
        self.labels = 0
        self.arrived: list[tuple[float, Cursor]] = []
        self._client, self._ccq = client, ccq
        self._changed = threading.Condition()
        self.start()

    def run(self) -> None:
        with contextlib.suppress(CcqCancelled, Cancelled):
            for update in self._client.watch(self._ccq.id, token=self._ccq.token):
                with self._changed:
                    self.labels += len(update.labels)
                    self.arrived.append((time.monotonic(), update.labels.frontier))
                    self._changed.notify_all()

    def wait(self, reached: Cursor) -> float:
        """When the first update came that covers `reached`, on the monotonic clock.

        Raises:
            TimeoutError: none came within `CACHED_TIMEOUT_S`.
        """

        def covering() -> float | None:
            return next((at for at, frontier in self.arrived if frontier.covers(reached)), None)

        with self._changed:
            at = self._changed.wait_for(covering, CACHED_TIMEOUT_S)
        if at is None:
            raise TimeoutError(f"no update up to {reached} in {CACHED_TIMEOUT_S:.0f} s")
        return at
