"""Caches too small for labels that wait to be fetched: handed off, spilled, and complete."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from waiting import wait_until

import galileo
from galileo import LocalCluster
from galileo.cli.main import main
from galileo.client import Client
from galileo.errors import TransientError
from galileo.generate import NamLike
from galileo.labels import LabelSet

BUDGET = 16_000
BATCHES_MIN = 8
ROWS = 1_500
PATIENCE_S = 300.0
patiently = functools.partial(wait_until, despite=(TransientError,))
FIRST_CYCLE_S = 150.0
CYCLE_S = 20.0
SETTINGS = {
    "limits": {"cache_bytes_max": BUDGET, "spill_bytes_max": 200_000},
    "membership": {"failure_timeout_s": 4.0},
}
"""A machine that is busy with something else makes no node miss another one."""


@pytest.fixture(scope="module")
def tight(evaluator: dict[str, Any]) -> Iterator[LocalCluster]:
    settings = SETTINGS | {"evaluator": evaluator}
    with LocalCluster(nodes=3, groups=2, settings=settings) as running:
        yield running


def forecasts() -> Iterator[pa.Table]:
    return NamLike(seed=3, stride=8).stream(
        "2014-03-01T00:00:00Z", hours=1_000, rows_per_batch=ROWS
    )


def identities(labels: LabelSet) -> list[tuple[int, int, int]]:
    columns = (labels.partitions, labels.sequences, labels.rows)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def sizes(client: Client, name: str) -> list[int]:
    return [getattr(node, name) for node in client.status().nodes]


def ingest_and_evaluate(client: Client, table: pa.Table, *, producer: str) -> None:
    """Ingests a batch, and gives cycles the time to find it, so that none finds very many.

    What cycles have found lies in memory or on disk. It is also less, as it moves between nodes;
    so this waits for no longer than a cycle takes.
    """

    def found() -> int:
        return sum(sizes(client, "cache_bytes")) + sum(sizes(client, "spilled_bytes"))

    before, deadline = found(), time.monotonic() + CYCLE_S
    client.ingest("crowd", table, producer=producer)
    time.sleep(0.3)
    while found() <= before and time.monotonic() < deadline:
        time.sleep(0.05)


def files(cluster: LocalCluster) -> list[Path]:
    return list(Path(cluster.directory).glob("**/spills/*.packs"))


def read_all(client: Client, ccq: galileo.Ccq, expected: set[tuple[int, int, int]]) -> str:
    """Fetches, a few labels at a time, until all of it has come, each once."""
    got: set[tuple[int, int, int]] = set(identities(ccq.initial))
    token = [ccq.token]

    def has_all() -> bool:
        update = client.fetch(ccq.id, token=token[0], wait=2.0, labels_max=2_000)
        new = identities(update.labels)
        assert len(set(new)) == len(new)
        assert not got & set(new)
        got.update(new)
        token[0] = update.token
        return got >= expected

    patiently(has_all, "the reader has it all", timeout_s=FIRST_CYCLE_S)
    assert got == expected
    return token[0]


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_full_cache_hands_off_and_spills_without_losing_labels(tight: LocalCluster) -> None:
    client = tight.client()
    client.create_dataset(NamLike(seed=3, stride=8).schema("crowd"))
    ccq = client.submit("crowd", "", interval="250ms", expiration="1h")
    first = client.submit("crowd", "", interval="250ms", expiration="1h")
    tables = forecasts()
    client.ingest("crowd", next(tables), producer="warm")
    patiently(
        lambda: sum(sizes(client, "cache_bytes")) > 0, "the first cycle", timeout_s=FIRST_CYCLE_S
    )

    holders: set[str] = set()
    peak = spilled = 0
    deadline = time.monotonic() + PATIENCE_S
    for number in itertools.count():
        ingest_and_evaluate(client, next(tables), producer=f"batch-{number}")
        peak = max(peak, *sizes(client, "cache_bytes"))
        spilled = max(spilled, *sizes(client, "spilled_bytes"))
        holders.update(*(one.holders for one in client.list_ccqs()))
        is_full = number >= BATCHES_MIN and holders and spilled
        if is_full or time.monotonic() > deadline:
            break
    patiently(lambda: max(sizes(client, "cache_bytes")) <= BUDGET, "the budget is kept")
    assert holders, f"no CCQ was given away; caches grew to {peak} bytes"
    assert spilled, "nothing was written"
    assert peak <= 3 * BUDGET, "no more than what a cycle finds, and what is being written"
    assert files(tight)

    result = CliRunner().invoke(main, ["--node", tight.addresses[0], "ccq", "list", "--json"])
    assert {"holders"} <= set(json.loads(result.output)[0])
    expected = set(identities(client.query("crowd")))
    assert len(expected) > BATCHES_MIN * 300
    token = read_all(client, ccq, expected)
    client.fetch(ccq.id, token=token)
    kill_a_holder(tight, client)
    token = read_all(client, first, expected)
    client.fetch(first.id, token=token)
    client.cancel(ccq.id)
    client.cancel(first.id)
    patiently(lambda: not files(tight), "files go with their queries")
    patiently(lambda: max(sizes(client, "cache_bytes")) == 0, "so does memory")


def kill_a_holder(cluster: LocalCluster, client: Client) -> None:
    """One that holds something still, if there is one: it does not come back with it."""
    held = [name for one in client.list_ccqs() for name in one.holders]
    if held:
        cluster.node(held[0]).kill()
        cluster.node(held[0]).restart()
