"""Groups of observations as HTTP answers, without a cluster."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from starlette.datastructures import QueryParams

import galileo
from galileo.client.analytics_results import NodeExplanation, QueryExplanation
from galileo.client.descriptions import DatasetDescription
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import InputError
from galileo.gateway import parameters
from galileo.gateway.aggregates import (
    _described,
    _explained,
    _finite,
    _gather,
    _json_pieces,
    grouping_of,
    located,
)
from galileo.geo import geohash
from galileo.model.grouping import Grouping

SCHEMA = galileo.Schema(
    "weather",
    [
        galileo.Feature("temperature", unit="K"),
        galileo.Feature("station", type="text"),
        galileo.Feature("window", type="int"),
    ],
)


def test_documents_of_datasets_and_queries_say_which_partitions_are_missing() -> None:
    for missing in ((), (2, 5)):
        description = DatasetDescription(SCHEMA, 0, 0, 0, None, None, None, (), missing=missing)
        nodes = (NodeExplanation("a", "g", (1,)), NodeExplanation("b", "g", missing, error="away"))
        explanation = QueryExplanation("weather", "", (), (), EMPTY_CURSOR, nodes, 0.0, 0.0)
        for document in (_described(description), _explained(explanation)):
            assert (document["complete"], document["missing"]) == (not missing, list(missing))


@pytest.mark.parametrize("rows", [0, 1, parameters.LIMIT_MAX + 1])
def test_json_of_groups_has_each_column(rows: int) -> None:
    rng = np.random.default_rng(rows)
    cells = geohash.to_text(rng.integers(0, 32**5, rows, dtype=np.uint64), 5)
    values = rng.normal(size=rows)
    values[::7] = math.nan
    table = pa.table(
        {
            "geohash": cells,
            "time": pa.array(rng.integers(0, 10**15, rows), pa.timestamp("us", "UTC")),
            "observations": rng.integers(1, 99, rows),
            'odd"': values,
        }
    )
    table = located(table, Grouping.of("cell:5"))
    assert table.column_names[:4] == ["cell", "latitude", "longitude", "time"]
    pieces, body = _json_pieces(table, {"complete": True, "missing": []}), b""
    while piece := _gather(pieces):
        body += piece
    document = json.loads(body)
    assert (document["complete"], document["missing"]) == (True, [])
    columns = document["columns"]
    assert list(columns) == table.column_names
    assert columns["cell"] == cells.to_pylist()
    at = [
        geohash.encode([lat], [lon], 5)[0]
        for lat, lon in zip(columns["latitude"][:99], columns["longitude"][:99], strict=True)
    ]
    assert geohash.to_text(np.array(at, dtype=np.uint64), 5).to_pylist() == columns["cell"][:99]
    assert columns['odd"'] == [None if math.isnan(value) else value for value in values.tolist()]
    assert all(time.endswith("Z") for time in columns["time"])


def test_statistics_are_grouped_by_feature() -> None:
    text = "temperature:mean,station:count,temperature:max"
    grouping = grouping_of([], text, SCHEMA)
    assert grouping.statistics == (("temperature", ("mean", "max")), ("station", ("count",)))
    assert grouping_of([], "", SCHEMA).statistics == ()


@pytest.mark.parametrize(
    "text", ["mean", "temperature:", ":mean", "temperature:mean,", "temperature:mode", "wind:mean"]
)
def test_statistics_that_do_not_exist_are_refused(text: str) -> None:
    with raises(InputError, parameter="statistics"):
        grouping_of([], text, SCHEMA)


@pytest.mark.parametrize("text", [None, "", "0", "13", "5.0", "-1", "five", "\u0665", "9" * 11])
def test_precision_that_is_none_is_refused(text: str | None) -> None:
    with raises(InputError, parameter="precision"):
        parameters.precision(text)


@pytest.mark.parametrize("text", [None, "", "0s", "-1h", "hour", "999999y"])
def test_window_that_is_none_is_refused(text: str | None) -> None:
    with raises(InputError, parameter="window"):
        parameters.time_window(text)


@pytest.mark.parametrize("text", ["a", "1,,2", "nan", "1,inf"])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    with raises(InputError, parameter="bins"):
        parameters.numbers("bins", text)


async def test_feature_with_the_name_of_a_parameter_does_not_filter() -> None:
    given, query = await parameters.filtered(
        QueryParams("window=1h&temperature=290&precision=3"), SCHEMA, parameters.CELLS
    )
    assert (given["window"], str(query)) == ("1h", "temperature = 290")


def test_numbers_that_are_not_finite_are_null() -> None:
    assert _finite({"a": [math.inf, 1.0], "b": (math.nan, None)}) == {
        "a": [None, 1.0],
        "b": [None, None],
    }
