"""A machine of one node among a, b and c, stepped and checked by tests."""

from __future__ import annotations

from simulator.logs import to_labels

from galileo.ccq.events import CommitsObserved, CycleFinished, CycleResult, StartCycle
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Ccq, Record
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.election.events import MessageArrived, RecordsLoaded, Ticked, UsageMeasured
from galileo.election.messages import (
    AssignCoordinator,
    UsageStatistics,
)
from galileo.election.model import NODES_MAX

WALL = 1_000_000.0
CCQ = Ccq("q", "d", "", 1.0, WALL + 1000.0)
IDLE = UsageStatistics(memory_free_bytes=8 << 30)
BUSY = UsageStatistics(memory_free_bytes=8 << 30, cpu_share=0.8)
SELDOM = 1e9
NODES = ("a", "b", "c")


class Driver:
    """Steps a machine, checks it, and records its requests."""

    def __init__(
        self, me: str = "a", *, nodes: tuple[str, ...] = NODES, kept: tuple = (), **options
    ) -> None:
        named = {"ordinal": nodes.index(me), "groups": (nodes,), "sync_interval_s": SELDOM}
        named["copies_min"] = 2
        self.machine = Continuous(me, ContinuousOptions(**(named | options)))
        self.now = 0.0
        self.restored = self.feed(RecordsLoaded(kept, WALL))
        self.feed(UsageMeasured(IDLE))
        self.feed(Ticked(WALL))

    def feed(self, event, *, now: float | None = None) -> list:
        self.now = self.now if now is None else now
        effects = self.machine.step(event, self.now)
        self.machine.check()
        return effects

    def hear(self, sender: str, message) -> list:
        return self.feed(MessageArrived(sender, message))

    def tick(self, now: float) -> list:
        return self.feed(Ticked(WALL + now), now=now)

    def lead(
        self, ccq: Ccq = CCQ, *, retrieved: Cursor = EMPTY_CURSOR, term: int = NODES_MAX
    ) -> list:
        record = Record(ccq, term, self.machine.state.me, retrieved)
        return self.hear("b", AssignCoordinator(record, 0))

    def cycle(self, paths: list, reached: dict[int, int], *, now: float) -> list:
        """Run one cycle that finds these paths."""
        self.feed(CommitsObserved("d", Cursor(reached)))
        (start,) = [e for e in self.tick(now) if isinstance(e, StartCycle)]
        item = start.items[0]
        result = CycleResult("q", item.term, item.after, to_labels(paths), Cursor(reached))
        return self.feed(CycleFinished(start.cycle_id, (result,)))


def path(partition: int, sequence: int, row: int = 0) -> tuple[int, int, int, int]:
    return (partition, sequence, row, 7)


def only(effects: list, kind: type) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]
