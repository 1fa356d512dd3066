"""What more nodes change: the work of each in processes, and times in the simulator.

All processes share the cores of one machine, so that seconds on the clock say nothing about more
machines. What does is the work of the busiest node: with a machine for each, nothing is over before
that one is done. Processor seconds of each node are counted while the same observations are
ingested, the same query is asked, and what is new is looked at as a tick does. All clusters have
the same partitions, in one group.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import galileo
from benchmarks import clusters, jobs
from benchmarks.evaluation import plots
from benchmarks.evaluation.page import Block, picture, seconds, table
from benchmarks.evaluation.plots import Axes, Line
from benchmarks.evaluation.simulated import Simulated, simulate
from benchmarks.evaluation.sizes import Sizes
from benchmarks.figures import digits, quantity
from benchmarks.processes import processor_seconds
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.spark.owners import NodeScanner

PARTITIONS = 32
SETTLE_S = 5.0
DATASET = "nam"
QUERY = "humidity < 60"
INGEST, ASK, TICK, IDLE = "ingest", "query", "tick", "idle"
WORKS = (INGEST, ASK, TICK, IDLE)


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: processor seconds of each node for one observation, call or second.

    Attributes:
        name: of `WORKS`.
        count: how many observations, calls, scans or seconds the nodes were busy with.
        node_s: processor seconds of each node for all of them.
    """

    name: str
    count: int
    node_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Attributes:
    rows, disk_bytes: that each node stores.
    examined: paths that each node looked at for one call of the query.
    works: in the order of `WORKS`.
    """

    nodes: int
    rows: tuple[int, ...]
    disk_bytes: tuple[int, ...]
    examined: tuple[int, ...]
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Attributes:
    rows, batch: observations in each cluster, and in each batch.
    news: of them, what a tick looks at.
    query: that is asked, and how many labels it finds.
    """

    rows: int
    batch: int
    news: int
    query: str
    found: int
    clusters: tuple[Cluster, ...]
    simulated: Simulated


def measure(sizes: Sizes, bench: Bench) -> Scaling:
    table = clusters.forecast(sizes.scaling_rows, stride=bench.sizes.stride)
    measured = _Measured(sizes, bench, table=table)
    taken = [measured.of(nodes) for nodes in sizes.nodes]
    alone = next(work for work in taken[0].works if work.name == TICK)
    row_s = sum(alone.node_s) / alone.count / sizes.scaling_news
    bench.say(f"simulated clusters, with {1e6 * row_s:.1f} µs of a node for each new path")
    simulated = simulate(sizes.nodes, worlds=sizes.worlds, row_s=row_s)
    return Scaling(
        sizes.scaling_rows,
        sizes.scaling_batch,
        sizes.scaling_news,
        QUERY,
        measured.found,
        tuple(taken),
        simulated,
    )


class _Measured:
    """Clusters at work with the same observations; `found` is what the query finds in each."""

    def __init__(self, sizes: Sizes, bench: Bench, *, table: pa.Table) -> None:
        self.found = 0
        self._sizes = sizes
        self._bench = bench
        self._table = table

    def of(self, nodes: int) -> Cluster:
        self._bench.say(f"{nodes} nodes at work")
        with clusters.cluster(
            self._bench.directory, nodes=nodes, groups=1, partitions=PARTITIONS
        ) as running:
            client = running.client(timeout=clusters.PATIENCE)
            clusters.create_dataset(running, client, DATASET)
            clusters.wait_whole(client)
            each = [galileo.connect(node.address, timeout="60s") for node in running.nodes]
            works = self._works(running, client, each)
            explained = client.explain(DATASET, QUERY)
            examined = {one.node: one.paths_examined for one in explained.nodes}
            status = {one.name: one.datasets for one in client.status().nodes}
            for one in each:
                one.close()
        names = [node.name for node in running.nodes]
        stored = [next(s for s in status[name] if s["dataset"] == DATASET) for name in names]
        return Cluster(
            nodes,
            tuple(int(one["rows"]) for one in stored),
            tuple(int(one["bytes_on_disk"]) for one in stored),
            tuple(examined.get(name, 0) for name in names),
            works,
        )

    def _works(
        self, running: galileo.LocalCluster, client: Client, each: list[Client]
    ) -> tuple[Work, ...]:
        """All kinds of work, one behind the other, asked of the nodes in turn."""
        rest = self._table.num_rows - self._sizes.scaling_news
        size = self._sizes.scaling_batch
        starts = range(0, rest, size)

        def ingest(number: int) -> None:
            start = starts[number]
            part = self._table.slice(start, min(size, rest - start))
            each[number % len(each)].ingest(DATASET, part)

        def ask(number: int) -> None:
            labels = each[number % len(each)].query(DATASET, QUERY)
            if not labels.complete or self.found not in (0, len(labels)):
                raise AssertionError(f"expected {self.found:,} labels, got {labels}")
            self.found = len(labels)

        ingested = _work(running, INGEST, ingest, calls=len(starts), things=rest)
        time.sleep(SETTLE_S)
        after = client.query(DATASET).frontier
        client.ingest(DATASET, self._table.slice(rest))
        request = jobs.delta_request(client, [""], after=after, dataset=DATASET)
        work, scanner = jobs.parts_of(request), NodeScanner()
        try:
            ticked = _work(
                running,
                TICK,
                lambda _: jobs.scan(scanner, work),
                calls=self._sizes.scaling_scans,
            )
        finally:
            scanner.close()
        asked = _work(running, ASK, ask, calls=self._sizes.scaling_scans)
        idle = _work(running, IDLE, lambda _: time.sleep(1.0), calls=round(SETTLE_S))
        return ingested, asked, ticked, idle


def _work(
    running: galileo.LocalCluster,
    name: str,
    call: Callable[[int], None],
    *,
    calls: int,
    things: int = 0,
) -> Work:
    """What the nodes need for so many calls, counted as `things` where these are something else."""
    before = _processor_seconds(running)
    for number in range(calls):
        call(number)
    after = _processor_seconds(running)
    used = tuple(end - start for start, end in zip(before, after, strict=True))
    return Work(name, things or calls, used)


def _processor_seconds(running: galileo.LocalCluster) -> list[float]:
    pids = [node.pid for node in running.nodes]
    return [processor_seconds(pid) for pid in pids if pid is not None]


UNITS = {INGEST: "observation", ASK: "query", TICK: "tick", IDLE: "second"}


def tell(taken: Scaling) -> Block:
    counts = [float(one.nodes) for one in taken.clusters]
    relative = {name: _relative(taken.clusters, name) for name in (INGEST, ASK, TICK)}
    drawn = [Line(f"{name}, the busiest node", counts, shares) for name, shares in relative.items()]
    drawn.append(Line("an equal share", counts, [1 / count for count in counts], dashed=True))
    axes = Axes(
        "work of the busiest node, one node = 1",
        "nodes",
        "share",
        log_x=True,
        log_y=True,
        x_ticks=counts,
    )
    most, equal = taken.clusters[-1].nodes, digits(100 / taken.clusters[-1].nodes)
    busiest = {name: f"{digits(100 * shares[-1])} %" for name, shares in relative.items()}
    return Block(
        [
            *_work_table(taken.clusters),
            "",
            picture("paper-scaling.svg", "Work of the busiest node by the number of nodes"),
            "",
            f"With {most} nodes the busiest one does {busiest[TICK]} of the work that a single "
            f"node has with a tick, {busiest[ASK]} of that with a query and {busiest[INGEST]} of "
            f"that with ingest; an equal share would be {equal} %.",
            "",
            *_share_table(taken.clusters),
            "",
            "### In simulated time",
            "",
            *_simulated(taken.simulated),
        ],
        {
            "paper-scaling.svg": lambda: plots.lines(axes, drawn),
            "paper-simulated.svg": lambda: _simulated_plot(taken.simulated),
        },
        [
            (
                f"A tick's work of the busiest of {most} nodes, of a single one's",
                "left out",
                f"{busiest[TICK]}; an equal share is {equal} %",
            )
        ],
    )


def _relative(clusters: Sequence[Cluster], name: str) -> list[float]:
    """Work of the busiest node of each cluster, of that of the first cluster's."""
    works = [next(work for work in one.works if work.name == name) for one in clusters]
    busiest = [max(work.node_s) / work.count for work in works]
    return [value / busiest[0] for value in busiest]


def _work_table(clusters: Sequence[Cluster]) -> list[str]:
    rows = []
    for cluster in clusters:
        for work in cluster.works:
            per = [node_s / work.count for node_s in work.node_s]
            values = (quantity(value, "s") for value in (sum(per), max(per), min(per)))
            rows.append((f"{cluster.nodes}", f"{work.name}, per {UNITS[work.name]}", *values))
    rows.sort(key=lambda row: row[1])
    return table(("nodes", "work", "all nodes", "the busiest", "the least busy"), rows, left=2)


def _share_table(clusters: Sequence[Cluster]) -> list[str]:
    rows = [
        (
            f"{one.nodes}",
            f"{min(one.rows):,} to {max(one.rows):,}",
            f"{quantity(min(one.disk_bytes), 'B')} to {quantity(max(one.disk_bytes), 'B')}",
            f"{min(one.examined):,} to {max(one.examined):,}",
        )
        for one in clusters
    ]
    head = ("nodes", "observations of a node", "bytes on its disk", "paths it looks at for a query")
    return table(head, rows, left=0)


def _simulated(taken: Simulated) -> list[str]:
    rows = [
        (
            f"{one.nodes}",
            seconds(one.submitted_s),
            seconds(one.cached_s),
            quantity(float(np.quantile(one.cached_s, 0.99)), "s"),
            seconds(one.failover_s) if one.failover_s else "none",
            digits(statistics.median(one.messages_per_s)),
        )
        for one in taken.points
    ]
    head = (
        *("nodes", "submission", "commit to cache", "99th percentile"),
        *("crash to next commit in a cache", "messages/s"),
    )
    return [
        f"A new observation costs a storage node {quantity(taken.row_s, 's')}, as a tick of a "
        f"single node did above. {quantity(taken.rows_per_s, 'observations/s')} come in, with "
        f"which a single node would be busy for {digits(100 * taken.busy_share)} % of its time. "
        f"The update interval is {taken.interval_s:g} s and the failure detector waits "
        f"{taken.failure_timeout_s:g} s. {len(taken.points[0].submitted_s)} worlds for each "
        "number of nodes.",
        "",
        *table(head, rows, left=0),
        "",
        picture("paper-simulated.svg", "Simulated seconds by the number of nodes"),
    ]


def _simulated_plot(taken: Simulated) -> bytes:
    counts = [float(one.nodes) for one in taken.points]
    lags = [np.quantile(one.cached_s, (0.5, 0.99)).tolist() for one in taken.points]
    failed = [one for one in taken.points if one.failover_s]
    drawn = [
        Line("commit to cache, median", counts, [lag[0] for lag in lags]),
        Line("commit to cache, 99th percentile", counts, [lag[1] for lag in lags]),
        Line(
            "crash to next commit in a cache",
            [float(one.nodes) for one in failed],
            [statistics.median(one.failover_s) for one in failed],
        ),
    ]
    return plots.lines(Axes("simulated time", "nodes", "s", log_x=True, x_ticks=counts), drawn)
