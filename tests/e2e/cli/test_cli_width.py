"""Every table fits a terminal of 80 columns, and nothing of it is cut."""

from __future__ import annotations

import functools
import json
import os
import pty
import shlex
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import galileo
from galileo.cli import session
from galileo.cli.main import main
from galileo.cli.output import Output

Fresh = Callable[[str], str]
COLUMNS = 80
ROWS = 40
COMMANDS = (
    "status",
    "top --once",
    "topology",
    "topology suggest --dataset {dataset}",
    "whoami",
    "dataset list",
    "dataset show {dataset}",
    "query {dataset}",
    "read {dataset}",
    "explain {dataset} 'feature_1 > 4'",
    "nearest {dataset} --latitude 40 --longitude -100",
    "stats {dataset}",
    "stats {dataset} --feature feature_1 --bins 4",
    "graph children {dataset}",
    "estimate {dataset} --feature feature_1",
    "retention show {dataset}",
    "retention apply {dataset}",
    "ccq list",
    "ccq watch {ccq} --from start --updates 1",
    "sampler list",
    "sampler uploads",
    "partition move --to node-1 --from node-3 --dry-run",
)


@pytest.fixture(scope="module")
def dataset(client: galileo.Client, fresh_name: Fresh) -> str:
    """One with more features than fit beside each other."""
    rng = np.random.default_rng(7)
    names = [f"feature_{number}" for number in range(12)]
    frame = pd.DataFrame({name: np.round(rng.uniform(0, 10, ROWS), 3) for name in names})
    frame["latitude"] = np.round(rng.uniform(25, 50, ROWS), 3)
    frame["longitude"] = np.round(rng.uniform(-125, -65, ROWS), 3)
    frame["time"] = "2014-03-01T06:30:00Z"
    name = fresh_name("wide")
    client.create_dataset(
        galileo.Schema(name, [galileo.Feature(one, "K") for one in names], geohash_precision=3)
    )
    client.ingest(name, frame)
    return name


@pytest.fixture(scope="module")
def ccq(client: galileo.Client, dataset: str) -> Iterator[str]:
    made = client.submit(dataset, galileo.f.feature_1 > 1, interval="10m", expiration="1h")
    yield made.id
    client.cancel(made.id)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write for 80 columns, though to no terminal."""
    monkeypatch.setattr(session, "Output", functools.partial(Output, columns=COLUMNS))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("line", COMMANDS)
def test_tables_fit_80_columns(
    line: str,
    cluster: galileo.LocalCluster,
    dataset: str,
    ccq: str,
) -> None:
    words = shlex.split(line.format(dataset=dataset, ccq=ccq))
    done = CliRunner().invoke(main, ["--node", cluster.addresses[0], *words])
    assert done.exit_code == 0, done.output
    output = done.stdout.replace("token\n", "token ")  # A token is not broken, and may be longer.
    lines = [one for one in output.splitlines() if not one.startswith("token ")]
    assert [one for one in lines if len(one) > COLUMNS] == []
    assert "…" not in done.stdout


@pytest.mark.slow
def test_status_on_a_terminal_fits_its_width_unless_wide(
    cluster: galileo.LocalCluster,
) -> None:
    narrow = _on_terminal("--node", cluster.addresses[0], "status")
    assert max(map(len, narrow)) <= COLUMNS
    assert "node-1" in "".join(narrow)
    assert any(line.startswith("Not shown: ") for line in narrow)
    wide = _on_terminal("--node", cluster.addresses[0], "status", "--wide")
    assert "spilled" in wide[0]


@pytest.mark.usefixtures("narrow")
def test_ccq_submit_text_fits_80_columns(
    client: galileo.Client, cluster: galileo.LocalCluster, dataset: str
) -> None:
    words = ["--node", cluster.addresses[0], "ccq", "submit", dataset, "feature_1 > 4"]
    done = CliRunner().invoke(main, [*words, "--interval", "10m", "--expiration", "3600"])
    ccq_id, facts, *rest, token = done.stdout.splitlines()
    client.cancel(ccq_id)
    assert facts.endswith("; ends in 1h")
    assert [one for one in rest if len(one) > COLUMNS] == []
    assert rest[-1] == f"  galileo ccq fetch {ccq_id} \\"
    assert token.startswith("    --token ")


def test_query_with_wide_shows_all_columns(cluster: galileo.LocalCluster, dataset: str) -> None:
    words = ["--node", cluster.addresses[0], "query", dataset, "--wide"]
    shown = CliRunner().invoke(main, words).stdout.splitlines()[0].split()
    result = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)["labels"][0]
    assert set(shown) == set(result) - {"label"}


def _on_terminal(*words: str) -> list[str]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, COLUMNS))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "TERM")}
    command = [sys.executable, "-m", "galileo", *words]
    with subprocess.Popen(
        command,
        env=environment | {"TERM": "dumb", "NO_COLOR": "1"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        text = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    assert process.returncode == 0, text
    return [line.rstrip() for line in text.splitlines()]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # The end of a terminal whose other side is closed.
        return b""
