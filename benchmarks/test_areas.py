"""The areas of the benchmarks, each a test that yields figures; `scripts/bench` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from benchmarks import (
    ccq_memory,
    channel_costs,
    channel_pushes,
    channels,
    channels_postgis,
    channels_schools,
    clients,
    cluster_queries,
    conditions,
    contained,
    corrections,
    cycle,
    event_loop,
    failover,
    fetch,
    fetch_growth,
    freshness,
    gateway,
    gateway_peers,
    graph,
    graph_duckdb,
    groups_duckdb,
    idle,
    ingest,
    ingest_postgis,
    label_size,
    many_queries,
    replicas,
    source,
    sparql,
    spatial_postgis,
    standalone,
    startup,
    storage,
    streaming,
    subscriptions,
    tables,
    tick,
    tiles,
)
from benchmarks.figures import Figure, quantity
from benchmarks.report import Section
from benchmarks.sizes import Bench, NotInstalled


@dataclass(frozen=True, slots=True)
class Area:
    """One subject, measured by itself."""

    name: str
    title: str
    measure: Callable[[Bench], Iterator[Figure]]


AREAS = (
    Area("insert", "Inserting into the metadata graph", graph.measure_inserts),
    Area("query", "Querying the metadata graph", graph.measure_queries),
    Area("labels", "Size of results", label_size.measure),
    Area("ingest", "Ingesting durably", ingest.measure_batches),
    Area("blocks", "Ingesting blocks of 8 KB durably", ingest.measure_blocks),
    Area("cycle", "From a commit to the client that watches", cycle.measure),
    Area("fetch", "Fetching cached results", fetch.measure),
    Area("idle", "A cluster that has nothing to do", idle.measure),
    Area("asking", "Queries of a cluster", cluster_queries.measure),
    Area(
        "submitting",
        "Submitting continuous queries to a cluster",
        cluster_queries.measure_submissions,
    ),
    Area("streaming", "Streaming large answers", streaming.measure),
    Area("clients", "Many clients at once", clients.measure),
    Area("verify", "Checking every stored byte", storage.measure_verify),
    Area("recovery", "Starting again with what is stored", storage.measure_recovery),
    Area("subscriptions", "Subscriptions of a query with parameters", subscriptions.measure),
    Area("contained", "Samplers that were sent", contained.measure),
    Area("startup", "From typing to an answer", startup.measure),
)

# Long, or in need of other software; they run when they are named.
COMPARISONS = (
    Area("tick", "A tick, warm and after whatever cools it", tick.measure),
    Area("freshness", "How old results are while blocks come in", freshness.measure),
    Area("failover", "When a coordinator is killed", failover.measure),
    Area("ccq_memory", "What caches add to a cluster's memory", ccq_memory.measure),
    Area("growth", "Fetching while the store grows", fetch_growth.measure),
    Area("duckdb", "The metadata graph compared with DuckDB", graph_duckdb.measure),
    Area("groups", "Groups of the metadata graph compared with DuckDB", groups_duckdb.measure),
    Area("scale", "What grows with the metadata graph", graph.measure_growth),
    Area("copy", "Ingesting compared with PostGIS COPY", ingest_postgis.measure),
    Area("tables", "Tables compared with PostgreSQL", tables.measure),
    Area("conditions", "Conditional writes compared with etcd", conditions.measure),
    Area("corrections", "Corrections compared with PostgreSQL and DuckDB", corrections.measure),
    Area(
        "deletions",
        "Deleting by a condition compared with PostgreSQL",
        corrections.measure_deletions,
    ),
    Area("channels", "Channels compared with PostgreSQL", channels.measure),
    Area("channel-costs", "Ingesting and subscribing under a channel", channel_costs.measure),
    Area("pushing", "Pushing notifications", channel_pushes.measure),
    Area("schools", "Channels enriched with ten million rows", channels_schools.measure),
    Area("polygons", "Channels: polygons compared with PostGIS", channels_postgis.measure),
    Area("replicated", "Ingesting with three copies", replicas.measure_ingest),
    Area("leaders", "When the leader of a partition is killed", replicas.measure_leader),
    Area("replicated-ticks", "Updates with three copies", replicas.measure_ticks),
    Area("healing", "When a disk is lost", replicas.measure_healing),
    Area("boxes", "Very many continuous queries: boxes", many_queries.measure_boxes),
    Area("tiles", "Map tiles", tiles.measure),
    Area("source", "Reading through Spark compared with Parquet files", source.measure),
    Area("standalone", "A job on a Spark cluster compared with embedded", standalone.measure),
    Area("loop", "Longest stop of an event loop", event_loop.measure),
    Area("gateway", "Answers of the HTTP gateway", gateway.measure),
    Area("features", "Features over HTTP compared with pygeoapi and tipg", gateway_peers.measure),
    Area("sparql", "SPARQL compared with rdflib's engine", sparql.measure),
    Area("postgis", "Polygons and circles compared with PostGIS", spatial_postgis.measure),
)


def test_area(area: Area, bench: Bench, section: Section) -> None:
    """Measures an area; where it fails, what it had measured until then stays in the report."""
    bench.say(f"-- {area.title}")
    try:
        for figure in area.measure(bench):
            section.figures.append(figure)
            bench.say(f"{figure.name}: {quantity(figure.spread.median, figure.unit)}")
    except NotInstalled as error:
        section.missing = str(error)
        pytest.skip(section.missing)
    assert section.figures, "expected at least one figure, got none"
