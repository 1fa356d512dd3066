"""NewLocalWithSchools of the paper of `benchmarks.channels`: tweets enriched with schools.

As NewLocal, with 40,000 areas, and a notification also has the schools of the area. A `Lookup` is
by the whole key of a table, so the table has a row for each area, with its schools as JSON: 250 of
70 bytes each. The other form is a table with a row for each school, of which `Near` adds those
within a distance whose circle is as large as an area. Each node has all of its rows in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import shapely

import galileo
from benchmarks import channels, clusters
from benchmarks.channels import settled
from benchmarks.figures import Figure, Goal, Spread
from benchmarks.sizes import Bench
from galileo.client import Client

CHANNEL = "with-schools"
SCHOOL = '{"id":%08d,"name":"school-%08d","pupils":%4d,"kind":"public"}'
AREAS_AT_ONCE = 1_000
SQUARE_KM = 13_300_000
"""Of the box in which places are."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Seconds of executions."""
    yield _by_area(bench)
    yield _by_place(bench)


def _by_area(bench: Bench) -> Figure:
    schools, areas = bench.sizes.schools, bench.sizes.school_areas
    with _tweeted(bench) as client:
        columns = {"area": "int", "schools": "text"}
        client.create_table(galileo.Table("schools", columns, key="area"))  # type: ignore[arg-type]
        for rows in _areas(schools, areas):
            client.upsert("schools", rows)
        bench.say(f"{schools:,} schools stored")
        what = f"the schools of their areas, of {schools:,} in {areas:,} rows"
        return _execution(bench, client, galileo.Lookup("schools", on="area"), what)


def _by_place(bench: Bench) -> Figure:
    schools = bench.sizes.near_schools
    with _tweeted(bench) as client:
        columns = {"id": "int", "place": "geometry", "name": "text", "pupils": "int"}
        client.create_table(galileo.Table("schools", columns, key="id"))  # type: ignore[arg-type]
        client.upsert("schools", _schools(schools))
        within_km = (SQUARE_KM / bench.sizes.school_areas / np.pi) ** 0.5
        near = galileo.Near("schools", within=f"{within_km:.1f}km")
        what = f"the schools within {within_km:.1f} km, of {schools:,} rows"
        return _execution(bench, client, near, what)


@contextmanager
def _tweeted(bench: Bench) -> Iterator[Client]:
    """A client of a cluster with the dataset of tweets."""
    with (
        clusters.cluster(bench.directory, nodes=channels.NODES, groups=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
    ):
        client.create_dataset(galileo.Schema("tweets", channels.FEATURES, geohash_precision=4))
        yield client


def _execution(bench: Bench, client: Client, step: galileo.Step, what: str) -> Figure:
    """Executions of ten seconds of tweets each; the first one builds the index."""
    count = bench.sizes.school_subscriptions
    client.create_channel(
        galileo.Channel(
            CHANNEL,
            "tweets",
            channels.LOCAL.template,
            period=channels.PERIOD,
            enrich=[step],
        )
    )
    client.subscribe(CHANNEL, _subscriptions(bench), broker=channels.BROKER)
    took, token = list[float](), ""
    for number in range(2 * bench.sizes.runs + 1):
        tweets = _tweets(bench, number)
        took.append(settled(client, CHANNEL, client.ingest("tweets", tweets).reached))
        found = size = 0
        for batch in client.follow(CHANNEL, channels.BROKER, token=token, wait="200ms"):
            found, token = found + len(batch), batch.token
            size += batch.observations.nbytes
        expected = _expected(bench, tweets)
        if found != expected:
            raise AssertionError(f"expected {expected:,} notifications, got {found:,}")
        bench.say(f"{found:,} in {took[-1]:.2f} s, {size:,} bytes, load {os.getloadavg()[0]:.1f}")
    p95 = float(np.quantile(took[1:], 0.95))
    bench.say(f"p95 {p95:.2f} s")
    return Figure(
        f"with schools: an execution of {channels.ROWS:,} tweets for {count:,} subscriptions, "
        f"{found:,} notifications with {what}",
        "s",
        Spread.of(took[1:]),
        goals=(Goal("at most", 5.0),),
    )


def _expected(bench: Bench, tweets: pa.Table) -> int:
    areas = bench.sizes.school_areas
    hateful = tweets.column("area").filter(tweets.column("hateful")).to_numpy()
    subscribed = _subscriptions(bench).column("area").to_numpy().astype(np.int64)
    return int(np.bincount(subscribed, minlength=areas)[hateful].sum())


def _subscriptions(bench: Bench) -> pa.Table:
    count, areas = bench.sizes.school_subscriptions, bench.sizes.school_areas
    chosen = np.random.default_rng(3).integers(0, areas, count).astype(np.float64)
    return pa.table({"id": np.char.mod("s%07d", np.arange(count)), "area": chosen})


def _tweets(bench: Bench, number: int) -> pa.Table:
    tweets = channels.tweets_of(number)
    areas = np.random.default_rng(500 + number).integers(0, bench.sizes.school_areas, len(tweets))
    return tweets.set_column(tweets.column_names.index("area"), "area", pa.array(areas))


def _areas(schools: int, areas: int) -> Iterator[pa.Table]:
    """Rows of areas with as many schools each."""
    each = schools // areas
    for start in range(0, areas, AREAS_AT_ONCE):
        stop = min(start + AREAS_AT_ONCE, areas)
        numbers = np.arange(start * each, stop * each).tolist()
        texts = [SCHOOL % (number, number, number % 2_000) for number in numbers]
        whole = [f"[{','.join(texts[at : at + each])}]" for at in range(0, len(texts), each)]
        yield pa.table({"area": np.arange(start, stop), "schools": whole})


def _schools(count: int) -> pa.Table:
    """About 70 bytes each."""
    chance = np.random.default_rng(9)
    places = shapely.points(chance.uniform(-125, -65, count), chance.uniform(25, 49, count))
    numbers = np.arange(count)
    return pa.table(
        {
            "id": numbers,
            "place": pa.array(shapely.to_wkb(places), pa.binary()),
            "name": np.char.mod("school-number-%016d", numbers),
            "pupils": numbers % 2_000,
        }
    )
