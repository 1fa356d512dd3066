"""A streaming job that is killed, with its JVM and its workers, and started again.

Once in a run of the tests; `GALILEO_SPARK_KILLS=10` says how often.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

import galileo
from galileo.model.times import times_from_micros

KILLS = int(os.environ.get("GALILEO_SPARK_KILLS", "1"))
ROWS_PER_ROUND = 600
BEGIN_S = 300.0
JOB = Path(__file__).parents[2] / "kit" / "spark_stream_job.py"


def made(first: int) -> pa.Table:
    numbers = np.arange(first, first + ROWS_PER_ROUND)
    return pa.table(
        {
            "latitude": numbers % 160 - 80.0,
            "longitude": numbers % 360 - 180.0,
            "time": times_from_micros(1_330_560_000_000_000 + numbers),
            "number": pa.array(numbers),
        }
    )


def stored_values(client: galileo.Client, dataset: str) -> list[int]:
    return sorted(client.select(dataset, columns=["number"]).column("number").to_pylist())


def kill(job: subprocess.Popen[str]) -> None:
    """SIGKILL for the program, its JVM, and the Python workers of that."""
    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family[1:], timeout=20)
    job.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(60 + 300 * KILLS)
def test_stream_killed_repeatedly_stores_each_row_once(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    seed = random.Random(7)
    source, target = fresh_name("source"), fresh_name("target")
    for name in (source, target):
        client.create_dataset(
            galileo.Schema(name, [galileo.Feature("number", "1", type="int", indexed=False)])
        )
    words = [cluster.addresses[0], source, target, str(tmp_path / "checkpoint")]
    rows = 0
    for turn in range(KILLS + 1):
        client.ingest(source, made(rows), batch_rows=100)
        rows += ROWS_PER_ROUND
        with (
            (tmp_path / f"{turn}.log").open("w") as log,
            subprocess.Popen(
                [sys.executable, str(JOB), *words], stdout=subprocess.PIPE, stderr=log, text=True
            ) as job,
        ):
            try:
                assert job.stdout is not None
                assert job.stdout.readline().startswith("copied "), log.name
                if turn < KILLS:
                    # Somewhere within the micro-batches that follow.
                    time.sleep(seed.uniform(0.0, 1.0))
                else:
                    deadline = time.monotonic() + BEGIN_S
                    while client.count(target) < rows and time.monotonic() < deadline:
                        time.sleep(0.1)
            finally:
                kill(job)
        found = stored_values(client, target)
        assert len(found) == len(set(found)), f"repeated after kill {turn + 1}"
    assert stored_values(client, target) == list(range(rows))
