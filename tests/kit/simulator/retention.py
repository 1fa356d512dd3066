"""Retention in the simulated world: beginnings of logs are deleted during the run.

The owner of a partition deletes as production does: never past what a reader has fetched, unless
the policy of the world permits it; nothing while no leader says which CCQs there are; and nothing
that was committed a moment ago. Deleted commits stay in the `commits` of the log, for the checker
only. It has its own random generator, so that a world without retention is unchanged.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Protocol

from galileo.ccq.model import Record
from galileo.ccq.records import topic_of
from galileo.model.system_rows import Position, RowPage
from simulator.checker import Checker
from simulator.logs import SCHEMA, Log
from simulator.loop import Loop
from simulator.node import Node
from simulator.system_leader import SystemLeader
from simulator.variants import Variant

CHECK_MEAN_S = 0.5
SETTLE_S = 7.0
"""Longer than a submission with its first scan, and until all nodes know of it."""
AGREEMENT_S = 2.0


class Kept(Protocol):
    """The interface of the world for retention."""

    loop: Loop
    checker: Checker
    variant: Variant
    nodes: list[Node]
    system: SystemLeader


class Retention:
    """Visits a random node now and then, in some worlds.

    Attributes:
        past_readers: whether it may pass readers; None without retention.
    """

    def __init__(self, world: Kept, seed: int) -> None:
        self._world = world
        self._random = Random(f"retention {seed}")
        self._seen: dict[tuple[str, int], list[tuple[float, dict[int, int]]]] = {}
        self.past_readers = self._random.choice((None, None, False, True))

    def start(self) -> None:
        if self.past_readers is not None:
            pause_s = self._random.expovariate(1.0 / CHECK_MEAN_S)
            self._world.loop.after(pause_s, self._look)

    def _look(self) -> None:
        node = self._random.choice(self._world.nodes)
        if node.serves:
            logs = list(node.own_logs())
            settled = self._settled(node, logs)
            if self.past_readers or self._world.variant.conduct.drops_what_is_unfetched:
                self._drop_all(logs, {log.partition: log.end for log in logs})
            else:
                self._ask_leader(node, logs, settled)
        self.start()

    def _ask_leader(self, node: Node, logs: list[Log], settled: dict[int, int]) -> None:
        """Drop what is settled and fetched, if the leader says which CCQs there are."""
        system, epoch, name = self._world.system, node.epoch, SCHEMA.name
        records: dict[str, Record] = {}
        self._world.loop.counters["drops put off"] += 1

        def read(after: Position) -> None:
            system.page(node, after, topic_of(dataset=name), partial(take, after))

        def take(after: Position, page: RowPage) -> None:
            if node.epoch != epoch or not node.serves:
                return
            if page.is_anew and after != Position():
                records.clear()
            records.update(system.kind.values(page.rows))
            if not page.is_last:
                read(page.reached)
                return
            self._world.loop.counters["drops put off"] -= 1
            living = [one for one in records.values() if one.ended is None]
            self._drop_fetched(logs, settled, [one for one in living if one.ccq.dataset == name])

        read(Position())

    def _drop_fetched(self, logs: list[Log], settled: dict[int, int], living: list[Record]) -> None:
        """Drop what is settled, and fetched by the readers of all CCQs that live."""
        allowed = dict(settled)
        for record in living:
            for partition in allowed:
                allowed[partition] = min(allowed[partition], record.retrieved[partition])
        self._world.loop.counters["drops held back by readers"] += allowed != settled
        self._drop_all(logs, allowed)

    def _drop_all(self, logs: list[Log], allowed: dict[int, int]) -> None:
        for log in logs:
            self._drop(log, allowed=allowed.get(log.partition, 0))

    def _settled(self, node: Node, logs: list[Log]) -> dict[int, int]:
        """The ends of the logs some time ago, in this run of the node."""
        seen = self._seen.setdefault((node.name, node.epoch), [])
        now = self._world.loop.now
        seen.append((now, {log.partition: log.end for log in logs}))
        old = [ends for at, ends in seen if at <= now - SETTLE_S]
        return old[-1] if old else {}

    def _drop(self, log: Log, *, allowed: int) -> None:
        until = min(self._random.randint(0, log.end), allowed)
        if until > log.dropped:
            self._world.loop.note(f"retention drops {log.partition} up to {until}")
            self._world.loop.counters["drops"] += 1
            log.dropped = until
            self._world.checker.drop(log.partition, until=until, now=self._world.loop.now)
