"""Seeded worlds of the replicated register, its judge, and mutants that the judge must convict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from patches import patched

from galileo.dht.register import (
    Accept,
    Ballot,
    ChangeFinished,
    ChangeRequested,
    Effects,
    Entry,
    EntryChosen,
    Prepare,
    Promise,
    Register,
    RegisterEffect,
    RegisterEvent,
    RegisterMessageArrived,
    RegisterState,
    RegisterTicked,
    SaveState,
    SendTo,
    _answers,
    _Proposal,
    directory_of,
    first_state,
    node_of,
    reseat,
    seat_of,
)
from galileo.errors import GalileoError
from simulator.loop import Loop, demand
from simulator.network import Network

FAULTS_UNTIL_S = 20.0
CALM_S = 40.0
TICK_S = 0.1
TIMES = {
    "galileo.dht.register.BALLOT_S": 0.6,
    "galileo.dht.register.BACKOFF_S": 0.3,
    "galileo.dht.register.CHANGE_S": 4.0,
}


@dataclass(frozen=True, slots=True)
class RegisterOutcome:
    """The result of a run."""

    chosen: int
    trace_hash: int
    counters: Counter[str]


class RegisterNode:
    """One node: a production register, its disk, and what it does at its prime."""

    def __init__(self, name: str, ordinal: int, world: RegisterWorld) -> None:
        self.name = name
        self.world = world
        self._ordinal = ordinal
        self._directories = 0
        self.disk = self._first_state()
        self.life = 0
        self.register: Register | None = None
        self.waiting: dict[int, str] = {}

    def boot(self) -> None:
        """Start, unless it runs."""
        if self.register is not None:
            return
        self.life += 1
        self.register = self.world.register_type(
            self.name, self._ordinal, self.disk, directory=self.directory
        )
        self._tick(self.life)

    @property
    def directory(self) -> str:
        return f"d{self._directories}"

    def lose_directory(self) -> None:
        """Crash, and begin with an empty directory at the next boot."""
        self.crash()
        self._directories += 1
        self.disk = self._first_state()

    def _first_state(self) -> RegisterState:
        return first_state(self.world.first_voters, "[]")

    def has_lost(self, seat: str) -> bool:
        """Whether the directory of a seat is lost; one that names none may have been another."""
        directory = directory_of(seat)
        return directory != self.directory if directory else self._directories > 0

    def crash(self) -> None:
        self.life += 1
        self.register = None
        self.waiting.clear()

    def feed(self, event: RegisterEvent) -> None:
        if self.register is None:
            return
        effects = self.register.step(event, self.world.loop.now)
        self.register.check()
        self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        loop = self.world.loop
        dies_at = loop.random.randrange(len(effects) + 1) if loop.chance(self.world.crashes) else -1
        for number, effect in enumerate(effects):
            if number == dies_at:
                loop.counters["crashes within a step"] += 1
                self.crash()
                loop.after(loop.random.uniform(0.2, 2.0), self.boot)
                return
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: RegisterEffect) -> None:
        world = self.world
        if isinstance(effect, SaveState):
            self.disk = world.stored(self.disk, effect.state)
        elif isinstance(effect, SendTo):
            self._send(effect)
        elif isinstance(effect, EntryChosen):
            world.judge_chosen(self.name, effect.entry)
        else:
            world.judge_finished(self, effect)

    def _send(self, effect: SendTo) -> None:
        world, message = self.world, effect.message
        receiver = world.nodes[effect.to]
        world.note_proposal(message)
        world.loop.note(f"{self.name} -> {effect.to} {type(message).__name__}")

        def deliver() -> None:
            receiver.feed(RegisterMessageArrived(self.name, message))

        world.network.send(self.name, effect.to, deliver)

    def _tick(self, life: int) -> None:
        if self.life == life and self.register is not None:
            self.feed(RegisterTicked())
            self._keep_seat()
            self.world.loop.after(TICK_S, lambda: self._tick(life))

    def _keep_seat(self) -> None:
        """Have the directory named, if the node votes with another."""
        register = self.register
        if register is None or register.is_busy:
            return
        if reseat(register.chosen, self.name, self.directory) != register.chosen:
            self.world.loop.counters["seats changed"] += 1
            self.feed(self.world.change(self, ""))


class RegisterWorld:
    """Five to seven nodes, of which one to five vote; changes add items or replace the voters.

    In half of the worlds the first seats are open, two, three or five nodes vote, and directories
    are lost at any time, as long as each entry that may be chosen names at most one that is lost.
    """

    def __init__(
        self,
        seed: int,
        register_type: type[Register] = Register,
        *,
        stored: Callable[[RegisterState, RegisterState], RegisterState] | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.loop = loop = Loop(seed, trace=trace)
        self.network = Network(loop)
        self.register_type = register_type
        self.stored = stored or (lambda before, after: after)
        names = [f"n{number}" for number in range(loop.random.randint(5, 7))]
        self.loses = loop.chance(0.5)
        self._counts = (2, 3, 3, 5) if self.loses else (1, 2, 3, 3, 5)
        voters = names[: loop.random.choice(self._counts)]
        self.first_voters = tuple(seat_of(one, "") if self.loses else one for one in voters)
        self.crashes = 0.0
        self.nodes = {name: RegisterNode(name, n, self) for n, name in enumerate(names)}
        self._requests = self._changes = 0
        self._chosen: dict[int, Entry] = {1: Entry(1, self.first_voters, self.first_voters, "[]")}
        self._promised: dict[str, int] = {}
        self._proposed: set[Entry] = set()

    def play(self) -> RegisterOutcome:
        loop = self.loop
        for node in self.nodes.values():
            node.boot()
        loop.stragglers = loop.random.choice((0.03, 0.1, 0.3))
        self.crashes = loop.random.choice((0.0, 0.005, 0.02))
        loop.after(0.1, self._fault)
        if self.loses:
            loop.after(loop.random.expovariate(2.0), self._lose_directory)
        loop.after(0.0, self._request)
        if loop.chance(0.2):
            loop.after(0.0, self._restart_proposer)
        loop.run_until(FAULTS_UNTIL_S)
        self._heal()
        loop.run_until(loop.now + CALM_S / 2)
        asked = next(iter(self.nodes.values()))
        asked.feed(self.change(asked, "last"))
        loop.run_until(loop.now + CALM_S / 2)
        demand("last" in self._promised, "a change was not finished though all was well")
        self._judge_all()
        return RegisterOutcome(len(self._chosen), loop.trace_hash, loop.counters)

    # --- what happens ----------------------------------------------------------------------------

    def _request(self) -> None:
        loop = self.loop
        if loop.now > FAULTS_UNTIL_S:
            return
        self._request_at(loop.random.choice(list(self.nodes.values())))
        loop.after(loop.random.expovariate(1.5), self._request)

    def _restart(self, node: RegisterNode) -> None:
        """Restart a node at once, which then often begins another change."""
        node.crash()
        node.boot()
        if self.loop.chance(0.5):
            self._request_at(node)

    def _restart_proposer(self) -> None:
        """Restart a node while its proposal is in flight."""
        if self.loop.now < FAULTS_UNTIL_S:
            for node in self.nodes.values():
                if node.register is not None and node.register.is_busy and self.loop.chance(0.1):
                    self._restart(node)
            self.loop.after(self.loop.random.expovariate(20.0), self._restart_proposer)

    def _request_at(self, node: RegisterNode) -> None:
        self._requests += 1
        node.feed(self.change(node, f"item {self._requests}"))

    def _lose_directory(self) -> None:
        loop = self.loop
        if loop.now > FAULTS_UNTIL_S:
            return
        node = loop.random.choice(list(self.nodes.values()))
        if self._knows_seats(node) and all(
            self._survives(entry, node) for entry in self._open_entries()
        ):
            loop.counters["directories lost"] += 1
            loop.note(f"{node.name} loses its directory")
            node.lose_directory()
            loop.after(loop.random.choice((0.0, 0.1, 1.0, 3.0)), node.boot)
        loop.after(loop.random.expovariate(2.0), self._lose_directory)

    def _open_entries(self) -> list[Entry]:
        """The last chosen entry, and those that may be chosen after it."""
        last = max(self._chosen)
        accepted = [node.disk.accepted.entry for node in self.nodes.values()]  # Not sent, perhaps.
        proposed = [*self._proposed, *accepted]
        return [self._chosen[last], *(one for one in proposed if one.version >= last)]

    def _knows_seats(self, node: RegisterNode) -> bool:
        """Whether one of the first voters knows that others were named, without a node."""
        voters = [self.nodes[node_of(one)] for one in self.first_voters]
        return len(self._chosen) == 1 or any(
            one.disk.accepted.entry.version > 1 for one in voters if one is not node
        )

    def _survives(self, entry: Entry, node: RegisterNode) -> bool:
        """Whether the directories of all voters but one are there without that of a node."""
        return all(
            sum(
                node_of(one) == node.name or self.nodes[node_of(one)].has_lost(one) for one in seats
            )
            <= 1
            for seats in (entry.voters, entry.former)
        )

    def change(self, node: RegisterNode, item: str) -> ChangeRequested:
        """A change by a node: adds an item, if any, perhaps changes the voters, keeps its seat."""
        self._changes += 1
        loop, number = self.loop, self._changes
        voters: tuple[str, ...] = ()
        if item not in ("", "last") and loop.chance(0.4):
            count = loop.random.choice(self._counts)
            voters = tuple(sorted(loop.random.sample(list(self.nodes), count)))
        directory = node.directory
        node.waiting[number] = item

        def change(entry: Entry) -> Entry:
            kept = reseat(entry, node.name, directory)
            return _with(kept, item, [self._seat(kept, voter) for voter in voters])

        # All voters that a node knows may have lost their directories, one after the other.
        advisors = tuple(self.nodes) if item == "last" else ()
        return ChangeRequested(number, change, advisors)

    def _seat(self, entry: Entry, name: str) -> str:
        """The seat of a voter; a new one of a world with losses has its present directory."""
        known = [seat for seat in entry.voters if node_of(seat) == name]
        directory = self.nodes[name].directory
        return known[0] if known else seat_of(name, directory) if self.loses else name

    def note_proposal(self, message: object) -> None:
        if isinstance(message, Accept):
            self._proposed.add(message.entry)

    def _fault(self) -> None:
        loop, names = self.loop, list(self.nodes)
        if loop.now > FAULTS_UNTIL_S - 1.0:
            return
        kind = loop.random.choice(("crash", "blink", "blink", "cut", "loss", "isolate", "heal"))
        loop.counters[kind] += 1
        if kind == "crash":
            node = self.nodes[loop.random.choice(names)]
            node.crash()
            loop.after(loop.random.uniform(0.1, 4.0), node.boot)
        elif kind == "blink":
            for name in loop.random.sample(names, loop.random.randint(1, len(names))):
                self._restart(self.nodes[name])
        elif kind == "cut":
            for _ in range(loop.random.randint(1, 6)):
                self.network.cut(*loop.random.sample(names, 2))
        elif kind == "isolate":
            side = set(loop.random.sample(names, len(names) // 2))
            for a in names:
                for b in names:
                    if (a in side) != (b in side):
                        self.network.cut(a, b)
        elif kind == "loss":
            self.network.loss, self.network.repetition = loop.random.choice((0.1, 0.4)), 0.2
        else:
            self.network.heal()
        loop.after(loop.random.expovariate(1.0), self._fault)

    def _heal(self) -> None:
        self.crashes = 0.0
        self.network.heal()
        self.loop.stragglers = 0.0
        for node in self.nodes.values():
            node.boot()

    # --- the judge -------------------------------------------------------------------------------

    def judge_chosen(self, node: str, entry: Entry) -> None:
        known = self._chosen.setdefault(entry.version, entry)
        self.loop.note(f"{node} learns version {entry.version} of {','.join(entry.voters)}")
        demand(known == entry, f"version {entry.version} has two contents: {known} and {entry}")

    def judge_finished(self, node: RegisterNode, effect: ChangeFinished) -> None:
        item, outcome = node.waiting.pop(effect.request), effect.outcome
        if isinstance(outcome, GalileoError):
            self.loop.counters["changes given up"] += 1
            return
        self.loop.counters["changes finished"] += 1
        self.loop.note(f"{node.name} finished {item} in version {outcome.version}")
        if item:
            demand(
                item in json.loads(outcome.data), f"{item} is not in what its change is said to be"
            )
            self._promised[item] = min(outcome.version, self._promised.get(item, outcome.version))
        stored = [
            self.nodes[node_of(voter)].disk.chosen.entry.version >= outcome.version
            or self.nodes[node_of(voter)].has_lost(voter)
            for voter in outcome.voters
        ]
        demand(2 * sum(stored) > len(stored), f"{item} is finished, few voters have stored it")

    def _judge_all(self) -> None:
        before: set[str] = set()
        versions = sorted(self._chosen)
        for version in versions:
            items = set(json.loads(self._chosen[version].data))
            demand(before <= items, f"version {version} lost {before - items}")
            before = items
            for item, since in self._promised.items():
                demand(version < since or item in items, f"version {version} lost {item}")


def _with(entry: Entry, item: str, voters: Iterable[str]) -> Entry:
    items = json.loads(entry.data)
    if not item or item in items:
        return entry
    voters = tuple(voters) or entry.voters
    return replace(entry, data=json.dumps([*items, item]), voters=voters)


def run_register(
    seed: int, mutant: str = "", *, trace: Callable[[str], None] | None = None
) -> RegisterOutcome:
    """Play one world; raises Violation.

    Args:
        seed: of the world.
        mutant: a name of `REGISTER_MUTANTS`; empty for the production register.
        trace: called with each event.
    """
    register_type, stored = REGISTER_MUTANTS[mutant] if mutant else (Register, None)
    with patched(TIMES):
        return RegisterWorld(seed, register_type, stored=stored, trace=trace).play()


# --- mutants -----------------------------------------------------------------------------------


class _IgnoresPromises(Register):
    """Changes what it knows to be chosen, whatever the voters have accepted."""

    def _on_promise(self, proposal: _Proposal, message: Promise, now: float) -> Effects:
        return super()._on_promise(proposal, replace(message, accepted=self.state.chosen), now)


class _AcceptsLower(Register):
    """Accepts entries below its promise."""

    def _on_accept(self, sender: str, message: Accept) -> Effects:
        self.state = replace(self.state, promised=min(self.state.promised, message.ballot))
        return super()._on_accept(sender, message)


class _PromisesLower(Register):
    """Promises ballots below an earlier promise."""

    def _on_prepare(self, sender: str, message: Prepare) -> Effects:
        self.state = replace(self.state, promised=min(self.state.promised, message.ballot))
        return super()._on_prepare(sender, message)

    def check(self) -> None:
        pass


class _CountsHalf(Register):
    """Takes half of the voters for a majority."""

    @staticmethod
    def _is_quorum(answered: Collection[str], *quorums: Iterable[str]) -> bool:
        sets = [set(quorum) for quorum in quorums]
        return all(
            2 * sum(_answers(one, answered) for one in seats) >= len(seats) for seats in sets
        )


class _ForgetsFormer(Register):
    """Asks only the new voters."""

    def _quorums(self, entry: Entry) -> tuple[tuple[str, ...], ...]:
        return (entry.voters,)


class _ForgetsNew(Register):
    """Asks only the former voters."""

    def _quorums(self, entry: Entry) -> tuple[tuple[str, ...], ...]:
        return (entry.former,)


class _ChangesUnchosen(Register):
    """Changes the best entry of the promises without having it chosen first."""

    def _on_promise(self, proposal: _Proposal, message: Promise, now: float) -> Effects:
        assert proposal.best is not None
        proposal.best = max(proposal.best, message.accepted, key=lambda one: one.number)
        base = proposal.best.entry
        if not self._is_quorum(proposal.answered, base.voters):
            return self._ask(proposal, now)
        entry = proposal.change(base)
        if entry == base:
            return self._propose(proposal, base, now)
        entry = replace(entry, version=base.version + 1, former=base.voters)
        return self._propose(proposal, entry, now)


class _FinishesEarly(Register):
    """Finishes a change before the voters know that it is chosen."""

    def _spread(self, proposal: _Proposal, chosen: Ballot, now: float) -> Effects:
        return self._finish(proposal, chosen.entry, now)


class _SharesBallots(Register):
    """Draws ballots that another node uses, too."""

    def __init__(self, me: str, ordinal: int, state: RegisterState, *, directory: str = "") -> None:
        super().__init__(me, ordinal // 2, state, directory=directory)


class _CountsAnyDirectory(Register):
    """Counts a voter with any directory."""

    @staticmethod
    def _is_quorum(answered: Collection[str], *quorums: Iterable[str]) -> bool:
        bare = [
            {node_of(one) if directory_of(one) else one for one in quorum} for quorum in quorums
        ]
        return Register._is_quorum(answered, *bare)


class _OpensByMajority(Register):
    """Takes a majority of open seats for enough."""

    @staticmethod
    def _is_quorum(answered: Collection[str], *quorums: Iterable[str]) -> bool:
        bare = [{one.removesuffix("@") for one in quorum} for quorum in quorums]
        return Register._is_quorum(answered, *bare)


class _LeavesSeatsOpen(Register):
    """Names no directories in the first change."""

    @staticmethod
    def _named(voters: Iterable[str], answered: Collection[str]) -> tuple[str, ...]:
        return tuple(one.removesuffix("@") for one in voters)


def _without_promise(before: RegisterState, after: RegisterState) -> RegisterState:
    return replace(after, promised=max(before.promised, after.accepted.number))


def _without_accepted(before: RegisterState, after: RegisterState) -> RegisterState:
    return replace(after, accepted=max(before.accepted, after.chosen, key=lambda one: one.number))


REGISTER_MUTANTS: dict[
    str,
    tuple[type[Register], Callable[[RegisterState, RegisterState], RegisterState] | None],
] = {
    "ignores_promises": (_IgnoresPromises, None),
    "accepts_lower": (_AcceptsLower, None),
    "promises_lower": (_PromisesLower, None),
    "counts_half": (_CountsHalf, None),
    "forgets_former": (_ForgetsFormer, None),
    "forgets_new": (_ForgetsNew, None),
    "changes_unchosen": (_ChangesUnchosen, None),
    "finishes_early": (_FinishesEarly, None),
    "shares_ballots": (_SharesBallots, None),
    "counts_any_directory": (_CountsAnyDirectory, None),
    "opens_by_majority": (_OpensByMajority, None),
    "leaves_seats_open": (_LeavesSeatsOpen, None),
    "promise_not_saved": (Register, _without_promise),
    "accepted_not_saved": (Register, _without_accepted),
}
