"""A webhook that is away while notifications accumulate, and then is slow.

The worker has to hold none of what accumulates, and then to deliver all of it in order, each chunk
with the key of its first attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import psutil
from waiting import wait_until
from webhook_receiver import StrictReceiver

import galileo
from galileo.cluster import LocalCluster

SUBSCRIPTIONS, VALUES = 20, 100
BATCH_ROWS = 250
PAUSE_S = 1.0
"""Between two batches."""
SLOW_S = 0.02
"""An answer of the webhook takes so long after the outage."""
REPORT_S = 10.0
DRAIN_MAX_S = 1800.0
GROWTH_MIB_MAX = 64.0
"""Of the worker, between its first deliveries and any later moment."""


class Outage:
    """A dataset, a channel, a broker with a webhook, and a worker.

    Args:
        cluster: running.
        report: called with each line.
    """

    def __init__(self, cluster: LocalCluster, report: Callable[[str], None]) -> None:
        self._cluster, self._report = cluster, report
        self._client = cluster.client(timeout="120s")
        self._receiver = StrictReceiver()
        self._receiver.on_new = self._take
        self._batches = self._count = 0
        self._codes: list[Any] = []
        self._begun = time.monotonic()
        features = [galileo.Feature("number", type="int"), galileo.Feature("value")]
        self._client.create_dataset(galileo.Schema("air", features, geohash_precision=2))
        template, columns = "value > :least", ["number", "value"]
        self._client.create_channel(
            galileo.Channel("hot", "air", template, period="1s", columns=columns)
        )
        self._least = np.arange(SUBSCRIPTIONS) * (VALUES / SUBSCRIPTIONS)
        ids = [f"s{number}" for number in range(SUBSCRIPTIONS)]
        self._client.subscribe("hot", {"id": ids, "least": self._least}, broker="ops")
        self._client.create_broker(galileo.Broker("ops", galileo.Webhook(self._receiver.url)))

    def play(self, outage_s: float) -> float:
        """Lets the webhook be away for a time, and judges what it gets afterwards.

        Returns:
            By how many MiB the worker has grown at most.
        """
        receiver = self._receiver
        with receiver, self._cluster.worker() as worker:
            assert worker.pid is not None
            self._process = psutil.Process(worker.pid)
            for _ in range(5):
                self._ingest()
            wait_until(lambda: self._count == len(self._due()))
            begin = self._sample("begin")
            receiver.status, receiver.is_mute = 503, True
            most = max(begin, self._accumulate(outage_s))
            receiver.status, receiver.is_mute, receiver.delay_s = 204, False, SLOW_S
            most = max(most, self._drain())
            most = max(most, self._sample("end"))
        assert not receiver.errors, receiver.errors[:3]
        codes = np.concatenate(self._codes)
        assert np.array_equal(np.sort(codes), self._due()), "missed, repeated or foreign"
        return most - begin

    def _accumulate(self, outage_s: float) -> float:
        """First connections break, then there are answers that nothing is accepted."""
        begun = reported = time.monotonic()
        most = 0.0
        while (now := time.monotonic()) - begun < outage_s:
            self._receiver.is_mute = now - begun < outage_s / 2
            self._ingest()
            if now - reported > REPORT_S:
                most, reported = max(most, self._sample("away")), now
            time.sleep(PAUSE_S)
        return max(most, self._sample("end of the outage"))

    def _drain(self) -> float:
        """The webhook is slow, and one of a hundred answers is lost."""
        due, most, reported = len(self._due()), 0.0, 0.0
        deadline = time.monotonic() + DRAIN_MAX_S
        while self._count < due:
            now = time.monotonic()
            assert now < deadline, f"{self._count} of {due} notifications are delivered"
            self._receiver.is_mute = self._receiver.attempts % 100 == 99
            if now - reported > REPORT_S:
                most, reported = max(most, self._sample("drain")), now
            time.sleep(SLOW_S / 4)
        self._receiver.is_mute = False
        return most

    def _ingest(self) -> None:
        first = self._batches * BATCH_ROWS
        numbers = np.arange(first, first + BATCH_ROWS)
        rows = pd.DataFrame(
            {
                "latitude": numbers % 120 - 60.0,
                "longitude": numbers % 340 - 170.0,
                "time": pd.Timestamp("2026-05-02T12:00Z") + pd.to_timedelta(numbers, "s"),
                "number": numbers,
                "value": numbers % VALUES + 0.5,
            }
        )
        self._client.ingest("air", rows, producer="observer", first_batch=self._batches)
        self._batches += 1

    def _due(self) -> Any:
        """All notifications, as numbers of observation and subscription; sorted."""
        numbers = np.arange(self._batches * BATCH_ROWS)
        matches = numbers[:, None] % VALUES + 0.5 > self._least
        return np.flatnonzero(matches)

    def _take(self, document: dict[str, Any]) -> None:
        numbers = np.array([one["properties"]["number"] for one in document["features"]])
        for match in document["matches"]:
            ids = np.array([int(name.removeprefix("s")) for name in match["subscriptions"]])
            codes = numbers[match["rows"]][:, None] * SUBSCRIPTIONS + ids
            self._codes.append(codes.ravel())
            self._count += codes.size

    def _sample(self, moment: str) -> float:
        """Reports, and returns how many MiB the worker has in memory."""
        worker = self._process.memory_info().rss / 2**20
        nodes = [psutil.Process(node.pid).memory_info().rss / 2**20 for node in self._cluster.nodes]
        self._report(
            f"{time.monotonic() - self._begun:5.0f} s {moment}: worker {worker:.0f} MiB, nodes "
            f"{' + '.join(f'{node:.0f}' for node in nodes)} MiB, {self._count:,} of "
            f"{len(self._due()):,} notifications, {self._receiver.attempts} requests, "
            f"{self._receiver.repeated} repeated"
        )
        return worker
