"""A channel of a running cluster, while nodes of it are killed, restarted, and lose their disks.

What followers have to get is computed from the calls that users made and saw return.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from channel_audit import BROKERS, Changes, ChannelAudit, Observation, air, batch_of, numbers_of
from fault_injection.nodes import wait_until

import galileo
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.local_node import LocalNode

SETTINGS = {"membership": {"heartbeat_interval_s": 0.1, "failure_timeout_s": 3.0}}
TIMEOUT_S = 120.0
SETTLED_S = 3.0
"""What is delivered twice by mistake comes within this time."""
WRITERS = 2
STEADY = [f"steady-{number}" for number in range(30)]
CHANGING = [f"changing-{number}" for number in range(12)]
COLUMNS = ["number", "temperature"]


class Worker(threading.Thread):
    """Repeats a step until it is over."""

    def __init__(self, cluster: LocalCluster, audit: ChannelAudit, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self.client = cluster.client(timeout="300s")
        self.audit, self.seed = audit, seed
        self.chance = random.Random(seed)
        self.is_over = threading.Event()
        self.error: BaseException | None = None
        self.steps = 0

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.step()
                self.steps += 1
        except BaseException as error:
            self.error = error

    def step(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.is_over.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        assert self.error is None, self.error


class Observer(Worker):
    """Writes numbered batches, each until it is stored."""

    def step(self) -> None:
        batch = WRITERS * self.steps + self.seed
        self.audit.observe(numbers_of(batch))
        producer = f"observer-{self.seed}"
        self.client.ingest("air", batch_of(batch), producer=producer, first_batch=batch)
        self.is_over.wait(0.05)


class Subscriber(Worker):
    """Adds, changes, repeats and removes subscriptions."""

    def step(self) -> None:
        names = self.chance.sample(CHANGING, k=3)
        self.change({name: self.audit.random_change(name, self.chance) for name in names})
        self.is_over.wait(self.chance.uniform(0.0, 0.3))

    def change(self, changes: Changes) -> None:
        """One call for those that stay, then one for those that are removed."""
        stay = {name: one for name, one in changes.items() if one[1] is not None}
        leave = {name: one for name, one in changes.items() if name not in stay}
        if stay:
            versions = self.audit.change(stay)
            rows = [{"id": name, "broker": b, "least": least} for name, (b, least) in stay.items()]
            self.client.subscribe("hot", pd.DataFrame(rows))
            self.audit.settle(versions)
        if leave:
            versions = self.audit.change(leave)
            self.client.unsubscribe("hot", list(leave))
            self.audit.settle(versions)


class Follower(Worker):
    """Follows a broker by tokens; now and then it forgets what it has not stored."""

    def __init__(self, cluster: LocalCluster, audit: ChannelAudit, broker: str) -> None:
        super().__init__(cluster, audit, BROKERS.index(broker))
        self.broker, self.token = broker, ""
        self.got: list[tuple[int, str, Observation]] = []

    def step(self) -> None:
        parts_max = self.chance.choice((1, 2, 5, 1000))
        parts = self.client.follow("hot", self.broker, token=self.token, wait="500ms")
        for count, batch in enumerate(parts):
            if count == parts_max:
                return
            assert not batch.gone
            now = self.audit.now()
            for row in batch.to_arrow().to_pylist():
                observation = Observation(row["number"], row["temperature"])
                self.got.append((now, row["subscription"], observation))
            self.token = batch.token


class Users:
    """All who use the channel, and what each follower has to get."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.client = cluster.client(timeout="120s")
        self.client.create_dataset(air("air"))
        hot = galileo.Channel("hot", "air", "temperature > :least", period="200ms", columns=COLUMNS)
        self.client.create_channel(hot)
        [channel] = self.client.channels()
        self.audit = ChannelAudit(channel)
        self.observers = [Observer(cluster, self.audit, number) for number in range(WRITERS)]
        self.subscriber = Subscriber(cluster, self.audit)
        self.followers = [Follower(cluster, self.audit, broker) for broker in BROKERS]
        chance = random.Random(0)
        self.subscriber.change(
            {name: (chance.choice(BROKERS), float(chance.randrange(40))) for name in STEADY}
        )
        for worker in self.workers:
            worker.start()

    @property
    def workers(self) -> list[Worker]:
        return [*self.observers, self.subscriber, *self.followers]

    def go_on(self, steps: int) -> None:
        """Waits for new batches of all observers."""
        before = [worker.steps for worker in self.observers]

        def are_there() -> bool:
            errors = [worker.error for worker in self.workers if worker.error is not None]
            assert not errors, errors
            pairs = zip(self.observers, before, strict=True)
            return all(worker.steps >= first + steps for worker, first in pairs)

        wait_until(are_there, what=f"{steps} batches of each observer", timeout_s=TIMEOUT_S)

    def judge(self) -> None:
        """Ends all users; each follower has what is due, nothing else, and nothing twice."""
        for worker in (*self.observers, self.subscriber):
            worker.end()
        due = self.due()
        assert due

        def is_all_there() -> bool:
            got = {(name, one.number) for f in self.followers for _, name, one in list(f.got)}
            return due.keys() <= got or any(follower.error for follower in self.followers)

        wait_until(is_all_there, what=f"{len(due)} notifications", timeout_s=TIMEOUT_S)
        time.sleep(SETTLED_S)
        for follower in self.followers:
            follower.end()
            for now, name, observation in follower.got:
                assert follower.broker in self.audit.outcomes(name, observation, until=now)
        all_of = Counter((name, one.number) for f in self.followers for _, name, one in f.got)
        assert set(all_of.values()) == {1}, "a subscription has an observation twice"
        got = {(name, one.number): f.broker for f in self.followers for _, name, one in f.got}
        assert {pair: got[pair] for pair in due} == due

    def due(self) -> dict[tuple[str, int], str]:
        """To which broker each pair goes for certain."""
        end, due = self.audit.now(), dict[tuple[str, int], str]()
        for observer in self.observers:
            for step in range(observer.steps):
                rows = batch_of(WRITERS * step + observer.seed).select(COLUMNS).to_pylist()
                for observation in (Observation(**row) for row in rows):
                    for name in (*STEADY, *CHANGING):
                        outcomes = self.audit.outcomes(name, observation, until=end)
                        if len(outcomes) == 1 and (broker := outcomes.pop()):
                            due[name, observation.number] = broker
        return due


def await_whole(client: Client) -> None:
    def is_whole() -> bool:
        status = client.status()
        return status.complete and not status.under_replicated

    wait_until(is_whole, what="all nodes and copies", timeout_s=TIMEOUT_S)


def lose_disk(node: LocalNode, place: Path) -> None:
    node.kill()
    shutil.rmtree(place / node.name)
    node.start()
    node.wait()


def test_followers_get_everything_once_although_a_node_is_killed(tmp_path: Path) -> None:
    with LocalCluster(2, 1, tmp_path, replicas=1, settings=SETTINGS) as cluster:
        users = Users(cluster)
        users.go_on(5)
        cluster.nodes[1].kill()
        cluster.nodes[1].start()
        cluster.nodes[1].wait()
        users.go_on(5)
        users.judge()


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
