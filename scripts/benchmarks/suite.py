"""The areas, and how they are run one behind the other."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import (
    ccq_memory,
    clients,
    contained,
    cycle,
    failover,
    fetch,
    fetch_growth,
    freshness,
    graph_duckdb,
    graph_insert,
    graph_query,
    graph_scale,
    idle,
    ingest,
    ingest_blocks,
    ingest_postgis,
    label_size,
    recovery,
    source,
    sparql,
    spatial_postgis,
    standing,
    startup,
    streaming,
    tick,
    verify,
)
from benchmarks.figures import Figure, quantity
from benchmarks.machine import Machine
from benchmarks.report import Report, Section
from benchmarks.sizes import QUICK, Bench, NotInstalled


@dataclass(frozen=True, slots=True)
class Area:
    """One subject, measured by itself."""

    name: str
    title: str
    measure: Callable[[Bench], Iterator[Figure]]


AREAS = (
    Area("insert", "Inserting into the metadata graph", graph_insert.measure),
    Area("query", "Querying the metadata graph", graph_query.measure),
    Area("labels", "Size of results", label_size.measure),
    Area("ingest", "Ingesting durably", ingest.measure),
    Area("blocks", "Ingesting blocks of 8 KB durably", ingest_blocks.measure),
    Area("cycle", "From a commit to the client that watches", cycle.measure),
    Area("fetch", "Fetching cached results", fetch.measure),
    Area("idle", "A cluster that has nothing to do", idle.measure),
    Area("streaming", "Streaming large answers", streaming.measure),
    Area("clients", "Many clients at once", clients.measure),
    Area("verify", "Checking every stored byte", verify.measure),
    Area("recovery", "Starting again with what is stored", recovery.measure),
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
    Area("duckdb", "The metadata graph beside DuckDB", graph_duckdb.measure),
    Area("scale", "What grows with the metadata graph", graph_scale.measure),
    Area("copy", "Ingesting beside PostGIS COPY", ingest_postgis.measure),
    Area("standing", "Very many standing queries", standing.measure),
    Area("source", "Reading through Spark beside Parquet files", source.measure),
    Area("sparql", "SPARQL beside rdflib's engine", sparql.measure),
    Area("postgis", "Polygons and circles beside PostGIS", spatial_postgis.measure),
)


def run(areas: Sequence[Area], bench: Bench) -> Report:
    machine = Machine.here(bench.directory)
    sections = [_section(area, bench) for area in areas]
    return Report(
        machine=machine,
        quick=bench.sizes == QUICK,
        sections=sections,
        load_at_end=os.getloadavg(),
    )


def _section(area: Area, bench: Bench) -> Section:
    """One area; where it fails, what it had measured until then, and the error."""
    bench.say(f"-- {area.title}")
    started = time.perf_counter()
    figures, missing, failure = [], "", ""
    try:
        for figure in area.measure(bench):
            figures.append(figure)
            bench.say(f"{figure.name}: {quantity(figure.spread.median, figure.unit)}")
        if not figures:
            raise AssertionError("expected at least one figure, got none")
    except NotInstalled as error:
        missing = str(error)
        bench.say(missing)
    except Exception as error:
        failure = "".join(traceback.format_exception(error))
        bench.say(f"{area.name} failed:\n{failure}")
    took_s = time.perf_counter() - started
    return Section(area.name, area.title, figures, took_s=took_s, missing=missing, failure=failure)
