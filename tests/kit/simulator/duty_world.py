"""Worlds of a duty that does next to nothing, driven by the production machine of duties.

A *watch* counts the ticks of its coordinator. `run_duties(seed)` plays one random history of
submissions, ends, crashes, drains and failing networks, and compares it with an oracle that keeps
no more than lists: a term begins once, each submitted watch has one coordinator in the end, which
does not drain, and one that ended or expired has none and stays so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from galileo.election.duties import Duties
from galileo.election.elections import CoordinatorElections
from galileo.election.events import (
    AnswerSubmit,
    DrainRequested,
    Effects,
    MessageArrived,
    PurgeRecord,
    RecordsLoaded,
    RefuseSubmit,
    SaveRecord,
    Send,
    Ticked,
    UsageMeasured,
)
from galileo.election.gossip import Gossip
from galileo.election.machine import ElectionOptions
from galileo.election.messages import AssignmentAccepted, UsageStatistics
from galileo.election.model import merge_terms
from galileo.election.options import DutyOptions
from galileo.election.state import DutyState
from galileo.errors import Failure
from simulator.loop import Loop, demand
from simulator.network import Network

TICK_S = 0.1
FAULTS_UNTIL_S = 16.0
QUIET_S = 14.0
WALL = 1_000_000.0
NEVER = WALL + 1e6
Began = Callable[[str, int, int], None]


# --- the duty ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WatchRecord:
    """`ticks` is the progress of all terms."""

    id: str
    expires_at: float
    term: int = 0
    coordinator: str = ""
    ended: str | None = None
    ended_at: float = 0.0
    ticks: int = 0

    @property
    def participants(self) -> tuple[str, ...]:
        return (self.coordinator,)

    def is_same_duty(self, other: WatchRecord) -> bool:
        return self.expires_at == other.expires_at

    def merge(self, other: WatchRecord) -> WatchRecord:
        return replace(merge_terms(self, other), ticks=max(self.ticks, other.ticks))


@dataclass(slots=True)
class Watch:
    term: int
    ticks: int


class WatchState(DutyState[WatchRecord, Watch]):
    noun = ("watch", "watches")
    began: Began

    def begin_term(self, record: WatchRecord, now: float) -> Watch:
        self.began(record.id, record.term, record.ticks)
        return Watch(record.term, record.ticks)

    def stop_term(self, former: Watch, record: WatchRecord, now: float) -> Effects:
        return []

    def end_reason(self, record: WatchRecord) -> Failure:
        return Failure("ended", f"{record.id} has {record.ended}")

    def unknown_failure(self, duty_id: str) -> Failure:
        return Failure("unknown", f"there is no {duty_id}")

    def save_progress(self, duty_id: str) -> None:
        record, ticks = self.record_table.records[duty_id], self.coordinated[duty_id].ticks
        if ticks > record.ticks:
            self.record_table.update(replace(record, ticks=ticks))


@dataclass(frozen=True, slots=True)
class Submit:
    request: int
    record: WatchRecord
    need_bytes: int = 0
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """End a watch at a node that has its record."""

    duty_id: str


@dataclass(frozen=True, slots=True)
class Suspected:
    node: str
    is_dead: bool


class Watches(Duties[WatchRecord, Watch]):
    """Also the mutants derive from it."""

    state_type = WatchState
    before_loaded = (*Duties.before_loaded, Suspected)

    def __init__(self, me: str, options: DutyOptions, began: Began) -> None:
        self.state = self.state_type(me, options)
        self.state.began = began
        super().__init__(self.state)
        self._handlers |= {
            Submit: self._on_submit,
            End: self._on_end,
            Suspected: lambda event, _: self._set_dead(event.node, is_dead=event.is_dead),
        }

    def _on_end(self, event: End, now: float) -> Effects:
        record = self.state.record_table.get(event.duty_id)
        return self.state.end(record, "stood_down", now) if record is not None else []

    def _work(self, now: float) -> Effects:
        for watch in self.state.coordinated.values():
            watch.ticks += 1
        return []


# --- mutants -------------------------------------------------------------------------------------


class _CountTerms(WatchState):
    """Takes the next number as term, even where another node takes it, too."""

    def with_next_term(self, record: WatchRecord, coordinator: str) -> WatchRecord:
        mine = self.record_table.get(record.id) or record
        return replace(mine, term=mine.term + 1, coordinator=coordinator)


class _IgnoreEnds(WatchState):
    """Ignores ends that come from other nodes."""

    def learn_record(self, incoming: WatchRecord, now: float) -> Effects:
        return super().learn_record(replace(incoming, ended=None, ended_at=0.0), now)


class _LoseProgress(WatchState):
    """Begins anew in each term."""

    def begin_term(self, record: WatchRecord, now: float) -> Watch:
        return super().begin_term(replace(record, ticks=0), now)


class _NeverTakeOver(CoordinatorElections[WatchRecord, Watch]):
    """Leaves the duties of dead nodes alone."""

    def start_failover(self, now: float) -> Effects:
        return []


class _NeverDrain(CoordinatorElections[WatchRecord, Watch]):
    """Takes on no further duties, and keeps those that it has."""

    def drain(self, now: float) -> Effects:
        return []


class _ForgetFirst(Gossip[WatchRecord, Watch]):
    """Forgets a record that it need not have before its replicas have it."""

    def _push_surplus(self, now: float) -> Effects:
        table = self._state.record_table
        ids = [duty_id for duty_id in table.surplus if not self._is_in_use(duty_id)]
        for duty_id in ids:
            table.forget(duty_id)
        return [PurgeRecord(duty_id) for duty_id in ids]


class _ResumeInTerm(Watches):
    """After a restart, goes on at once in the old term."""

    def _on_records_loaded(self, event: RecordsLoaded[WatchRecord], now: float) -> Effects:
        effects = super()._on_records_loaded(event, now)
        for duty_id in self.state.resuming:
            record = self.state.record_table.records[duty_id]
            self.state.coordinated[duty_id] = self.state.begin_term(record, now)
        self.state.resuming = {}
        return effects


class _SaveLast(Watches):
    """Sends first and saves afterwards."""

    def step(self, event: Any, now: float) -> Effects:
        effects = super().step(event, now)
        return sorted(effects, key=lambda effect: isinstance(effect, SaveRecord))


def _with(**parts: type[Any]) -> type[Watches]:
    return type("Mutant", (Watches,), parts)


DUTY_MUTANTS: dict[str, type[Watches]] = {
    "": Watches,
    "count_terms": _with(state_type=_CountTerms),
    "ignore_ends": _with(state_type=_IgnoreEnds),
    "lose_progress": _with(state_type=_LoseProgress),
    "never_take_over": _with(elections_type=_NeverTakeOver),
    "never_drain": _with(elections_type=_NeverDrain),
    "forget_first": _with(gossip_type=_ForgetFirst),
    "resume_in_term": _ResumeInTerm,
    "save_last": _SaveLast,
}


# --- the world -----------------------------------------------------------------------------------


def _terms_of(effect: Any) -> list[tuple[str, int]]:
    """The terms that an effect puts on the disk or makes known to others."""
    at = effect.message if isinstance(effect, Send) else effect
    if isinstance(at, AnswerSubmit | AssignmentAccepted):
        return [(at.ccq_id, at.term)]
    records = getattr(at, "records", (getattr(at, "record", None),))
    return [(record.id, record.term) for record in records if record is not None]


class Oracle:
    """Attributes:
    terms: the node that began each term of each watch, and saved that, made it known or worked.
    submitted: watches whose submission was answered.
    ended: watches that were ended before their expiry.
    """

    def __init__(self) -> None:
        self.terms: dict[tuple[str, int], str] = {}
        self.submitted: set[str] = set()
        self.ended: set[str] = set()

    def begin(self, node: str, duty_id: str, term: int) -> None:
        first = self.terms.setdefault((duty_id, term), node)
        demand(first == node, f"{node} begins term {term} of {duty_id}, which {first} began")


class Node:
    """A process with a disk; `run` is the number of its present life, 0 while it is down."""

    def __init__(self, name: str, ordinal: int, world: DutyWorld) -> None:
        self.name, self.world, self.ordinal = name, world, ordinal
        self.disk: dict[str, WatchRecord] = {}
        self.unsynced: dict[str, WatchRecord] = {}
        self.is_up, self.runs, self.is_draining = False, 0, False
        self._begun: set[tuple[str, int]] = set()

    def boot(self) -> None:
        self.is_up, self.runs = True, self.runs + 1
        options, loop = self.world.options(self.ordinal), self.world.loop
        self.machine = self.world.machine(self.name, options, self._began)
        self.feed(RecordsLoaded(tuple(self.disk.values()), WALL + loop.now))
        self.feed(UsageMeasured(UsageStatistics(loop.random.random(), 1 << 30)))
        self.feed(DrainRequested(self.is_draining))
        self._tick(self.runs)

    def crash(self) -> None:
        self.is_up = False
        for duty_id, record in self.unsynced.items():  # Some of what is not synced is lost.
            if self.world.loop.chance(0.5):
                self.disk[duty_id] = record
        self.unsynced = {}

    def feed(self, event: Any) -> None:
        if not self.is_up:
            return
        effects = self.machine.step(event, self.world.loop.now)
        self.machine.check()
        self.world.loop.note(f"{self.name} {type(event).__name__} => {effects}")
        begun, self._begun = self._begun, set()
        for effect in effects:
            if self.world.is_faulty and self.world.loop.chance(0.01):
                self.world.crash(self)  # In the middle of a step.
                return
            self._report_begun(begun & set(_terms_of(effect)))
            self._execute(effect)
        self._report_begun((i, watch.term) for i, watch in self.machine.coordinated.items())

    def _report_begun(self, terms: Iterable[tuple[str, int]]) -> None:
        for duty_id, term in terms:
            self.world.oracle.begin(f"{self.name} in run {self.runs}", duty_id, term)

    def _execute(self, effect: Any) -> None:
        if isinstance(effect, SaveRecord):
            self.unsynced.pop(effect.record.id, None)
            (self.disk if effect.durable else self.unsynced)[effect.record.id] = effect.record
        elif isinstance(effect, PurgeRecord):
            self.disk.pop(effect.ccq_id, None)
            self.unsynced.pop(effect.ccq_id, None)
        elif isinstance(effect, Send):
            self.world.send(self.name, effect.to, effect.message)
        else:
            self.world.answered(effect)

    def _began(self, duty_id: str, term: int, ticks: int) -> None:
        self._begun.add((duty_id, term))
        record = self.disk.get(duty_id)
        saved = record.ticks if record is not None else 0
        demand(ticks >= saved, f"{duty_id} begins at {ticks} ticks, {saved} were saved")

    def _tick(self, run: int) -> None:
        if self.is_up and run == self.runs:
            self.feed(Ticked(WALL + self.world.loop.now))
            self.world.loop.after(TICK_S, lambda: self._tick(run))


class DutyWorld:
    """Three to six nodes and three watches: one stays, one ends, one expires."""

    def __init__(
        self, seed: int, machine: type[Watches], *, trace: Callable[[str], None] | None = None
    ) -> None:
        self.loop = loop = Loop(seed, trace=trace)
        self.network = Network(loop)
        self.machine, self.oracle, self.is_faulty = machine, Oracle(), False
        names = [f"n{number}" for number in range(loop.random.randint(3, 6))]
        border = loop.random.randint(1, len(names) - 1)
        self._groups = (tuple(names[:border]), tuple(names[border:]))
        self.nodes = {name: Node(name, number, self) for number, name in enumerate(names)}
        self._requests: dict[int, str] = {}
        self._watches = {
            "stays": WatchRecord("stays", NEVER),
            "ends": WatchRecord("ends", NEVER),
            "expires": WatchRecord("expires", WALL + loop.random.uniform(6.0, 20.0)),
        }

    def options(self, ordinal: int) -> DutyOptions:
        return DutyOptions(
            ordinal=ordinal,
            groups=self._groups,
            election=ElectionOptions(poll_timeout_s=0.3, appoint_timeout_s=0.6),
            surplus_s=2.5,
            submit_timeout_s=3.0,
            locate_timeout_s=1.5,
            takeover_stagger_s=0.7,
            resume_check_s=0.6,
            expiry_grace_s=3.0,
            tombstone_slack_s=200.0,
        )

    def play(self) -> Counter[str]:
        loop = self.loop
        for node in self.nodes.values():
            node.boot()
        for record in self._watches.values():
            self._submit(record)
        loop.after(loop.random.uniform(3.0, 15.0), self._end_one)
        loop.after(1.5, self._fault)
        self.is_faulty = True
        loop.run_until(FAULTS_UNTIL_S)
        self.is_faulty = False
        self.network.heal()
        draining = loop.random.choice(list(self.nodes)) if loop.chance(0.5) else ""
        for name, node in self.nodes.items():
            if not node.is_up:
                self.boot(node)
            self._set_draining(node, name == draining)
        loop.run_until(FAULTS_UNTIL_S + QUIET_S)
        if loop.chance(0.5):  # One node more dies, for good.
            self.crash(loop.random.choice([n for n in self.nodes.values() if not n.is_draining]))
            loop.run_until(loop.now + QUIET_S)
        self._demand_all()
        return loop.counters

    # --- what nodes see --------------------------------------------------------------------------

    def send(self, sender: str, to: str, message: Any) -> None:
        receiver = self.nodes[to]
        self.network.send(sender, to, lambda: receiver.feed(MessageArrived(sender, message)))

    def answered(self, effect: Any) -> None:
        if isinstance(effect, AnswerSubmit):
            self.oracle.submitted.add(self._requests[effect.request])
            self.loop.counters["submitted"] += 1
        else:
            assert isinstance(effect, RefuseSubmit)
            self.loop.counters["submissions refused"] += 1

    # --- what happens ----------------------------------------------------------------------------

    def _submit(self, record: WatchRecord) -> None:
        """Submit a watch, again and again until one node has answered."""
        if record.id in self.oracle.submitted or record.id in self.oracle.ended:
            return
        number = len(self._requests)
        self._requests[number] = record.id
        self.loop.random.choice(list(self.nodes.values())).feed(Submit(number, record))
        self.loop.after(self.loop.random.uniform(0.5, 4.0), lambda: self._submit(record))

    def _end_one(self) -> None:
        """End a watch at some node that knows it."""
        node = self.loop.random.choice(list(self.nodes.values()))
        if node.is_up and node.machine.state.record_table.get("ends") is not None:
            node.feed(End("ends"))
            if node.disk["ends"].ended is not None:
                self.oracle.ended.add("ends")
                self.loop.counters["ended"] += 1
                return
        self.loop.after(0.2, self._end_one)

    def _fault(self) -> None:
        if not self.is_faulty:
            return
        loop = self.loop
        node = loop.random.choice(list(self.nodes.values()))
        kind = loop.random.choice(("crash", "crash", "suspect", "drain", "cut", "loss", "heal"))
        loop.counters[kind] += 1
        if kind == "crash":
            self.crash(node)
        elif kind == "suspect":
            self._report(node.name, is_dead=True)
            loop.after(loop.random.uniform(0.5, 4.0), lambda: self._report(node.name))
        elif kind == "drain":
            self._set_draining(node, not node.is_draining)
        elif kind == "cut":
            self.network.cut(node.name, loop.random.choice(list(self.nodes)))
        elif kind == "loss":
            self.network.loss, self.network.repetition = 0.2, 0.2
        else:
            self.network.heal()
        loop.after(loop.random.expovariate(1.0), self._fault)

    def crash(self, node: Node) -> None:
        """End a process; its peers notice some time later, and in time of faults it boots again."""
        if not node.is_up:
            return
        node.crash()
        run = node.runs
        self.loop.after(
            self.loop.random.uniform(0.5, 1.5),
            lambda: (
                None if node.is_up and node.runs > run else self._report(node.name, is_dead=True)
            ),
        )
        if self.is_faulty:
            self.loop.after(self.loop.random.uniform(0.3, 5.0), lambda: self.boot(node))

    def boot(self, node: Node) -> None:
        if node.is_up:
            return
        node.boot()
        self._report(node.name)
        for other in self.nodes.values():
            if not other.is_up:
                node.feed(Suspected(other.name, is_dead=True))

    def _report(self, name: str, *, is_dead: bool = False) -> None:
        if not is_dead and not self.nodes[name].is_up:
            return
        for node in self.nodes.values():
            if node.name != name:
                node.feed(Suspected(name, is_dead))

    def _set_draining(self, node: Node, is_on: bool) -> None:
        node.is_draining = is_on
        node.feed(DrainRequested(is_on))

    # --- what must hold --------------------------------------------------------------------------

    def _demand_all(self) -> None:
        live = [node for node in self.nodes.values() if node.is_up]
        holders = {
            duty_id: [node for node in live if duty_id in node.machine.coordinated]
            for duty_id in self._watches
        }
        expired = {i for i, r in self._watches.items() if r.expires_at < WALL + self.loop.now}
        for duty_id in self.oracle.submitted:
            is_over = duty_id in self.oracle.ended or duty_id in expired
            names = [node.name for node in holders[duty_id]]
            demand(len(names) == (not is_over), f"{duty_id} is coordinated by {names}")
            self._demand_known(duty_id, live, is_over=is_over)
        draining = [n.name for nodes in holders.values() for n in nodes if n.is_draining]
        demand(not draining, f"{draining} drain, and have duties")
        self.loop.counters["terms"] += len(self.oracle.terms)

    def _demand_known(self, duty_id: str, live: Iterable[Node], *, is_over: bool) -> None:
        """The live replicas have a record of the newest term that began, or know of the end.

        A replica that never had a record of a watch that is over need not get one.
        """
        tables = {node.name: node.machine.state.record_table for node in live}
        replicas = next(iter(tables.values())).replicas(duty_id)
        newest = max(term for one, term in self.oracle.terms if one == duty_id)
        for name in set(replicas) & set(tables):
            record = tables[name].get(duty_id)
            if is_over:
                demand(record is None or record.ended is not None, f"{duty_id} lives on at {name}")
            else:
                known = record.term if record is not None and record.ended is None else 0
                demand(known >= newest, f"{duty_id}: {newest} began, {known} is known at {name}")


def run_duties(
    seed: int, mutant: str = "", *, trace: Callable[[str], None] | None = None
) -> Counter[str]:
    """Play the world of this seed.

    Args:
        seed: of the random generators.
        mutant: a name of `DUTY_MUTANTS`.
        trace: called with each event as a line.

    Raises:
        Violation: the history is not one that the oracle allows.
    """
    return DutyWorld(seed, DUTY_MUTANTS[mutant], trace=trace).play()
