"""Retention in the simulated world: beginnings of logs are deleted during the run.

The owner of a partition deletes as production does: never past what a reader has fetched, unless
the policy of the world permits it; nothing while it may not know all CCQs; and nothing that was
committed a moment ago. Deleted commits stay in the `commits` of the log for the checker only. It
has its own random generator, so that a world without retention is unchanged.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from galileo.ccq.model import Record
from simulator.checker import Checker
from simulator.logs import SCHEMA, Log
from simulator.loop import Loop
from simulator.network import Network
from simulator.node import Node
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
    network: Network

    def node(self, name: str) -> Node: ...


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
            for log in logs:
                self._drop(node, log, settled=settled.get(log.partition, 0))
        self.start()

    def _settled(self, node: Node, logs: list[Log]) -> dict[int, int]:
        """The ends of the logs some time ago, in this run of the node."""
        seen = self._seen.setdefault((node.name, node.epoch), [])
        now = self._world.loop.now
        seen.append((now, {log.partition: log.end for log in logs}))
        old = [ends for at, ends in seen if at <= now - SETTLE_S]
        return old[-1] if old else {}

    def _drop(self, node: Node, log: Log, *, settled: int) -> None:
        wanted = self._random.randint(0, log.end)
        until = min(wanted, self._allowed(node, log, settled=settled))
        if until > log.dropped:
            self._world.loop.note(f"{node.name} drops {log.partition} up to {until}")
            self._world.loop.counters["drops"] += 1
            log.dropped = until
            self._world.checker.drop(log.partition, until=until, now=self._world.loop.now)

    def _allowed(self, node: Node, log: Log, *, settled: int) -> int:
        if self.past_readers or self._world.variant.conduct.drops_what_is_unfetched:
            return log.end
        records = self._records(node)
        if records is None:
            self._world.loop.counters["drops put off"] += 1
            return 0
        fetched = [record.retrieved[log.partition] for record in records.values()]
        allowed = min([settled, *fetched])
        self._world.loop.counters["drops held back by readers"] += bool(allowed < settled)
        return allowed

    def _records(self, node: Node) -> dict[str, Record] | None:
        """The live records of all nodes; None if one of them does not answer."""
        records: dict[str, Record] = {}
        for name in (node.name, *node.machine.state.peers):
            other = self._world.node(name)
            is_connected = name == node.name or self._world.network.connects(node.name, name)
            if not (is_connected and other.serves and other.machine.is_restored):
                return None
            for record in other.machine.records:
                known = records.get(record.ccq.id, record)
                records[record.ccq.id] = known.merge(record)
        return {
            ccq_id: record
            for ccq_id, record in records.items()
            if record.ended is None and record.ccq.dataset == SCHEMA.name
        }
