"""Features of 32-bit floats and flags, from ingest through every kind of question and export."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

import galileo
from galileo.client.table_formats import WRITERS
from galileo.errors import UnknownFlag, UnknownUnit
from galileo.samplers import sampler

FLAGS = {1: "good", 2: "probably_good", 4: "bad"}
SEA = galileo.Feature(
    "t", unit="degC", type="float32", standard_name="sea_water_temperature", description="at 5 m"
)
QC = galileo.Feature("qc", type="int", flags=FLAGS)
RAW = galileo.Feature("raw", type="float32", indexed=False)
ID = galileo.Feature("id", type="int")
VALUES = np.array([4.3, 0.1, -1.5, 4.3, 7.0, np.nan], np.float32)
ROWS = pa.table(
    {
        "latitude": np.linspace(40, 41, 6),
        "longitude": np.linspace(-105, -104, 6),
        "time": pa.array(np.arange(6) * 600_000_000, pa.timestamp("us", "UTC")),
        "t": VALUES,
        "qc": [1, 1, 2, 4, None, 1],
        "raw": VALUES,
        "id": range(6),
    }
)


@pytest.fixture(scope="module")
def client(cluster: galileo.LocalCluster) -> galileo.Client:
    running = cluster.client()
    running.create_dataset(galileo.Schema("sea", [SEA, QC, RAW, ID]))
    running.ingest("sea", ROWS, producer="first")
    assert running.ingest("sea", ROWS, producer="first").duplicate_rows == ROWS.num_rows
    return running


def ids(client: galileo.Client, query: str) -> list[int]:
    return sorted(client.select("sea", query).column("id").to_pylist())


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        *[("t = 4.3", [0, 3]), ("t <> 4.3", [1, 2, 4]), ("t IN (4.3, 0.1)", [0, 1, 3])],
        *[("t BETWEEN 0.1 AND 4.3", [0, 1, 3]), ("t < 4.3", [1, 2]), ("t > 4.3", [4])],
        *[("t IS NULL", [5]), ("qc = 'good'", [0, 1, 5]), ("qc <> 'bad'", [0, 1, 2, 5])],
        ("qc IN ('probably_good', 'bad') AND t = 4.3", [3]),
    ],
)
def test_conditions_find_numbers_as_they_were_written(
    client: galileo.Client, query: str, expected: list[int]
) -> None:
    assert ids(client, query) == expected
    labels = client.query("sea", query)
    assert sorted(client.read(labels).column("id").to_pylist()) == expected
    assert client.count("sea", query) == len(expected)


def test_unknown_meanings_and_units_are_refused(client: galileo.Client) -> None:
    with raises(UnknownFlag, meanings=[*FLAGS.values()], property="qc", nearest="good"):
        client.query("sea", "qc = 'godo'")
    with raises(UnknownUnit, unit="Kelvni", nearest="kelvin", feature="x"):
        client.create_dataset(galileo.Schema("no", [galileo.Feature("x", unit="Kelvni")]))
    with raises(UnknownUnit, unit="Kelvni", nearest="kelvin", feature="x"):
        client.add_features("sea", [galileo.Feature("x", unit="Kelvni")])


def test_answers_keep_types_and_descriptions(client: galileo.Client) -> None:
    assert client.schema("sea").features == (SEA, QC, RAW, ID)
    answers = [
        client.select("sea"),
        client.read(client.query("sea")),
        next(iter(client.select_batches("sea"))),
        client.select_page("sea").table,
        client.latest("sea", by="id").table,
        client.nearest("sea", latitude=40, longitude=-105).table,
        client.query("sea").to_arrow(),
    ]
    for answer in answers:
        field = answer.schema.field("t")
        assert field.type == pa.float32()
        assert field.metadata[b"units"] == b"degC"
        assert answer.schema.field("qc").metadata[b"flag_meanings"] == b"good probably_good bad"
    described = {feature.name: feature for feature in client.describe("sea").features}
    assert described["qc"].flags == FLAGS
    assert described["t"].description == "at 5 m"


def test_statistics_are_those_of_numpy(client: galileo.Client) -> None:
    known = VALUES[~np.isnan(VALUES)]
    [row] = client.aggregate(
        "sea", by=[], statistics={"t": ["min", "max", "sum", "mean"]}
    ).table.to_pylist()
    assert row["t_min"] == known.min()
    assert row["t_max"] == known.max()
    assert row["t_mean"] == known.astype(np.float64).mean()
    assert row["t_sum"] == known.astype(np.float64).sum()
    groups = client.aggregate("sea", by=["t"]).table
    assert groups.schema.field("t").type == pa.float32()
    counts = dict(
        zip(groups.column("t").to_pylist(), groups.column("observations").to_pylist(), strict=True)
    )
    assert counts[float(np.float32(4.3))] == 2
    summary = client.summarise("sea", feature="t")
    assert (summary.minimum, summary.maximum) == (known.min(), known.max())


def test_texts_are_short(client: galileo.Client, tmp_path: Path) -> None:
    table = client.select("sea", "t = 4.3", columns=["latitude", "longitude", "time", "t", "raw"])
    for format in ("csv", "ndjson", "geojson"):
        with (path := tmp_path / format).open("wb") as sink:
            writer = WRITERS[format](sink, table.schema)
            writer.write(table)
            writer.close()
        text = path.read_text()
        assert "4.3" in text
        assert "4.30000019" not in text
    labels = client.query("sea", "t = 4.3")
    assert all("/4.3/" in text for text in labels.texts().to_pylist())
    assert len(labels.sparql("SELECT ?l { ?l f:t ?t FILTER(?t = 4.3) }").to_pandas()) == 2


def test_other_doors_give_32_bits(client: galileo.Client) -> None:
    table = client.select("sea")
    array = galileo.to_xarray(table, client.schema("sea"))
    assert array["t"].dtype == np.float32
    assert array["qc"].attrs["flag_meanings"] == "good probably_good bad"
    assert table.to_pandas()["t"].dtype == np.float32


def test_keyed_datasets_replace_and_delete(client: galileo.Client) -> None:
    client.create_dataset(galileo.Schema("kept", [SEA, QC, RAW, ID], key="id"))
    client.ingest("kept", ROWS)
    changed = ROWS.set_column(3, "t", pa.array(VALUES + 1))
    client.ingest("kept", changed)
    assert client.count("kept", "t = 4.3") == 0
    assert client.count("kept", "t = 5.3") == 2
    client.delete("kept", "t = 5.3")
    assert client.count("kept", "t = 5.3") == 0
    assert client.count("kept") == 4


def test_continuous_queries_samplers_and_channels_match(client: galileo.Client) -> None:
    client.create_dataset(galileo.Schema("live", [SEA, QC, RAW, ID]))
    query = "qc = 'good' AND t >= 0.1"
    ccq = client.submit("live", query)
    sampled = client.submit("live", query, sampler=sampler("reservoir", n=1))
    client.create_channel(galileo.Channel("warm", "live", "qc = 'good' AND t = :x", period="100ms"))
    client.subscribe("warm", {"id": ["a", "b"], "x": [4.3, 4.30001]}, broker="me")
    time.sleep(0.3)
    client.ingest("live", ROWS)
    update = next(iter(client.watch(ccq, token=ccq.token)))
    assert sorted(client.read(update.labels).column("id").to_pylist()) == [0, 1]
    one = next(iter(client.watch(sampled, token=sampled.token)))
    assert set(client.read(one.labels).column("id").to_pylist()) in ({0}, {1}, {0, 1})
    notifications = next(iter(client.follow("warm", "me")))
    assert notifications.to_arrow().select(["subscription", "id"]).to_pylist() == [
        {"subscription": "a", "id": 0}
    ]
