"""A cluster goes on with one copy of three after the directories of two nodes are lost for good."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fault_injection.ledger import numbered, numbered_schema
from waiting import wait_until

from galileo.cli.main import main
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht.topology import SYSTEM
from galileo.labels import LabelSet
from galileo.storage.verify import verify

EVERYTHING = "temperature > -100"
BATCHES, ROWS = 10, 100
TIMEOUT_S = 60.0


def recover(directory: Path, *lost: str) -> Result:
    options = [word for name in lost for word in ("--lost", name)]
    return CliRunner().invoke(main, ["recover", str(directory), *options, "--yes", "--json"])


def rows(labels: LabelSet) -> int:
    return int(labels.table.column("rows").to_numpy().sum())


def ingest(client: Client, producer: str) -> None:
    for number in range(BATCHES):
        client.ingest("numbered", numbered(number * ROWS, ROWS), producer=f"{producer}-{number}")


def have_equal_logs(cluster: LocalCluster, directory: Path) -> bool:
    return len({verify(directory / node.name).commits for node in cluster.nodes}) == 1


def is_whole(client: Client, nodes: int) -> bool:
    status = client.status()
    return status.complete and not status.under_replicated and len(status.nodes) == nodes


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_recover_with_two_of_three_directories_lost_serves_the_survivors_log(
    tmp_path: Path, evaluator: dict[str, Any]
) -> None:
    settings = {"evaluator": evaluator}
    with LocalCluster(
        3, 1, tmp_path, settings=settings, partitions_per_group=4, replicas=3
    ) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        ingest(client, "before")
        wait_until(lambda: have_equal_logs(cluster, tmp_path), what="copies", timeout_s=TIMEOUT_S)
        *lost, survivor = cluster.nodes
        names = [node.name for node in lost]

        survivor.kill()
        ingest(client, "lost")
        lost[0].kill()
        alive = recover(tmp_path / survivor.name, *names)
        assert (alive.exit_code, "process answers" in alive.output) == (2, True), alive.output
        lost[1].kill()
        few = recover(tmp_path / survivor.name, names[0])
        assert (few.exit_code, "majority" in few.output) == (2, True), few.output
        for name in names:
            shutil.rmtree(tmp_path / name)

        done = recover(tmp_path / survivor.name, *names)
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["partitions"] == [0, 1, 2, 3, SYSTEM]
        again = recover(tmp_path / survivor.name, *names)
        assert json.loads(again.output)["partitions"] == []

        survivor.start()
        survivor.wait()
        client = cluster.client(timeout="60s")
        found = client.query("numbered", EVERYTHING)
        assert (found.complete, rows(found)) == (True, BATCHES * ROWS)
        for node in lost:
            node.start()
            node.wait()
        wait_until(lambda: is_whole(client, 3), what="all copies again", timeout_s=TIMEOUT_S)

        new = cluster.join("group-1")
        new.start()
        new.wait()
        wait_until(lambda: is_whole(client, 4), what="a fourth node", timeout_s=TIMEOUT_S)
        ingest(client, "after")
        found = client.query("numbered", EVERYTHING)
        assert (found.complete, rows(found)) == (True, 2 * BATCHES * ROWS)
