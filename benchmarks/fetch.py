"""Fetching what a continuous query has cached, against asking the same query again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn, seconds
from benchmarks.sizes import Bench
from galileo.client import Ccq, Client, Update

INTERVAL, EXPIRATION = "500ms", "1h"
BATCHES_PER_ANSWER = 2
# So that a million labels are one answer, and the caches of all runs have room together.
SETTINGS = {"limits": {"answer_labels_max": 2_000_000, "cache_bytes_max": 1 << 30}}
AGAIN = "the same query asked again"
MOST_S = {1_000: 5e-3, 100_000: 30e-3, 1_000_000: 250e-3}
"""The goals, by the number of labels."""


def measure(bench: Bench) -> Iterator[Figure]:
    with (
        clusters.cluster(bench.directory, nodes=1, settings=SETTINGS) as running,
        clusters.warm_evaluator(running),
    ):
        client = running.client(timeout=clusters.PATIENCE)
        for labels in bench.sizes.fetches:
            clusters.create_dataset(running, client, _dataset(labels))
            yield from _all_of(bench, client, labels)
        yield _new_of(bench, client, stored=bench.sizes.fetches[-1])


def _all_of(bench: Bench, client: Client, labels: int) -> Iterator[Figure]:
    dataset, sizes = _dataset(labels), bench.sizes
    ccqs = [_submit(client, dataset) for _ in range(sizes.runs)]
    rows = -(-labels // (BATCHES_PER_ANSWER * sizes.fetch_answers))
    receipt = client.ingest(dataset, _forecast(bench, labels), batch_rows=rows)
    bench.say(f"waiting until {len(ccqs)} caches hold {labels:,} labels each")
    for ccq in ccqs:
        clusters.wait_cached(client, ccq.id, token=ccq.token, reached=receipt.reached)
    reader = _Reader(client, ccqs, labels, labels_max=-(-labels // sizes.fetch_answers))
    whole, pieces, again = in_turn(
        reader.whole,
        reader.pieces,
        lambda: _expect(labels, [len(client.query(dataset))]),
        runs=sizes.runs,
        warm_up=False,
    )
    for ccq in ccqs:
        client.cancel(ccq.id)
    peer = Peer(AGAIN, again)
    goals = (Goal("at most", MOST_S[labels]),) if labels in MOST_S else ()
    yield Figure(f"fetch {labels:,} cached labels in one answer", "s", whole, (peer,), goals)
    yield Figure(
        f"fetch {labels:,} cached labels in {reader.answers} answers", "s", pieces, (peer,)
    )


@dataclass(slots=True)
class _Reader:
    """Reads the caches of equal continuous queries, one in each round.

    One answer acknowledges nothing and can be had again; of several answers each acknowledges
    the one before, and its labels are dropped. Hence a query for each round.
    """

    client: Client
    ccqs: Sequence[Ccq]
    labels: int
    labels_max: int
    round: int = 0
    answers: int = 0

    def whole(self) -> list[Update]:
        ccq = self.ccqs[self.round]
        updates = [self.client.fetch(ccq.id, token=ccq.token)]
        _expect(self.labels, [len(update.labels) for update in updates])
        return updates

    def pieces(self) -> list[Update]:
        ccq = self.ccqs[self.round]
        updates = clusters.drain(self.client, ccq.id, token=ccq.token, labels_max=self.labels_max)
        _expect(self.labels, [len(update.labels) for update in updates])
        self.round, self.answers = self.round + 1, len(updates)
        return updates


def _new_of(bench: Bench, client: Client, *, stored: int) -> Figure:
    """What the cache is for: a little news of a query whose whole answer is large."""
    dataset, rows = _dataset(stored), bench.sizes.update_rows
    table = _forecast(bench, rows)
    ccq = _submit(client, dataset)
    reader, fetched, again = _Follower(client, ccq.id, ccq.token), [], []
    for number in range(bench.sizes.runs):
        receipt = client.ingest(dataset, table)
        clusters.wait_cached(client, ccq.id, token=reader.token, reached=receipt.reached)
        fetched.append(seconds(reader.fetch))
        again.append(seconds(lambda: client.query(dataset)))
        _expect((number + 1) * rows, [reader.labels])
    client.cancel(ccq.id)
    name = f"fetch {rows:,} new labels of a query that {stored:,} paths match"
    return Figure(name, "s", Spread.of(fetched), (Peer(AGAIN, Spread.of(again)),))


@dataclass(slots=True)
class _Follower:
    """Fetches what is new since it last did."""

    client: Client
    ccq_id: str
    token: str
    labels: int = 0

    def fetch(self) -> Update:
        update = self.client.fetch(self.ccq_id, token=self.token)
        self.token, self.labels = update.token, self.labels + len(update.labels)
        return update


def _submit(client: Client, dataset: str) -> Ccq:
    return client.submit(dataset, interval=INTERVAL, expiration=EXPIRATION)


def _forecast(bench: Bench, rows: int) -> pa.Table:
    return clusters.forecast(rows, stride=bench.sizes.stride)


def _dataset(labels: int) -> str:
    return f"nam-{labels}"


def _expect(labels: int, found: Sequence[int]) -> None:
    if sum(found) != labels:
        raise AssertionError(f"expected {labels:,} labels, got {found}")
