"""How much is measured: the full figures, or few and small ones that show that the bench works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts of what the areas measure.

    Attributes:
        runs: of everything that is timed, but cold starts and updates.
        paths: in the metadata graph; `paths_few` in the smaller one of a pair.
        paths_per_batch, paths_new: of an insert, and of what is new in a delta.
        stride: of the generated forecast's grid.
        ingest: (observations in a batch, batches) of each way to ingest.
        blocks: (blocks in a batch, batches) that are ingested.
        copied: (observations in a batch, batches) that are ingested as COPY does.
        keyed: rows of a table.
        corrected: rows that are corrected for two years.
        deleted: observations; a run deletes one in a hundred.
        conditional: increments of one row in a run.
        counted: increments of many rows, in all.
        local, nearby, unseen: subscriptions with shared parameters, each with its own place, and
            such that also learn of twice as many old observations.
        watching, watched, singles: subscriptions of a channel, observations that are ingested
            under it in one run, and subscriptions that are stored one by one.
        pushed, push_commits: subscriptions of a broker with a sink, and commits whose
            notifications are timed.
        schools, school_areas, school_subscriptions, near_schools: rows that enrich tweets by area,
            areas, subscriptions to these, and rows that enrich tweets by place.
        labels: results of which the size is taken.
        preload_rows: observations stored before cycles are timed.
        job_labels: found by one job of one query.
        job_queries: in one job of many queries.
        cold_starts: of the evaluator.
        paused_ticks: ticks before which a node is stopped, for each node that may be.
        intervals_s, updates: update intervals, and how many updates are timed in each.
        update_rows: observations that make an update.
        fetches: labels that are fetched.
        fetch_answers: in how many updates, where it is not one.
        growth, growth_results: stored observations, and labels fetched at each of these sizes.
        query_nodes: nodes of each cluster that is asked.
        submissions: (nodes, continuous queries submitted to them one by one).
        idle_ccqs, idle_s: continuous queries that have nothing to do, and for how long to look.
        verify: (observations in a commit, commits) of each store that is verified.
        recovery: (paths in a commit, commits, whether merged) of each store that is recovered.
        stream_labels: of the answer that is streamed.
        subscriptions, own_subscriptions: that share areas, and with circles or boxes of their own.
        many_polygons, many_boxes: subscriptions, and standing queries, against `many_rows` new
            rows.
        clients, clients_s: that work at the same time, and for how many seconds.
        kills: of coordinators.
        fresh_blocks_per_s, fresh_s: blocks ingested a second while their freshness is taken, and
            for how many seconds.
        source_rows: observations that Spark reads.
        tick_paths: new in one tick; `idle_tick_s`: how long nothing is new before another one.
        memory_blocks, memory_ccqs, memory_results, memory_runs: stored blocks, continuous queries,
            labels in the cache of each, and clusters of each kind.
        tile_rows: observations of which tiles are made.
        gateway_rows, gateway_readers: observations of a file over HTTP, and readers of the events
            of a query.
        sparql_labels: of the large result, and of the one that rdflib's engine is asked about, too.
        loop_rows: observations, each with the most features, of a node whose event loop is watched.
    """

    runs: int = 5
    paths: int = 1_000_000
    paths_few: int = 100_000
    paths_per_batch: int = 10_000
    paths_new: int = 1_000
    stride: int = 1
    ingest: tuple[tuple[int, int], ...] = ((65_536, 4), (1_000, 100))
    blocks: tuple[int, int] = (500, 16)
    copied: tuple[int, int] = (65_536, 4)
    keyed: int = 1_000_000
    corrected: int = 50_000
    deleted: int = 10_000_000
    conditional: int = 400
    counted: int = 100_000
    local: int = 4_000_000
    nearby: int = 1_000_000
    unseen: int = 500_000
    watching: int = 100_000
    watched: int = 262_144
    singles: int = 100
    pushed: int = 1_000
    push_commits: int = 60
    schools: int = 10_000_000
    school_areas: int = 40_000
    school_subscriptions: int = 2_000_000
    near_schools: int = 1_000_000
    labels: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    preload_rows: int = 200_000
    job_labels: tuple[int, ...] = (0, 1_000, 100_000)
    job_queries: int = 1_000
    cold_starts: int = 5
    intervals_s: tuple[float, ...] = (0.25, 0.5, 1.0)
    updates: int = 20
    paused_ticks: int = 5
    update_rows: int = 1_000
    fetches: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    fetch_answers: int = 20
    growth: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    growth_results: int = 10_000
    query_nodes: tuple[int, ...] = (1, 2, 4, 8)
    submissions: tuple[int, int] = (12, 1_000)
    idle_ccqs: tuple[int, ...] = (0, 100, 1_000)
    idle_s: float = 30.0
    verify: tuple[tuple[int, int], ...] = ((10_000, 400), (1_000, 4_000), (10, 100_000))
    recovery: tuple[tuple[int, int, bool], ...] = (
        (10_000, 1_000, False),
        (100, 100_000, False),
        (100, 100_000, True),
    )
    stream_labels: int = 5_000_000
    subscriptions: int = 4_000_000
    own_subscriptions: int = 1_000_000
    many_polygons: int = 20_000
    many_boxes: int = 100_000
    many_rows: int = 100_000
    clients: int = 20
    clients_s: float = 60.0
    kills: int = 50
    fresh_blocks_per_s: int = 5_000
    fresh_s: float = 30.0
    source_rows: int = 5_000_000
    tick_paths: int = 10_000
    idle_tick_s: float = 70.0
    memory_blocks: int = 1_000_000
    memory_ccqs: int = 10
    memory_results: int = 100_000
    memory_runs: int = 1
    tile_rows: tuple[int, ...] = (1_000_000, 10_000_000)
    gateway_rows: int = 1_000_000
    gateway_readers: int = 10_000
    sparql_labels: tuple[int, int] = (100_000, 500)
    loop_rows: int = 100_000


FULL = Sizes()
QUICK = Sizes(
    paths=40_000,
    paths_few=10_000,
    paths_per_batch=2_000,
    paths_new=200,
    stride=4,
    ingest=((4_096, 2), (500, 4)),
    blocks=(10, 3),
    copied=(1_000, 2),
    keyed=5_000,
    corrected=5_000,
    deleted=5_000,
    conditional=16,
    counted=6_400,
    local=20_000,
    nearby=5_000,
    unseen=3_000,
    watching=1_000,
    watched=4_096,
    singles=10,
    pushed=20,
    push_commits=5,
    schools=20_000,
    school_areas=400,
    school_subscriptions=4_000,
    near_schools=5_000,
    labels=(1_000, 4_000),
    preload_rows=10_000,
    job_labels=(0, 1_000),
    job_queries=50,
    cold_starts=1,
    intervals_s=(0.25,),
    updates=5,
    paused_ticks=1,
    update_rows=200,
    fetches=(1_000, 5_000),
    fetch_answers=5,
    growth=(5_000, 20_000),
    growth_results=500,
    query_nodes=(1, 2),
    submissions=(2, 20),
    idle_ccqs=(0, 5),
    idle_s=2.0,
    verify=((500, 20),),
    recovery=((200, 50, True),),
    stream_labels=40_000,
    subscriptions=10_000,
    own_subscriptions=2_000,
    many_polygons=40,
    many_boxes=400,
    many_rows=2_000,
    clients=4,
    clients_s=3.0,
    kills=1,
    fresh_blocks_per_s=100,
    fresh_s=3.0,
    gateway_rows=20_000,
    gateway_readers=100,
    source_rows=20_000,
    tick_paths=500,
    idle_tick_s=1.0,
    memory_blocks=4_000,
    memory_ccqs=2,
    memory_results=2_000,
    memory_runs=1,
    tile_rows=(20_000,),
    sparql_labels=(2_000, 40),
    loop_rows=2_000,
)


class NotInstalled(Exception):
    """Other software is missing that an area compares Galileo with; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every area is handed.

    Attributes:
        sizes: how much to measure.
        directory: for files; on the disk that is to be measured.
        say: shows progress.
    """

    sizes: Sizes
    directory: Path
    say: Callable[[str], None]
