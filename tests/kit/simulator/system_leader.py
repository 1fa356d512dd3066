"""A model of the system partition: the records of continuous queries at its leader, and followers.

The rows, their changes, and the pages that followers read are those of production
(`galileo.node.system_tables`), and so is what followers do with pages. The partition itself is a
model, since `system_world` judges the real one: the leader is a node that is up and connected with
a majority. It commits all changes that wait at a time, some time after they came. When it is lost,
there is none for a while, then another one, in a new term. Changes and answers cross the network,
which loses and repeats them. In some worlds, a new leader lacks the newest commits, as after
`galileo recover`.

The judge of this module looks at each commit: rows never go back, ends stay, limits are kept, and
what was acknowledged is there, unless it is lost with all nodes that had heard of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from galileo.ccq.model import Record
from galileo.ccq.placement import CcqChange, EndCcq, Lost, PlaceCcq, move, moved_to
from galileo.ccq.records import CCQ_ROWS, NODES_MAX, NOTHING, merged, topic_of
from galileo.election.election import Candidacy
from galileo.errors import GalileoError
from galileo.model.system_rows import Draft, Listing, OfferRow, Position, RowChange, RowPage, Rows
from simulator.checker import Checker, is_over
from simulator.loop import Loop, demand
from simulator.network import Network
from simulator.variants import Variant

if TYPE_CHECKING:
    from simulator.node import Node

COMMIT_MEAN_S = 0.03
WATCH_S = 0.25
ELECTION_S = 1.2
"""Without a leader, before there is another one."""
SWEEP_S = 1.0
FOLLOW_MAX_S = 0.6
"""Until a node that follows looks for news, which it hears of by gossip."""
ATTEMPT_S = 0.8
"""For the answer of a leader, before a change is repeated."""
PATIENCE_S = 3.0
LOSING_SHARE = 0.25
"""Share of the worlds in which commits are lost for good."""
LOST_MAX = 3
"""Commits that are lost at a change of the leader."""

Outcomes = Sequence[Record | GalileoError]


class Cluster(Protocol):
    """The interface of the world for the system partition."""

    loop: Loop
    network: Network
    checker: Checker
    variant: Variant
    is_calm: bool

    @property
    def members(self) -> list[Node]: ...

    def node(self, name: str) -> Node: ...

    def next_request(self) -> int: ...

    def end_again(self, ccq_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Loss:
    """A row that was lost with the newest commits.

    Attributes:
        value: that it had.
        term: of the leader that lacks it.
        known_to: the nodes that had heard of it, each with the number of its run.
    """

    value: Record
    term: int
    known_to: tuple[tuple[str, int], ...]


class SystemLeader:
    """The rows of all CCQs.

    Attributes:
        term: of the present leader, or of the last one.
        host: the node that leads; None: none does.
        acknowledged: the CCQs that were placed for a client.
        loses: whether commits are lost for good in this world.
    """

    def __init__(self, world: Cluster, seed: int) -> None:
        self._world = world
        self._loop = world.loop
        self._random = Random(f"system {seed}")
        self.kind = world.variant.rows
        self.term = 0
        self.host: str | None = None
        self.acknowledged: dict[str, None] = {}
        self.loses = self._random.random() < LOSING_SHARE
        self._epoch = 0
        self._rows = self._empty()
        self._log: list[dict[str, Record]] = []
        self._losses: dict[str, _Loss] = {}
        self._restored_at: dict[str, float] = {}
        self._waiting: list[tuple[Sequence[RowChange], Callable[[Outcomes], None]]] = []
        self._is_busy = False
        self._missing_since = 0.0
        self._outage_until = 0.0

    def start(self) -> None:
        self._watch()
        self._sweep()

    @property
    def rows(self) -> Mapping[str, Record]:
        """What is committed."""
        return {name: self._rows[name] for name in self._rows}

    def end_outage(self) -> None:
        self._outage_until = 0.0

    def begin_outage(self, seconds: float) -> None:
        """Let no node lead for a while."""
        self._loop.counters["outages of the system partition"] += 1
        self._loop.note("the system partition has no leader")
        self._outage_until = self._loop.now + seconds

    # --- who leads ------------------------------------------------------------------------------

    def leads(self, node: Node) -> bool:
        """Whether a node leads, and can commit."""
        return (node.name, node.epoch) == (self.host, self._epoch) and self._may_lead(node)

    def _may_lead(self, node: Node) -> bool:
        if not node.serves or not node.is_member or self._loop.now < self._outage_until:
            return False
        members = self._world.members
        connects = self._world.network.connects
        reached = sum(one.serves and connects(node.name, one.name) for one in members)
        return 2 * reached > len(members)

    def _watch(self) -> None:
        now = self._loop.now
        if self.host is None or not self.leads(self._world.node(self.host)):
            if now >= self._missing_since + ELECTION_S or not self.term:
                self._choose()
        else:
            self._missing_since = now
        self._loop.after(WATCH_S, self._watch)

    def _choose(self) -> None:
        able = [node for node in self._world.members if self._may_lead(node)]
        if not able:
            return
        node = self._random.choice(able)
        self.host, self._epoch, self.term = node.name, node.epoch, self.term + 1
        self._missing_since = self._loop.now
        self._loop.counters["leaders of the system partition"] += 1
        self._loop.note(f"{node.name} leads the system partition in term {self.term}")
        self._waiting = []
        if self.loses and not self._world.is_calm and self._random.random() < 0.5:
            self._lose(self._random.randint(1, LOST_MAX))
        self._rows = self._replayed()  # As a leader reads them: it knows no former topics.

    def _lose(self, count: int) -> None:
        """Lose the newest commits."""
        before = self._rows
        self._loop.counters["commits lost for good"] += len(self._log[-count:])
        lost = {name for changed in self._log[-count:] for name in changed}
        del self._log[-count:]
        after = self._replayed()
        for name in sorted(lost):
            value = before[name]
            if value == after[name] or value == NOTHING:
                continue
            self._loop.note(f"{value} is lost, and is {after[name]} now")
            up = [node for node in self._world.members if node.is_up]
            knowing = [node for node in up if _has(node.known().get(name, NOTHING), value)]
            known_to = tuple((node.name, node.epoch) for node in knowing)
            self._losses[name] = _Loss(value, self.term, known_to)
            if value.ended is not None and after[name].ended is None:
                self._world.checker.ends.pop(name, None)
                self._world.end_again(name)

    def _replayed(self) -> Rows[Record]:
        rows = self._empty()
        for sequence, changed in enumerate(self._log, 1):
            for name, value in changed.items():
                rows.put(name, value, sequence)
        return rows

    def _empty(self) -> Rows[Record]:
        return self._world.variant.rows_type(self.kind)

    def may_lack(self, ccq_id: str, *, since: float) -> bool:
        """Whether a CCQ that was placed may have been unknown at some time since then.

        Its record is lost until a node that had heard of it has listed the rows of the new leader
        and offered it.
        """
        if self._restored_at.get(ccq_id, -inf) >= since:
            return True
        loss = self._losses.get(ccq_id)
        return loss is not None and not self._is_offered(loss)

    def verify_restored(self) -> None:
        """Check that nodes have offered what they know of rows that were lost."""
        for name, loss in self._losses.items():
            demand(not self._is_offered(loss), f"{loss.value} was lost, and is {self._rows[name]}")

    def _is_offered(self, loss: _Loss) -> bool:
        """Whether a node that had heard of it has offered its records to the new leader."""
        nodes = ((self._world.node(name), epoch) for name, epoch in loss.known_to)
        return any(
            node.is_up and node.epoch == epoch and node.follower.offered_term >= loss.term
            for node, epoch in nodes
        )

    # --- changes --------------------------------------------------------------------------------

    def ask(
        self, node: Node, changes: Sequence[RowChange], take: Callable[[Outcomes], None]
    ) -> None:
        """Send changes to the leader once; `take` gets its answer, if one comes."""
        if self.host is None:
            return
        host = self._world.node(self.host)

        def answer(outcomes: Outcomes) -> None:
            self._world.network.send(host.name, node.name, lambda: take(outcomes))

        self._world.network.send(
            node.name, host.name, lambda: host.receive(lambda: self._queue(host, changes, answer))
        )

    def page(
        self, node: Node, after: Position, topic: str, take: Callable[[RowPage], None]
    ) -> None:
        """Ask the leader for the rows after a position."""
        if self.host is None:
            return
        host = self._world.node(self.host)

        def read() -> None:
            if self.leads(host):
                page = self._rows.page(after, topic, until=len(self._log), term=self.term)
                self._world.network.send(host.name, node.name, lambda: take(page))

        self._world.network.send(node.name, host.name, lambda: host.receive(read))

    def _queue(
        self, host: Node, changes: Sequence[RowChange], answer: Callable[[Outcomes], None]
    ) -> None:
        if not self.leads(host):
            return
        self._waiting.append((changes, answer))
        if not self._is_busy:
            self._is_busy = True
            self._loop.after(self._loop.delay(COMMIT_MEAN_S), lambda: self._commit(host))

    def _commit(self, host: Node) -> None:
        """Make the changes that wait in one commit, and answer them."""
        self._is_busy = False
        waiting, self._waiting = self._waiting, []
        if not self.leads(host):
            return
        draft: Draft[Any] = Draft(self._rows)
        answers = [(self._apply_all(changes, draft), answer) for changes, answer in waiting]
        conduct = self._world.variant.conduct
        is_kept = not (conduct.answers_uncommitted and self._random.random() < 0.1)
        if draft.changed and is_kept:
            self._judge(draft.changed)
            self._log.append(dict(draft.changed))
            for name, value in draft.changed.items():
                self._rows.put(name, value, len(self._log))
            self._loop.note(f"commit {len(self._log)}: {draft.changed}")
        for outcomes, answer in answers:
            answer(outcomes)

    def _apply_all(self, changes: Sequence[RowChange], draft: Draft[Any]) -> Outcomes:
        outcomes = list[Record | GalileoError]()
        for change in changes:
            mutant = self._world.variant.changes.get(type(change))
            try:
                change.apply(draft) if mutant is None else mutant(change, draft)
            except GalileoError as error:
                outcomes.append(error)
                self._note_expiry(change)
            else:
                outcomes.append(draft[change.name])
            if isinstance(change, PlaceCcq):
                self._judge_place(change, draft, outcomes[-1])
        return outcomes

    # --- the judge ------------------------------------------------------------------------------

    def _judge(self, changed: Mapping[str, Record]) -> None:
        """Rows only grow, and what has ended does not live again."""
        for name, value in changed.items():
            before = self._rows[name]
            if value == NOTHING:
                demand(before.ended is not None, f"{name} is removed alive")
                continue
            if before != NOTHING:
                demand(merged(before, value) == value, f"{name} went back: {before} to {value}")
            self._world.checker.verify_end(value, now=self._loop.now)
            loss = self._losses.get(name)
            if loss is not None and _is_restored(loss.value, value):
                self._loop.counters["rows restored"] += 1
                del self._losses[name]
                self._restored_at[name] = self._loop.now

    def _note_expiry(self, change: RowChange) -> None:
        """A CCQ that has expired where it runs has ended, though its row was lost before."""
        loss = self._losses.get(change.name)
        if loss is not None and isinstance(change, EndCcq) and change.ending == "expired":
            demand(is_over(loss.value.ccq, now=self._loop.now), f"{loss.value} expired early")
            del self._losses[change.name]

    def _judge_place(self, change: PlaceCcq, draft: Draft[Any], outcome: object) -> None:
        """As many CCQs live as may, counted one by one."""
        names = {*self._rows, *draft.changed}
        alive = [draft[name] for name in names if draft[name] != NOTHING]
        alive = [record for record in alive if record.ended is None]
        owner = CCQ_ROWS.value(change.data).ccq.owner
        of_owner = sum(record.ccq.owner == owner for record in alive)
        is_new = change.name in draft.changed and self._rows[change.name] == NOTHING
        kind = outcome.kind if isinstance(outcome, GalileoError) else ""
        if kind in ("overloaded", "quota_exceeded"):
            self._loop.counters["placements over a limit"] += 1
            is_full = len(alive) >= change.total_max or of_owner >= change.owned_max
            is_half = bool(owner) and of_owner >= change.total_max - len(alive)
            demand(is_full or is_half, f"{change.name} is refused below all limits: {outcome}")
        elif is_new and not kind:
            is_within = len(alive) <= change.total_max and of_owner <= change.owned_max
            demand(is_within, f"{change.name} is placed over a limit")

    # --- the leader's sweep ---------------------------------------------------------------------

    def _sweep(self) -> None:
        """Look at all records from time to time, as the server does."""
        host = None if self.host is None else self._world.node(self.host)
        if host is not None and self.leads(host):
            is_gone = host.machine.state.is_gone
            for record in list(self.rows.values()):
                due = self._world.variant.due_change(record, is_gone=is_gone, wall=host.wall)
                if isinstance(due, Lost):
                    self._elect(host, due.record)
                elif due is not None:
                    self._loop.counters[f"sweeps that {_verb(due)}"] += 1
                    self._queue(host, [due], lambda _: None)
        self._loop.after(SWEEP_S, self._sweep)

    def _elect(self, host: Node, record: Record) -> None:
        def move_to(nodes: Mapping[str, tuple[str, ...]]) -> None:
            if nodes[record.id]:
                self._loop.counters["records without living nodes"] += 1
                self._queue(host, [move(moved_to(record, nodes[record.id]))], lambda _: None)

        candidacy = Candidacy(record.id, NODES_MAX, excluded=record.nodes)
        host.elect((candidacy,), move_to)


class Follower:
    """One node that follows the records that name it, as `SystemTable` does.

    Attributes:
        offered_term: of the last leader whose rows this run of the node has listed, and to which it
            has offered what it lacks.
    """

    def __init__(self, node: Node, leader: SystemLeader, loop: Loop) -> None:
        self._node = node
        self._leader = leader
        self._loop = loop
        self._topic = topic_of(node=node.name)
        self.reset()

    def reset(self) -> None:
        """Know nothing, as a node that starts."""
        self.offered_term = 0
        self._position = Position()
        self._listing: Listing[Record] | None = Listing(self._leader.kind)
        self._offers: list[OfferRow] = []
        self._awaited: object = None

    def look(self) -> None:
        """Ask for the next page; again after a while, whether or not it comes."""
        if not self._offers:
            self._ask()
        self._node.later(self._loop.random.uniform(0.0, FOLLOW_MAX_S), self.look)

    def _take(self, token: object, page: RowPage) -> None:
        if self._awaited is not token:
            return
        self._awaited = None
        if page.is_anew:
            self._listing = Listing(self._leader.kind)
            self._loop.counters["listings"] += 1
        learned = self._leader.kind.values(page.rows)
        self._node.learn(learned)
        if self._listing is not None:
            self._listing.heard |= learned
        self._position = page.reached
        if not page.is_last:
            self._loop.counters["pages that are not the last"] += 1
            self._ask()
        elif self._listing is not None:
            self._offers = self._listing.missing(self._node.known())
            self._offer()

    def _ask(self) -> None:
        token = self._awaited = object()

        def take(page: RowPage) -> None:
            if self._awaited is token:
                self._node.receive(lambda: self._take(token, page))

        self._leader.page(self._node, self._position, self._topic, take)

    def _offer(self) -> None:
        """Offer what the leader lacks, one after the other; list again where one fails."""
        if self._node.is_silent or not self._offers:
            self._offers, self._listing = [], None
            self.offered_term = max(self.offered_term, self._position.term)
            return
        first = self._offers[0]
        self._loop.counters["offers"] += 1

        def take(outcomes: Outcomes | None) -> None:
            if outcomes is None:
                self._offers, self._position = [], Position()
                return
            outcome = outcomes[0]
            self._node.learn({first.name: outcome} if isinstance(outcome, Record) else {})
            self._offers = self._offers[1:]
            self._offer()

        self._node.change([first], take)


def _has(value: Record, other: Record) -> bool:
    """Whether a record has all that is in another one."""
    return merged(value, other) == value


def _is_restored(lost: Record, present: Record) -> bool:
    """Whether a row is as late as one that was lost; another move may have its revision."""
    is_over = present.ended is not None or lost.ended is None
    is_late = present.revision >= lost.revision
    return is_over and is_late and present.retrieved.covers(lost.retrieved)


def _verb(change: CcqChange) -> str:
    return {"EndCcq": "end", "ForgetCcq": "forget"}[type(change).__name__]
