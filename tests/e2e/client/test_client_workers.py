"""Workers that take over from each other."""

from __future__ import annotations

import pytest
from pushed_channel import channel as channel
from pushed_channel import client as client
from pushed_channel import observe, product, subscribe
from pushed_channel import receiver as receiver
from webhook_receiver import WebhookReceiver, wait_until

import galileo


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
