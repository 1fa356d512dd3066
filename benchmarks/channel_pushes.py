"""From a commit to the endpoint that accepts its notifications, through a worker.

A thousand subscriptions of one broker match every observation. First one observation at a time is
ingested, and a webhook's receiver notes when it has accepted the last of its notifications. Then
many are ingested at once, and a broker has taken them when nothing comes after the position that
the worker has stored. The endpoints are an HTTP server in this process, mosquitto, and the mock
cluster of librdkafka, which takes messages over TCP and stores them nowhere.
"""

from __future__ import annotations

import getpass
import http.server
import json
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Spread
from benchmarks.sizes import Bench, NotInstalled
from galileo.client import Client
from galileo.model.broker import Sink
from galileo.model.times import times_from_micros

NODES = 3
PERIOD_S = 0.25
TIMEOUT_S = 60.0
LOOK_S = 0.02
ROWS = {"webhook": 200, "mqtt": 5, "kafka": 100}
"""Observations that are ingested at once, for each sink."""
MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"


def measure(bench: Bench) -> Iterator[Figure]:
    """Seconds from a commit to the acceptance, and notifications a second.

    Raises:
        NotInstalled: mosquitto is not.
    """
    with (
        Receiver() as receiver,
        _mosquitto(bench.directory) as mqtt_url,
        _kafka() as servers,
        clusters.cluster(bench.directory, nodes=NODES, groups=1) as running,
        running.client(timeout=clusters.PATIENCE) as client,
        running.worker(),
    ):
        sinks: dict[str, Sink] = {
            "webhook": galileo.Webhook(receiver.url),
            "mqtt": galileo.Mqtt(mqtt_url),
            "kafka": galileo.Kafka(servers),
        }
        for kind, sink in sinks.items():
            with _channel(client, kind, sink, bench.sizes.pushed):
                if kind == "webhook":
                    yield _latency(bench, client, receiver)
                took = [_push(client, kind, run) for run in range(bench.sizes.runs + 1)]
            count = ROWS[kind] * bench.sizes.pushed
            bench.say(f"{kind}: load {os.getloadavg()[0]:.1f}")
            yield Figure(
                f"{count:,} notifications from ingest to a broker with a sink {kind}, 1 worker, "
                f"period {PERIOD_S:g} s",
                "notifications/s",
                Spread.of(took[1:]).per_second(count),
            )


@contextmanager
def _channel(client: Client, kind: str, sink: Sink, count: int) -> Iterator[None]:
    """A dataset with a channel and a broker of that name, which a worker pushes for."""
    features = [galileo.Feature("number", type="int", indexed=False), galileo.Feature("pm10")]
    client.create_dataset(galileo.Schema(f"air-{kind}", features, geohash_precision=3))
    client.create_channel(galileo.Channel(kind, f"air-{kind}", "pm10 > :least", period=PERIOD_S))
    client.create_broker(galileo.Broker(kind, sink, channels=[kind]))
    least = np.arange(count) / count
    ids = np.char.mod("s%04d", np.arange(count))
    client.subscribe(kind, pa.table({"id": ids, "least": least}), broker=kind)
    try:
        _push(client, kind, -1)
        yield
    finally:
        client.drop_broker(kind)
        client.drop_dataset(kind)


def _air(numbers: range) -> pa.Table:
    count = len(numbers)
    return pa.table(
        {
            "latitude": np.full(count, 47.0),
            "longitude": np.full(count, 8.0),
            "time": times_from_micros(np.full(count, 1_772_000_000_000_000)),
            "number": np.array(numbers),
            "pm10": np.full(count, 50.0),
        }
    )


def _latency(bench: Bench, client: Client, receiver: Receiver) -> Figure:
    """Seconds from the return of `ingest` to the acceptance of the last notification."""
    chance, count, took = random.Random(4), bench.sizes.pushed, list[float]()
    for number in range(bench.sizes.push_commits):
        time.sleep(chance.uniform(0.0, 2 * PERIOD_S))  # At any moment of the period.
        before = receiver.notifications
        client.ingest("air-webhook", _air(range(number, number + 1)))
        begun = time.monotonic()
        took.append(receiver.wait(before + count) - begun)
    spread = Spread.of(took)
    p95 = float(np.quantile(took, 0.95))
    bench.say(f"median {spread.median:.3f} s, p95 {p95:.3f} s, load {os.getloadavg()[0]:.1f}")
    return Figure(
        f"from a commit to the webhook that has accepted its {count:,} notifications, period "
        f"{PERIOD_S:g} s: p95 of {len(took)}",
        "s",
        Spread.of([p95]),
        goals=(Goal("at most", 0.5),),
    )


def _push(client: Client, kind: str, run: int) -> float:
    """Seconds until the endpoint has accepted all notifications of some observations."""
    rows = _air(range(run * ROWS[kind], (run + 1) * ROWS[kind]))
    begun = time.perf_counter()
    reached = client.ingest(f"air-{kind}", rows).reached
    while time.perf_counter() - begun < TIMEOUT_S:
        is_executed = all(one.cut.covers(reached) for one in client.describe_channel(kind))
        if is_executed and _is_pushed(client, kind):
            return time.perf_counter() - begun
        time.sleep(LOOK_S)
    raise AssertionError(f"not pushed within {TIMEOUT_S:g} s: {client.deliveries(kind)}")


def _is_pushed(client: Client, kind: str) -> bool:
    """Whether nothing comes after the position that the worker has stored."""
    token = client.position(kind, kind)
    [first, *_] = client.fetch_notifications(kind, kind, token=token, bytes_max=1)
    return token != "" and first.execution == 0


class Receiver:
    """An HTTP server that accepts notifications, in a thread.

    Attributes:
        url: of it.
        notifications: that it has accepted.
    """

    def __init__(self) -> None:
        self.notifications = 0
        self._changed = threading.Condition()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                count = json.loads(body)["notifications"]
                self.send_response(204)
                self.end_headers()
                with receiver._changed:
                    receiver.notifications += count
                    receiver._changed.notify_all()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self, count: int) -> float:
        """When so many notifications are accepted, on the monotonic clock."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.notifications >= count, TIMEOUT_S):
                raise AssertionError(f"expected {count:,} notifications: {self.notifications:,}")
        return time.monotonic()


@contextmanager
def _mosquitto(directory: Path) -> Iterator[str]:
    """The URL of a server."""
    if not Path(MOSQUITTO).exists():
        raise NotInstalled("mosquitto is not installed (Debian: mosquitto)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = directory / "mosquitto.conf"
    settings.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser {getpass.getuser()}\n"
    )
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([MOSQUITTO, "-c", settings], stderr=subprocess.DEVNULL)
        )
        stack.callback(process.kill)
        yield f"mqtt://127.0.0.1:{port}"


@contextmanager
def _kafka() -> Iterator[str]:
    """The servers of a mock cluster."""
    settings = {"bootstrap.servers": "none", "test.mock.num.brokers": 2, "log_level": 0}
    holder = Producer(settings)
    brokers = holder.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    holder.flush(0)
