"""Features are added to a dataset of a running cluster, while a node of it is down."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from expected_errors import raises
from waiting import wait_until

import galileo
from galileo.cli.main import main
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht.topology import SYSTEM, Topology
from galileo.errors import InvalidSchema
from galileo.local_node import LocalNode

TEMPERATURE = galileo.Feature("temperature", "K")
NOTE = galileo.Feature("note", type="text", indexed=False)
GUST, SITE = galileo.Feature("gust", "m/s"), galileo.Feature("site", type="text")
SCHEMA = galileo.Schema("air", [TEMPERATURE, NOTE], geohash_precision=3)
FEATURES = ("gust:m/s", "site::text")
TIMEOUT_S = 120.0
UPDATES_TIMEOUT_S = 300.0
"""The evaluator takes long to start on a busy machine."""
SETTINGS = {"membership": {"heartbeat_interval_s": 0.1, "failure_timeout_s": 3.0}}
WARM = "temperature > 280"
Condition = Callable[[pd.DataFrame], "pd.Series[bool]"]
QUERIES: dict[str, Condition] = {
    "": lambda rows: pd.Series(True, rows.index),
    WARM: lambda rows: rows["temperature"] > 280,
    "gust > 25": lambda rows: rows["gust"] > 25,
    "gust IS NULL AND temperature > 280": lambda rows: (
        rows["gust"].isna() & (rows["temperature"] > 280)
    ),
    "site = 's1' OR gust <= 5": lambda rows: (rows["site"] == "s1") | (rows["gust"] <= 5),
    "site IS NULL": lambda rows: rows["site"].isna(),
}


def rows_of(count: int, seed: int, *, added: int = 0) -> pd.DataFrame:
    chance = np.random.default_rng(seed)
    offsets = pd.to_timedelta(chance.integers(0, 86_400, count), unit="s")
    rows = pd.DataFrame(
        {
            "latitude": chance.uniform(-80, 80, count),
            "longitude": chance.uniform(-170, 170, count),
            "time": pd.Timestamp("2014-03-01", tz="UTC") + offsets,
            "temperature": chance.uniform(250, 310, count),
            "note": [f"{seed}-{number}" for number in range(count)],
        }
    )
    if added > 0:
        rows["gust"] = chance.uniform(0, 50, count)
    if added > 1:
        rows["site"] = [f"s{number % 3}" for number in range(count)]
    return rows


class Ledger:
    """A client, and the table of all rows that it has stored, with which answers are compared."""

    def __init__(self) -> None:
        self.rows = pd.DataFrame()

    def send(self, client: Client, count: int, *, added: int = 0) -> None:
        rows = rows_of(count, len(self.rows), added=added)
        assert client.ingest("air", rows).rows == count
        self.rows = pd.concat([self.rows, rows], ignore_index=True)

    def check(self, client: Client) -> None:
        """Every way to ask has what the table has."""
        for query, condition in QUERIES.items():
            expected = self.rows[condition(self.rows)]
            found = client.select("air", query).to_pandas()
            assert sorted(found["note"]) == sorted(expected["note"]), query
            for name in ("gust", "site"):
                values = dict(zip(found["note"], found[name], strict=True))
                for note, value in zip(expected["note"], expected[name], strict=True):
                    assert values[note] == value or (pd.isna(values[note]) and pd.isna(value))
            assert client.count("air", query) == len(expected)
            labels = client.query("air", query, require_complete=True)
            assert int(labels.table.column("rows").to_numpy().sum()) == len(expected)
            assert "gust" in labels.table.column_names
        summary = client.summarise("air", feature="gust")
        assert summary.observations == len(self.rows)
        assert summary.nulls == int(self.rows["gust"].isna().sum())
        assert summary.maximum == self.rows["gust"].max()


def await_whole(client: Client) -> None:
    def is_whole() -> bool:
        status = client.status()
        return status.complete and not status.under_replicated

    wait_until(is_whole, what="all nodes and copies", timeout_s=TIMEOUT_S)


def system_leader(cluster: LocalCluster, client: Client) -> LocalNode:
    """The node that leads the system partition, whose rows are the definitions."""
    topology = Topology.from_json(client.topology_json())
    leader = next(move.node for move in topology.moved if move.partition == SYSTEM)
    return next(node for node in cluster.nodes if node.name == leader)


def await_updates(client: Client, ccq: galileo.Ccq, rows: int) -> None:
    """Reads all updates: labels of the schema of the submission, each once."""
    places: set[tuple[int, ...]] = set()
    counted, token = 0, ccq.token
    initial = int(ccq.initial.table.column("rows").to_numpy().sum())

    def are_all_there() -> bool:
        nonlocal counted, token
        update = client.fetch(ccq, token=token, wait="2s")
        token = update.token
        assert update.labels.schema == ccq.initial.schema
        table = update.labels.table.select(["partition", "sequence", "row", "rows"])
        for *place, count in zip(*(c.to_pylist() for c in table.columns), strict=True):
            assert tuple(place) not in places, "a label came twice"
            places.add(tuple(place))
            counted += count
        return initial + counted >= rows

    wait_until(are_all_there, what="updates", timeout_s=UPDATES_TIMEOUT_S)
    assert initial + counted == rows


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 3])
def test_features_are_added_while_a_node_is_down(tmp_path: Path, replicas: int) -> None:
    ledger = Ledger()
    with LocalCluster(3, 1, tmp_path, replicas=replicas, settings=SETTINGS) as cluster:
        client, other = cluster.client(timeout="60s"), cluster.client(timeout="60s")
        client.create_dataset(SCHEMA)
        ledger.send(client, 120)
        old = other.submit("air", WARM, interval="1s")
        await_whole(client)
        down = system_leader(cluster, client)
        down.kill()

        schema = client.add_features("air", [GUST, SITE])
        assert schema == SCHEMA.with_features([GUST, SITE])
        with raises(InvalidSchema, expected="free_name", feature="gust"):
            client.add_features("air", [galileo.Feature("gust", type="int")])
        if replicas > 1:
            ledger.send(client, 90, added=2)
            ledger.send(other, 60)
        down.start()
        down.wait()
        await_whole(client)
        with Client(down.address, timeout="60s") as alone:
            wait_until(
                lambda: alone.schema("air") == schema, what="the features", timeout_s=TIMEOUT_S
            )
            ledger.send(alone, 80, added=2)
        ledger.send(other, 70)
        ledger.send(client, 40, added=1)
        new = client.submit("air", "gust > 25", interval="1s")
        assert new.info.added == 2
        ledger.send(client, 50, added=2)
        ledger.check(client)
        ledger.check(cluster.client(timeout="60s"))
        await_updates(other, old, int((ledger.rows["temperature"] > 280).sum()))
        await_updates(client, new, int((ledger.rows["gust"] > 25).sum()))

        for node in cluster.nodes:
            node.restart()
            node.wait()
        await_whole(client)
        ledger.check(client)
        ledger.send(client, 30, added=2)
        await_updates(other, old, int((ledger.rows["temperature"] > 280).sum()))
        ledger.check(other)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 3])
def test_backups_of_a_dataset_with_added_features_are_restored(
    tmp_path: Path, replicas: int
) -> None:
    ledger, place = Ledger(), tmp_path / "cluster"

    def run(*arguments: Any) -> None:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output

    with LocalCluster(3, 1, place, replicas=replicas, settings=SETTINGS) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(SCHEMA)
        ledger.send(client, 60)
        run("--node", cluster.addresses[0], "dataset", "add-feature", "air", *FEATURES)
        ledger.send(client, 60, added=2)
        await_whole(client)
        for node in cluster.nodes:
            run("backup", place / node.name, tmp_path / f"backup-{node.name}")
        ledger.check(client)
    for node in cluster.nodes:
        shutil.rmtree(place / node.name)
        run("restore", tmp_path / f"backup-{node.name}", place / node.name)
    with LocalCluster(3, 1, place, replicas=replicas, settings=SETTINGS) as cluster:
        client = cluster.client(timeout="60s")
        await_whole(client)
        ledger.check(client)
        ledger.send(client, 60, added=2)
        ledger.check(client)
