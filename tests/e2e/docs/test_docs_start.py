"""The first page, followed literally: what it says to type is typed, and does what it says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from click.testing import CliRunner

import galileo
from galileo.cli.main import main

PAGE = "docs/start.md"
NODE = "127.0.0.1:7701"
# A cluster runs already, and commands without an end get an option that ends them.
NOT_TYPED = ("galileo up",)
ENDED = {"galileo top": "--once", "galileo ccq watch": "--updates 1"}


class Terminal:
    """Types commands of the page against the cluster of these tests."""

    def __init__(self, cluster: galileo.LocalCluster) -> None:
        self._node = cluster.addresses[0]
        self.ccq_id = ""

    def type(self, line: str) -> str:
        assigned = re.fullmatch(r"ID=\$\((.*?)(?: \| .*)?\)", line)
        line = (assigned[1] if assigned else line).replace("$ID", self.ccq_id)
        for beginning, more in ENDED.items():
            if line.startswith(beginning):
                line = f"{line} {more}"
        done = CliRunner().invoke(main, ["--node", self._node, *shlex.split(line)[1:]])
        assert done.exit_code == 0, (line, done.output)
        if assigned:
            self.ccq_id = done.stdout.split()[0]
        return done.stdout


def test_start_page_runs_as_written(
    page: Callable[[str], Any],
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    start = page(PAGE)
    [(_, csv)] = start.blocks("csv")
    Path("reports.csv").write_text(csv)
    terminal = Terminal(cluster)
    lines = [line for _, block in start.blocks("console") for line in block.splitlines()]
    outputs = {line: terminal.type(line) for line in lines if not line.startswith(NOT_TYPED)}
    try:
        assert len(outputs) == 11
        assert "3 observations stored" in outputs["galileo ingest reports reports.csv --create"]
        assert "humidity" in outputs["galileo dataset show reports"]
        again = terminal.type("galileo ingest reports reports.csv")
        assert "0 new, 3 already stored" in again
        assert pyarrow.parquet.read_table("warm.parquet").num_rows == 2
        [watched] = [text for line, text in outputs.items() if line.startswith("galileo ccq watch")]
        assert "2 labels" in watched
        assert "3 of 3 nodes are up" in outputs["galileo top"]
        names: dict[str, Any] = {}
        for line, code in start.blocks("python"):
            source = "\n" * line + code.replace(NODE, cluster.addresses[0])
            exec(compile(source, PAGE, "exec"), names)
        assert len(names["labels"]) == 2
        assert len(names["ccq"].initial) == 2
    finally:
        client.cancel(terminal.ccq_id)
