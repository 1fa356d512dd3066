"""A replicated register: a value that some nodes agree on, such as the topology of a cluster.

Theory of operation. The register is CASPaxos (Rystsov, "CASPaxos: Replicated State Machines without
logs", 2018): single-decree Paxos, repeated. A proposer asks the voters to promise a ballot, learns
the entry with the highest ballot that they accepted, applies a change to it, and asks them to
accept the result. An entry that a majority has accepted is chosen; each later entry is a change of
it. There is no log, no leader and no election, because the values change rarely.

The voters are named by the entry itself. An entry also names the voters of the entry that it
changes (`former`), and is chosen when a majority of each has accepted it. A proposer that finds an
entry which it does not know to be chosen has it chosen first, so two changes of the voters never
overlap. A node that asks a majority of the voters of a chosen entry learns whether a later one
exists. If none of these voters is left, it learns that from another node that it asks.

A voter that lost its directory has forgotten what it promised and accepted, so it is another voter.
Entries therefore name each voter by its *seat*, `node@directory` with the random name of its
directory, and an answer counts for the seat of its sender alone. A node with another directory than
the chosen entry names has its seat changed as any change of the voters (`reseat`). A first entry
cannot name directories, and a voter that is asked cannot tell whether it had another one before.
Its seats may be open, `node@`: then all of them must answer the first change, which names the
directories that have answered, so that each one of them knows the names. Seats may also be bare
names, as those of the first topology and of voters whose directories a recovery gave up: any
directory counts for them, until a change names those that answer it. The only voter of an entry is
counted with any directory, because no other node has what it lost.

A change must be idempotent, because a proposer that got no answer cannot know whether its entry
will be chosen.

Invariants: a version has one content; versions of chosen entries increase with their ballots; a
ballot has one proposer and at most one entry, over all directories of a node. What a node promises,
accepts, or uses as a ballot is durable before another node hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from galileo.errors import GalileoError, Unavailable
from galileo.hashing import text64

ROUND_S = 0.25
"""Interval at which a proposer repeats its messages."""
BALLOT_S = 1.5
"""Time after which a proposer gives up a ballot."""
BACKOFF_S = 0.4
"""The longest pause before the next ballot."""
CHANGE_S = 15.0
"""Time after which a change is given up."""
NODES_MAX = 4096
"""Ballots are `round * NODES_MAX + ordinal`."""
LOTS = 1 << 20
"""A directory uses the rounds of its lot, which a hash of its name draws: a lost directory of the
same node may have used the others, and its messages may still arrive."""
VOTERS_MAX = 5
_AT = "@"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the register.

    Attributes:
        version: of the value, from 1; a change increases it by one.
        voters: the seats of the nodes that store the register.
        former: the voters of the version before.
        data: the value itself.
    """

    version: int
    voters: tuple[str, ...]
    former: tuple[str, ...]
    data: str


@dataclass(frozen=True, slots=True)
class Ballot:
    """An entry with the ballot in which it was accepted; ballot 0 is that of the first entry."""

    number: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class RegisterState:
    """What a node stores durably.

    Attributes:
        promised: the highest ballot that it has promised.
        used: the highest ballot that it has used as proposer.
        accepted: the entry of the highest ballot that it has accepted.
        chosen: the last entry that it knows to be chosen.
    """

    promised: int
    used: int
    accepted: Ballot
    chosen: Ballot


# --- messages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    ballot: int


@dataclass(frozen=True, slots=True)
class Promise:
    ballot: int
    accepted: Ballot
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Accept:
    ballot: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Accepted:
    ballot: int
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """The receiver's ballot is lower than one that was promised."""

    ballot: int
    promised: int


@dataclass(frozen=True, slots=True)
class Learn:
    """Announces a chosen entry."""

    chosen: Ballot


@dataclass(frozen=True, slots=True)
class Learned:
    """The sender has stored a chosen entry of this ballot, or a later one."""

    ballot: int
    directory: str = ""


RegisterMessage: TypeAlias = Prepare | Promise | Accept | Accepted | Reject | Learn | Learned

# --- events and effects ------------------------------------------------------------------------

Change: TypeAlias = Callable[[Entry], Entry]
"""Makes the next entry from a chosen one; the register sets its version and former voters.

Idempotent: an entry that is changed already is returned as it is. Raises a GalileoError to refuse.
"""


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """`advisors` are asked, too, whether they know of a later entry; they have no vote by that."""

    request: int
    change: Change
    advisors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterMessageArrived:
    sender: str
    message: RegisterMessage


@dataclass(frozen=True, slots=True)
class RegisterTicked:
    """Time has passed; due several times per `ROUND_S` while `is_busy`."""


RegisterEvent: TypeAlias = ChangeRequested | RegisterMessageArrived | RegisterTicked


@dataclass(frozen=True, slots=True)
class SaveState:
    """Stores the state durably, before any effect that follows."""

    state: RegisterState


@dataclass(frozen=True, slots=True)
class SendTo:
    to: str
    message: RegisterMessage


@dataclass(frozen=True, slots=True)
class EntryChosen:
    """A later entry than all before it is known to be chosen."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class ChangeFinished:
    """The outcome of a change: the chosen entry, or why there is none."""

    request: int
    outcome: Entry | GalileoError


RegisterEffect: TypeAlias = SaveState | SendTo | EntryChosen | ChangeFinished
Effects: TypeAlias = list[RegisterEffect]

# --- the machine -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Proposal:
    """A running change.

    Attributes:
        answered: the seats that have answered in this phase.
        ballot: the present one, 0 in a pause.
        above: the highest ballot that a voter has promised to others.
        best: the entry with the highest ballot among the promises.
        proposed: what the voters are asked to accept; None while they are asked to promise.
        spreading: what was chosen, while it is sent to the voters.
    """

    request: int
    change: Change
    deadline: float
    advisors: tuple[str, ...] = ()
    ballot: int = 0
    above: int = 0
    started: float = 0.0
    repeated: float = 0.0
    resumes: float = 0.0
    answered: set[str] = field(default_factory=set)
    best: Ballot | None = None
    proposed: Entry | None = None
    spreading: Ballot | None = None


class Register:
    """One node's part of the register, as voter and as proposer.

    Args:
        me: name of this node.
        ordinal: its number, which no other node ever has.
        state: as stored, or `first_state`.
        directory: random name of the directory with the state.
        what: the value, for errors.
    """

    def __init__(
        self,
        me: str,
        ordinal: int,
        state: RegisterState,
        *,
        directory: str = "",
        what: str = "the topology",
    ) -> None:
        self.me = me
        self.what = what
        self.directory = directory
        self.state = state
        self._ordinal = ordinal
        self._lot = text64("ballots", directory) % LOTS
        self._waiting: list[ChangeRequested] = []
        self._proposal: _Proposal | None = None

    @property
    def chosen(self) -> Entry:
        """The last entry that this node knows to be chosen."""
        return self.state.chosen.entry

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way, which needs ticks."""
        return self._proposal is not None

    def step(self, event: RegisterEvent, now: float) -> Effects:
        if isinstance(event, ChangeRequested):
            self._waiting.append(event)
            return self._start_next(now)
        if isinstance(event, RegisterMessageArrived):
            return self._on_message(event.sender, event.message, now)
        return self._on_tick(now)

    def check(self) -> None:
        state = self.state
        assert state.chosen.number <= state.accepted.number, "chosen without being accepted"
        assert state.accepted.number <= state.promised, "accepted below the promise"

    # --- voter ---------------------------------------------------------------------------------

    def _on_message(self, sender: str, message: RegisterMessage, now: float) -> Effects:
        if isinstance(message, Prepare):
            return self._on_prepare(sender, message)
        if isinstance(message, Accept):
            return self._on_accept(sender, message)
        if isinstance(message, Learn):
            return self._on_learn(sender, message)
        return self._on_answer(sender, message, now)

    def _on_prepare(self, sender: str, message: Prepare) -> Effects:
        # An equal ballot is of the same proposer: its message is repeated.
        if message.ballot < self.state.promised:
            return [SendTo(sender, Reject(message.ballot, self.state.promised))]
        effects = self._save(promised=message.ballot)
        return [*effects, SendTo(sender, self._promise(message.ballot))]

    def _promise(self, ballot: int) -> Promise:
        return Promise(ballot, self.state.accepted, self.directory)

    def _on_accept(self, sender: str, message: Accept) -> Effects:
        if message.ballot < self.state.promised:
            return [SendTo(sender, Reject(message.ballot, self.state.promised))]
        accepted = Ballot(message.ballot, message.entry)
        effects = self._save(promised=message.ballot, accepted=accepted)
        return [*effects, SendTo(sender, Accepted(message.ballot, self.directory))]

    def _on_learn(self, sender: str, message: Learn) -> Effects:
        effects = self._learn(message.chosen)
        return [*effects, SendTo(sender, Learned(self.state.chosen.number, self.directory))]

    def _learn(self, chosen: Ballot) -> Effects:
        """Store a chosen entry; it counts as accepted, too."""
        state = self.state
        if chosen.number <= state.chosen.number:
            return []
        accepted = max(state.accepted, chosen, key=lambda one: one.number)
        promised = max(state.promised, chosen.number)
        effects = self._save(promised=promised, accepted=accepted, chosen=chosen)
        return [*effects, EntryChosen(chosen.entry)]

    def _save(self, **changes: Ballot | int) -> Effects:
        changed = replace(self.state, **changes)  # type: ignore[arg-type]
        if changed == self.state:
            return []
        self.state = changed
        return [SaveState(changed)]

    # --- proposer ------------------------------------------------------------------------------

    def _start_next(self, now: float) -> Effects:
        if self._proposal is not None or not self._waiting:
            return []
        event = self._waiting.pop(0)
        deadline = now + CHANGE_S
        self._proposal = _Proposal(event.request, event.change, deadline, event.advisors)
        return self._prepare(self._proposal, now)

    def _prepare(self, proposal: _Proposal, now: float) -> Effects:
        """Begin a ballot that is higher than all that this node has seen."""
        last = max(self.state.promised, self.state.used, proposal.above)
        after = last // NODES_MAX + 1
        proposal.ballot = (after + (self._lot - after) % LOTS) * NODES_MAX + self._ordinal
        proposal.started, proposal.resumes = now, now
        proposal.answered, proposal.proposed, proposal.spreading = set(), None, None
        proposal.best = self.state.chosen
        effects = self._save(used=proposal.ballot)
        return [*effects, *self._ask(proposal, now)]

    def _on_answer(self, sender: str, message: RegisterMessage, now: float) -> Effects:
        proposal = self._proposal
        if proposal is None:
            return []
        if isinstance(message, Learned):
            return self._on_learned(proposal, sender, message, now)
        if not isinstance(message, Promise | Accepted | Reject):
            return []
        if message.ballot != proposal.ballot or proposal.spreading is not None:
            return []
        if isinstance(message, Reject):
            return self._back_off(proposal, message.promised, now)
        # A promise that comes late, after the proposal, does not accept it.
        if isinstance(message, Promise) is not (proposal.proposed is None):
            return []
        proposal.answered.add(seat_of(sender, message.directory))
        if isinstance(message, Promise):
            return self._on_promise(proposal, message, now)
        assert proposal.proposed is not None
        if self._is_quorum(proposal.answered, *self._quorums(proposal.proposed)):
            return self._on_chosen(proposal, Ballot(proposal.ballot, proposal.proposed), now)
        return []

    def _on_promise(self, proposal: _Proposal, message: Promise, now: float) -> Effects:
        assert proposal.best is not None
        proposal.best = max(proposal.best, message.accepted, key=lambda one: one.number)
        is_chosen = proposal.best.number <= self.state.chosen.number
        base = self.state.chosen.entry if is_chosen else proposal.best.entry
        quorums = (base.voters,) if is_chosen else self._quorums(base)
        if not self._is_quorum(proposal.answered, *quorums):
            return self._ask(proposal, now)  # Those that the best entry names.
        # A majority may have accepted it, so this ballot may propose nothing else.
        if not is_chosen:
            return self._propose(proposal, base, now)
        try:
            entry = proposal.change(base)
        except GalileoError as error:
            return self._finish(proposal, error, now)
        # It was changed before, maybe by a ballot of this very change whose answers were lost.
        if entry == base:
            return self._spread(proposal, self.state.chosen, now)
        voters = self._named(entry.voters, proposal.answered)
        entry = replace(entry, version=base.version + 1, voters=voters, former=base.voters)
        return self._propose(proposal, entry, now)

    def _propose(self, proposal: _Proposal, entry: Entry, now: float) -> Effects:
        proposal.answered, proposal.proposed = set(), entry
        return self._ask(proposal, now)

    def _on_chosen(self, proposal: _Proposal, chosen: Ballot, now: float) -> Effects:
        """Spread what was chosen, if it is the change; else begin the change itself."""
        effects = self._learn(chosen)
        try:
            is_done = proposal.change(chosen.entry) == chosen.entry
        except GalileoError as error:
            return [*effects, *self._finish(proposal, error, now)]
        following = self._spread(proposal, chosen, now) if is_done else self._prepare(proposal, now)
        return [*effects, *following]

    def _spread(self, proposal: _Proposal, chosen: Ballot, now: float) -> Effects:
        """Tell the voters; the change is finished when a majority has stored the entry."""
        proposal.answered, proposal.spreading = set(), chosen
        return self._ask(proposal, now)

    def _on_learned(
        self, proposal: _Proposal, sender: str, message: Learned, now: float
    ) -> Effects:
        spreading = proposal.spreading
        if spreading is None or message.ballot < spreading.number:
            return []
        proposal.answered.add(seat_of(sender, message.directory))
        if not self._is_quorum(proposal.answered, spreading.entry.voters):
            return []
        return self._finish(proposal, spreading.entry, now)

    def _finish(self, proposal: _Proposal, outcome: Entry | GalileoError, now: float) -> Effects:
        self._proposal = None
        return [ChangeFinished(proposal.request, outcome), *self._start_next(now)]

    def _back_off(self, proposal: _Proposal, promised: int, now: float) -> Effects:
        """Pause for a time that differs between nodes, then begin a higher ballot."""
        share = text64("register", self.me, proposal.ballot) / 2**64
        # Until then no answer counts: a lost directory of this node may have used the other ballot.
        proposal.ballot, proposal.above = 0, max(proposal.above, promised)
        proposal.answered, proposal.resumes = set(), now + share * BACKOFF_S
        return []

    def _on_tick(self, now: float) -> Effects:
        proposal = self._proposal
        if proposal is None:
            return []
        if now >= proposal.deadline:
            return self._finish(proposal, self._unanswered(proposal), now)
        if proposal.resumes > proposal.started:
            return self._prepare(proposal, now) if now >= proposal.resumes else []
        # What is chosen needs no other ballot, only more answers.
        if proposal.spreading is None and now >= proposal.started + BALLOT_S:
            return self._back_off(proposal, proposal.ballot, now)
        return self._ask(proposal, now) if now >= proposal.repeated + ROUND_S else []

    def _unanswered(self, proposal: _Proposal) -> Unavailable:
        voters = self.chosen.voters
        silent = sorted(node_of(one) for one in voters if not _answers(one, proposal.answered))
        needed = "each" if any(map(_is_open, voters)) else "a majority"
        return Unavailable(
            f"{self.what} could not be changed: {needed} of {', '.join(map(node_of, voters))} "
            f"must answer, and {', '.join(silent)} did not; start them, and repeat the command, "
            "which goes on where it stopped",
            after_s=5.0,
            nodes=silent,
        )

    def _ask(self, proposal: _Proposal, now: float) -> Effects:
        """Send the present question to those that have not answered it."""
        proposal.repeated = now
        message: RegisterMessage
        assert proposal.best is not None
        if proposal.spreading is not None:
            message, entry = Learn(proposal.spreading), proposal.spreading.entry
        elif proposal.proposed is not None:
            message, entry = Accept(proposal.ballot, proposal.proposed), proposal.proposed
        else:
            message, entry = Prepare(proposal.ballot), proposal.best.entry
        answered = set(map(node_of, proposal.answered))
        seats = (seat for quorum in self._quorums(entry) for seat in quorum)
        advisors = proposal.advisors if isinstance(message, Prepare) else ()
        asked = [
            node
            for node in dict.fromkeys((*map(node_of, seats), *advisors))
            if node not in answered
        ]
        effects: Effects = [SendTo(node, message) for node in asked if node != self.me]
        if self.me in asked:
            effects = [*self._ask_self(message, now), *effects]
        return effects

    def _ask_self(self, message: RegisterMessage, now: float) -> Effects:
        """Answer the own question; the effects of the next phase follow those of the voter."""
        effects: Effects = []
        for effect in self._on_message(self.me, message, now):
            if isinstance(effect, SendTo):
                effects += self._on_answer(self.me, effect.message, now)
            else:
                effects.append(effect)
        return effects

    def _quorums(self, entry: Entry) -> tuple[tuple[str, ...], ...]:
        return entry.voters, entry.former

    @staticmethod
    def _is_quorum(answered: Collection[str], *quorums: Iterable[str]) -> bool:
        """Whether a majority of each set has answered, or all of one with open seats."""
        return all(_is_majority(set(quorum), answered) for quorum in quorums)

    @staticmethod
    def _named(voters: Iterable[str], answered: Collection[str]) -> tuple[str, ...]:
        """The voters, with the directories of those that have none and have answered."""
        known = {node_of(seat): seat for seat in sorted(answered) if not _is_open(seat)}
        return tuple(
            seat if directory_of(seat) else known.get(node_of(seat), seat) for seat in voters
        )


def seat_of(node: str, directory: str) -> str:
    """The seat of a node with a directory; an open one if the directory is ""."""
    return f"{node}{_AT}{directory}"


def node_of(seat: str) -> str:
    return seat.partition(_AT)[0]


def directory_of(seat: str) -> str:
    """The directory that a seat names; "" if it names none."""
    return seat.partition(_AT)[2]


def reseat(entry: Entry, node: str, directory: str) -> Entry:
    """The entry, with the directory of a voter of which it names another."""
    voters = tuple(
        seat_of(node, directory) if node_of(seat) == node and directory_of(seat) else seat
        for seat in entry.voters
    )
    return replace(entry, voters=voters)


def _is_open(seat: str) -> bool:
    return seat.endswith(_AT)


def _answers(seat: str, answered: Collection[str]) -> bool:
    """Whether a seat has answered; any directory counts for one that names none."""
    return seat in answered or (not directory_of(seat) and node_of(seat) in map(node_of, answered))


def _is_majority(seats: Collection[str], answered: Collection[str]) -> bool:
    count = sum(_answers(seat, answered) for seat in seats)
    if len(seats) > 1 and any(map(_is_open, seats)):
        return count == len(seats)
    if len(seats) <= 2:
        # Of two voters both have to answer, one of them with the directory that has all that was
        # chosen. The only voter counts with any.
        nodes = set(map(node_of, answered))
        return nodes.issuperset(map(node_of, seats)) and count >= len(seats) - 1
    return 2 * count > len(seats)


def first_state(voters: Iterable[str], data: str, *, version: int = 1) -> RegisterState:
    """The state before any change: all nodes begin with the same entry, which counts as chosen.

    Args:
        voters: their seats.
        data: the value.
        version: of the value.
    """
    seats = tuple(voters)
    entry = Ballot(0, Entry(version, seats, seats, data))
    return RegisterState(promised=0, used=0, accepted=entry, chosen=entry)
