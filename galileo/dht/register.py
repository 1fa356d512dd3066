"""A replicated register that holds the topology of a cluster.

Theory of operation. The register is CASPaxos (Rystsov, "CASPaxos: Replicated State Machines without
logs", 2018): single-decree Paxos, repeated. A proposer asks the voters to promise a ballot, learns
the entry with the highest ballot that they accepted, applies a change to it, and asks them to
accept the result. An entry that a majority has accepted is chosen; each later entry is a change of
it. There is no log, no leader and no election, because changes of a topology are rare.

The voters are named by the entry itself. An entry also names the voters of the entry that it
changes (`former`), and is chosen when a majority of each has accepted it. A proposer that finds an
entry which it does not know to be chosen has it chosen first, so two changes of the voters never
overlap. A node that asks a majority of the voters of a chosen entry learns whether a later one
exists.

A change must be idempotent, because a proposer that got no answer cannot know whether its entry
will be chosen.

Invariants: a version has one content; versions of chosen entries increase with their ballots; a
ballot has one proposer and at most one entry. What a node promises, accepts, or uses as a ballot is
durable before another node hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from galileo.errors import GalileoError, Unavailable
from galileo.hashing import text64

NODES_MAX = 4096
"""Ballots are `round * NODES_MAX + ordinal`."""
VOTERS_MAX = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the register.

    Attributes:
        version: of the value, from 1; a change increases it by one.
        voters: nodes that store the register.
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


@dataclass(frozen=True, slots=True)
class RegisterOptions:
    """Attributes:
    round_s: a proposer repeats its messages at this interval.
    ballot_s: a proposer gives a ballot up that takes longer.
    backoff_s: longest pause before the next ballot.
    change_s: a change is given up that takes longer.
    """

    round_s: float = 0.25
    ballot_s: float = 1.5
    backoff_s: float = 0.4
    change_s: float = 15.0


# --- messages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    ballot: int


@dataclass(frozen=True, slots=True)
class Promise:
    ballot: int
    accepted: Ballot


@dataclass(frozen=True, slots=True)
class Accept:
    ballot: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Accepted:
    ballot: int


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


RegisterMessage: TypeAlias = Prepare | Promise | Accept | Accepted | Reject | Learn | Learned

# --- events and effects ------------------------------------------------------------------------

Change: TypeAlias = Callable[[Entry], Entry]
"""Makes the next entry from a chosen one; the register sets its version and former voters.

Idempotent: an entry that is changed already is returned as it is. Raises a GalileoError to refuse.
"""


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    request: int
    change: Change


@dataclass(frozen=True, slots=True)
class RegisterMessageArrived:
    sender: str
    message: RegisterMessage


@dataclass(frozen=True, slots=True)
class RegisterTicked:
    """Time has passed; due several times per `round_s` while `is_busy`."""


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
        answered: the nodes that have answered in this phase.
        best: the entry with the highest ballot among the promises.
        proposed: what the voters are asked to accept; None while they are asked to promise.
        spreading: what was chosen, while it is sent to the voters.
    """

    request: int
    change: Change
    deadline: float
    ballot: int = 0
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
    """

    def __init__(
        self,
        me: str,
        ordinal: int,
        state: RegisterState,
        *,
        options: RegisterOptions | None = None,
    ) -> None:
        self.me = me
        self.options = options or RegisterOptions()
        self.state = state
        self._ordinal = ordinal
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
        if message.ballot < self.state.promised:
            return [SendTo(sender, Reject(message.ballot, self.state.promised))]
        effects = self._save(promised=message.ballot)
        return [*effects, SendTo(sender, Promise(message.ballot, self.state.accepted))]

    def _on_accept(self, sender: str, message: Accept) -> Effects:
        if message.ballot < self.state.promised:
            return [SendTo(sender, Reject(message.ballot, self.state.promised))]
        accepted = Ballot(message.ballot, message.entry)
        effects = self._save(promised=message.ballot, accepted=accepted)
        return [*effects, SendTo(sender, Accepted(message.ballot))]

    def _on_learn(self, sender: str, message: Learn) -> Effects:
        effects = self._learn(message.chosen)
        return [*effects, SendTo(sender, Learned(self.state.chosen.number))]

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
        deadline = now + self.options.change_s
        self._proposal = _Proposal(event.request, event.change, deadline)
        return self._prepare(self._proposal, now)

    def _prepare(self, proposal: _Proposal, now: float) -> Effects:
        """Begin a ballot that is higher than all that this node has seen."""
        last = max(self.state.promised, self.state.used, proposal.ballot)
        proposal.ballot = (last // NODES_MAX + 1) * NODES_MAX + self._ordinal
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
        if isinstance(message, Promise) is not (proposal.proposed is None):
            return []
        proposal.answered.add(sender)
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
        if not is_chosen:
            return self._propose(proposal, base, now)
        try:
            entry = proposal.change(base)
        except GalileoError as error:
            return self._finish(proposal, error, now)
        if entry == base:
            return self._spread(proposal, self.state.chosen, now)
        entry = replace(entry, version=base.version + 1, former=base.voters)
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
        proposal.answered.add(sender)
        if not self._is_quorum(proposal.answered, spreading.entry.voters):
            return []
        return self._finish(proposal, spreading.entry, now)

    def _finish(self, proposal: _Proposal, outcome: Entry | GalileoError, now: float) -> Effects:
        self._proposal = None
        return [ChangeFinished(proposal.request, outcome), *self._start_next(now)]

    def _back_off(self, proposal: _Proposal, promised: int, now: float) -> Effects:
        """Pause for a time that differs between nodes, then begin a higher ballot."""
        share = text64("register", self.me, proposal.ballot) / 2**64
        proposal.ballot = max(proposal.ballot, promised)
        proposal.answered, proposal.resumes = set(), now + share * self.options.backoff_s
        return []

    def _on_tick(self, now: float) -> Effects:
        proposal = self._proposal
        if proposal is None:
            return []
        if now >= proposal.deadline:
            return self._finish(proposal, self._unanswered(proposal), now)
        if proposal.resumes > proposal.started:
            return self._prepare(proposal, now) if now >= proposal.resumes else []
        if proposal.spreading is None and now >= proposal.started + self.options.ballot_s:
            return self._back_off(proposal, proposal.ballot, now)
        return self._ask(proposal, now) if now >= proposal.repeated + self.options.round_s else []

    def _unanswered(self, proposal: _Proposal) -> Unavailable:
        voters = self.chosen.voters
        silent = sorted(set(voters) - proposal.answered)
        return Unavailable(
            f"the topology could not be changed: a majority of {', '.join(voters)} must answer, "
            f"and {', '.join(silent)} did not; start them, and repeat the command, which goes on "
            "where it stopped",
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
        asked = dict.fromkeys(node for quorum in self._quorums(entry) for node in quorum)
        effects: Effects = [
            SendTo(node, message)
            for node in asked
            if node != self.me and node not in proposal.answered
        ]
        if self.me in asked and self.me not in proposal.answered:
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
        """Whether a majority of each set has answered."""
        sets = [set(quorum) for quorum in quorums]
        return all(2 * len(nodes & set(answered)) > len(nodes) for nodes in sets)


def first_state(voters: Iterable[str], data: str, *, version: int = 1) -> RegisterState:
    """The state before any change: all nodes begin with the same entry, which counts as chosen."""
    names = tuple(voters)
    entry = Ballot(0, Entry(version, names, names, data))
    return RegisterState(promised=0, used=0, accepted=entry, chosen=entry)
