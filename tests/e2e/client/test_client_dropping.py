"""Dropping a dataset of a cluster of processes, and using its name again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from expected_errors import raises
from parameters import keep_quick
from synopses import wait_for_synopses

import galileo
from galileo.cli.main import main
from galileo.errors import CcqDropped, InputError, UnknownDataset
from galileo.model.times import TIME_TYPE

ROWS = 40
OTHER = [galileo.Feature("depth", unit="mm"), galileo.Feature("note", type="text")]


def rows(**features: list) -> pa.Table:
    numbers = range(ROWS)
    columns = {
        "latitude": [float(number) for number in numbers],
        "longitude": [4.0 * number for number in numbers],
        "time": pa.array([number * 3_600_000_000 for number in numbers]).cast(TIME_TYPE),
    }
    return pa.table(columns | features)


@pytest.fixture
def client(cluster: galileo.LocalCluster) -> Iterator[galileo.Client]:
    """One of its own, for it keeps schemas."""
    with cluster.client() as made:
        yield made


@pytest.fixture
def name(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """A dataset with some rows."""
    name = fresh_name("dropped")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("t")], geohash_precision=2))
    client.ingest(name, rows(t=[float(number) for number in range(ROWS)]), producer="one")
    return name


def run(cluster: galileo.LocalCluster, *words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, [*words, "--node", cluster.addresses[0]], input=answer)


def test_drop_dataset_ends_it_for_every_client(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str
) -> None:
    with cluster.client() as other:
        assert other.schema(name).name == name
        labels = client.query(name)
        ccq = other.submit(name, interval="1s", expiration="1h")
        dropped = client.drop_dataset(name)
        assert (dropped.rows, dropped.ccqs, dropped.pending) == (ROWS, 1, ())
        assert dropped.bytes > 0
        for each in (client, other):
            assert name not in {schema.name for schema in each.datasets()}
            assert ccq.id not in {one.id for one in each.list_ccqs()}
            with raises(CcqDropped):
                each.fetch(ccq)
            for refused in (
                lambda each=each: each.query(name),
                lambda each=each: each.count(name),
                lambda each=each: each.ingest(name, rows(t=[0.0] * ROWS)),
                lambda each=each: each.read(labels),
                lambda each=each: each.drop_dataset(name),
            ):
                with pytest.raises(UnknownDataset):
                    refused()


def test_create_dataset_after_drop_is_another_dataset(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str
) -> None:
    with cluster.client() as other:
        labels = client.query(name)
        assert other.select(name).num_rows == ROWS
        client.drop_dataset(name)
        client.create_dataset(galileo.Schema(name, OTHER))
        assert client.schema(name).key == f"{name}@1"
        table = rows(depth=[1.0] * ROWS, note=["x"] * ROWS)
        receipt = client.ingest(name, table, producer="one")
        assert (receipt.rows, receipt.duplicate_rows) == (ROWS, 0)
        with raises(UnknownDataset, dropped=name):
            client.read(labels)
        with raises(UnknownDataset, dropped=name):
            other.select(name)
        assert other.select(name)["note"].to_pylist() == ["x"] * ROWS, "now it knows"
        found = client.query(name, "note = 'x'")
        assert client.read(found).num_rows == client.count(name) == ROWS
        described = client.describe(name)
        assert (described.observations, described.feature("depth").maximum) == (ROWS, 1.0)
        assert len(client.nearest(name, latitude=1, longitude=1, k=3).to_pandas()) == 3
        assert client.summarise(name, feature="depth").observations == ROWS
        wait_for_synopses(cluster, name)
        assert client.estimate(name).low == found.table.num_rows
        assert client.children(name, order=["note"]).texts().to_pylist() == ["x"]
        assert client.explain(name).partitions
        client.set_retention(name, galileo.Retention("100y"))
        assert client.retention(name) == galileo.Retention("100y")
        assert len(client.apply_retention(name)) == 3
        ccq = client.submit(name, interval="1s", expiration="1h")
        assert (ccq.info.dataset, len(ccq.initial)) == (name, len(found))
        assert client.fetch(ccq).labels.schema == found.schema
        status = [one["dataset"] for node in client.status().nodes for one in node.datasets]
        assert status.count(name) == 3
        assert client.drop_dataset(name).ccqs == 1


def test_dataset_drop_command_asks_for_confirmation(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = run(cluster, "dataset", "drop", name)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "no terminal to confirm it on; add --yes" in refused.stderr
    with monkeypatch.context() as patch:
        patch.setattr("galileo.cli.datasets.is_terminal", lambda: True)
        declined = run(cluster, "dataset", "drop", name, answer="n\n")
        assert declined.exit_code == 1
        assert f"Drop dataset {name} with {ROWS} observations?" in declined.stderr
        assert "Nothing was dropped." in declined.stderr
        assert client.count(name) == ROWS
        accepted = run(cluster, "dataset", "drop", name, answer="y\n")
        assert accepted.exit_code == 0
        assert f"dropped dataset {name}: {ROWS} observations" in accepted.stdout
        unknown = run(cluster, "dataset", "drop", name)
        assert (unknown.exit_code, "[unknown_dataset]" in unknown.stderr) == (2, True)
        assert "create" not in unknown.stderr
    again = run(cluster, "dataset", "drop", name, "--yes")
    assert (again.exit_code, "[unknown_dataset]" in again.stderr) == (2, True)
    assert "create" not in again.stderr


def test_drop_dataset_of_an_unknown_name_names_the_nearest(
    client: galileo.Client, name: str
) -> None:
    with pytest.raises(UnknownDataset) as caught:
        client.drop_dataset(f"{name}x")
    assert caught.value.details["nearest"] == name
    assert "remedy" not in caught.value.details


def test_dataset_drop_command_with_yes_does_not_ask(
    cluster: galileo.LocalCluster, name: str
) -> None:
    result = run(cluster, "dataset", "drop", name, "--yes", "--json")
    assert json.loads(result.stdout)["rows"] == ROWS
    assert json.loads(result.stdout)["pending"] == []


WIDER = {"id": "text", "berths": "int", "depth": "float"}
TYPED = {"id": "int", "berths": "text"}


@pytest.mark.parametrize(
    ("call", "columns"),
    keep_quick(
        itertools.product(["upsert", "upsert as a producer", "delete", "table"], [WIDER, TYPED]),
        *(("upsert", WIDER), ("table", TYPED)),
    ),
)
def test_client_that_knew_a_dropped_table_uses_the_present_one(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    fresh_name: Callable[[str], str],
    columns: dict[str, str],
    call: str,
) -> None:
    name = fresh_name("ports")
    other = cluster.client()
    client.create_table(galileo.Table(name, {"id": "text", "berths": "int"}, key="id"))
    client.upsert(name, {"id": ["a"], "berths": [1]})
    other.drop_dataset(name)
    other.create_table(galileo.Table(name, columns, key="id"))
    key = "b" if columns is WIDER else 7
    rows = {"id": [key], "berths": [2] if columns is WIDER else ["two"]}
    rows |= {"depth": [0.5]} if columns is WIDER else {}
    if not call.startswith("upsert"):
        other.upsert(name, rows)
    if call == "delete":
        assert client.delete(name, [key]).rows == 1
    elif call == "table":
        assert client.table(name, keys=[key]).rows.to_pydict() == rows
    else:
        client.upsert(name, rows, producer="p" if "producer" in call else None)
    assert other.table(name).rows.to_pydict() == (
        {n: [] for n in rows} if call == "delete" else rows
    )


def test_client_that_knew_a_dropped_table_sends_no_stream_twice(
    cluster: galileo.LocalCluster, client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("ports")
    other = cluster.client()
    client.create_table(galileo.Table(name, {"id": "text", "berths": "int"}, key="id"))
    client.upsert(name, {"id": ["a"], "berths": [1]})
    other.drop_dataset(name)
    other.create_table(galileo.Table(name, WIDER, key="id"))
    rows = pa.table({"id": ["b", "c"], "berths": [2, 3], "depth": [0.5, 1.0]})
    with pytest.raises(InputError):
        client.upsert(name, rows.to_reader(max_chunksize=1))
    assert client.upsert(name, rows.to_reader(max_chunksize=1)).rows == 2


@pytest.mark.slow
def test_client_that_knew_a_dropped_channel_subscribes_to_the_present_one(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str
) -> None:
    channel, other = f"{name}.hot", cluster.client()
    client.create_channel(galileo.Channel(channel, name, "t > :least"))
    client.subscribe(channel, {"id": ["a"], "least": [1.0]}, broker="ops")
    other.drop_dataset(channel)
    other.create_channel(galileo.Channel(channel, name, "t < :most"))
    assert client.subscribe(channel, {"id": ["b"], "most": [1.0]}, broker="ops").rows == 1
    assert client.unsubscribe(channel, ["b"]).rows == 1
