"""`explain`, `nearest`, `summarise`, `drill` and `estimate` against a real cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

import galileo
from galileo.cli.main import main
from galileo.model.schema import Feature, Schema

Run = Callable[..., Result]
ROWS = 90


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "latitude": np.round(rng.uniform(25, 50, ROWS), 3),
            "longitude": np.round(rng.uniform(-125, -65, ROWS), 3),
            "time": "2014-03-01T06:30:00Z",
            "temperature": rng.integers(0, 10, ROWS) * 1.0,
            "station": rng.choice(["a/b", "c"], ROWS),
        }
    )


@pytest.fixture(scope="module")
def dataset(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("analytics")
    features = [Feature("temperature"), Feature("station", type="text")]
    client.create_dataset(Schema(name, features, geohash_precision=3))
    client.ingest(name, frame())
    return name


@pytest.fixture(scope="module")
def run(cluster: galileo.LocalCluster) -> Run:
    def ran(*words: str, fails: int = 0) -> Result:
        nodes = [word for address in cluster.addresses for word in ("--node", address)]
        done = CliRunner().invoke(main, [*nodes, *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == fails, done.output
        return done

    return ran


def values(done: Result) -> Any:
    return json.loads(done.stdout)


def test_explain_prints_plan_and_counts(run: Run, dataset: str) -> None:
    warm = int((frame()["temperature"] > 4).sum())
    result = values(run("explain", dataset, "temperature > 4", "--json"))
    assert (result["found"], result["complete"], result["dataset"]) == (warm, True, dataset)
    assert sum(node["found"] for node in result["nodes"]) == warm
    assert {"runs_pruned", "cells_tested", "sift_s", "steps"} <= set(result["nodes"][0])
    words = run("explain", dataset, "temperature > 4").stdout
    assert f"paths that match: {warm}" in words
    assert "partitions: 8 by placement" in words
    assert "node-1" in words
    assert "temperature > 4" in words


def test_nearest_prints_observations_by_distance(run: Run, dataset: str) -> None:
    point = ["--latitude", "40", "--longitude", "-105.5"]
    found = values(run("nearest", dataset, *point, "-k", "4", "--json"))
    distances = [row["distance_m"] for row in found["rows"]]
    assert found["complete"] is True
    within = str(distances[1] + 0.01)
    shown = run("nearest", dataset, "temperature >= 0", *point, "--within", within).stdout
    assert "2 observations\n" in shown
    assert shown.split()[0] == "distance_m"


def test_aggregate_prints_and_writes_groups(run: Run, dataset: str, tmp_path: Path) -> None:
    asked = ("aggregate", dataset, "--by", "station", "--mean", "temperature")
    result = values(run(*asked, "--max", "temperature", "--json"))
    assert (result["complete"], result["more"]) == (True, False)
    shown = run(*asked).stdout
    assert "temperature_mean" in shown
    assert "2 groups\n" in shown
    first = run("aggregate", dataset, "--by", "cell:3", "--by", "window:1d", "--limit", "1").stdout
    assert "groups; 1 shown, --all shows all" in first
    for name in ("g.csv", "g.parquet", "g.ndjson", "g.geojson"):
        words = run("aggregate", dataset, "--by", "cell:3", "--output", str(tmp_path / name)).stdout
        assert f"groups written to {tmp_path / name}" in words
    table = pd.read_parquet(tmp_path / "g.parquet")
    assert table["observations"].sum() == ROWS
    assert pd.read_csv(tmp_path / "g.csv").equals(table)
    features = json.loads((tmp_path / "g.geojson").read_text())["features"]
    assert len(features) == len(table)
    assert features[0]["geometry"]["type"] == "Polygon"
    run(*asked, "--mean", "temperature", fails=2)


def test_latest_prints_and_writes_observations(run: Run, dataset: str, tmp_path: Path) -> None:
    result = values(run("latest", dataset, "--by", "station", "--json"))
    assert (result["complete"], result["more"]) == (True, False)
    assert "2 observations\n" in run("latest", dataset, "--by", "station").stdout
    path = str(tmp_path / "newest.geojson")
    words = run("latest", dataset, "temperature > 3", "--by", "cell:2", "--output", path).stdout
    assert f"observations written to {path}" in words
    features = json.loads(Path(path).read_text())["features"]
    assert {feature["geometry"]["type"] for feature in features} == {"Point"}
    run("latest", dataset, fails=2)


def test_stats_prints_summary_and_histogram(run: Run, dataset: str) -> None:
    edges = ["--edges", "0,5,100"]
    shown = run("stats", dataset, "station = 'c'", "--feature", "temperature", *edges).stdout
    cold = int((frame()["temperature"][frame()["station"] == "c"] < 5).sum())
    assert str(cold) in shown
    assert "█" in shown
    for wrong in (["--edges", "a,b"], ["--edges", "1,2", "--bins", "2"], ["--bins", "0"]):
        run("stats", dataset, "--feature", "temperature", *wrong, fails=2)


def test_graph_children_prints_pages_of_vertices(run: Run, dataset: str) -> None:
    order = ["--order", "station,temperature"]
    result = values(run("graph", "children", dataset, *order, "--json"))
    stations = frame()["station"].value_counts()
    assert (result["level"], result["more"], result["missing"]) == ("station", False, [])
    assert {c["vertex"]: c["observations"] for c in result["children"]} == {
        "a%2Fb": stations["a/b"],
        "c": stations["c"],
    }
    page = run("graph", "children", dataset, "a%2Fb", *order, "--limit", "3").stdout
    assert "3 of level temperature; more with --after a%2Fb/2\n" in page
    rest = values(
        run("graph", "children", dataset, "a%2Fb", *order, "--after", "a%2Fb/2", "--json")
    )
    temperatures = frame()["temperature"][frame()["station"] == "a/b"]
    wanted = sorted(set(temperatures[temperatures > 2]))
    assert [child["value"] for child in rest["children"]] == wanted
    run("graph", "children", dataset, "a%2Fb", *order, "--after", "", fails=2)
    run("graph", "children", dataset, "a%2Fb/warm", *order, fails=2)


def test_estimate_prints_bounds_and_quantiles(run: Run, dataset: str) -> None:
    result = values(run("estimate", dataset, "--feature", "temperature", "--json"))
    assert result["low"] <= result["count"] <= result["high"]
    assert len(result["quantiles"]) in (0, 5)
    shown = run("estimate", dataset, "temperature > 4").stdout
    assert "paths that match: " in shown
    assert ", as estimated by node-" in shown
    refused = run("estimate", dataset, "--quantiles", "0.5", fails=2)
    assert "that has numbers (temperature), got None" in refused.stderr
