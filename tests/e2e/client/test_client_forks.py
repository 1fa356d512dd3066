"""Clients in programs that fork: what works does, and what cannot is refused at once."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import galileo

PROGRAM = Path(__file__).parents[2] / "kit" / "forking.py"
ROWS = "7"
REFUSED = r".*InputError: this process was forked while a client had connections.*"


Children = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def children(
    cluster: galileo.LocalCluster, client: galileo.Client, fresh_name: Callable[[str], str]
) -> Children:
    """What became of the children of a program that forks; see `tests/kit/forking.py`.

    `children("few")` of the same program that leaves out what takes long.
    """
    dataset = fresh_name("forks")
    client.create_dataset(galileo.Schema(dataset, [galileo.Feature("rain")]))
    hours = [f"2012-03-01T0{hour}:00:00Z" for hour in range(int(ROWS))]
    rows = {"latitude": 0.0, "longitude": 0.0, "time": hours, "rain": 1.0}
    client.ingest(dataset, pd.DataFrame(rows).astype({"time": "datetime64[ns, UTC]"}))

    @functools.cache
    def run(*few: str) -> dict[str, str]:
        command = [sys.executable, str(PROGRAM), cluster.addresses[0], dataset, *few]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())

    return run


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("never connected", ROWS),
        ("made only", ROWS),
        ("made only, used", "InputError: .*connect again in this one"),
        ("open", REFUSED),
        ("open, closes", "None"),
        ("closed", str([ROWS] * 2)),
    ],
)
@pytest.mark.slow
def test_client_in_a_forked_process_connects_or_is_refused(
    children: Children, case: str, expected: str
) -> None:
    assert re.fullmatch(pattern(expected), children("few")[case])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("pre-fork server", str([ROWS] * 2)),
        ("open, in a loop", REFUSED),
        ("open, its own", REFUSED),
        ("open, cluster", REFUSED),
        ("open, forks twice", REFUSED),
        ("open, drops", "None"),
        ("loader, eager", REFUSED),
        ("loader, lazy", REFUSED),
        ("loader, spawned", str([ROWS] * 2)),
        ("busy", REFUSED),
        ("busy, no client", str([True] * 2)),
        ("busy, preexec", str([0] * 2)),
        ("error kept", REFUSED),
    ],
)
def test_client_in_any_kind_of_fork_connects_or_is_refused(
    children: Children, case: str, expected: str
) -> None:
    assert re.fullmatch(pattern(expected), children()[case])


def pattern(expected: str) -> str:
    return expected if ".*" in expected else re.escape(expected)


def test_import_galileo_disables_grpc_fork_handlers_by_default() -> None:
    code = "import os, galileo; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    for given, expected in (({}, "0"), ({"GRPC_ENABLE_FORK_SUPPORT": "1"}, "1")):
        done = subprocess.run(
            [sys.executable, "-c", code], env=given, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected
