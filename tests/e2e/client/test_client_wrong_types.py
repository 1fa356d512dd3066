"""What is handed over as the wrong kind of thing is an `InputError` that says what to hand over."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from synopses import wait_for_synopses

import galileo
from galileo.cli.ccq import ccq as ccq_commands
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema

Fresh = Callable[[str], str]

SCHEMA = Schema("wrong", [Feature("temperature", "K")])
FRAME = pd.DataFrame(
    {
        "latitude": [40.0, 41.0],
        "longitude": [-105.0, -104.0],
        "time": pd.to_datetime(["2014-03-01T06:00Z", "2014-03-01T07:00Z"]),
        "temperature": [290.0, 291.0],
    }
)


@pytest.fixture(scope="module")
def dataset(client: galileo.Client, fresh_name: Fresh) -> str:
    name = fresh_name("wrong")
    client.create_dataset(Schema(name, SCHEMA.features))
    client.ingest(name, FRAME)
    return name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, _: c.create_dataset("stations"), r"expected a schema, .* got 'stations'"),
        (lambda c, d: c.set_retention(d, "30d"), r"expected galileo.Retention\('30d'\) or None"),
        (lambda c, d: c.ingest(FRAME, d), "name of a dataset, got a DataFrame"),
        (lambda c, _: c.ingest(SCHEMA, FRAME), "name of a dataset, got a Schema"),
        (lambda c, d: c.ingest(d, None), "expected a DataFrame .* got NoneType"),
        (lambda c, d: c.ingest(d, "a.csv"), "there is no file at a.csv"),
        (lambda c, d: c.ingest(d, [Path("a.csv")]), "there is no file at a.csv"),
        (lambda c, d: c.ingest(d, FRAME.to_dict("records")), r"single values; .*DataFrame\("),
        (lambda c, d: c.ingest(d, {"lat": [1, 2], "t": [1]}), r"same length, got lat \(2\), t"),
        (lambda c, d: c.ingest(d, {"lat": np.ones((2, 2))}), "one dimension and type in .* 'lat'"),
        (lambda c, d: c.ingest(d, FRAME.iloc[0]), r"got Series; .* pandas.DataFrame\("),
        (lambda c, d: c.ingest(d, FRAME, mapping=3), "expected a mapping such as"),
        (
            lambda c, d: c.ingest(d, FRAME.set_index("time")),
            r"missing: time; in the index: time, write \.reset_index\(\)",
        ),
        (lambda c, d: c.ingest(d, FRAME, batch_rows="10"), "a whole number of .* got '10'"),
        (lambda c, d: c.ingest(d, FRAME, batch_rows=2.5), "a whole number of .* got 2.5"),
        (lambda c, d: c.ingest(d, FRAME, batch_rows=0), "a whole number of at least 1, got 0"),
        (lambda c, d: c.select(d, columns="time"), r"such as \['time'\], got 'time'"),
        (lambda c, d: c.query(d, sampler="uniform"), r"such as galileo.sampler\('uniform', "),
        (lambda c, d: c.read(d, "t > 1"), r"labels, .* got a str and a str; use client.select"),
        (lambda c, d: next(c.read_batches(d)), r"labels, .* got a str; use client.select"),
        (lambda c, d: c.read(d), r"labels, .* got a str; use client.select\(dataset, query\)"),
        (lambda c, d: c.nearest(d, latitude="40", longitude=3), "a latitude, got '40'"),
        (lambda c, d: c.nearest(d, latitude=40, longitude=None), "a longitude, got None"),
        (lambda c, d: c.nearest(d, latitude=40, longitude=3, k=2.5), "a number k .* 2.5"),
        (lambda c, d: c.nearest(d, latitude=40, longitude=3, within_m="5km"), "metres, got '5km'"),
        (lambda c, d: c.summarise(d, feature="temperature", bins=4.5), "bins, or their edges"),
        (lambda c, d: c.estimate(d, feature="temperature", quantiles=0.5), "a list of quantiles"),
        (lambda c, _: c.fetch(123), r"a continuous query, as submit .* its id, .* got 123"),
        (lambda c, _: list(c.watch(None)), "its id, .* got None"),
        (lambda c, _: c.cancel(["ccq-1"]), "its id, "),
        (lambda c, _: c.sparql_view(FRAME), "its id, "),
        (lambda c, _: c.fetch("ccq-1", token=7), r"token of an update \(update.token\), got 7"),
        (lambda c, _: c.fetch("ccq-1", labels_max="3"), "labels_max as a whole number"),
        (lambda c, d: c.query(d).where([True]), "2 truth values, one for each label"),
        (lambda c, d: c.query(d).where("temperature > 2"), "2 truth values, one for each label"),
        (lambda c, d: c.query(d).slice("a", 2), "places as whole numbers, got 'a' and 2"),
        (lambda c, d: c.query(d).slice(2, 1), "0 <= start <= stop, got 2 and 1"),
        (lambda *_: galileo.Schema.from_json("{}"), "the key 'name' is missing"),
        (lambda *_: galileo.Retention.from_json("{}"), "the key 'age_s' is missing"),
        (lambda *_: galileo.SamplerSpec.from_json("{}"), "the key 'name' is missing"),
        (lambda c, d: galileo.to_xarray(c.select(d).to_pandas()), "Arrow table, .* a DataFrame"),
        (lambda c, d: galileo.to_geojson(c.select(d).to_pandas()), "Arrow table, .* a DataFrame"),
    ],
)
def test_a_thing_of_the_wrong_kind_is_refused(
    client: galileo.Client,
    dataset: str,
    call: Callable[[galileo.Client, str], Any],
    message: str,
) -> None:
    with pytest.raises(InputError, match=message):
        call(client, dataset)
    assert client.count(dataset) == 2


def test_what_numpy_makes_are_numbers_and_longitudes_go_to_360(
    cluster: galileo.LocalCluster, client: galileo.Client, dataset: str
) -> None:
    near = client.nearest(
        dataset, latitude=np.float32(40), longitude=np.float64(255), k=np.int64(1)
    )
    assert near.to_pandas()["distance_m"].to_list() == [0.0]
    summary = client.summarise(dataset, feature="temperature", bins=np.int64(2))
    assert summary.counts == (1, 1)
    wait_for_synopses(cluster, dataset)
    found = client.estimate(dataset, feature="temperature", quantiles=np.array([0.0, 1.0]))
    assert len(found.quantiles) == 2


@pytest.mark.parametrize(
    "address",
    [["127.0.0.1:7701", "127.0.0.1:7702"], "127.0.0.1:7701,127.0.0.1:7702", "http://h:7701", 7701],
)
def test_addresses_are_one_each(address: Any) -> None:
    with pytest.raises(InputError, match="several are arguments of their own"):
        galileo.connect(address)


@pytest.mark.parametrize("features", [["temperature"], {"temperature": "K"}, Feature("t")])
def test_features_are_features(features: Any) -> None:
    with pytest.raises(InputError, match="expected a list of features, such as"):
        Schema("stations", features)


def test_labels_of_other_features_are_not_joined() -> None:
    other = Schema("other", [Feature("station", type="text")])
    one, two = (
        LabelSet(
            schema,
            pa.table(
                [
                    pa.array([0], field.type) if field.name != name else pa.array(value, field.type)
                    for field in schema.label_schema
                ],
                schema=schema.label_schema,
            ),
        )
        for schema, name, value in ((SCHEMA, "temperature", [1.0]), (other, "station", ["a"]))
    )
    with pytest.raises(InputError, match="labels of datasets with the same features"):
        LabelSet.concat(SCHEMA, [one, two])


def test_a_continuous_query_is_named_by_itself(client: galileo.Client, dataset: str) -> None:
    ccq = client.submit(dataset)
    [info] = [one for one in client.list_ccqs() if one.id == ccq.id]
    assert info.interval_s == 1
    assert client.fetch(ccq).token == client.fetch(info).token
    assert len(next(client.watch(ccq)).labels) == len(ccq.initial) == 2
    with client.sparql_view(ccq) as view:
        assert len(view) == 2
    client.cancel(ccq)


def test_both_surfaces_have_the_same_defaults() -> None:
    """An alarm that ends after an hour ends unnoticed."""
    python = inspect.signature(galileo.Client.submit).parameters
    many = inspect.signature(galileo.Submission).parameters
    for name in ("interval", "expiration"):
        for command in (ccq_commands.commands["submit"], ccq_commands.commands["submit-many"]):
            [option] = [one for one in command.params if one.name == name]
            assert option.default == python[name].default == many[name].default
    assert many["expiration"].default == "30d"
