"""What `galileo up` does about nodes that end, with nodes that are none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from galileo.cli.cluster import RESTARTS_MAX, ranges_of_group, supervise
from galileo.cli.output import Output


@dataclass
class Node:
    """Ends again as often as it is started."""

    name: str
    running: bool = False
    log: Path = Path("/logs/node.log")
    starts: int = 0

    def start(self) -> None:
        self.starts += 1


@dataclass
class Looks:
    """An event that is set after some looks."""

    left: int

    def wait(self, timeout: float) -> bool:
        self.left -= 1
        return self.left < 0


def watched(nodes: list[Any], looks: int) -> None:
    supervise(Output(as_json=False), nodes, Looks(looks))  # type: ignore[arg-type]


def test_supervise_restarts_an_ended_node(capsys: pytest.CaptureFixture[str]) -> None:
    well, dead = Node("node-1", running=True), Node("node-2")
    watched([well, dead], looks=1)
    assert (well.starts, dead.starts) == (0, 1)
    result = capsys.readouterr()
    assert result.out == ""
    assert result.err == (
        "node-2 has ended: restarting it, attempt 1 of 3. Its log is /logs/node.log\n"
    )


def test_supervise_gives_up_after_restarts_max(capsys: pytest.CaptureFixture[str]) -> None:
    dead = Node("node-2")
    watched([dead], looks=RESTARTS_MAX + 5)
    assert dead.starts == RESTARTS_MAX
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == RESTARTS_MAX + 1
    assert "it stays down" in lines[-1]


@pytest.mark.parametrize(
    ("ranges", "of_each"),
    [
        ([("", 0)], ["0-z"]),
        ([("", 0), ("1", 1), ("2", 0), ("3", 1)], ["0 2", "1 3-z"]),
        ([("", 0), ("4", 0), ("8", 1)], ["0-7", "8-z"]),
        ([("", 0), ("9q", 1), ("c", 0)], ["[0,9q) c-z", "[9q,c)"]),
        ([("", 0), ("zz", 1)], ["[0,zz)", "[zz,)"]),
    ],
)
def test_ranges_of_group_are_short(ranges: list[tuple[str, int]], of_each: list[str]) -> None:
    assert [ranges_of_group(ranges, group) for group in range(len(of_each))] == of_each
