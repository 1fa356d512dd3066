"""Clusters restored from backups: no sequence is used twice, and readers learn of losses."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fault_injection.ledger import numbered, numbered_schema
from waiting import wait_until

import galileo
from galileo.cli.main import main
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.cursor import Cursor
from galileo.errors import HistoryChanged
from galileo.model.forks import history_of

TABLE = galileo.Table("ships", {"id": "text", "port": "int"}, key="id")
SETTINGS = {"membership": {"heartbeat_interval_s": 0.1, "failure_timeout_s": 3.0}}
ROWS = 200
Commits = dict[tuple[int, int], Any]


def run(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


def commits_of(client: Client) -> Commits:
    """What each commit of the dataset has."""
    answer = client.query("numbered")
    assert answer.missing == ()
    commits = defaultdict[tuple[int, int], list[Any]](list)
    for row in answer.table.to_pylist():
        commits[row.pop("partition"), row.pop("sequence")].append(sorted(row.items(), key=str))
    return {place: sorted(rows, key=str) for place, rows in commits.items()}


def await_whole(client: Client) -> None:
    wait_until(lambda: not client.status().under_replicated, what="leaders", timeout_s=120.0)


def store(client: Client, number: int) -> None:
    client.ingest("numbered", numbered(number * ROWS, ROWS))
    client.upsert("ships", {"id": [f"k{n}" for n in range(50)], "port": [number] * 50})


def read_on(client: Client, cursor: Cursor) -> Cursor:
    """Reads changes of the table; the first call names the commits that were lost."""
    with pytest.raises(HistoryChanged) as raised:
        client.changes("ships", cursor)
    changes = client.changes("ships", raised.value.details["cursor"])
    ports = {row["id"]: row["port"] for row in changes.rows.to_pylist()}
    rows = {row["id"]: row["port"] for row in client.table("ships").rows.to_pylist()}
    assert ports.items() <= rows.items()
    return changes.cursor


class Watcher:
    """A reader of a continuous query; each commit comes once, unless the error says otherwise.

    Attributes:
        commits: those whose labels came.
    """

    def __init__(self, ccq: str) -> None:
        self.ccq, self.token = ccq, ""
        self.commits = set[tuple[int, int]]()

    def read(self, client: Client, expected: Collection[tuple[int, int]]) -> int:
        """Reads until all commits came that are expected; how often commits were lost meanwhile."""
        losses = 0
        while not self.commits >= set(expected):
            try:
                update = client.fetch(self.ccq, token=self.token, wait="10s")
            except HistoryChanged as error:
                self.token, losses = error.details["token"], losses + 1
                # The logs never had the history of the first restore, and begin anew.
                until = dict(zip(error.details["partitions"], error.details["until"], strict=True))
                self.commits = {one for one in self.commits if until.get(one[0], 1)}
                continue
            partitions, sequences = update.labels.partitions, update.labels.sequences
            new = set(zip(partitions.tolist(), sequences.tolist(), strict=True))
            assert not new & self.commits, "labels of a commit came twice"
            self.commits |= new
            self.token = update.token
        return losses


@pytest.mark.slow(90)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("replicas", [1, 3])
def test_cluster_restored_twice_from_backups_of_different_moments_uses_no_sequence_again(
    tmp_path: Path, replicas: int
) -> None:
    place, seen = tmp_path / "cluster", Commits()
    with LocalCluster(3, 1, place, replicas=replicas, settings=SETTINGS) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        client.create_table(TABLE)
        store(client, 0)
        await_whole(client)
        watcher = Watcher(client.submit("numbered", interval="200ms").id)
        for number, node in enumerate(cluster.nodes, 1):
            run("backup", place / node.name, tmp_path / f"backup-{node.name}")
            store(client, number)
        names = [node.name for node in cluster.nodes]
        seen |= commits_of(client)
        assert watcher.read(client, seen) == 0
        cursor = client.table("ships").cursor
    for attempt in range(2):
        for name in names:
            shutil.rmtree(place / name)
            run("restore", tmp_path / f"backup-{name}", place / name)
        with LocalCluster(3, 1, place, replicas=replicas, settings=SETTINGS) as cluster:
            client = cluster.client(timeout="60s")
            await_whole(client)
            for number in range(3):
                store(client, 10 + 10 * attempt + number)
            now = commits_of(client)
            assert {p: now[p] for p in now.keys() & seen.keys()} == {
                p: seen[p] for p in now.keys() & seen.keys()
            }, "a sequence means two commits"
            assert any(history_of(sequence) for _, sequence in now.keys() - seen.keys())
            assert all(history_of(sequence) for _, sequence in now.keys() - seen.keys())
            assert watcher.read(client, now) == 1
            seen |= now
            cursor = read_on(client, cursor)
            assert client.changes("ships", cursor).rows.num_rows == 0
