"""A channel of a running cluster, while nodes of it are killed, restarted, and lose their disks."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from channel_users import SETTINGS, Users, await_whole, judge_disks, lose_disk
from executions import await_executed
from waiting import wait_until

import galileo
from galileo.cluster import LocalCluster


@pytest.mark.slow
def test_followers_get_everything_once_although_a_node_is_killed(tmp_path: Path) -> None:
    with LocalCluster(2, 1, tmp_path, replicas=1, settings=SETTINGS) as cluster:
        users = Users(cluster)
        users.go_on(5)
        cluster.nodes[1].kill()
        cluster.nodes[1].start()
        cluster.nodes[1].wait()
        users.go_on(5)
        users.judge()
        users.await_executed()
    check_disks(users, cluster)


class Patrol:
    """People who subscribe to what is near an officer, and officers who move.

    Attributes:
        places: of the officers, whole degrees of longitude.
        inside: how often each person has entered, and not left, each observation.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.client, self.chance = cluster.client(timeout="300s"), random.Random(1)
        self.places = {f"o{number}": 0 for number in range(20)}
        self.people = {f"p{number}": f"o{number % 20}" for number in range(40)}
        self.observed: list[int] = []
        self.inside, self.token = Counter[tuple[str, int]](), ""

    def begin(self) -> None:
        number = galileo.Feature("number", type="int", indexed=False)
        self.client.create_dataset(galileo.Schema("air", [number], geohash_precision=2))
        officers = {"officer": "text", "place": "geometry"}
        self.client.create_table(galileo.Table("officers", officers, key="officer"))
        near, lookup = "S_DWITHIN(geometry, officers.place, 500)", {"officers": ":officer"}
        for channel in (
            galileo.Channel(
                "near", "air", near, lookup=lookup, period="200ms", new="either", leave=True
            ),
            galileo.Channel("active", "air", near, lookup=lookup, period="200ms", new="both"),
        ):
            self.client.create_channel(channel)
            people = {"id": [*self.people], "officer": [*self.people.values()]}
            self.client.subscribe(channel.name, people, broker="me")
        self.observe()

    def observe(self) -> None:
        """Observes at each place."""
        new = range(len(self.observed), len(self.observed) + 10)
        self.observed += new
        time = pd.Timestamp("2026-05-02T12:00Z")
        rows = [
            {"latitude": 10.0, "longitude": float(n % 10), "time": time, "number": n} for n in new
        ]
        reached = self.client.ingest("air", pd.DataFrame(rows)).reached
        for channel in ("near", "active"):
            await_executed(self.client, channel, reached)

    def move(self) -> None:
        self.places = {officer: self.chance.randrange(12) for officer in self.places}
        points = [f"POINT ({x} 10)" for x in self.places.values()]
        self.client.upsert("officers", {"officer": [*self.places], "place": points})

    def follow(self) -> None:
        for batch in self.client.follow("near", "me", token=self.token, wait="500ms"):
            self.token = batch.token
            rows = batch.to_arrow().select(["subscription", "number", "left"]).to_pylist()
            for row in rows:
                self.inside[row["subscription"], row["number"]] += -1 if row["left"] else 1
        assert {*self.inside.values()} <= {0, 1}, "a pair is entered twice"

    def is_settled(self) -> bool:
        """Whether everybody is in what is near the last place of the officer."""
        self.follow()
        near = {
            (person, number)
            for person, officer in self.people.items()
            for number in self.observed
            if number % 10 == self.places[officer]
        }
        return {pair for pair, count in self.inside.items() if count} == near

    def has_news(self) -> bool:
        """Whether an officer who has reported meets a new observation."""
        self.move()
        self.observe()
        return any(batch for batch in self.client.follow("active", "me", wait="500ms"))


@pytest.mark.slow
def test_subscriptions_are_compared_with_their_rows_although_a_node_is_killed(
    tmp_path: Path,
) -> None:
    with LocalCluster(2, 1, tmp_path, replicas=1, settings=SETTINGS) as cluster:
        patrol = Patrol(cluster)
        patrol.begin()
        patrol.move()
        wait_until(patrol.is_settled, what="the first places")
        for node in cluster.nodes:
            patrol.move()
            node.kill()
            node.start()
            node.wait()
            patrol.move()
            patrol.observe()
            wait_until(patrol.is_settled, what="the last places")
        wait_until(patrol.has_news, what="an officer who is active")
        [*_, last] = patrol.client.follow("active", "me", wait="1s")
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        cluster.nodes[0].wait()
        patrol.observe()
        again = patrol.client.follow("active", "me", token=last.token, wait="2s")
        assert not [*again], "no officer has reported since"
        assert patrol.is_settled()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 3])
def test_followers_get_everything_once_whatever_happens_to_nodes(
    tmp_path: Path, replicas: int
) -> None:
    with LocalCluster(3, 1, tmp_path, replicas=replicas, settings=SETTINGS) as cluster:
        users = Users(cluster)
        users.go_on(5)
        for number, node in enumerate(cluster.nodes):
            node.kill()
            if replicas > 1:
                users.go_on(5)
            node.start()
            node.wait()
            users.go_on(5)
            if replicas > 1 and number == 1:
                await_whole(users.client)
                lose_disk(node, tmp_path)
                await_whole(users.client)
                users.go_on(5)
        users.judge()
        for node in cluster.nodes:  # Tokens and logs outlive everything.
            node.restart()
            node.wait()
        await_whole(users.client)
        for follower in users.followers:
            again = [
                (subscription, number)
                for batch in users.client.follow("hot", follower.broker, wait="3s")
                for subscription, number in batch.to_pandas()[["subscription", "number"]].values
            ]
            assert sorted(again) == sorted((name, one.number) for _, name, one in follower.got)
            assert not list(
                users.client.follow("hot", follower.broker, token=follower.token, wait="1s")
            )
        users.await_executed()
    check_disks(users, cluster)


def check_disks(users: Users, cluster: LocalCluster) -> None:
    counts = judge_disks(users.audit, cluster)
    assert counts["notifications"]
    wrong = ("missed", "repeated", "foreign", "copies that differ")
    assert not any(counts[name] for name in wrong), counts
