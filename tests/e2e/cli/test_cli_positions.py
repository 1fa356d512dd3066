"""Where `galileo ccq watch --from` begins, and what `ccq submit --quiet` prints for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.cli.positions import WatchPosition
from galileo.errors import InputError

Fresh = Callable[[str], str]


def table(*values: float) -> pa.Table:
    rows = len(values)
    columns: dict[str, Any] = {"latitude": [1.0] * rows, "longitude": [2.0] * rows}
    return pa.table(columns | {"time": ["2014-03-01T00:00:00Z"] * rows, "t": list(values)})


@pytest.fixture
def dataset(client: galileo.Client, fresh_name: Fresh) -> str:
    name = fresh_name("positions")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("t")], geohash_precision=3))
    client.ingest(name, table(1, 2, 3))
    return name


@pytest.fixture
def ccq_id(cluster: galileo.LocalCluster, client: galileo.Client, dataset: str) -> Iterator[str]:
    words = ["ccq", "submit", dataset, "--interval", "1s", "--expiration", "1h", "--quiet"]
    done = CliRunner().invoke(main, ["--node", cluster.addresses[0], *words])
    assert done.exit_code == 0, done.output
    (only,) = done.stdout.splitlines()
    assert only in [one.id for one in client.list_ccqs()]
    yield only
    client.cancel(only)


def test_ccq_watch_from_a_name_resumes_after_the_last_update(
    cluster: galileo.LocalCluster, client: galileo.Client, dataset: str, ccq_id: str
) -> None:
    def watched(begin: str) -> list[float]:
        words = ["ccq", "watch", ccq_id, "--from", begin, "--updates", "1", "--json"]
        done = CliRunner().invoke(main, ["--node", cluster.addresses[0], *words])
        assert done.exit_code == 0, done.output
        return sorted(label["t"] for label in json.loads(done.stdout)["labels"])

    assert watched("start") == watched("alarms") == [1, 2, 3]
    now = WatchPosition(ccq_id, "now").token(client)
    assert len(client.fetch(ccq_id, token=now).labels) == 0
    client.ingest(dataset, table(4, 5))
    assert len(client.fetch(ccq_id, token=now, wait="60s").labels) == 2
    assert watched("alarms") == [4, 5]
    assert watched("start") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("content", [b"no token", b"\xff\xfe", b""])
def test_position_damaged_is_refused(
    client: galileo.Client, tmp_path: Path, content: bytes
) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    file = tmp_path / "galileo" / "positions" / "ccq-1" / "alarms"
    position = WatchPosition("ccq-1", "alarms", environment=environment)
    assert position.token(client) == ""
    position.save("")
    file.write_bytes(content)
    with raises(InputError, file=str(file), reader="ccq-1"):
        position.token(client)


def test_position_of_another_query_is_refused(
    client: galileo.Client, dataset: str, tmp_path: Path
) -> None:
    made = client.submit(dataset, interval="1h", expiration="1h")
    client.cancel(made.id)
    position = WatchPosition("ccq-1", "alarms", environment={"XDG_STATE_HOME": str(tmp_path)})
    position.save(made.token)
    with raises(InputError, reader="ccq-1"):
        position.token(client)


@pytest.mark.parametrize("begin", ["", "../x", ".hidden", "a/b", "x" * 65])
def test_position_with_a_path_as_name_is_refused(begin: str) -> None:
    with raises(InputError, parameter="from"):
        WatchPosition("ccq-1", begin)
