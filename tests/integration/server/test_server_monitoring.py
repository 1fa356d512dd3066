"""A node is scraped: its metrics say what it did, and it says whether it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_until

import galileo
from galileo.cluster import free_ports
from galileo.cursor import Cursor
from galileo.server.cgroup_memory import memory
from galileo.server.metrics import DEFINITIONS, Measured
from galileo.server.monitoring import CONNECTIONS_MAX, Monitoring
from galileo.server.readiness import Readiness

WITHIN_S = 300.0
TIMEOUT_S = 300.0
MIB = 1 << 20
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"

Scraped = dict[str, Metric]


def get(url: str, accept: str = "") -> tuple[int, str]:
    """Status and text of a page."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Node:
    def __init__(self, cluster: galileo.LocalCluster, port: int) -> None:
        self.cluster = cluster
        self.client = cluster.client()
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, accept: str = "") -> tuple[int, str]:
        return get(self.url + path, accept)

    def scrape(self) -> Scraped:
        status, text = self.get("/metrics")
        assert status == 200
        return {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, sample: str, **labels: str) -> float:
        """Of the one sample with this name and these labels."""
        [found] = [
            one.value
            for family in self.scrape().values()
            for one in family.samples
            if one.name == sample and labels.items() <= one.labels.items()
        ]
        return found


@pytest.fixture(scope="module")
def node(evaluator: dict[str, Any]) -> Iterator[Node]:
    [port] = free_ports(1)
    metrics = {"address": f"127.0.0.1:{port}", "ccqs_max": 1, "partitions_max": 2}
    settings = {
        "metrics": metrics,
        "evaluator": evaluator,
        "storage": {"retention_min_age_s": 0.1},
    }
    with galileo.LocalCluster(nodes=1, groups=1, settings=settings) as running:
        yield Node(running, port)


def observations(day: int, rows: int = 3) -> pd.DataFrame:
    """Three at places of their own, repeated."""
    columns = {
        "latitude": [40.0, 41.0, -30.0],
        "longitude": [-120.0, -90.0, 8.0],
        "rain": [1.0, 2.0, 0.0],
    }
    frame = pd.DataFrame({name: np.resize(values, rows) for name, values in columns.items()})
    return frame.assign(time=pd.Timestamp(f"2014-03-{day:02d}T06:00Z"))


def test_metrics_exported_are_the_defined_ones(node: Node) -> None:
    scraped = node.scrape()
    own = {name: one for name, one in scraped.items() if name.startswith("galileo_")}
    assert {name: (one.type, one.documentation) for name, one in own.items()} == {
        one.name: (one.kind, one.help) for one in DEFINITIONS
    }
    for one in DEFINITIONS:
        for sample in own[one.name].samples:
            assert set(sample.labels) - {"le"} == set(one.labels)
    assert "process_resident_memory_bytes" in scraped
    assert node.value("galileo_build_info", node="node-1", version=galileo.__version__) == 1


def test_metrics_as_openmetrics_when_accepted(node: Node) -> None:
    _, text = node.get("/metrics", accept=OPEN_METRICS)
    families = list(openmetrics.text_string_to_metric_families(text))
    assert {one.name for one in DEFINITIONS} <= {family.name for family in families}


def test_metrics_follow_ingest_cycles_and_fetches(node: Node) -> None:
    client = node.client
    client.create_dataset(
        galileo.Schema("rain", [galileo.Feature("rain", "mm")], geohash_precision=2)
    )
    made = client.submit(
        "rain", "rain > 0", interval="100ms", expiration="1h", window=galileo.Window.tumbling("1d")
    )
    assert node.value("galileo_ccqs", state="coordinated") == 1
    assert node.value("galileo_elections_total") == 1
    client.ingest("rain", observations(day=1))
    assert node.value("galileo_dataset_rows", dataset="rain") == 3
    assert node.value("galileo_partitions_shown") <= 2
    sequences = [
        sample.value
        for sample in node.scrape()["galileo_partition_sequence"].samples
        if sample.labels["dataset"] == "rain"
    ]
    assert sequences
    assert set(sequences) == {1.0}
    syncs = [
        *node.scrape()["galileo_partition_fsync_seconds"].samples,
        *node.scrape()["galileo_commit_log_fsync_seconds"].samples,
    ]
    assert sum(one.value for one in syncs if one.name.endswith("_count")) >= 1

    def matched() -> float:
        return node.value("galileo_ccq_labels_matched_total", ccq=made.id)

    wait_until(lambda: matched() == 2, "the cycle finds both")
    assert node.value("galileo_labels_matched_total") == 2
    assert node.value("galileo_ccq_cycle_seconds_count", ccq=made.id) >= 1
    assert node.value("galileo_cycle_seconds_count") >= 1
    assert node.value("galileo_ccq_lag_seconds_count", ccq=made.id) >= 1
    assert node.value("galileo_ccq_lag_seconds_bucket", ccq=made.id, le="+Inf") == node.value(
        "galileo_ccq_lag_seconds_count", ccq=made.id
    )
    assert node.value("galileo_cache_bytes") > 0
    delivered = ("galileo_ccq_labels_delivered_total", "galileo_labels_delivered_total")
    assert [node.value(name) for name in delivered] == [0, 0]
    update = client.fetch(made.id, token=made.token)
    assert len(update.labels) == 2
    assert [node.value(name) for name in delivered] == [2, 2]
    assert node.value("galileo_ccq_labels_served_again_total", ccq=made.id) == 0
    client.fetch(made.id, token=made.token)
    assert [node.value(name) for name in delivered] == [4, 4]
    assert node.value("galileo_ccq_labels_served_again_total", ccq=made.id) == 2

    client.ingest("rain", observations(day=9))
    wait_until(lambda: matched() == 4, "the cycle finds two more")
    later = client.fetch(made.id, token=update.token)
    assert node.value("galileo_labels_late_total") == 0
    client.ingest("rain", observations(day=1))
    wait_until(lambda: matched() == 6, "the cycle finds the late ones")
    last = client.fetch(made.id, token=later.token)
    assert [window.state for window in last.windows] == ["reopened"]
    assert node.value("galileo_ccq_labels_late_total", ccq=made.id) == 2
    assert node.value("galileo_labels_late_total") == 2
    client.cancel(made.id)
    assert node.value("galileo_ccqs", state="coordinated") == 0
    assert node.value("galileo_labels_delivered_total") == 8


def test_metric_of_held_bytes_is_what_waits_for_readers(node: Node) -> None:
    client, hours_ago = node.client, pd.Timestamp.now("UTC") - pd.Timedelta("3h")
    snow = galileo.Schema("snow", [galileo.Feature("rain", "mm")])
    client.create_dataset(snow, retention=galileo.Retention("30m"))
    client.ingest("snow", observations(day=1).assign(time=hours_ago))
    client.advance_reader("snow", "nightly", Cursor(), hold="7d")

    def held() -> float:
        client.apply_retention("snow")
        return node.value("galileo_dataset_held_bytes", dataset="snow")

    wait_until(lambda: held() > 0, "observations are held")
    assert client.count("snow") == 3
    client.drop_reader("snow", "nightly")
    wait_until(lambda: held() == 0, "none are held")
    assert client.count("snow") == 0


def test_metrics_of_single_queries_are_bounded_by_ccqs_max(node: Node) -> None:
    schema = galileo.Schema("many", [galileo.Feature("rain", "mm")], geohash_precision=2)
    node.client.create_dataset(schema)
    made = [node.client.submit("many", interval="1h", expiration="1h") for _ in range(3)]
    assert node.value("galileo_ccqs", state="coordinated") == 3
    assert node.value("galileo_ccqs_shown") == 1
    assert len(node.scrape()["galileo_ccq_frontier_age_seconds"].samples) == 1
    for one in made:
        node.client.cancel(one.id)


def test_readiness_over_http_and_grpc_agree(node: Node) -> None:
    status, text = node.get("/ready")
    answer = json.loads(text)
    assert (status, answer["ready"]) == (200, True)
    assert answer["checks"] == dict.fromkeys(("peers", "event loop", "disk"), "ok")
    assert node.get("/live") == (200, "alive\n")
    assert node.value("galileo_ready") == 1
    with grpc.insecure_channel(node.cluster.addresses[0]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_monitoring_of_an_unknown_path_is_not_found(node: Node) -> None:
    status, text = node.get("/secrets")
    assert status == 404
    assert "/metrics" in text


@pytest.mark.parametrize(
    ("listen", "host", "status"),
    [
        ("127.0.0.1:0", "evil.example", 421),
        ("127.0.0.1:0", "evil.example:80", 421),
        ("127.0.0.1:0", "[", 421),
        ("127.0.0.1:0", "", 421),
        ("127.0.0.1:0", "localhost:9100", 200),
        ("127.0.0.1:0", "127.0.0.1", 200),
        ("127.0.0.2:0", "127.0.0.2:9100", 200),
        ("[::1]:0", "[::1]:9100", 200),
        ("0.0.0.0:0", "node-1.example:9100", 200),
    ],
)
async def test_monitoring_with_a_foreign_host_header_is_refused(
    listen: str, host: str, status: int
) -> None:
    monitoring = Monitoring(listen, measure=list, look=lambda: Readiness({}))
    address = listen.rpartition(":")[0].strip("[]").replace("0.0.0.0", "127.0.0.1")
    connection = http.client.HTTPConnection(address, monitoring.port, timeout=TIMEOUT_S)

    def ask(path: str) -> int:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        answer.read()
        return answer.status

    try:
        for path in ("/metrics", "/ready", "/live"):
            assert await asyncio.to_thread(ask, path) == status
    finally:
        connection.close()
        await asyncio.to_thread(monitoring.close)


async def test_monitoring_with_a_failing_measurement_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def measure() -> list[Measured]:
        raise KeyError("no such metric")

    monitoring = Monitoring("127.0.0.1:0", measure=measure, look=lambda: Readiness({}))
    url = f"http://127.0.0.1:{monitoring.port}"
    try:
        with pytest.raises(OSError, match="closed connection"):
            await asyncio.to_thread(get, f"{url}/metrics")
        assert (await asyncio.to_thread(get, f"{url}/live"))[0] == 200
    finally:
        await asyncio.to_thread(monitoring.close)
    assert "no such metric" in caplog.text


@pytest.mark.slow
async def test_monitoring_with_unfinished_requests_answers_others() -> None:
    monitoring = Monitoring("127.0.0.1:0", measure=list, look=lambda: Readiness({}))
    where = ("127.0.0.1", monitoring.port)
    slow: list[socket.socket] = []
    try:
        for _ in range(2 * CONNECTIONS_MAX):
            slow.append(socket.create_connection(where, timeout=TIMEOUT_S))
            slow[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        for path in ("metrics", "ready", "live"):
            url = f"http://127.0.0.1:{monitoring.port}/{path}"
            assert (await asyncio.to_thread(get, url))[0] == 200
    finally:
        for one in slow:
            one.close()
        await asyncio.to_thread(monitoring.close)


def test_monitoring_of_a_paused_node_does_not_answer(node: Node) -> None:
    node.cluster.nodes[0].pause()
    try:
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen(node.url + "/live", timeout=0.3)
    finally:
        node.cluster.nodes[0].resume()
    assert node.get("/live")[0] == 200


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def agrees(read: Callable[[], float], metric: str, node: Node) -> float:
    """Waits for a value of a metric that lies within 2 MiB of the truths just before and after it.

    A truth may change and change back between the three, so one scrape that differs shows nothing;
    an exported value that is not the truth differs each time.
    """
    deadline = time.monotonic() + WITHIN_S
    compared = []
    while time.monotonic() < deadline:
        truths, value = [read()], node.value(metric)
        truths.append(read())
        if abs(truths[1] - truths[0]) <= MIB:
            compared.append((value, truths))
            if min(truths) - 2 * MIB <= value <= max(truths) + 2 * MIB:
                return value
    assert not compared, f"exported value and truths around it, in bytes: {compared[-1]}"
    pytest.skip("the machine does not hold still for one scrape")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_resident_memory_metric_equals_the_kernels(node: Node) -> None:
    reported = "process_resident_memory_bytes"
    before = agrees(lambda: resident(node.cluster.nodes[0].pid), reported, node)
    node.client.create_dataset(
        galileo.Schema("large", [galileo.Feature("rain", "mm")], geohash_precision=2)
    )
    for day in (1, 2):
        node.client.ingest("large", observations(day, rows=100_000))
    after = agrees(lambda: resident(node.cluster.nodes[0].pid), reported, node)
    assert after > before
    assert node.value("galileo_dataset_rows", dataset="large") == 200_000


def test_memory_and_disk_metrics_equal_the_machines(node: Node) -> None:
    agrees(lambda: memory().available, "galileo_memory_available_bytes", node)
    disk = psutil.disk_usage(str(node.cluster.directory))
    assert node.value("galileo_disk_size_bytes") == disk.total


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
def test_open_fds_metric_equals_the_kernels(node: Node) -> None:
    host, _, port = node.cluster.addresses[0].rpartition(":")

    def opened() -> float:
        return node.value("process_open_fds")

    few = opened()
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
        wait_until(lambda: opened() >= few + 25, "each connection is a file")
        kernel = len(list(Path(f"/proc/{node.cluster.nodes[0].pid}/fd").iterdir()))
        wait_until(lambda: abs(opened() - kernel) <= 5, "as many as the kernel says")
    wait_until(lambda: opened() <= few + 10, "they are closed")


@pytest.mark.slow
def test_readiness_of_a_node_waiting_for_its_peer_is_not_serving() -> None:
    """The other node never starts; after `failure_timeout_s` the first one is ready without it."""
    [port] = free_ports(1)
    settings = {
        "metrics": {"address": f"127.0.0.1:{port}"},
        "membership": {"failure_timeout_s": 6.0},
    }
    cluster = galileo.LocalCluster(nodes=2, groups=1, settings=settings)
    first = cluster.nodes[0]
    seen: list[tuple[int, int]] = []

    def look() -> tuple[int, int]:
        with grpc.insecure_channel(first.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
                return get(f"http://127.0.0.1:{port}/ready")[0], reply.status
            except (grpc.RpcError, OSError):
                return 0, 0

    try:
        first.start()
        well = (200, health_pb2.HealthCheckResponse.SERVING)

        def is_well() -> bool:
            seen.append(look())
            return seen[-1] == well

        wait_until(is_well, "it is ready alone")
    finally:
        cluster.stop()
    assert (503, health_pb2.HealthCheckResponse.NOT_SERVING) in seen
