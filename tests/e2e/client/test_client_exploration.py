"""Explain, nearest and estimate on a real cluster, against pandas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from synopses import wait_for_synopses

import galileo
from galileo.errors import InputError
from galileo.model.schema import Feature, Schema

Fresh = Callable[[str], str]

queries = st.integers(0, 5)


# --- nearest -------------------------------------------------------------------------------------


def test_nearest_within_a_box_is_exact(client: galileo.Client, explored: Any) -> None:
    box = "S_INTERSECTS(geometry, BBOX(20, 10, 40, 30))"
    found = client.nearest(explored.name, box, latitude=0.0, longitude=0.0, k=1000).to_pandas()
    inside = explored.frame["longitude"].between(20, 40) & explored.frame["latitude"].between(
        10, 30
    )
    assert sorted(found["note"]) == sorted(explored.frame[inside]["note"])


def test_nearest_has_all_columns_and_a_distance(client: galileo.Client, explored: Any) -> None:
    found = client.nearest(explored.name, latitude=90.0, longitude=7.0, k=3)
    assert found.to_arrow().column_names == [*explored.frame.columns, "distance_m"]
    assert found.to_arrow().column("distance_m").to_pylist() == [0.0, 0.0, 0.0]
    assert repr(found) == "<NearestResult: 3 observations within 0.0 m>"
    none = client.nearest(explored.name, "false", latitude=0.0, longitude=0.0)
    assert (len(none), none.to_arrow().schema) == (0, found.to_arrow().schema)


def test_nearest_with_a_feature_named_distance_m_renames_the_distance(
    client: galileo.Client, fresh_name: Fresh
) -> None:
    name = fresh_name("named")
    client.create_dataset(Schema(name, [Feature("distance_m")]))
    rows = {"latitude": [1.0], "longitude": [0.0], "time": ["2014-03-01"], "distance_m": [7.0]}
    client.ingest(name, pd.DataFrame(rows))
    found = client.nearest(name, latitude=0.0, longitude=0.0).to_arrow()
    assert found.column_names[-2:] == ["distance_m", "distance_m_"]
    assert found.column("distance_m").to_pylist() == [7.0]
    assert found.column("distance_m_")[0].as_py() == pytest.approx(111_195, abs=1)


# --- estimates -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heard(cluster: galileo.LocalCluster, explored: Any) -> Any:
    """The dataset when the feature graphs of all nodes have all of it."""
    wait_for_synopses(cluster, explored.name)
    return explored


@given(
    number=queries,
    feature=st.sampled_from(["temperature", "count", "wet"]),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
@examples(40)
def test_estimate_bounds_contain_the_truth(
    client: galileo.Client, heard: Any, number: int, feature: str, shares: list[float]
) -> None:
    text = heard.queries[number]
    result = client.estimate(heard.name, text, feature=feature, quantiles=shares)
    labels = client.query(heard.name, text).to_pandas()
    assert result.complete
    assert result.low <= len(labels) <= result.high
    assert abs(result.count - len(labels)) <= result.error
    values = np.sort(labels[feature].dropna().to_numpy(dtype=np.float64))
    assert len(result.quantiles) in (0, len(shares))
    assert len(result.quantiles) or len(values) == 0
    for quantile in result.quantiles if len(values) else ():
        truth = values[max(math.ceil(quantile.share * len(values)), 1) - 1]
        assert quantile.low <= truth <= quantile.high
        assert quantile.low <= quantile.value <= quantile.high


def test_estimate_of_everything_is_close(client: galileo.Client, heard: Any) -> None:
    result = client.estimate(heard.name)
    assert result.low > 0.85 * result.high
    assert result.quantiles == ()
    assert result.node


def test_estimate_with_many_quantiles_is_refused(client: galileo.Client, explored: Any) -> None:
    with raises(InputError, bound=1000):
        client.estimate(explored.name, quantiles=[0.5] * 1001, feature="count")


# --- explanations --------------------------------------------------------------------------------


def test_explain_counts_what_the_query_did(
    client: galileo.Client, explored: Any, cluster: galileo.LocalCluster
) -> None:
    text = "temperature > 280 AND count = 1"
    result = client.explain(explored.name, text)
    assert result.complete
    assert result.found == len(client.query(explored.name, text))
    assert [node.node for node in result.nodes] == [node.name for node in cluster.nodes]
    assert sum(node.paths for node in result.nodes) == len(client.query(explored.name))
    assert {p for node in result.nodes for p in node.partitions} == set(result.partitions)
    for node in result.nodes:
        assert node.found <= node.paths_examined <= node.paths
        assert node.steps[-1].passed >= node.found
        assert 0 < node.plan_s + node.sift_s + node.gather_s <= node.seconds
    assert result.plan_s < result.total_s
    assert result.to_arrow().column("found").to_pylist() == [node.found for node in result.nodes]
    assert repr(result).startswith(
        f"<QueryExplanation {explored.name}: {result.found:,} paths found by"
    )


def test_explain_shows_pruned_groups_and_partitions(client: galileo.Client, heard: Any) -> None:
    everywhere, there = client.explain(heard.name), client.explain(heard.name, "geohash LIKE '9x%'")
    assert len(there.groups) == 1 < len(everywhere.groups) == 2
    assert set(there.partitions) < set(everywhere.partitions)
    cold = client.explain(heard.name, "temperature > 1000")
    assert set(cold.pruned) == set(cold.partitions)
    assert sum(node.paths_examined for node in cold.nodes) == 0
    assert all(node.runs_pruned == node.runs for node in cold.nodes)


# --- all of them ---------------------------------------------------------------------------------


def test_exploration_after_ingest_sees_new_rows(
    client: galileo.Client, fresh_name: Fresh, make_explored: Any
) -> None:
    schema, frame = make_explored
    name, data = fresh_name("fresh"), frame(40, seed=3)
    client.create_dataset(schema(name))
    for number in range(1, 4):
        client.ingest(name, data)
        rows = number * len(data)
        assert client.summarise(name, feature="count").observations == rows
        assert len(client.nearest(name, latitude=0.0, longitude=0.0, k=1000)) == rows
        children = client.children(name).to_arrow()
        assert sum(children.column("observations").to_pylist()) == rows
        assert client.explain(name).found == len(client.query(name))
