"""Users of a channel of a running cluster, and nodes that are killed or lose their disks.

What followers have to get is computed from the calls that users made and saw return. When the
cluster has stopped, each execution is computed again from the disks of its nodes.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from channel_audit import (
    BROKERS,
    Changes,
    ChannelAudit,
    Observation,
    Pair,
    Reader,
    air,
    batch_of,
    numbers_of,
)
from fault_injection.damage import read_all
from waiting import wait_until
from webhook_receiver import StrictReceiver, pairs_of

import galileo
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.local_node import LocalNode
from galileo.local_services import LocalWorker

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

    pause_s = 0.05

    def step(self) -> None:
        batch = WRITERS * self.steps + self.seed
        self.audit.observe(numbers_of(batch))
        producer = f"observer-{self.seed}"
        self.client.ingest("air", batch_of(batch), producer=producer, first_batch=batch)
        self.is_over.wait(self.pause_s)


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


class PushedFollower(Follower):
    """Gets what workers push to a webhook that now and then is away or loses its answers.

    Attributes:
        reader: has what came, each execution once.
    """

    def __init__(self, cluster: LocalCluster, audit: ChannelAudit, broker: str) -> None:
        super().__init__(cluster, audit, broker)
        self.reader = Reader("hot", broker)
        self.receiver = StrictReceiver()
        self.receiver.on_new = self._take
        self.receiver.__enter__()
        sink = galileo.Webhook(self.receiver.url)
        self.client.create_broker(galileo.Broker(broker, sink, channels=["hot"]))

    def step(self) -> None:
        self.receiver.status = self.chance.choice((204, 204, 204, 503))
        self.receiver.is_mute = self.chance.random() < 0.2
        self.is_over.wait(self.chance.uniform(0.0, 1.0))

    def end(self) -> None:
        super().end()
        self.receiver.status, self.receiver.is_mute = 204, False

    def describe(self) -> str:
        receiver = self.receiver
        return (
            f"{len(self.got)} notifications pushed by {receiver.attempts} requests, "
            f"{receiver.repeated} of them repeated after they had been accepted"
        )

    def await_all(self) -> None:
        """Returns when all that is stored was pushed; after `end`."""
        count = sum(map(len, self.client.follow("hot", self.broker, wait="3s")))
        wait_until(lambda: len(self.got) >= count, what="all pushes", timeout_s=TIMEOUT_S)
        assert len(self.got) == count
        assert not self.receiver.errors, self.receiver.errors[:3]

    def _take(self, document: dict[str, Any]) -> None:
        now = self.audit.now()
        found = [Pair(name, Observation(*rest)) for name, *rest in pairs_of(document, *COLUMNS)]
        self.got += [(now, pair.subscription, pair.observation) for pair in found]
        executions = self.reader.taken[document["partition"]]
        if document["offset"]:
            executions[-1][1].extend(found)
        else:
            executions.append((document["execution"], found))


class Users:
    """All who use the channel, and what each follower has to get.

    Args:
        cluster: they use.
        follower_types: of the followers of each broker; others may get what is pushed.
        pause_s: between two batches of an observer.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        follower_types: Sequence[type[Follower]] = (Follower,) * len(BROKERS),
        pause_s: float = 0.05,
    ) -> None:
        self.client = cluster.client(timeout="120s")
        self.client.create_dataset(air("air"))
        hot = galileo.Channel("hot", "air", "temperature > :least", period="200ms", columns=COLUMNS)
        self.client.create_channel(hot)
        [channel] = self.client.channels()
        self.audit = ChannelAudit(channel)
        self.observers = [Observer(cluster, self.audit, number) for number in range(WRITERS)]
        self.subscriber = Subscriber(cluster, self.audit)
        self.followers = [
            make(cluster, self.audit, broker)
            for make, broker in zip(follower_types, BROKERS, strict=True)
        ]
        for observer in self.observers:
            observer.pause_s = pause_s
        chance = random.Random(0)
        self.subscriber.change(
            {name: (chance.choice(BROKERS), float(chance.randrange(40))) for name in STEADY}
        )
        for worker in self.workers:
            worker.start()

    def counts(self) -> Counter[str]:
        """What the users have done so far."""
        return Counter(
            {
                "batches": sum(observer.steps for observer in self.observers),
                "changes of subscriptions": self.subscriber.steps,
                "notifications": sum(len(follower.got) for follower in self.followers),
            }
        )

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

    def judge(self) -> int:
        """Ends all users; each follower has what is due, nothing else, and nothing twice.

        Returns:
            How many notifications are due for certain.
        """
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
        return len(due)

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

    def await_executed(self) -> None:
        """Returns when everything is matched."""

        def is_executed() -> bool:
            progress = self.client.describe_channel("hot")
            is_whole = len(progress) == self.audit.channel.partitions
            return is_whole and not any(one.behind or one.failure for one in progress)

        wait_until(is_executed, what="all executions", timeout_s=TIMEOUT_S)


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


# --- storms and disks ----------------------------------------------------------------------------

Report = Callable[[str], None]


def storm(
    cluster: LocalCluster,
    users: Users,
    *,
    seconds: float,
    seed: int,
    has_copies: bool,
    workers: Sequence[LocalWorker],
    report: Report,
) -> Counter[str]:
    """Kills nodes at random moments, starts them again, and once deletes the directory of one.

    A directory is deleted only while there are copies of all that it has. Workers are killed, too.

    Returns:
        How often what was done.
    """
    chance, done = random.Random(seed), Counter[str]()
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        is_last_half = passed > seconds / 2
        assert all(worker.running for worker in workers)
        killed_workers = [worker for worker in workers if chance.random() < 0.3]
        for worker in killed_workers:
            worker.kill()
            done["kills of workers"] += 1
        if has_copies and is_last_half and not done["disks lost"]:
            await_whole(users.client)
            lose_disk(chance.choice(cluster.nodes), cluster.directory)
            done["disks lost"] += 1
            await_whole(users.client)
        else:
            count = chance.choice((1, 1, 1, 1, 2, len(cluster.nodes)))
            killed = chance.sample(cluster.nodes, k=count)
            for node in killed:
                node.kill()
                done["kills"] += 1
            time.sleep(chance.uniform(0.0, 6.0))
            for node in killed:
                node.start()
            for node in killed:
                node.wait()
        for worker in killed_workers:
            worker.start()
        time.sleep(chance.uniform(0.0, 4.0))
        users.go_on(chance.choice((0, 1, 3)))
        report(f"{passed:5.0f} s: {describe(done)}, {describe(users.counts())}")
    await_whole(users.client)
    users.go_on(1)
    return done


def describe(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def judge_disks(audit: ChannelAudit, cluster: LocalCluster) -> Counter[str]:
    """Compares all executions with what loops over the logs find; of a cluster that has stopped.

    Returns:
        Counts; those of `missed`, `repeated` and `foreign` notifications and of `copies that
        differ` have to be 0.
    """
    counts = Counter[str]()
    for node in cluster.nodes:
        reading = read_all(cluster.directory / node.name)
        assert not reading.refusals, reading.refusals
        counts["copies that differ"] += audit.remember_commits(reading.commits)
    audit.check_numbers(may_skip=False)
    counts.update(audit.count())
    return counts
