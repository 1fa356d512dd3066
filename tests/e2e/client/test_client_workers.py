"""Workers that take over from each other, and that have much to push."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from mosquitto import MosquittoServer, needs_mosquitto
from paho.mqtt.enums import CallbackAPIVersion
from pushed_channel import channel as channel
from pushed_channel import client as client
from pushed_channel import observe, product, subscribe
from pushed_channel import receiver as receiver
from waiting import wait_until
from webhook_receiver import WebhookReceiver

import galileo

MANY = 60_000
MANY_TIMEOUT_S = 500.0


@pytest.mark.slow
def test_a_second_worker_takes_over_from_one_that_stops(
    cluster: galileo.LocalCluster, client: galileo.Client, channel: str, receiver: WebhookReceiver
) -> None:
    client.create_broker(galileo.Broker("moved", galileo.Webhook(receiver.url)))
    ids = subscribe(client, channel, "moved", 5)
    with cluster.worker() as first:
        observe(client, channel, [1])
        wait_until(lambda: len(receiver.pairs()) == 5)
        assert first.running
    observe(client, channel, [2])
    with cluster.worker():
        due = set(product(ids, [1, 2]))  # What the first one had not noted comes once more.
        wait_until(lambda: set(receiver.pairs("number")) == due)
    assert not client.deliveries(channel)[0].worker


@pytest.mark.slow
def test_a_second_worker_takes_over_from_one_that_is_killed(
    cluster: galileo.LocalCluster, client: galileo.Client, channel: str, receiver: WebhookReceiver
) -> None:
    client.create_broker(galileo.Broker("killed", galileo.Webhook(receiver.url)))
    ids = subscribe(client, channel, "killed", 5)
    first, second = cluster.worker(), cluster.worker()
    with second, first:
        for number in range(20):
            observe(client, channel, [number])
            if number == 10:
                first.kill()
        wait_until(lambda: set(receiver.pairs("number")) == set(product(ids, list(range(20)))))


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Other processes that take all the time of so many processors."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


@contextmanager
def counted_topics(port: int) -> Iterator[Counter[str]]:
    """How many messages came for each topic."""
    counts = Counter[str]()
    subscriber = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    subscriber.on_message = lambda client, data, message: counts.update([message.topic])
    subscriber.connect("127.0.0.1", port)
    subscriber.subscribe("#", qos=1)
    subscriber.loop_start()
    try:
        yield counts
    finally:
        subscriber.disconnect()
        subscriber.loop_stop()


@needs_mosquitto
@pytest.mark.slow
def test_a_large_execution_is_pushed_once_by_workers_on_busy_cores(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    channel: str,
    tmp_path: Path,
    unused_tcp_port: int,
) -> None:
    server = MosquittoServer(tmp_path, unused_tcp_port, "allow_anonymous true")
    server.start()
    try:
        subscribe(client, channel, "live", MANY)
        client.create_broker(
            galileo.Broker("live", galileo.Mqtt(server.url, topic="{subscription}"))
        )
        with (
            counted_topics(server.port) as counts,
            cluster.worker(),
            cluster.worker(),
            busy_cores(2),
        ):
            observe(client, channel, [1])
            wait_until(lambda: len(counts) == MANY, timeout_s=MANY_TIMEOUT_S)
        assert counts.total() - MANY < MANY / 100
    finally:
        server.stop()
