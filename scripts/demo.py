"""The main job, end to end, in words: a stream, a continuous query, a lost disk, a map."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import demo_files
import demo_map
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

import galileo
from galileo import samplers
from galileo.client import Client, Labels, Update
from galileo.formats import open_source, suggest_schema
from galileo.generate import NamLike
from galileo.labels import LabelSet

SAMPLED_FRACTION = 0.25
UPDATE_INTERVAL = "1s"
PAUSE_S = 0.6
NODES = 3
OPEN_PAUSE_S = 4.0
OPEN_BATCHES_MAX = 400
"""Of the stream that goes on while the map is open."""
DOWN_S = 4.0
COPIES_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 90.0
HOURS = 16
STRIDE = 4
ROWS_PER_BATCH = 12_000
TEMPERATURE_QUANTILE = 0.5


@dataclass(frozen=True, slots=True)
class Data:
    """What is streamed in: a schema, tables in order, and how to count independently.

    `rest` are later tables, for as long as the map is open.
    """

    title: str
    schema: galileo.Schema
    tables: Sequence[pa.Table]
    frame: pd.DataFrame
    skipped: int = 0
    rest: Iterable[pa.Table] = ()

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


@dataclass(slots=True)
class Loss:
    """The node whose disk was lost, and what queries said while it was away."""

    at: float = float("nan")
    answers: int = 0
    incomplete: int = 0
    has_all_copies: bool = False


@dataclass(slots=True)
class Watcher:
    """A reader that watches the continuous query, and counts what it receives."""

    client: Client
    ccq_id: str
    token: str
    updates: list[Update] = field(default_factory=list)
    arrived_at: list[float] = field(default_factory=list)

    def run(self) -> None:
        try:
            for update in self.client.watch(self.ccq_id, token=self.token):
                self.updates.append(update)
                self.arrived_at.append(time.monotonic())
                say(f"    update {len(self.updates):3d}: {len(update.labels):6,} new labels")
        except galileo.GalileoError as error:
            if error.kind not in ("ccq_cancelled", "invalid_input"):
                say(f"    the watch ended: {error}")


def main() -> int:
    given = _arguments()
    data = _from_file(given.file) if given.file else _generated()
    box = demo_map.middle_polygon(data.frame)
    threshold = round(float(data.frame["temperature"].quantile(TEMPERATURE_QUANTILE)), 1)
    polygon = ", ".join(f"{lon:.2f} {lat:.2f}" for lon, lat in box)
    query = f"temperature > {threshold} AND S_INTERSECTS(geometry, POLYGON(({polygon})))"

    say(f"\nThe data: {data.title}")
    say(f"  {data.rows:,} observations of {', '.join(f.name for f in data.schema.features)}")
    say("\nStarting three storage nodes as processes on this machine, each with all the data ...")
    with galileo.LocalCluster(nodes=NODES, groups=1, replicas=NODES) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(data.schema)
        say(f"  they listen at {', '.join(cluster.addresses)}")
        with cluster.gateway(port=given.port) as gateway:
            say(f"\nThe live map: {gateway.url}/map")
            status = _run(cluster, client, data, query=query, polygon=box, picture=given.picture)
            if given.open:
                _keep_open(client, data, query, url=f"{gateway.url}/map")
        return status


def _run(
    cluster: galileo.LocalCluster,
    client: Client,
    data: Data,
    *,
    query: str,
    polygon: Sequence[tuple[float, float]],
    picture: Path,
) -> int:
    spec = galileo.sampler("uniform", fraction=SAMPLED_FRACTION, seed=2014)
    say(f"\nThe continuous query, submitted once and evaluated every {UPDATE_INTERVAL}:")
    say(textwrap.fill(query, 80, initial_indent="    ", subsequent_indent="    "))
    say(
        f"  The sampler 'uniform' keeps {SAMPLED_FRACTION:.0%} of the matching labels on each node."
    )
    ccq = client.submit(
        data.schema.name,
        query,
        interval=UPDATE_INTERVAL,
        expiration="1h",
        sampler=spec,
        compression="lz4",
    )
    say(f"  The coordinator is {ccq.coordinator}. Starting Spark, which takes 10 to 25 seconds ...")
    watcher = Watcher(cluster.client(timeout="60s"), ccq.id, ccq.token)
    thread = threading.Thread(target=watcher.run, daemon=True)
    thread.start()

    say("\nThe stream begins; updates arrive as it goes on:")
    stored, loss = _stream(cluster, client, data, ccq, watcher)
    say(f"  the stream has ended: {stored:,} observations stored durably")

    full = client.query(data.schema.name, query)
    kept = samplers.apply(samplers.load(spec), full, seed=spec.seed)
    _wait_for(watcher, initial=len(ccq.initial), wanted=len(kept))
    client.cancel(ccq.id)
    thread.join(timeout=20)

    parts = [ccq.initial, *(update.labels for update in watcher.updates)]
    table = LabelSet.concat(data.schema, parts).table
    delivered = Labels(data.schema, table, frontier=full.frontier, query=full.query)
    ok = _verdict(delivered, kept, watcher, loss)
    ok &= _independent_counts(client, data, full, polygon, stored=stored)
    _explore(delivered)
    rows = client.read(delivered)
    demo_map.draw(rows, data.frame, polygon, title=query.split(" AND ")[0], path=picture)
    say(f"\nA map of what was found: {picture}")
    say("\nAll counts agree." if ok else "\nThe counts do not agree; please report this.")
    return 0 if ok else 1


def _keep_open(client: Client, data: Data, query: str, *, url: str) -> None:
    """Keeps the map open until Ctrl-C, with a watch, and with more data where there are some."""
    client.submit(data.schema.name, query, interval=UPDATE_INTERVAL, expiration="12h")
    say(f"\nThe map stays at {url}. Stop with Ctrl-C.")
    try:
        for table in itertools.islice(data.rest, OPEN_BATCHES_MAX):
            client.ingest(data.schema.name, table)
            time.sleep(OPEN_PAUSE_S)
        threading.Event().wait()
    except KeyboardInterrupt:
        say("\nStopping ...")


def _stream(
    cluster: galileo.LocalCluster,
    client: Client,
    data: Data,
    ccq: galileo.Ccq,
    watcher: Watcher,
) -> tuple[int, Loss]:
    """Streams all tables; midway the coordinator and its disk are lost."""
    stored, loss = 0, Loss()
    restart: threading.Timer | None = None
    for number, table in enumerate(data.tables):
        if number == len(data.tables) // 2:
            coordinator = _coordinator(client, ccq)
            say(f"  *** killing the coordinator {coordinator} (kill -9) while data arrives, ***")
            say("  *** and deleting its directory with all that it has stored ***")
            node = cluster.node(coordinator)
            node.kill()
            shutil.rmtree(cluster.directory / coordinator)
            loss.at = time.monotonic()
            restart = threading.Timer(DOWN_S, node.restart)
            restart.start()
        stored += client.ingest(data.schema.name, table).rows
        if restart is not None and restart.is_alive():
            loss.answers += 1
            loss.incomplete += not client.query(data.schema.name).complete
        if number == 0:
            _await_first_update(watcher)
        time.sleep(PAUSE_S)
    if restart is not None:
        restart.join()
        loss.has_all_copies = _await_copies(client)
    return stored, loss


def _await_copies(client: Client) -> bool:
    """Waits until the node that lost its disk has a copy of everything again."""
    started = time.monotonic()
    while time.monotonic() - started < COPIES_TIMEOUT_S:
        status = client.status()
        if status.complete and not status.under_replicated:
            say("  (the node is back with an empty disk, and has got a copy of everything)")
            return True
        time.sleep(0.1)
    return False


def _await_first_update(watcher: Watcher) -> None:
    """Spark's first cycle waits for its JVM; later ones take a fraction of a second."""
    started = time.monotonic()
    while not watcher.updates and time.monotonic() - started < DRAIN_TIMEOUT_S:
        time.sleep(0.05)
    say(f"  (the first update needs a started Spark; it took {time.monotonic() - started:.1f} s)")


def _coordinator(client: Client, ccq: galileo.Ccq) -> str:
    return next(info.coordinator for info in client.list_ccqs() if info.id == ccq.id)


def _wait_for(watcher: Watcher, *, initial: int, wanted: int) -> None:
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while time.monotonic() < deadline:
        if initial + sum(len(update.labels) for update in watcher.updates) >= wanted:
            return
        time.sleep(0.1)


def _verdict(delivered: LabelSet, kept: LabelSet, watcher: Watcher, loss: Loss) -> bool:
    """Compares the union of all updates with one query over all stored data."""
    got, wanted = _identities(delivered), _identities(kept)
    duplicates = len(got) - len(np.unique(got))
    missed = len(np.setdiff1d(wanted, got))
    foreign = len(np.setdiff1d(got, wanted))
    after = [at for at in watcher.arrived_at if at > loss.at]
    updates = len(watcher.updates)
    say("\nWas anything missed or repeated?")
    say(f"  labels delivered, in {updates} updates and the initial result: {len(got):,}")
    say(f"  labels of the same query over all stored data: {len(wanted):,}")
    say(f"  missed: {missed}, repeated: {duplicates}, wrong: {foreign}")
    if after:
        say(f"  first update after the coordinator was killed: {after[0] - loss.at:.1f} s later")
    say(f"  queries while it was away: {loss.answers}, of which incomplete: {loss.incomplete}")
    is_whole = loss.has_all_copies and loss.incomplete == 0
    return is_whole and missed == duplicates == foreign == 0 and len(wanted) > 0


def _independent_counts(
    client: Client,
    data: Data,
    full: Labels,
    polygon: Sequence[tuple[float, float]],
    *,
    stored: int,
) -> bool:
    threshold = float(full.query.split('"temperature"},')[1].split("]")[0])
    inside = demo_map.inside(data.frame, polygon)
    wanted = int((inside & (data.frame["temperature"] > threshold)).sum())
    found = client.read(full).num_rows
    skipped = f" ({data.skipped:,} points without a value skipped)" if data.skipped else ""
    say("\nCounted independently, with pandas on the same data:")
    say(f"  observations: {stored:,} ingested, {len(data.frame):,} counted{skipped}")
    say(f"  matching:     {found:,} read exactly, {wanted:,} counted")
    return found == wanted and stored == len(data.frame)


def _explore(delivered: Labels) -> None:
    say("\nThe result as a graph, explored with SPARQL before any row is downloaded:")
    text = """
        SELECT ?time (COUNT(?path) AS ?paths) (AVG(?t) AS ?mean)
        WHERE { ?path g:time ?time ; f:temperature ?t }
        GROUP BY ?time ORDER BY DESC(?paths) LIMIT 5
    """
    say(textwrap.indent(textwrap.dedent(text).strip(), "    "))
    for row in delivered.sparql(text).rows:
        say(f"    {row['time']:%Y-%m-%d %H:%M}  {row['paths']:6,} labels, mean {row['mean']:.1f} K")


def _identities(labels: LabelSet) -> npt.NDArray[np.uint64]:
    """One number per label: partition, sequence and row."""
    partitions, sequences, rows = (
        column.astype(np.uint64) for column in (labels.partitions, labels.sequences, labels.rows)
    )
    numbers: npt.NDArray[np.uint64] = (
        partitions << np.uint64(52) | sequences << np.uint64(24) | rows
    )
    return numbers


def _generated() -> Data:
    model = NamLike(seed=7, stride=STRIDE)
    start = "2014-03-01T00:00:00Z"
    tables = list(model.stream(start, hours=HOURS, rows_per_batch=ROWS_PER_BATCH))
    later = pd.Timestamp(start) + pd.Timedelta(hours=HOURS)
    return Data(
        title=f"{HOURS} hours of a generated NAM-like forecast, every {STRIDE}th point of grid 218",
        schema=model.schema(),
        tables=tables,
        frame=pa.concat_tables(tables).to_pandas(),
        rest=model.stream(later, hours=OPEN_BATCHES_MAX, rows_per_batch=ROWS_PER_BATCH),
    )


def _from_file(path: Path) -> Data:
    source = open_source(path)
    mapping = demo_files.mapping_for(source)
    source = open_source(path, mapping=mapping)
    schema = suggest_schema(source, "forecast")
    whole = pa.concat_tables(source.batches())
    tables = list(_pieces(whole))
    return Data(
        title=f"{path.name}, {source.format}",
        schema=schema,
        tables=tables,
        frame=demo_files.read_with_pandas(path, source.format),
        skipped=source.skipped,
    )


def _pieces(table: pa.Table, count: int = HOURS) -> Iterator[pa.Table]:
    """Every piece holds points from all over the map."""
    for start in range(min(count, table.num_rows)):
        yield table.take(pa.array(range(start, table.num_rows, count)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--file", type=Path, help="GRIB, NetCDF or CSV instead of generated data")
    parser.add_argument(
        "--picture", type=Path, default=Path("out/demo.png"), help="where to draw the map"
    )
    parser.add_argument(
        "--open", action="store_true", help="keep the live map until Ctrl-C, with more data"
    )
    parser.add_argument(
        "--port", type=int, default=0, help="of the live map; by default one that is free"
    )
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
