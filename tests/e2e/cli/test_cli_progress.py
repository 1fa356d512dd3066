"""Bars while a command works: on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import galileo
from galileo.cli.main import main

ROWS = 3000
ESCAPE = b"\x1b"


@pytest.fixture(scope="module")
def dataset(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("counted")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("t", "K")], geohash_precision=3))
    columns = {
        "latitude": [1.0] * ROWS,
        "longitude": [2.0] * ROWS,
        "t": list(map(float, range(ROWS))),
    }
    client.ingest(name, pa.table(columns | {"time": ["2014-03-01T00:00:00Z"] * ROWS}))
    return name


def shown(command: list[str], **environment: str) -> tuple[bytes, bytes]:
    """What a command writes to standard output, a file, and to a terminal as standard error."""
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM", "COLUMNS")}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=theirs, env=clean | {"TERM": "xterm"} | environment
        )
        os.close(theirs)
        actual = b""
        while piece := read(ours):
            actual += piece
        os.close(ours)
        assert process.wait(60) == 0, actual.decode()
        output.seek(0)
        return output.read(), actual


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.slow
def test_progress_on_a_terminal_counts_rows(cluster: galileo.LocalCluster, dataset: str) -> None:
    command = [sys.executable, "-m", "galileo", "--node", cluster.addresses[0]]
    result, actual = shown([*command, "read", dataset, "t >= 500", "--all"])
    assert b"2,500 observations" in actual
    assert b"2,500 observations" in result
    assert ESCAPE not in result
    result, actual = shown([*command, "count", dataset, "t >= 500"])
    assert dataset.encode() in actual
    assert b"2500" in result  # a script reads the number from a file or pipe
    assert ESCAPE not in result


@pytest.mark.slow
def test_progress_with_no_color_has_no_colours(cluster: galileo.LocalCluster, dataset: str) -> None:
    command = [sys.executable, "-m", "galileo", "--node", cluster.addresses[0]]
    _, actual = shown([*command, "query", dataset, "t >= 500"], NO_COLOR="1")
    assert b"2,500 labels" in actual
    assert b"\x1b[3" not in actual


@pytest.mark.parametrize("words", [["query"], ["read"], ["count"], ["query", "--json"]])
def test_progress_without_a_terminal_is_silent(
    words: list[str], cluster: galileo.LocalCluster, dataset: str
) -> None:
    name, *options = words
    done = CliRunner().invoke(main, ["--node", cluster.addresses[0], name, dataset, *options])
    assert done.exit_code == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_progress_of_ingest_counts_rows(
    cluster: galileo.LocalCluster, dataset: str, tmp_path: Path
) -> None:
    file = tmp_path / "more.csv"
    lines = [f"1.0,2.0,2014-03-02T00:00:00Z,{number}" for number in range(100)]
    file.write_text("\n".join(["latitude,longitude,time,t", *lines]))
    command = [sys.executable, "-m", "galileo", "--node", cluster.addresses[0]]
    result, actual = shown([*command, "ingest", dataset, str(file)])
    assert b"100 rows" in actual
    assert b"100 observations stored" in result
