"""Features that are added to a dataset of a cluster of processes, where clients know them late."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.errors import InvalidObservations, InvalidSchema, UnknownProperty
from galileo.model.times import TIME_TYPE

ROWS = 40
GUST, SITE = galileo.Feature("gust", "m/s"), galileo.Feature("site", type="text")


def rows(**features: list) -> pa.Table:
    numbers = range(ROWS)
    columns = {
        "latitude": [float(number) for number in numbers],
        "longitude": [4.0 * number for number in numbers],
        "time": pa.array([number * 3_600_000_000 for number in numbers]).cast(TIME_TYPE),
        "t": [float(number) for number in numbers],
    }
    return pa.table(columns | features)


@pytest.fixture
def client(cluster: galileo.LocalCluster) -> Iterator[galileo.Client]:
    """One of its own, for it keeps schemas."""
    with cluster.client() as made:
        yield made


@pytest.fixture
def other(cluster: galileo.LocalCluster, name: str) -> Iterator[galileo.Client]:
    """Another client, which knows the schema before features are added."""
    with cluster.client() as made:
        assert made.schema(name).added == 0
        yield made


@pytest.fixture
def name(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """A dataset with some rows."""
    name = fresh_name("growing")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("t")], geohash_precision=2))
    client.ingest(name, rows(), producer="one")
    return name


def run(cluster: galileo.LocalCluster, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--node", cluster.addresses[0]])


@pytest.mark.slow
def test_a_client_that_knows_the_schema_from_before_can_name_features_at_once(
    client: galileo.Client, other: galileo.Client, name: str
) -> None:
    gusts = [float(number) for number in range(ROWS)]
    client.add_features(name, [GUST, SITE])
    client.ingest(name, rows(gust=gusts, site=["a"] * ROWS))
    assert other.count(name, "gust >= 30") == 10
    assert other.select(name, "gust >= 30", columns=["gust"]).num_rows == 10
    assert "gust" in other.schema(name).observation_schema.names


@pytest.mark.slow
def test_a_client_that_knows_the_schema_from_before_can_store_features_at_once(
    client: galileo.Client, other: galileo.Client, name: str
) -> None:
    client.add_features(name, [GUST])
    assert other.ingest(name, rows(gust=[1.5] * ROWS)).rows == ROWS
    assert client.count(name, "gust = 1.5") == ROWS
    with raises(InvalidObservations, unknown_columns=["gusts"]):
        other.ingest(name, rows(gusts=[1.5] * ROWS))


def test_a_client_that_knows_the_schema_from_before_goes_on_with_it(
    client: galileo.Client, other: galileo.Client, name: str
) -> None:
    labels = other.query(name, "t >= 20")
    client.add_features(name, [GUST])
    client.ingest(name, rows(gust=[2.0] * ROWS), producer="two")
    assert other.read(labels).column_names == ["latitude", "longitude", "time", "t"]
    assert other.ingest(name, rows(), producer="one").duplicate_rows == ROWS
    assert other.ingest(name, rows(gust=[None] * ROWS), producer="one").duplicate_rows == ROWS
    page = other.select_page(name, "t >= 20")
    assert len(page) == ROWS
    assert set(client.select(name, "t >= 20").column("gust").to_pylist()) == {None, 2.0}


def test_a_file_of_the_earlier_schema_is_stored_once(
    client: galileo.Client, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "tower.csv"
    file.write_text("lat,lon,time,t\n1,2,2020-01-01T00:00Z,7.5\n")
    assert client.ingest_file(name, file).rows == 1
    client.add_features(name, [GUST])
    assert client.ingest_file(name, file).duplicate_rows == 1
    file.write_text("lat,lon,time,t,gust\n1,2,2020-01-01T00:00Z,7.5,3\n")
    assert client.ingest_file(name, file).duplicate_rows == 0
    assert client.count(name, "gust = 3") == 1


@pytest.mark.parametrize(
    ("features", "details"),
    [
        ([], {"expected": "features"}),
        (GUST, {"expected": "features"}),
        ([galileo.Feature(f"f{n}") for n in range(256)], {"expected": "features", "bound": 256}),
    ],
)
def test_features_that_cannot_be_added_are_refused(
    client: galileo.Client, name: str, features: list[galileo.Feature], details: dict[str, object]
) -> None:
    with raises(InvalidSchema, **details):
        client.add_features(name, features)
    assert client.schema(name).added == 0


def test_a_feature_that_no_client_has_added_is_unknown(
    client: galileo.Client, other: galileo.Client, name: str
) -> None:
    client.add_features(name, [GUST])
    with raises(UnknownProperty, property="site"):
        other.count(name, "site = 'a'")


def test_command_adds_features(
    cluster: galileo.LocalCluster, client: galileo.Client, name: str
) -> None:
    result = run(cluster, "dataset", "add-feature", name, "gust:m/s", "site::text")
    assert result.exit_code == 0
    assert result.output == f"added gust, site to dataset {name}\n"
    with cluster.client() as fresh:
        assert fresh.schema(name).features[1:] == (GUST, SITE)
    shown = run(cluster, "dataset", "add-feature", name, "wet::bool", "--json")
    assert json.loads(shown.output)["added"] == 3
    refused = run(cluster, "dataset", "add-feature", name, "gust")
    assert refused.exit_code == 2
    assert "has a feature 'gust' already" in refused.stderr
    wrong = run(cluster, "dataset", "add-feature", name, "a b")
    assert wrong.exit_code == 2


async def test_a_call_whose_answer_was_lost_is_not_refused(
    cluster: galileo.LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with galileo.AsyncClient(cluster.addresses[0]) as client:
        call = client._caller.call

        async def twice(attempt: Any, **options: Any) -> Any:
            async def first_lost(node: Any) -> Any:
                await attempt(node)
                return await attempt(node)

            return await call(first_lost, **options)

        monkeypatch.setattr(client._caller, "call", twice)
        schema = await client.add_features(name, [GUST])
        assert [feature.name for feature in schema.features] == ["t", "gust"]
        with raises(InvalidSchema, expected="free_name", feature="gust"):
            await client.add_features(name, [galileo.Feature("gust", type="int")])
