"""One trace over real processes: client, coordinator, nodes, evaluator, Spark's workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")

from collecting import Collector, RecordedSpan

import galileo
from galileo.cluster import free_ports
from galileo.errors import ConfigError
from galileo.spark.jvm import find_java

WITHIN_S = 300.0
NODES = {"node-1", "node-2"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def pair(collector: Collector) -> Iterator[galileo.LocalCluster]:
    settings = {
        "logging": {"format": "json", "level": "debug"},
        "tracing": {"endpoint": collector.endpoint, "ratio": 1.0},
        # So nothing is asked for twice, however busy this machine is.
        "membership": {"failure_timeout_s": 60.0},
    }
    with galileo.LocalCluster(nodes=2, groups=2, settings=settings) as running:
        schema = galileo.Schema("rain", [galileo.Feature("rain", "mm")], geohash_precision=2)
        running.client().create_dataset(schema)
        yield running


@pytest.mark.slow
def test_serve_command_exports_spans_of_its_node(collector: Collector, tmp_path: Path) -> None:
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    config = tmp_path / "lone.toml"
    config.write_text(
        f'''
        [node]
        name = "lone"
        directory = "{tmp_path / "lone"}"
        listen = "{address}"
        [tracing]
        endpoint = "{collector.endpoint}"
        ratio = 1.0
        [[cluster.groups]]
        name = "alone"
        nodes = [{{ name = "lone", address = "{address}" }}]
        '''
    )
    command = [sys.executable, "-c", "from galileo.cli.main import main; main()"]
    node = subprocess.Popen([*command, "serve", "--config", str(config)])
    try:
        with galileo.connect(address, timeout=WITHIN_S) as client:
            client.create_dataset(galileo.Schema("lone", [galileo.Feature("rain", "mm")]))
            assert client.count("lone") == 0
        assert collector.find(
            lambda trace: any(one.node == "lone" for one in trace), within_s=WITHIN_S
        )
    finally:
        node.terminate()
        node.wait()


def rows(day: int) -> pd.DataFrame:
    """Some for each of the two groups."""
    return pd.DataFrame(
        {
            "latitude": [40.0, 41.0, 47.0, -10.0, 51.0],
            "longitude": [-120.0, -90.0, 8.0, 20.0, 0.0],
            "time": pd.to_datetime([f"2014-03-{day:02d}T06:00Z"] * 5),
            "rain": [1.0, 2.0, 3.0, 4.0, 5.0],
        }
    )


def names(trace: list[RecordedSpan]) -> set[str]:
    return {one.name for one in trace}


def of(trace: list[RecordedSpan], name: str) -> list[RecordedSpan]:
    return [one for one in trace if one.name == name]


def check_family(trace: list[RecordedSpan]) -> None:
    """Every parent is there, and nothing begins before its parent does."""
    by_id = {one.id: one for one in trace}
    assert len([one for one in trace if not one.parent]) == 1
    for one in trace:
        if one.parent:
            assert by_id[one.parent].begun_s <= one.begun_s + 0.05


@pytest.mark.slow
def test_trace_of_an_ingest_reaches_the_disks_of_both_nodes(
    pair: galileo.LocalCluster, collector: Collector
) -> None:
    pair.client().ingest("rain", rows(day=1))

    requests = set()
    for node in sorted(NODES):  # This client records no spans, in which both would be one trace.

        def is_whole(trace: list[RecordedSpan], node: str = node) -> bool:
            wanted = {"Storage/Ingest", "append", "fsync"}
            return wanted <= names(trace) and {one.node for one in trace} == {node}

        trace = collector.trace_with(is_whole)
        check_family(trace)
        by_id = {one.id: one for one in trace}
        for fsync in of(trace, "fsync"):
            append = by_id[fsync.parent]
            assert append.name == "append"
            assert 0 < fsync.took_s <= append.took_s
        requests |= {one.facts["request"] for one in trace if one.name != "fsync"}
    assert len(requests) == 1


def test_trace_of_a_query_reaches_both_nodes(
    pair: galileo.LocalCluster, collector: Collector
) -> None:
    pair.client().query("rain", "rain > 0")
    wanted = {"Query/Run", "merge", "scan", "internal/scan_small"}

    def is_whole(trace: list[RecordedSpan]) -> bool:
        return wanted <= names(trace) and {one.node for one in of(trace, "scan")} == NODES

    check_family(collector.trace_with(is_whole))


def has_java() -> bool:
    try:
        find_java(os.environ)
    except ConfigError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not has_java(), reason="there is no Java, without which Spark does not run")
def test_trace_of_a_cycle_reaches_spark_workers_and_nodes(
    pair: galileo.LocalCluster, collector: Collector
) -> None:
    client = pair.client()
    made = client.submit(
        "rain",
        "rain > 0",
        interval="1s",
        expiration="1h",
        sampler=galileo.SamplerSpec("every", {"n": 1}),
    )
    inside = {"tick", "due", "job", "store", "evaluator/evaluate", "evaluate", "internal/match"}

    def is_whole(trace: list[RecordedSpan]) -> bool:
        scans = {one.node for one in of(trace, "scan")}
        return inside | {"scan", "sampler"} <= names(trace) and scans == NODES

    token, trace = made.token, None
    for day in range(2, 28):  # A tick may come between the commits of two nodes, and see one.
        client.ingest("rain", rows(day=day))
        update = client.fetch(made.id, token=token, wait="60s")
        token = update.token
        trace = collector.find(is_whole, within_s=5.0)
        if trace:
            break
    assert trace, [sorted(names(one)) for one in collector.traces()]
    check_family(trace)
    services = {one.service for one in trace}
    assert services == {"galileo-node", "galileo-evaluator", "galileo-worker"}
    workers = [one for one in of(trace, "internal/match") if one.service == "galileo-worker"]
    nodes = [one for one in of(trace, "internal/match") if one.service == "galileo-node"]
    assert {one.id for one in workers} >= {one.parent for one in nodes}
    [tick] = of(trace, "tick")
    assert sum(one.took_s for one in of(trace, "job")) <= tick.took_s
    check_elections(collector, made.id)
    check_logs(pair, request=tick.facts["request"], trace=tick.trace)
    client.cancel(made.id)


def check_elections(collector: Collector, ccq_id: str) -> None:
    """The election belongs to the submission."""
    trace = collector.trace_with(lambda trace: {"election", "Continuous/Submit"} <= names(trace))
    [election] = of(trace, "election")
    assert election.facts["ccq"] == ccq_id
    [submit] = of(trace, "Continuous/Submit")
    assert election.parent == submit.id


def check_logs(pair: galileo.LocalCluster, *, request: str, trace: str) -> None:
    """What Spark's workers ask of nodes has the id of the tick in both nodes' logs."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        found = [
            (node.name, line)
            for node in pair.nodes
            for line in lines_of(node.log)
            if line.get("request") == request and line.get("method") == "internal/match"
        ]
        if {name for name, _ in found} == NODES:
            assert {line["trace"] for _, line in found} == {trace}
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if "}\n" in line]
