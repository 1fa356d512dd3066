"""A node that comes back with an older copy of its directory."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import galileo
from galileo.client.node_diagnostics import conditions
from galileo.model.forks import history_of

PATIENCE_S = 300.0


@pytest.mark.slow
def test_older_copy_of_a_directory_is_reported_by_others(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(1), 500
    frame = pd.DataFrame(
        {
            "latitude": rng.uniform(-60, 60, rows),
            "longitude": rng.uniform(-180, 180, rows),
            "time": pd.Timestamp("2014-06-01", tz="UTC"),
            "temperature": rng.normal(285, 9, rows),
        }
    )
    with galileo.LocalCluster(2, 1, tmp_path) as cluster:
        client = cluster.client(timeout="60s")
        schema = galileo.Schema("air", [galileo.Feature("temperature", "K")], geohash_precision=2)
        client.create_dataset(schema)
        client.ingest("air", frame)
        first, second = cluster.nodes
        directory, older = tmp_path / second.name, tmp_path / "older"
        second.stop()
        shutil.copytree(directory, older)
        second.start()
        second.wait()
        client.ingest("air", frame)
        second.restart()
        assert lost(first.address) == (), "it has all that it had"

        second.stop()
        shutil.rmtree(directory)
        older.rename(directory)
        second.start()
        second.wait()
        deadline = time.monotonic() + PATIENCE_S
        while not (found := lost(first.address)):
            assert time.monotonic() < deadline, "no node reports that commits are lost"
        assert all(f"at node {second.name} had commit" in one for one in found)
        assert all("came back with commit 1" in one for one in found)
        assert lost(second.address) == ()
        behind = {int(one.split()[1]) for one in found}
        while not behind & {p for p, sequence in commits(client) if history_of(sequence)}:
            assert time.monotonic() < deadline, "no partition begins a later history"
            client.ingest("air", frame)


def commits(client: galileo.Client) -> set[tuple[int, int]]:
    columns = client.query("air").table.select(["partition", "sequence"])
    return {(row["partition"], row["sequence"]) for row in columns.to_pylist()}


def lost(address: str) -> tuple[str, ...]:
    """What the node at an address has heard of, and others have no more."""
    reports = asyncio.run(conditions([address], patience_s=60.0))
    status = next(one.status for one in reports if one.address == address)
    return () if status is None else status.lost
