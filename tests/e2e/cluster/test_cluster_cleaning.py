"""Cleaning of a dataset of which three nodes have copies, while one of them is down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from waiting import wait_until

import galileo
from galileo.cli.main import main
from galileo.errors import DataExpired

SETTINGS: dict[str, Any] = {"storage": {"segment_bytes_max": 8_192}}
FEATURES = [
    galileo.Feature("level", type="int"),
    galileo.Feature("remark", type="text", indexed=False),
]


def secrets_in(directory: Path) -> int:
    """How many files contain the text that only deleted observations have."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return sum(b"a-secret-of-" in path.read_bytes() for path in files)


def clean(cluster: galileo.LocalCluster) -> tuple[int, list[dict[str, Any]]]:
    command = ["--node", cluster.addresses[0], "dataset", "clean", "rivers", "--json"]
    result = CliRunner().invoke(main, command)
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_clean_names_the_node_that_is_down_and_is_repeated(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    settings = SETTINGS | {"evaluator": no_evaluator}
    with galileo.LocalCluster(
        3, 1, tmp_path, settings=settings, partitions_per_group=4, replicas=3
    ) as cluster:
        client = cluster.client()
        wait_until(lambda: not client.status().under_replicated, timeout_s=60)
        client.create_dataset(galileo.Schema("rivers", FEATURES, geohash_precision=2))
        rows = pd.DataFrame(
            {
                "latitude": [n % 80 for n in range(600)],
                "longitude": [n % 170 for n in range(600)],
                "time": pd.Timestamp("2024-01-01", tz="UTC"),
                "level": [n % 10 for n in range(600)],
                "remark": [f"a-secret-of-{n}" if n % 10 > 7 else "plain" for n in range(600)],
            }
        )
        client.ingest("rivers", rows, batch_rows=100)
        old = client.query("rivers", "level > 7")
        client.delete("rivers", "level > 7")
        down = cluster.nodes[2]
        down.kill()
        code, reports = clean(cluster)
        assert code == 1
        problems = {report["node"]: report["problem"] for report in reports}
        assert [name for name, problem in problems.items() if problem] == [down.name]
        assert client.count("rivers") == 480
        with pytest.raises(DataExpired):
            client.read(old)
        others = [tmp_path / node.name for node in cluster.nodes[:2]]
        assert [secrets_in(directory) for directory in others] == [0, 0]
        assert secrets_in(tmp_path / down.name)
        down.start()
        # A node erases what the commits that it has heard of have removed.
        wait_until(lambda: not client.status().under_replicated, timeout_s=60)
        wait_until(lambda: clean(cluster)[0] == 0, timeout_s=60)
        assert secrets_in(tmp_path / down.name) == 0
        assert client.count("rivers") == 480
