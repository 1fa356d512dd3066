"""What is handed over as the wrong kind of thing is an `InputError` that says what to hand over."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from synopses import wait_for_synopses

import galileo
from galileo.cli.ccq import ccq as ccq_commands
from galileo.errors import InputError, InvalidSchema
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


def test_exploration_takes_numpy_numbers_and_longitudes_to_360(
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


@pytest.mark.parametrize("features", [["temperature"], {"temperature": "K"}, Feature("t")])
def test_schema_of_other_objects_than_features_is_refused(features: Any) -> None:
    with raises(InvalidSchema):
        Schema("stations", features)


def test_labels_of_datasets_with_other_features_are_not_concatenated() -> None:
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
    with raises(InputError):
        LabelSet.concat(SCHEMA, [one, two])


def test_calls_take_ccq_info_or_id(client: galileo.Client, dataset: str) -> None:
    ccq = client.submit(dataset)
    [info] = [one for one in client.list_ccqs() if one.id == ccq.id]
    assert info.interval_s == 1
    assert client.fetch(ccq).token == client.fetch(info).token
    assert len(next(client.watch(ccq)).labels) == len(ccq.initial) == 2
    with client.sparql_view(ccq) as view:
        assert len(view) == 2
    client.cancel(ccq)


def test_submit_in_python_and_commands_has_the_same_defaults() -> None:
    """An alarm that ends after an hour ends unnoticed."""
    python = inspect.signature(galileo.Client.submit).parameters
    for name in ("interval", "expiration"):
        [option] = [one for one in ccq_commands.commands["submit"].params if one.name == name]
        assert option.default == python[name].default
    assert python["expiration"].default == "30d"
