"""Counters that writers increase by conditional writes, compared with transactions of etcd.

Each writer reads one row, and stores the next value on condition that it has not changed, until it
is acknowledged. Galileo gets the calls through its client, three nodes with three copies; etcd gets
them by its JSON gateway over connections that stay open, three members. All is on one machine, and
durable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np

import galileo
from benchmarks import clusters, etcd
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.errors import Conflict

TABLE = galileo.Table("registers", {"id": "text", "value": "int"}, key="id")
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
        members = [other.members[number % etcd.MEMBERS] for number in range(WRITERS)]
        registers = [etcd.Register(member) for member in members]
        for register in registers:
            stack.callback(register.close)
        ours = [_of_client(client) for client in clients]
        theirs = [_of_register(register) for register in registers]
        for writers in (1, WRITERS):
            rates: dict[str, list[float]] = {"galileo": [], "etcd": []}
            writes: dict[str, list[float]] = {"galileo": [], "etcd": []}
            for _ in range(runs):
                for place, attempts in (("galileo", ours), ("etcd", theirs)):
                    rate, seconds = _increase(attempts[:writers], count)
                    rates[place].append(rate)
                    writes[place] += seconds
            words = "one writer" if writers == 1 else f"{writers} writers at once"
            yield Figure(
                f"conditional write of one row, {words}, accepted or refused, median",
                "s",
                Spread.of([float(np.median(writes["galileo"]))]),
                (Peer(name, Spread.of([float(np.median(writes["etcd"]))])),),
                (Goal("at most", WRITE_P50_S),),
            )
            yield Figure(
                f"increments of one counter, {words}",
                "increments/s",
                Spread.of(rates["galileo"]),
                (Peer(name, Spread.of(rates["etcd"])),),
                (Goal("at least", 0.5, of_peer=True),),
            )
        increments = 2 * runs * count
        [row] = clients[0].table(TABLE.name).rows.to_pylist()
        for stored in (row["value"], registers[0].read()[0]):
            if stored != increments:
                raise AssertionError(f"expected a counter of {increments}, got {stored}")


def _increase(attempts: list[Attempt], count: int) -> tuple[float, list[float]]:
    """Increments a second of writers that make `count` together, and the seconds of each write."""

    def write(attempt: Attempt) -> list[float]:
        seconds, done = list[float](), 0
        while done < count // len(attempts):
            is_stored, took_s = attempt()
            seconds.append(took_s)
            done += is_stored
        return seconds

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(attempts)) as pool:
        seconds = [one for each in pool.map(write, attempts) for one in each]
    return count / (time.perf_counter() - begun), seconds


def _of_client(client: Client) -> Attempt:
    def attempt() -> tuple[bool, float]:
        seen = client.table(TABLE.name, keys=["a"])
        value = (seen.rows["value"].to_pylist() or [0])[0] + 1
        begun, is_stored = time.perf_counter(), True
        try:
            row = {"id": ["a"], "value": [value]}
            client.upsert(TABLE.name, row, unchanged_since=seen.cursor)
        except Conflict:
            is_stored = False
        return is_stored, time.perf_counter() - begun

    return attempt


def _of_register(register: etcd.Register) -> Attempt:
    def attempt() -> tuple[bool, float]:
        value, revision = register.read()
        begun = time.perf_counter()
        is_stored = register.replace(value + 1, revision=revision)
        return is_stored, time.perf_counter() - begun

    return attempt
