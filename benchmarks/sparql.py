"""SPARQL over results, compared with rdflib's own engine and oxigraph called directly.

The suite is that of `tests/unit/rdf/queries.rq`, where the tests compare all answers; here their
sizes are compared once more, and the time of each query: of this engine with its process, pipes and
checks, against rdflib over the same triples in its own store.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyoxigraph as ox
from rdflib import Graph

from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn, seconds
from benchmarks.sizes import Bench
from galileo import rdf
from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros

QUERIES = Path(__file__).parents[1] / "tests" / "unit" / "rdf" / "queries.rq"
TRIPLES_MIN_PER_S = 200_000
PATH_MAX_S = 0.005
RATIO_MIN = 20
PIECE_S = 0.05
HOUR_US = 3_600_000_000
SCHEMA = Schema(
    "nam",
    [
        Feature("temperature", "K"),
        Feature("level", "m", type="int"),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
    ],
    geohash_precision=3,
)
STATIONS = pa.array(["KDEN", "K/DEN", None, 'quo"te', "é~%"])
CELLS = ("9xj", "9xk", "dr5")
BUCKET = "urn:galileo:vertex:nam/9xj/1970-01-01T02:00:00Z"
PATHS = {
    "below a bucket": f"SELECT ?v WHERE {{ <{BUCKET}> g:parentOf+ ?v }} LIMIT 1000",
    "up from leaves": "SELECT ?h WHERE { ?p g:sequence 2 ; g:partition 1 ; ^g:parentOf+ ?c ."
    " ?c a g:Cell ; g:value ?h } LIMIT 10",
    "two ends": f"ASK {{ <{BUCKET}> g:parentOf/g:parentOf+ ?p . ?p f:level 1 }}",
}


def measure(bench: Bench) -> Iterator[Figure]:
    many, few = bench.sizes.sparql_labels
    yield from _large(labels(many), bench)
    yield from _suite(labels(few), bench)


def labels(count: int) -> LabelSet:
    """Labels with repeated and missing values in a few cells, and buckets of about fifty."""
    rng = np.random.default_rng(20120301)
    hours = max(4, count // (50 * len(CELLS)))
    columns = {
        "cell": pa.array(geohash.from_text(list(CELLS))[rng.integers(len(CELLS), size=count)]),
        "bucket": times_from_micros(rng.integers(hours, size=count) * HOUR_US),
        "temperature": pa.array(rng.integers(270, 280, count) / 2, mask=rng.random(count) < 0.2),
        "level": pa.array(rng.integers(-2, 3, count)),
        "station": STATIONS.take(pa.array(rng.integers(len(STATIONS), size=count))),
        "raining": pa.array(rng.random(count) < 0.5, mask=rng.random(count) < 0.3),
        "row": pa.array(np.arange(count, dtype=np.int32) % 1_000),
        "rows": pa.array(rng.integers(1, 9, count).astype(np.int32)),
        "partition": pa.array((np.arange(count) % 2).astype(np.int32)),
        "sequence": pa.array(np.arange(count) // 1_000 + 1),
    }
    wanted = SCHEMA.label_schema
    return LabelSet(SCHEMA, pa.table([columns[n] for n in wanted.names], schema=wanted))


# --- a large result --------------------------------------------------------------------------


def _large(found: LabelSet, bench: Bench) -> Iterator[Figure]:
    triples = b"".join(rdf.ntriples(found))
    count = triples.count(b"\n")
    bench.say(f"{len(found):,} labels are {count:,} triples")

    def load() -> None:
        with rdf.open_labels(found) as graph:
            graph.load()

    def load_alone() -> None:
        ox.Store().bulk_load(triples, ox.RdfFormat.N_TRIPLES, lenient=True)

    ours, alone = in_turn(load, load_alone, runs=bench.sizes.runs, warm_up=False)
    yield Figure(
        f"loading {len(found):,} labels, {count:,} triples, made and handed over",
        "triples/s",
        ours.per_second(count),
        (Peer("oxigraph's bulk loader, of N-Triples that are there", alone.per_second(count)),),
        (Goal("at least", TRIPLES_MIN_PER_S),),
    )
    store = ox.Store()
    store.load(triples, ox.RdfFormat.N_TRIPLES, lenient=True)
    with rdf.open_labels(found) as graph:
        for name, text in PATHS.items():
            yield _path(name, text, graph, store, bench)


def _path(name: str, text: str, graph: rdf.OpenGraph, store: ox.Store, bench: Bench) -> Figure:
    def alone() -> Any:
        found = store.query(text, prefixes=dict(rdf.PREFIXES))
        return bool(found) if isinstance(found, ox.QueryBoolean) else list(found)

    answer, expected = graph.sparql(text), alone()
    size = len(answer)
    if size != (expected if isinstance(expected, bool) else len(expected)) or not size:
        raise AssertionError(f"{text!r} has {size} answers, and directly {expected!r}")
    runs = bench.sizes.runs
    ours, theirs = in_turn(lambda: graph.sparql(text), alone, runs=runs, run_s=PIECE_S)
    return Figure(
        f"property path over {len(graph.source_labels() or ()):,} labels, {name}: {size:,} found",
        "s",
        ours,
        (Peer("oxigraph, called directly", theirs),),
        (Goal("at most", PATH_MAX_S),),
    )


# --- the suite -------------------------------------------------------------------------------


def _suite(found: LabelSet, bench: Bench) -> Iterator[Figure]:
    queries = dict(re.findall(r"^# (.+)\n((?:[^#\n].*\n)+)", QUERIES.read_text(), re.MULTILINE))
    naive = Graph(bind_namespaces="none")
    naive.parse(data=b"".join(rdf.ntriples(found)).decode(), format="nt")
    for prefix, namespace in rdf.PREFIXES.items():
        naive.bind(prefix, namespace)
    ratios: dict[str, list[float]] = {}
    with rdf.open_labels(found) as graph:
        for name, text in queries.items():
            ratios[name] = _ratios(text, graph, naive, runs=bench.sizes.runs)
            bench.say(f"{name}: {statistics.median(ratios[name]):.0f} x")
    runs = list(zip(*ratios.values(), strict=True))
    title = f"{len(queries)} queries over {len(found):,} labels ({len(naive):,} triples)"
    means = [math.exp(statistics.fmean(map(math.log, run))) for run in runs]
    goal = (Goal("at least", RATIO_MIN),)
    yield Figure(
        f"{title}: rdflib's time over ours, geometric mean", "x", Spread.of(means), (), goal
    )
    slowest = min(ratios, key=lambda name: statistics.median(ratios[name]))
    worst = Spread.of(ratios[slowest])
    yield Figure(f"{title}: the least of all, `{slowest}`", "x", worst, (), goal)


def _ratios(text: str, graph: rdf.OpenGraph, naive: Graph, *, runs: int) -> list[float]:
    """How many times as long rdflib takes, whole answers included, run by run."""

    def theirs() -> int:
        answer = naive.query(text)
        if answer.type == "ASK":
            return int(bool(answer.askAnswer))
        return len(answer.graph) if answer.graph is not None else len(list(answer))

    def ours() -> int:
        answer = graph.sparql(text)
        return len(answer.rows) if answer.kind == "solutions" else len(answer)

    if ours() != theirs():
        raise AssertionError(f"the engines differ about {text!r}: {ours()} and {theirs()}")
    calls = range(3)
    return [
        seconds(theirs) / statistics.median([seconds(ours) for _ in calls]) for _ in range(runs)
    ]
