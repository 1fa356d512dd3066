"""Gives CCQs other nodes: after deaths, for a drain, and where a cache is too large.

Theory of operation. The node that runs a CCQ sees to the nodes that its record names. When one of
them has been dead for `REPAIR_AFTER_S`, or the cluster has more nodes than the record could name,
the living ones stay in their order, and others are elected behind them. A node that drains leaves
all records in this way. A node whose caches are too full (`cache_memory`) has a node with more
memory elected, and stays in the record as the holder of the labels that it has.

The change names the revision of the record, so of two that begin with one revision, only the first
counts. A change that is not confirmed within `CHANGE_TIMEOUT_S` is made again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from galileo.ccq.events import (
    ChangeRecords,
    ContinuousEffect,
    Effects,
    ElectNodes,
    NodesElected,
    RecordsChanged,
)
from galileo.ccq.model import RETRY_S, Record
from galileo.ccq.placement import move, moved_to
from galileo.ccq.records import NODES_MAX
from galileo.ccq.state import NodeState
from galileo.election.election import Candidacy

REPAIR_AFTER_S = 10.0
"""Time after which a dead node is replaced in the records that name it."""
REPAIR_RETRY_S = 60.0
"""Pause until nodes are sought again where none was found."""
REPAIRED_MAX = 256
"""CCQs that are looked at in one step, and for which nodes are elected together."""
CHANGE_TIMEOUT_S = 20.0
"""Time after which nodes are elected again for a CCQ."""
SUCCESSION_PAUSE_S = 10.0
"""Pause between attempts to transfer one CCQ."""
SUCCESSIONS_MAX = 4
"""CCQs that are transferred at a time."""
CPU_SLACK = 0.05
"""Tolerated difference of CPU shares: nodes of one host measure at different moments."""


@dataclass(frozen=True, slots=True)
class _Move:
    """A move that is under way.

    Attributes:
        deadline: after it the move is forgotten.
        is_transfer: this node keeps its cache as a holder.
        is_sent: nodes are elected, and the leader has to name them.
    """

    deadline: float
    is_transfer: bool
    is_sent: bool = False


class Moves:
    """The moves of one node's CCQs, at most one for each CCQ."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[str, _Move] = {}
        self._transfer_not_before: dict[str, float] = {}
        self._unchecked: deque[str] = deque()
        self._check_at: float | None = 0.0

    def __contains__(self, ccq_id: str) -> bool:
        return ccq_id in self._running

    def check_soon(self, now: float) -> None:
        """Look at all CCQs, since nodes have come, died or begun to drain."""
        self._check_at = now

    def transfer(self, ccq_id: str, now: float) -> Effects:
        """Begin to hand a CCQ off for which this node lacks memory.

        Only a node with free memory for all of it qualifies. Does nothing shortly after an attempt,
        or if no peer is alive.
        """
        state = self._state
        is_late = now >= self._transfer_not_before.get(ccq_id, now)
        transfers = sum(move.is_transfer for move in self._running.values())
        is_alone = all(map(state.is_gone, state.nodes - {state.me}))
        if ccq_id in self or not is_late or is_alone or transfers >= SUCCESSIONS_MAX:
            return []
        later = self._transfer_not_before.items()
        self._transfer_not_before = {other: at for other, at in later if at > now}
        self._transfer_not_before[ccq_id] = now + SUCCESSION_PAUSE_S
        self._running[ccq_id] = _Move(now + CHANGE_TIMEOUT_S, is_transfer=True)
        candidacy = Candidacy(
            ccq_id,
            count=1,
            need_bytes=state.coordinated[ccq_id].cache.bytes,
            excluded=(state.me,),
            only_suitable=True,
            cpu_share=min(1.0, state.measured.cpu_share + CPU_SLACK),
        )
        return [ElectNodes((candidacy,))]

    def tick(self, now: float) -> Effects:
        late = [ccq_id for ccq_id, move in self._running.items() if now >= move.deadline]
        for ccq_id in late:
            del self._running[ccq_id]
            self._look_again(now)
        own, named = self._own(), self._state.newly_named
        if self._check_at is not None and now >= self._check_at and not self._unchecked:
            self._check_at = None
            self._unchecked.extend(own)
        self._unchecked.extend(ccq_id for ccq_id in named if ccq_id in own)
        named.clear()
        return self._repair(now) if self._unchecked else []

    def on_elected(self, event: NodesElected, now: float) -> Effects:
        """Have the leader name the elected nodes."""
        moved = []
        for ccq_id, elected in event.nodes.items():
            move, record = self._running.get(ccq_id), self._state.records.get(ccq_id)
            if move is None:
                continue
            if record is None or record.ended is not None:
                del self._running[ccq_id]
            elif move.is_transfer:
                moved += self._transferred(ccq_id, elected, now)
            else:
                moved += self._repaired(record, elected, now)
        return self._send(moved)

    def on_changed(self, event: RecordsChanged, now: float) -> None:
        """Look again at the moves whose answers have come, unless they were made.

        Not known is a change that reached no leader, and refused one that began with an older
        revision of the record.
        """
        known = {record.id: record for record in event.records}
        for ccq_id in event.names:
            move = self._running.get(ccq_id)
            # While nodes are being elected, the answer is that of a save of positions.
            if move is None or not move.is_sent:
                continue
            del self._running[ccq_id]
            record = known.get(ccq_id)
            if record is None or self._staying(record, now)[0] != record.nodes:
                self._look_again(now + REPAIR_AFTER_S / 2)

    def check(self) -> None:
        """Invariants."""
        assert self._state.coordinated.keys() <= self._state.records.keys()

    # --- inside --------------------------------------------------------------------------------

    def _own(self) -> Mapping[str, object]:
        """The CCQs whose nodes this one sees to: those that it runs, and while it drains, all."""
        state = self._state
        return state.records if state.is_draining else state.coordinated

    def _repair(self, now: float) -> Effects:
        """Elect nodes for the next CCQs that lack some."""
        moved, candidacies = list[Record](), list[Candidacy]()
        for _ in range(min(len(self._unchecked), REPAIRED_MAX)):
            ccq_id = self._unchecked.popleft()
            record = self._state.records.get(ccq_id)
            if record is None or record.ended is not None:
                continue
            if ccq_id in self:
                self._look_again(now + RETRY_S)
                continue
            staying, is_early = self._staying(record, now)
            missing = min(NODES_MAX, self._available(staying)) - len(staying)
            if is_early:
                self._look_again(now + REPAIR_AFTER_S / 2)
            if missing <= 0 and staying == record.nodes:
                continue
            self._running[ccq_id] = _Move(now + CHANGE_TIMEOUT_S, is_transfer=False)
            if missing > 0:
                excluded = (*staying, *record.nodes, *self._leaving)
                candidacies.append(Candidacy(ccq_id, count=missing, excluded=excluded))
            else:
                moved += self._repaired(record, (), now)
        effects = self._send(moved)
        return [*effects, ElectNodes(tuple(candidacies))] if candidacies else effects

    def _staying(self, record: Record, now: float) -> tuple[tuple[str, ...], bool]:
        """The nodes that a record goes on naming, and whether one may leave it later."""
        state, nodes, is_early = self._state, list[str](), False
        for node in record.nodes:
            if node in self._leaving or (node != state.me and node not in state.nodes):
                continue
            if node in state.dead and now >= state.dead[node] + REPAIR_AFTER_S:
                continue
            is_early |= node in state.dead
            nodes.append(node)
        return tuple(nodes), is_early

    @property
    def _leaving(self) -> tuple[str, ...]:
        return (self._state.me,) if self._state.is_draining else ()

    def _available(self, staying: tuple[str, ...]) -> int:
        """How many nodes a record could name."""
        state = self._state
        living = {node for node in state.nodes if not state.is_gone(node)}
        return len((living | {*staying}) - {*self._leaving})

    def _look_again(self, at: float) -> None:
        self._check_at = at if self._check_at is None else min(self._check_at, at)

    def _transferred(self, ccq_id: str, elected: tuple[str, ...], now: float) -> list[Record]:
        state = self._state
        coordinator = state.coordinated.get(ccq_id)
        if coordinator is None or not elected:
            del self._running[ccq_id]
            return []
        record = state.progress(ccq_id, now)
        others = (one for one in record.nodes if one not in (state.me, *elected))
        nodes = (*elected, *others)[:NODES_MAX]
        return [moved_to(record, nodes, holders=(state.holder_of(coordinator),))]

    def _repaired(self, record: Record, elected: tuple[str, ...], now: float) -> list[Record]:
        state = self._state
        staying, _ = self._staying(record, now)
        nodes = (*staying, *(node for node in elected if node not in staying))[:NODES_MAX]
        if nodes == record.nodes or all(map(state.is_gone, nodes)):
            del self._running[record.id]
            self._look_again(now + REPAIR_RETRY_S)
            return []
        known, led = state.progress(record.id, now), state.coordinated.get(record.id)
        holders = (state.holder_of(led),) if self._leaving and led is not None else ()
        return [moved_to(known, nodes, holders=holders)]

    def _send(self, records: list[Record]) -> list[ContinuousEffect]:
        """Have the leader make these moves."""
        for record in records:
            self._running[record.id] = replace(self._running[record.id], is_sent=True)
        return [ChangeRecords(tuple(map(move, records)))] if records else []
