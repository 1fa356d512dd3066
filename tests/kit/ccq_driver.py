"""A machine of one node among a, b and c, stepped and checked by tests."""

from __future__ import annotations

from dataclasses import replace

from simulator.logs import to_labels

from galileo.ccq.events import (
    CommitsObserved,
    CycleFinished,
    CycleResult,
    RecordsLearned,
    StartCycle,
    Ticked,
    UsageMeasured,
)
from galileo.ccq.machine import Continuous
from galileo.ccq.model import CcqDefinition, Record
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.election.ranking import UsageStatistics

WALL = 1_000_000.0
CCQ = CcqDefinition("q", "d", "", 1.0, WALL + 1000.0)
IDLE = UsageStatistics(memory_free_bytes=8 << 30)
SELDOM = 1e9
NODES = ("a", "b", "c")


class Driver:
    """Steps a machine, checks it, and records its requests."""

    def __init__(self, me: str = "a", *, nodes: tuple[str, ...] = NODES, **options) -> None:
        self.machine = Continuous(me, ContinuousOptions((nodes,), **options), wall=WALL)
        self.now = 0.0
        self.feed(UsageMeasured(IDLE))
        self.feed(Ticked(WALL))

    def feed(self, event, *, now: float | None = None) -> list:
        self.now = self.now if now is None else now
        effects = self.machine.step(event, self.now)
        self.machine.check()
        return effects

    def learn(self, *records: Record) -> list:
        return self.feed(RecordsLearned(records))

    def tick(self, now: float) -> list:
        return self.feed(Ticked(WALL + now), now=now)

    def lead(
        self, ccq: CcqDefinition = CCQ, *, retrieved: Cursor = EMPTY_CURSOR, revision: int = 1
    ) -> list:
        """Learn a record that names all nodes, this one first."""
        state = self.machine.state
        nodes = (state.me, *sorted(state.nodes - {state.me}))
        return self.learn(Record(ccq, revision, nodes, retrieved))

    def cancel(self, ccq_id: str = "q") -> list:
        """Learn that a CCQ was cancelled."""
        record = self.machine.state.records[ccq_id]
        return self.learn(replace(record, ended="cancelled", ended_at=WALL))

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
