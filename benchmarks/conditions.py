"""Counters that writers increase by conditional writes, compared with transactions of etcd.

Each writer reads one row of a table or of a keyed dataset, and stores the next value on condition
that it has not changed, until it is acknowledged. Galileo gets the calls through its client, three
nodes with three copies; etcd gets them by its JSON gateway over connections that stay open, three
members. All is on one machine, and durable.

Then writers increase many rows of one partition in each call. Afterwards every counter has to have
exactly what was acknowledged.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
import pyarrow as pa

import galileo
from benchmarks import clusters, etcd
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.errors import Conflict
from galileo.model.table import hashes_of, partitions_of

TABLE = galileo.Table("registers", {"id": "text", "value": "int"}, key="id")
DATASET = galileo.Schema(
    "readings", [galileo.Feature("id", type="text"), galileo.Feature("value", type="int")], key="id"
)
BLOCK = {"latitude": 40.0, "longitude": -105.0, "time": dt.datetime(2014, 3, 1, tzinfo=dt.UTC)}
ONE = ("a",)
TOGETHER = 100
"""Rows of a call, where it has many."""
NODES = 3
WRITERS = 8
WRITE_P50_S = 0.020

Attempt = Callable[[], tuple[bool, float]]
"""Reads a register and tries to increase it; whether it has, and the seconds of the write alone."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Seconds of a conditional write, and acknowledged ones a second.

    Raises:
        NotInstalled: etcd is not installed.
    """
    name = f"etcd {etcd.version()}, {etcd.MEMBERS} members"
    count, runs = bench.sizes.conditional, bench.sizes.runs
    with (
        clusters.cluster(bench.directory, nodes=NODES, groups=1, replicas=NODES) as running,
        etcd.running() as other,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(running.client()) for _ in range(WRITERS)]
        clients[0].create_table(TABLE)
        clients[0].create_dataset(DATASET)
        members = [other.members[number % etcd.MEMBERS] for number in range(WRITERS)]
        registers = [etcd.Register(member) for member in members]
        for register in registers:
            stack.callback(register.close)
        places = {
            "table": [partial(_increase_table, client, ONE) for client in clients],
            "keyed dataset": [partial(_increase_dataset, client, ONE) for client in clients],
            "etcd": [partial(_increase_register, register) for register in registers],
        }
        increments = dict.fromkeys(places, 0)
        for writers in (1, WRITERS):
            rates: dict[str, list[float]] = {place: [] for place in places}
            writes: dict[str, list[float]] = {place: [] for place in places}
            for _ in range(runs):
                for place, attempts in places.items():
                    done, took_s, seconds = _increase(attempts[:writers], count)
                    increments[place] += done
                    rates[place].append(done / took_s)
                    writes[place] += seconds
            medians = {place: Spread.of([float(np.median(s))]) for place, s in writes.items()}
            for place in ("table", "keyed dataset"):
                words = f"{place}, {_words(writers)}"
                yield Figure(
                    f"conditional write of one row of a {words}, accepted or refused, median",
                    "s",
                    medians[place],
                    (Peer(name, medians["etcd"]),),
                    (Goal("at most", WRITE_P50_S),),
                )
                yield Figure(
                    f"increments of one counter in a {words}",
                    "increments/s",
                    Spread.of(rates[place]),
                    (Peer(name, Spread.of(rates["etcd"])),),
                    (Goal("at least", 0.5, of_peer=True),),
                )
        _check(clients[0], ONE, increments)
        if (stored := registers[0].read()[0]) != increments["etcd"]:
            raise AssertionError(f"expected {increments['etcd']} increments in etcd, got {stored}")
        yield from _of_many_rows(bench, clients)


def _of_many_rows(bench: Bench, clients: Sequence[Client]) -> Iterator[Figure]:
    """Counters that each call increases together; together they count to `bench.sizes.counted`."""
    keys = _of_one_partition(clients[0])
    count, increments = bench.sizes.counted // (4 * TOGETHER), dict[str, int]()
    for place, increase in (("table", _increase_table), ("keyed dataset", _increase_dataset)):
        attempts = [partial(increase, client, keys) for client in clients]
        for writers in (1, WRITERS):
            done, took_s, _ = _increase(attempts[:writers], count)
            increments[place] = increments.get(place, 0) + done
            yield Figure(
                f"increments of {TOGETHER} counters in each call, {place}, {_words(writers)}",
                "increments/s",
                Spread.of([TOGETHER * done / took_s]),
            )
    _check(clients[0], keys, increments)


def _words(writers: int) -> str:
    return "one writer" if writers == 1 else f"{writers} writers at once"


def _of_one_partition(client: Client) -> tuple[str, ...]:
    """Keys in one partition of the table; a call stores all of them or none.

    In the dataset, all keys are in one block, so the same holds.
    """
    [table] = [table for table in client.tables() if table.name == TABLE.name]
    names = [f"counter-{number}" for number in range(TOGETHER * 64)]
    places = partitions_of(table, hashes_of(table, pa.table({"id": names})))
    return tuple(itertools.islice(itertools.compress(names, places == places[0]), TOGETHER))


def _check(client: Client, keys: Sequence[str], increments: Mapping[str, int]) -> None:
    """Raises AssertionError if a counter has not as many increments as were acknowledged."""
    found = {
        "table": client.table(TABLE.name, keys=list(keys)).rows,
        "keyed dataset": client.select(DATASET.name, galileo.f.id.isin(list(keys))),
    }
    for place, rows in found.items():
        values = rows["value"].to_pylist()
        if values != [increments[place]] * len(keys):
            expected = f"expected {increments[place]} increments of each counter"
            raise AssertionError(f"{expected} in the {place}, got {sorted({*values})}")


def _increase(attempts: Sequence[Attempt], count: int) -> tuple[int, float, list[float]]:
    """Increments until there are about `count`.

    Returns:
        The increments that were acknowledged, the seconds of all, and the seconds of each write.
    """

    def write(attempt: Attempt) -> tuple[int, list[float]]:
        seconds, done = list[float](), 0
        while done < -(-count // len(attempts)):
            is_stored, took_s = attempt()
            seconds.append(took_s)
            done += is_stored
        return done, seconds

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(attempts)) as pool:
        written = [*pool.map(write, attempts)]
    took_s = time.perf_counter() - begun
    return sum(done for done, _ in written), took_s, [s for _, each in written for s in each]


def _increase_table(client: Client, keys: Sequence[str]) -> tuple[bool, float]:
    seen = client.table(TABLE.name, keys=list(keys))
    rows = _next(keys, seen.rows)
    return _is_stored(lambda: client.upsert(TABLE.name, rows, unchanged_since=seen.cursor))


def _increase_dataset(client: Client, keys: Sequence[str]) -> tuple[bool, float]:
    at = client.version(DATASET.name, require_complete=True).cursor
    seen = client.select(DATASET.name, galileo.f.id.isin(list(keys)), at=at)
    rows = _next(keys, seen)
    rows |= {name: [value] * len(keys) for name, value in BLOCK.items()}
    return _is_stored(lambda: client.ingest(DATASET.name, rows, unchanged_since=at))


def _next(keys: Sequence[str], seen: pa.Table) -> dict[str, list[object]]:
    """The next value of the counters, which are all equal."""
    [value] = {*seen["value"].to_pylist()} or {0}
    return {"id": [*keys], "value": [value + 1] * len(keys)}


def _is_stored(write: Callable[[], object]) -> tuple[bool, float]:
    """Whether a write was accepted, and the seconds that it took."""
    begun, is_stored = time.perf_counter(), True
    try:
        write()
    except Conflict:
        is_stored = False
    return is_stored, time.perf_counter() - begun


def _increase_register(register: etcd.Register) -> tuple[bool, float]:
    value, revision = register.read()
    begun = time.perf_counter()
    is_stored = register.replace(value + 1, revision=revision)
    return is_stored, time.perf_counter() - begun
