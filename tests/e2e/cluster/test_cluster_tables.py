"""A table of a running cluster, while nodes of it are killed, restarted, and lose their disks."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from waiting import wait_until

import galileo
from galileo.cli.main import main
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.cursor import Cursor
from galileo.local_node import LocalNode

TABLE = galileo.Table("ships", {"id": "text", "port": "int"}, key="id")
SETTINGS = {"membership": {"heartbeat_interval_s": 0.1, "failure_timeout_s": 3.0}}
TIMEOUT_S = 120.0
WRITERS, KEYS, BATCH = 3, 200, 25


class Writer(threading.Thread):
    """Writes its own keys, each batch until it is stored, and knows what they have to be."""

    def __init__(self, cluster: LocalCluster, number: int) -> None:
        super().__init__(daemon=True)
        self._client = cluster.client(timeout="300s")
        self._number, self._chance = number, random.Random(number)
        self.rows: dict[str, int] = {}
        self.is_over = threading.Event()
        self.error: BaseException | None = None
        self.batches = 0

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self._write()
                self.batches += 1
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        keys = [f"{self._number}-{self._chance.randrange(KEYS)}" for _ in range(BATCH)]
        producer = f"writer-{self._number}"
        if self._chance.random() < 0.3:
            self._client.delete("ships", keys, producer=producer, first_batch=self.batches)
            self.rows = {key: port for key, port in self.rows.items() if key not in keys}
        else:
            ports = [self._chance.randrange(1 << 40) for _ in keys]
            rows = {"id": keys, "port": ports}
            self._client.upsert("ships", rows, producer=producer, first_batch=self.batches)
            self.rows = self.rows | dict(zip(keys, ports, strict=True))


class Follower(threading.Thread):
    """Keeps a copy of the table up to date by its changes."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(daemon=True)
        self._client = cluster.client(timeout="300s")
        self.rows: dict[str, int] = {}
        self.cursor = Cursor()
        self.is_over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.follow()
        except BaseException as error:
            self.error = error

    def follow(self) -> None:
        changes = self._client.changes("ships", self.cursor)
        for row in changes.rows.to_pylist():
            self.rows.pop(row["id"], None)
            if not row["deleted"]:
                self.rows[row["id"]] = row["port"]
        assert changes.cursor.covers(self.cursor), "a cursor went back"
        self.cursor = changes.cursor


def await_whole(client: Client) -> None:
    def is_whole() -> bool:
        status = client.status()
        return status.complete and not status.under_replicated

    wait_until(is_whole, what="all nodes and copies", timeout_s=TIMEOUT_S)


def rows_of(client: Client, **options: Any) -> dict[str, int]:
    rows = client.table("ships", **options).rows.to_pylist()
    found = {row["id"]: row["port"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def await_batches(writers: list[Writer], more: int) -> None:
    before = [writer.batches for writer in writers]

    def are_there() -> bool:
        errors = [writer.error for writer in writers if writer.error is not None]
        assert not errors, errors
        pairs = zip(writers, before, strict=True)
        return all(writer.batches >= first + more for writer, first in pairs)

    wait_until(are_there, what=f"{more} batches of each writer", timeout_s=TIMEOUT_S)


def lose_disk(cluster: LocalCluster, node: LocalNode, place: Path) -> None:
    node.kill()
    shutil.rmtree(place / node.name)
    node.start()
    node.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_table_survives_nodes_that_are_killed_and_disks_that_are_lost(
    tmp_path: Path, replicas: int
) -> None:
    with LocalCluster(3, 1, tmp_path, replicas=replicas, settings=SETTINGS) as cluster:
        client = cluster.client(timeout="120s")
        client.create_table(TABLE)
        writers = [Writer(cluster, number) for number in range(WRITERS)]
        follower = Follower(cluster)
        for thread in (*writers, follower):
            thread.start()
        await_batches(writers, 5)
        for number, node in enumerate(cluster.nodes):
            node.kill()
            if replicas > 1:
                await_batches(writers, 5)
            node.start()
            node.wait()
            await_batches(writers, 5)
            if replicas > 1 and number == 1:
                await_whole(client)
                lose_disk(cluster, node, tmp_path)
                await_whole(client)
        for writer in writers:
            writer.is_over.set()
            writer.join(TIMEOUT_S)
            assert writer.error is None
        follower.is_over.set()
        follower.join(TIMEOUT_S)
        assert follower.error is None
        expected = {key: port for writer in writers for key, port in writer.rows.items()}
        answer = client.table("ships")
        assert {row["id"]: row["port"] for row in answer.rows.to_pylist()} == expected
        follower.follow()
        assert follower.rows == expected
        some = sorted(expected)[::7]
        assert rows_of(client, keys=some) == {key: expected[key] for key in some}

        client.upsert("ships", {"id": some, "port": [0] * len(some)})
        for node in cluster.nodes:
            node.restart()
            node.wait()
        await_whole(client)
        assert rows_of(client, at=answer.cursor) == expected
        assert rows_of(client) == expected | dict.fromkeys(some, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_backup_of_a_table_is_restored(tmp_path: Path, replicas: int) -> None:
    place = tmp_path / "cluster"

    def run(*arguments: Any) -> None:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output

    with LocalCluster(3, 1, place, replicas=replicas, settings=SETTINGS) as cluster:
        client = cluster.client(timeout="60s")
        client.create_table(TABLE)
        client.upsert("ships", {"id": [f"k{n}" for n in range(500)], "port": range(500)})
        client.delete("ships", ["k7", "k8"])
        await_whole(client)
        expected = rows_of(client)
        assert len(expected) == 498
        for node in cluster.nodes:
            run("backup", place / node.name, tmp_path / f"backup-{node.name}")
        client.delete("ships", ["k9"])
    for name in [node.name for node in cluster.nodes]:
        shutil.rmtree(place / name)
        run("restore", tmp_path / f"backup-{name}", place / name)
    with LocalCluster(3, 1, place, replicas=replicas, settings=SETTINGS) as cluster:
        client = cluster.client(timeout="60s")
        await_whole(client)
        assert rows_of(client) == expected
