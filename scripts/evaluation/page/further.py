"""What is told of the parts that the paper left out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from benchmarks.figures import digits, quantity

from evaluation.page import plots
from evaluation.page.plots import Axes, Line
from evaluation.page.section import (
    Compared,
    Section,
    extent,
    interval,
    picture,
    seconds,
    table,
    times,
)
from evaluation.parts.failures import Failover
from evaluation.parts.history import Grown, History
from evaluation.parts.intervals import Freshness
from evaluation.parts.scaling import ASK, IDLE, INGEST, TICK, Cluster, Scaling, Work
from evaluation.parts.simulated import Simulated

NOTHING = ""
"""What the paper has of these."""
UNITS = {INGEST: "observation", ASK: "query", TICK: "tick", IDLE: "second"}


def tell_scaling(taken: Scaling) -> Section:
    counts = [float(one.nodes) for one in taken.clusters]
    names = {INGEST: "ingest", ASK: "query", TICK: "tick"}
    drawn = [
        Line(f"{names[name]}, the busiest node", counts, _relative(taken.clusters, name))
        for name in names
    ]
    drawn.append(Line("an equal share", counts, [1 / count for count in counts], dashed=True))
    axes = Axes(
        "work of the busiest node, one node = 1",
        "nodes",
        "share",
        log_x=True,
        log_y=True,
        x_ticks=counts,
    )
    most, busy = taken.clusters[-1], _relative(taken.clusters, TICK)[-1]
    return Section(
        [
            "All processes share the cores of one machine, so the clock says nothing about more "
            "machines. What says something is the work of each node: with a machine for each, "
            "nothing is over before the busiest node is done. Clusters have the same "
            f"{taken.rows:,} observations of a forecast in the same partitions, in one group. "
            f"*Ingest*: in batches of {taken.batch:,}, to the nodes in turn, per observation. "
            f"*Query*: `{taken.query}`, which finds {taken.found:,} labels, asked of the nodes in "
            f"turn, per query. *Tick*: the scans that a processing cycle makes of {taken.news:,} "
            "new observations, per cycle. *Idle*: heartbeats and clocks, per second. Figures are "
            "processor time of the nodes, clients and Spark apart.",
            "",
            *_work_table(taken.clusters),
            "",
            picture("paper-scaling.svg", "Work of the busiest node by the number of nodes"),
            "",
            f"With {most.nodes} nodes the busiest one does "
            f"{digits(100 * busy)} % of the work that a single node has with a tick, "
            f"{digits(100 * _relative(taken.clusters, ASK)[-1])} % of that with a query and "
            f"{digits(100 * _relative(taken.clusters, INGEST)[-1])} % of that with ingest; an "
            f"equal share would be {digits(100 / most.nodes)} %. What is above that are partitions "
            "that do not spread evenly, what a call costs however little it finds, and, of ingest "
            "and queries, passing on what other nodes hold.",
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
        (
            Compared(
                f"A tick's work of the busiest of {most.nodes} nodes, of a single one's",
                NOTHING,
                f"{digits(100 * busy)} %; an equal share is {digits(100 / most.nodes)} %",
            ),
        ),
    )


def _work(cluster: Cluster, name: str) -> Work:
    (found,) = [work for work in cluster.works if work.name == name]
    return found


def _relative(clusters: Sequence[Cluster], name: str) -> list[float]:
    """Work of the busiest node of each cluster, of that of the first cluster's."""
    busiest = [max(_work(one, name).node_s) / _work(one, name).count for one in clusters]
    return [value / busiest[0] for value in busiest]


def _work_table(clusters: Sequence[Cluster]) -> list[str]:
    rows = []
    for cluster in clusters:
        for work in cluster.works:
            per = [node_s / work.count for node_s in work.node_s]
            rows.append(
                (
                    f"{cluster.nodes}",
                    f"{work.name}, per {UNITS[work.name]}",
                    quantity(sum(per), "s"),
                    quantity(max(per), "s"),
                    quantity(min(per), "s"),
                )
            )
    rows.sort(key=lambda row: row[1])
    head = ("nodes", "work", "all nodes", "the busiest", "the least busy")
    return table(head, rows, left=2)


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
    worlds = len(taken.points[0].submitted_s)
    return [
        "The simulator runs the production machines (membership, election, coordination) with a "
        "clock of its own, so cores do not matter; it knows no processors. It is told that a new "
        f"observation costs a storage node {quantity(taken.row_s, 's')}, as a tick of a single "
        "node did above, and that the node with most of what is new decides how long the scans "
        f"take. {quantity(taken.rows_per_s, 'observations/s')} come in, with which a single node "
        f"would be busy for {digits(100 * taken.busy_share)} % of its time. Network and sync take "
        "ten milliseconds each on average, a cycle 80 without its scans, the update interval is "
        f"{interval(taken.interval_s)} and the failure detector waits "
        f"{taken.failure_timeout_s:g} s. "
        f"{worlds} worlds for each number of nodes; at the end of each everything that was "
        "committed has been delivered once.",
        "",
        *table(head, rows, left=0),
        "",
        picture("paper-simulated.svg", "Simulated seconds by the number of nodes"),
        "",
        "Half an interval of *commit to cache* is waiting for the tick. More nodes take time off "
        "the scans, and add the heartbeats that tell of commits elsewhere. Messages between nodes "
        "grow with their square, since each tells each other.",
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
    axes = Axes("simulated time", "nodes", "s", log_x=True, x_ticks=counts)
    return plots.lines(axes, drawn)


def tell_freshness(taken: Freshness) -> Section:
    rows = [
        (
            interval(one.interval_s),
            quantity(one.blocks_per_s, "blocks/s"),
            seconds(one.lags_s),
            quantity(_quantile(one.lags_s, 0.95), "s"),
            quantity(_quantile(one.lags_s, 0.99), "s"),
            quantity(max(one.lags_s), "s"),
            digits(_quantile(one.lags_s, 0.99) / one.interval_s),
        )
        for one in taken.points
    ]
    head = (
        *("interval", "taken", "median lag", "95th percentile", "99th percentile", "longest"),
        "99th over the interval",
    )
    x = [one.interval_s for one in taken.points]
    drawn = [
        Line("99th percentile", x, [_quantile(one.lags_s, 0.99) for one in taken.points]),
        Line("median", x, [statistics.median(one.lags_s) for one in taken.points]),
        Line("the interval", x, x, dashed=True),
    ]
    axes = Axes(
        f"{taken.blocks_per_s_meant:,} blocks of 8 KB a second meant",
        "update interval, s",
        "lag, s",
        log_x=True,
        log_y=True,
        x_ticks=x,
    )
    shortest = taken.points[0]
    return Section(
        [
            f"A client sends {taken.blocks_per_s_meant:,} blocks of 8 KB a second to {taken.nodes} "
            f"nodes for {taken.seconds:g} s, in ten batches a second, on a schedule; a reader "
            "watches a continuous query that finds each of them. The lag of a batch is the time "
            "from its acknowledgement to the update that covers it; 0 where the update was "
            "first. All blocks have to have come at the end.",
            "",
            *table(head, rows),
            "",
            picture("paper-freshness.svg", "Lag by the update interval"),
            "",
            "On average half an interval passes until the next tick. Then come the job and the way "
            f"to the reader, which is what is left at {interval(shortest.interval_s)}.",
        ],
        {"paper-freshness.svg": lambda: plots.lines(axes, drawn)},
        (
            Compared(
                "Lag of an update, 99th percentile",
                NOTHING,
                ", ".join(
                    f"{quantity(_quantile(one.lags_s, 0.99), 's')} at {interval(one.interval_s)}"
                    for one in taken.points
                ),
            ),
        ),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))


def tell_failover(taken: Failover) -> Section:
    kills = len(taken.taken_s)
    axes = Axes(f"{kills} kills of a coordinator", "s until an answer has what came later", "%")
    marked = {"what the failure detector waits": taken.failure_timeout_s}
    longest = quantity(max(taken.taken_s), "s")
    return Section(
        [
            f"{taken.nodes} nodes, a continuous query with an interval of "
            f"{interval(taken.interval_s)}, and a reader. The coordinator's process gets a "
            "SIGKILL, and observations that live nodes keep are ingested at once; a run ends when "
            "the reader has them. At the end everything that is stored has to have come once.",
            "",
            *table(
                ("kills", "median", "95th percentile", "lowest to highest"),
                [
                    (
                        f"{kills}",
                        seconds(taken.taken_s),
                        quantity(_quantile(taken.taken_s, 0.95), "s"),
                        extent(taken.taken_s),
                    )
                ],
                left=0,
            ),
            "",
            picture("paper-failover.svg", "Share of kills by the time until the next answer"),
            "",
            f"The failure detector waits {taken.failure_timeout_s:g} s after a node's last "
            "heartbeat; election, first cycle and the reader's way to the new coordinator are "
            "the rest.",
        ],
        {"paper-failover.svg": lambda: plots.steps(axes, taken.taken_s, marked=marked)},
        (
            Compared(
                "Kill of a coordinator until the next new answer",
                NOTHING,
                f"{seconds(taken.taken_s)}, at most {longest} in {kills} kills",
            ),
        ),
    )


def tell_history(taken: History) -> Section:
    rows = [
        (
            f"{one.stored:,}",
            f"{one.results:,}",
            seconds(one.fetch_s),
            seconds(one.query_s),
            seconds(one.scan_s),
            seconds(one.job_s),
        )
        for one in taken.points
    ]
    head = ("stored", "results", "fetch", "asked again", "a tick's scans", "a tick's job on Spark")
    x = [float(one.stored) for one in taken.points]
    drawn = [
        Line(name, x, [1e3 * statistics.median(values(one)) for one in taken.points])
        for name, values in (
            ("fetch", _fetched),
            ("asked again", _asked),
            ("a tick's scans", _scanned),
            ("a tick's job", _job),
        )
    ]
    axes = Axes(
        f"{taken.nodes} nodes",
        "stored observations",
        "ms, median",
        log_x=True,
        log_y=True,
        x_ticks=x,
    )
    first, last = taken.points[0], taken.points[-1]
    factor = digits(last.stored / first.stored)
    return Section(
        [
            f"{taken.nodes} nodes with more and more random weather. At each size a query that "
            f"matches about {first.results:,} of all observations is fetched from its cache and "
            f"asked again; and {taken.news:,} new observations are looked at as a tick does: by "
            "the scans of all nodes alone, and in the job on Spark around them.",
            "",
            *table(head, rows, left=0),
            "",
            picture("paper-history.svg", "Times by the number of stored observations"),
            "",
            f"While the store grows {factor} times, a fetch takes "
            f"{times(_median(last.fetch_s), _median(first.fetch_s))} what it took, a tick's scans "
            f"{times(_median(last.scan_s), _median(first.scan_s))}, its job "
            f"{times(_median(last.job_s), _median(first.job_s))}, and the query asked again "
            f"{times(_median(last.query_s), _median(first.query_s))}.",
        ],
        {"paper-history.svg": lambda: plots.lines(axes, drawn)},
        (
            Compared(
                f"A tick's job with {taken.news:,} new observations, by what is stored",
                NOTHING,
                ", ".join(f"{seconds(one.job_s)} at {one.stored:,}" for one in taken.points),
            ),
            Compared(
                "A fetch, by what is stored",
                NOTHING,
                ", ".join(f"{seconds(one.fetch_s)} at {one.stored:,}" for one in taken.points),
            ),
        ),
    )


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _fetched(one: Grown) -> Sequence[float]:
    return one.fetch_s


def _asked(one: Grown) -> Sequence[float]:
    return one.query_s


def _scanned(one: Grown) -> Sequence[float]:
    return one.scan_s


def _job(one: Grown) -> Sequence[float]:
    return one.job_s
