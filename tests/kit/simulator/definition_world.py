"""Seeded worlds of agreed definitions of datasets, their judge, and mutants that it must convict.

Clients create, extend, drop and set retentions at nodes that crash, lose directories and are cut
off. The judge looks for one order of all calls about a name, within their times, that gives the
results which the clients got.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from galileo.dht.definitions import (
    NOTHING,
    UNFOUNDED,
    AddFeatures,
    Change,
    CreateDataset,
    Definition,
    Definitions,
    DropDataset,
    SetRetention,
    first_register,
)

from galileo.dht import definitions
from galileo.dht.register import (
    Accept,
    ChangeFinished,
    ChangeRequested,
    Entry,
    EntryChosen,
    Register,
    RegisterEffect,
    RegisterState,
    directory_of,
    node_of,
)
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.dht.topology_changes import definition_voters
from galileo.errors import (
    DatasetExists,
    GalileoError,
    InvalidSchema,
    Unavailable,
    UnknownDataset,
)
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Feature, Schema, StoredSchema, dataset_key
from simulator.loop import Loop, Violation, demand
from simulator.network import Network
from simulator.register_world import REGISTER_MUTANTS, RegisterNode

NAMES = ("x", "y")
FEATURES = ("depth", "speed")
ADDED = ("gust", "site")
FAULTS_UNTIL_S = 10.0
CALM_S = 24.0
CLIENTS = 4
GIVE_UP_S = 3.0
LEARN_MEAN_S = 0.1
"""Until a catalog has what is chosen; a drop takes long."""


@dataclass(slots=True)
class Call:
    """A call of a client.

    Attributes:
        kind: "create", "extend", "drop", "retain", or "read", which asks for the definition.
        change: what the register is asked to do.
        end: when it was answered, infinite if it was not.
        outcome: the definition of the name, or the error; None if there is no answer.
    """

    name: str
    kind: str
    change: Any
    start: float
    end: float = inf
    outcome: Definition | GalileoError | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What is under test; a mutant replaces a part."""

    register: type[Register] = Register
    stored: Callable[[RegisterState, RegisterState], RegisterState] | None = None
    create: type[CreateDataset] = CreateDataset
    extend: type[AddFeatures] = AddFeatures
    drop: type[DropDataset] = DropDataset
    retain: type[SetRetention] = SetRetention
    next_entry: Callable[..., Entry] = definitions.next_entry
    gathers: bool = True


class DefinitionNode(RegisterNode):
    """One node: the register of one slot, its disk, and its catalog."""

    world: DefinitionWorld  # type: ignore[assignment]

    def __init__(self, name: str, ordinal: int, world: DefinitionWorld) -> None:
        self.catalog: dict[str, Definition] = {}
        self.calls: dict[int, Call] = {}
        super().__init__(name, ordinal, world)  # type: ignore[arg-type]

    def _first_state(self) -> RegisterState:
        return first_register(self.world.topology)

    def lose_directory(self) -> None:
        super().lose_directory()
        self.catalog = {}

    def crash(self) -> None:
        super().crash()
        self.calls.clear()

    def boot(self) -> None:
        if self.register is None:
            self.learn(definitions.decode(self.disk.chosen.entry.data))
        super().boot()

    def _learn_late(self, life: int, learned: Definitions) -> None:
        if life == self.life:
            self.learn(learned)

    def learn(self, learned: Definitions) -> None:
        self.catalog = definitions.merge(learned, self.catalog)
        self.world.judge_catalog(self)

    def ask(self, call: Call) -> None:
        number = self.world.next_number()
        self.calls[number] = call
        self._change(number, self.world.rules.next_entry, call.change)

    def _change(self, number: int, apply: Callable[..., Entry], change: Change) -> None:
        def changed(entry: Entry) -> Entry:
            return apply(entry, change, known=self.catalog)

        advisors = definition_voters(self.world.topology)
        self.feed(ChangeRequested(number, changed, advisors))

    def _carry_out_one(self, effect: RegisterEffect) -> None:
        if isinstance(effect, EntryChosen):
            self.world.judge_chosen(self.name, effect.entry)
            life, learned = self.life, definitions.decode(effect.entry.data)
            delay_s = self.world.loop.delay(LEARN_MEAN_S)
            self.world.loop.after(delay_s, lambda: self._learn_late(life, learned))
        elif isinstance(effect, ChangeFinished):
            self._answer(effect)
        else:
            super()._carry_out_one(effect)

    def _answer(self, effect: ChangeFinished) -> None:
        call = self.calls.pop(effect.request, None)
        if call is None:
            return
        call.end = self.world.loop.now
        outcome = effect.outcome
        if isinstance(outcome, Entry):
            call.outcome = definitions.decode(outcome.data).get(call.name, NOTHING)
        else:
            call.outcome = outcome
        self.world.loop.counters[f"{call.kind} {type(call.outcome).__name__}"] += 1

    def _keep_seat(self) -> None:
        """Found the register, or name other directories, where that has to be done."""
        register, world = self.register, self.world
        if register is None or register.is_busy or not world.loop.chance(0.3):
            return
        chosen = register.chosen
        if not definitions.needs_repair(chosen, world.topology, world.directory_of):
            return
        is_founding = chosen.data == UNFOUNDED and world.has_gathered(self)
        world.loop.counters["founded" if is_founding else "seats changed"] += 1

        def repaired(entry: Entry, change: Change, *, known: Definitions) -> Entry:
            kept = world.rules.next_entry(entry, change, known=known, is_founding=is_founding)
            return definitions.with_seats(kept, world.topology, world.directory_of)

        self._change(world.next_number(), repaired, definitions.keep)


class DefinitionWorld:
    """Two to five nodes; in half of the worlds, homes have decided about datasets before."""

    def __init__(
        self, seed: int, rules: Rules, *, trace: Callable[[str], None] | None = None
    ) -> None:
        self.loop = loop = Loop(seed, trace=trace)
        self.network = Network(loop)
        self.rules = rules
        self.register_type = rules.register
        self.stored = rules.stored or (lambda before, after: after)
        names = [f"n{number}" for number in range(loop.random.choice((2, 3, 3, 4, 5)))]
        infos = tuple(NodeInfo(name, f"h:{n + 1}") for n, name in enumerate(names))
        self.topology = Topology("t", (Group("g", infos),), even_ranges(1), 4, replicas=2)
        self.crashes = 0.0
        self.nodes = {name: DefinitionNode(name, n, self) for n, name in enumerate(names)}
        self.calls: list[Call] = []
        self._first: dict[str, Definition] = {}
        self._numbers = 0
        self._chosen: dict[int, Entry] = {}
        self._proposed: set[Entry] = set()
        self._schemas: dict[tuple[str, int, int], StoredSchema] = {}
        self._policies: dict[tuple[str, int, int], VersionedRetention] = {}

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def play(self) -> Counter[str]:
        loop = self.loop
        if loop.chance(0.5):
            self._begin_with_homes()
        for node in self.nodes.values():
            node.boot()
        loop.stragglers = loop.random.choice((0.03, 0.1, 0.3))
        self.crashes = loop.random.choice((0.0, 0.005, 0.02))
        for number in range(CLIENTS):
            loop.after(loop.random.uniform(0.0, 1.0), partial(self._client, number, None))
        loop.after(0.5, self._fault)
        loop.after(loop.random.expovariate(1.0), self._lose_directory)
        loop.after(0.1, self._gossip)
        loop.run_until(FAULTS_UNTIL_S)
        self._heal()
        loop.run_until(loop.now + CALM_S / 2)
        for name in NAMES:
            for node in self.nodes.values():
                self._call(node, name, "read", definitions.keep)
        loop.run_until(loop.now + CALM_S / 2)
        self._judge_end()
        return loop.counters

    def _begin_with_homes(self) -> None:
        """Homes know what they have decided, and other nodes perhaps."""
        for name in NAMES:
            generations = self.loop.random.randrange(3)
            schema = _schema(name, "depth").of_generation(generations)
            retention = VersionedRetention(1, Retention(100.0))
            one = Definition(generations, schema, retention=retention)
            self._first[name] = one
            knowing = self.loop.random.sample(list(self.nodes.values()), 1)
            knowing += [node for node in self.nodes.values() if self.loop.chance(0.3)]
            for node in knowing:
                node.learn({name: one})

    # --- what happens ----------------------------------------------------------------------------

    def _client(self, number: int, last: Call | None) -> None:
        """Calls a node; the next call follows the answer, or when the client gives up."""
        loop = self.loop
        if loop.now > FAULTS_UNTIL_S:
            return
        is_waiting = last is not None and last.end == inf and loop.now < last.start + GIVE_UP_S
        if not is_waiting:
            last = self._random_call()
        loop.after(loop.random.expovariate(4.0), lambda: self._client(number, last))

    def _random_call(self) -> Call:
        random = self.loop.random
        node = random.choice(list(self.nodes.values()))
        name = random.choice(NAMES)
        present = node.catalog.get(name, NOTHING)
        stale = random.random() < 0.1
        key = dataset_key(name, max(0, present.generations - stale))
        kind = random.choice(("create", "create", "extend", "drop", "retain", "retain"))
        self._numbers += 1
        if kind == "create":
            schema = _schema(name, random.choice(FEATURES))
            change: Any = self.rules.create(schema, f"call {self._numbers}")
        elif kind == "extend":
            change = self.rules.extend(key, (Feature(random.choice(ADDED)),))
        elif kind == "drop":
            change = self.rules.drop(key)
        else:
            change = self.rules.retain(key, Retention(random.randint(1, 9) * 1000.0))
        return self._call(node, name, kind, change)

    def _call(self, node: DefinitionNode, name: str, kind: str, change: Any) -> Call:
        call = Call(name, kind, change, self.loop.now)
        if node.register is not None:
            self.calls.append(call)
            node.ask(call)
        return call

    def _gossip(self) -> None:
        """What heartbeats bring from node to node."""
        one, other = self.loop.random.sample(list(self.nodes.values()), 2)
        if one.register and other.register and self.network.connects(one.name, other.name):
            other.learn(one.catalog)
        self.loop.after(self.loop.random.expovariate(2.0), self._gossip)

    def has_gathered(self, node: DefinitionNode) -> bool:
        """Whether a node has learned what every other one knows."""
        if not self.rules.gathers:
            return True
        others = [one for one in self.nodes.values() if one is not node]
        if not all(one.register and self.network.connects(node.name, one.name) for one in others):
            return False
        for one in others:
            node.learn(one.catalog)
        return True

    def directory_of(self, name: str) -> str:
        """As heartbeats brought it; a node that is down is not heard."""
        node = self.nodes[name]
        return "" if node.register is None else node.directory

    def note_proposal(self, message: object) -> None:
        if isinstance(message, Accept):
            self._proposed.add(message.entry)

    def _lose_directory(self) -> None:
        loop = self.loop
        if loop.now > FAULTS_UNTIL_S:
            return
        node = loop.random.choice(list(self.nodes.values()))
        if self._chosen and self._is_known_without(node) and self._survives(node):
            loop.counters["directories lost"] += 1
            loop.note(f"{node.name} loses its directory")
            node.lose_directory()
            loop.after(loop.random.choice((0.0, 0.1, 1.0, 3.0)), node.boot)
        loop.after(loop.random.expovariate(2.0), self._lose_directory)

    def _is_known_without(self, node: DefinitionNode) -> bool:
        """Whether another of the first voters knows of a later entry than the first."""
        others = [self.nodes[name] for name in definition_voters(self.topology)]
        return any(one.disk.accepted.number for one in others if one is not node)

    def _survives(self, node: DefinitionNode) -> bool:
        """Whether the directories of all voters but one are there without that of a node."""
        last = max(self._chosen)
        accepted = [one.disk.accepted.entry for one in self.nodes.values()]  # Not sent, perhaps.
        proposed = [*self._proposed, *accepted]
        entries = [self._chosen[last], *(one for one in proposed if one.version >= last)]
        return all(
            sum(
                node_of(one) == node.name
                or (bool(directory_of(one)) and self.nodes[node_of(one)].has_lost(one))
                for one in seats
            )
            <= 1
            for entry in entries
            for seats in (entry.voters, entry.former)
        )

    def _fault(self) -> None:
        loop, names = self.loop, list(self.nodes)
        if loop.now > FAULTS_UNTIL_S - 1.0:
            return
        kind = loop.random.choice(("crash", "blink", "cut", "loss", "isolate", "heal", "heal"))
        loop.counters[kind] += 1
        if kind == "crash":
            node = self.nodes[loop.random.choice(names)]
            node.crash()
            loop.after(loop.random.uniform(0.1, 3.0), node.boot)
        elif kind == "blink":
            for name in loop.random.sample(names, loop.random.randint(1, len(names))):
                self.nodes[name].crash()
                self.nodes[name].boot()
        elif kind == "cut":
            for _ in range(loop.random.randint(1, 3)):
                self.network.cut(*loop.random.sample(names, 2))
        elif kind == "isolate":
            alone = loop.random.choice(names)
            for name in names:
                self.network.cut(alone, name)
                self.network.cut(name, alone)
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
        self.loop.note(f"{node} learns version {entry.version}")
        known = self._chosen.setdefault(entry.version, entry)
        demand(known == entry, f"version {entry.version} has two contents")

    def judge_catalog(self, node: DefinitionNode) -> None:
        """No node ever has another schema, or policy, of one number than another node."""
        for name, one in node.catalog.items():
            if one.schema is not None:
                number = name, one.generations, one.schema.added
                known = self._schemas.setdefault(number, one.schema)
                demand(known == one.schema, f"{number} has two schemas")
            version = name, one.generations, one.retention.version
            policy = self._policies.setdefault(version, one.retention)
            demand(policy == one.retention, f"{version} has two policies")

    def _judge_end(self) -> None:
        reads = [call for call in self.calls if call.kind == "read"]
        demand(
            all(isinstance(call.outcome, Definition) for call in reads),
            "a read was not answered though all was well",
        )
        catalogs = [node.catalog for node in self.nodes.values()]
        demand(all(one == catalogs[0] for one in catalogs), "catalogs differ in the end")
        for name in NAMES:
            calls = [call for call in self.calls if call.name == name]
            first = self._first.get(name, NOTHING)
            if not _has_order(first, calls):
                raise Violation(f"no order explains the calls about {name}: {_shown(calls)}")


def _schema(name: str, feature: str) -> Schema:
    return Schema(name, [Feature(feature)])


def _has_order(first: Definition, calls: list[Call]) -> bool:
    """Whether some order of the calls, within their times, gives their outcomes.

    Depth first over sets of calls that have had their effect (Wing and Gong, "Testing and verifying
    concurrent objects", 1993). A call without an answer may have its effect later, or never.
    """
    answered = sum(1 << n for n, call in enumerate(calls) if not _may_be_late(call))
    stack = [(0, first)]
    seen = set(stack)
    while stack:
        done, state = stack.pop()
        if done & answered == answered:
            return True
        left = [n for n in range(len(calls)) if not done >> n & 1]
        soonest = min(calls[n].end for n in left if not _may_be_late(calls[n]))
        for n in left:
            if calls[n].start > soonest:
                continue
            for following in _effects(calls[n], state):
                reached = done | 1 << n, following
                if reached not in seen:
                    seen.add(reached)
                    stack.append(reached)
    return False


def _may_be_late(call: Call) -> bool:
    return call.outcome is None or isinstance(call.outcome, Unavailable)


def _effects(call: Call, state: Definition) -> list[Definition]:
    """The states that a call may lead to, given its outcome; none if that cannot be."""
    effect: dict[str, Callable[[Call, Definition], list[Definition]]] = {
        "create": _after_create,
        "extend": _after_extend,
        "drop": _after_drop,
        "retain": _after_retain,
        "read": _after_read,
    }
    return effect[call.kind](call, state)


def _after_create(call: Call, state: Definition) -> list[Definition]:
    wanted, outcome = call.change.schema.of_generation(state.generations), call.outcome
    created = [] if state.schema else [Definition(state.generations, wanted)]
    if isinstance(outcome, Definition):
        return [one for one in created if _extends(outcome, one.schema)]
    if isinstance(outcome, DatasetExists):
        is_same = state.schema == wanted
        return [state] if state.schema and outcome.details["same"] == is_same else []
    return [state, *created]  # It may have been created, and dropped by another call.


def _after_extend(call: Call, state: Definition) -> list[Definition]:
    schema, outcome, [feature] = state.schema, call.outcome, call.change.features
    if schema is None or schema.key != call.change.dataset:
        return [state] if isinstance(outcome, UnknownDataset) else []
    assert isinstance(schema, Schema), "these histories have datasets alone"
    if schema.feature(feature.name) is not None:
        # Another call that added the same feature at the same time counts as this one.
        is_there = isinstance(outcome, InvalidSchema) or (
            isinstance(outcome, Definition) and _extends(outcome, schema)
        )
        return [state] if is_there else []
    wider = schema.with_features([feature])
    if isinstance(outcome, InvalidSchema) or (
        isinstance(outcome, Definition) and not _extends(outcome, wider)
    ):
        return []
    return [replace(state, schema=wider)]  # It may be dropped before the call knows.


def _extends(outcome: Definition, schema: StoredSchema | None) -> bool:
    """Whether an outcome has a schema, perhaps with features of later calls."""
    return schema is not None and outcome.schema is not None and outcome.schema.extends(schema)


def _after_drop(call: Call, state: Definition) -> list[Definition]:
    key = call.change.dataset
    is_present = state.schema is not None and state.schema.key == key
    dropped = Definition(state.generations + 1)
    if isinstance(call.outcome, UnknownDataset):
        return [] if is_present else [state]
    if isinstance(call.outcome, Definition):
        is_gone = any(dataset_key(call.name, n) == key for n in range(state.generations))
        return [dropped] if is_present else [state] if is_gone else []
    return [dropped] if is_present else []


def _after_retain(call: Call, state: Definition) -> list[Definition]:
    is_present = state.schema is not None and state.schema.key == call.change.dataset
    numbered = VersionedRetention(state.retention.version + 1, call.change.retention)
    changed = replace(state, retention=numbered)
    if isinstance(call.outcome, UnknownDataset):
        return [] if is_present else [state]
    if not is_present:
        return []
    if isinstance(call.outcome, Definition):
        answer = call.outcome.retention
        if answer.version > numbered.version:
            return [changed]  # Another call came after it.
        return [changed] if answer == numbered else [state] if answer == state.retention else []
    return [changed]


def _after_read(call: Call, state: Definition) -> list[Definition]:
    outcome = call.outcome
    assert isinstance(outcome, Definition)
    return [state] if replace(outcome, creation="") == replace(state, creation="") else []


def _shown(calls: list[Call]) -> str:
    return "\n".join(
        f"{call.start:.3f}-{call.end:.3f} {call.kind} {call.change} -> {call.outcome}"
        for call in calls
    )


def run_definitions(
    seed: int, mutant: str = "", *, trace: Callable[[str], None] | None = None
) -> Counter[str]:
    """Play one world; raises Violation.

    Args:
        seed: of the world.
        mutant: a name of `DEFINITION_MUTANTS`; empty for production.
        trace: called with each event.
    """
    rules = DEFINITION_MUTANTS[mutant] if mutant else Rules()
    return DefinitionWorld(seed, rules, trace=trace).play()


# --- mutants -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _CreatesAgain(CreateDataset):
    """Creates the dataset anew if it was dropped since the call began."""

    def __call__(self, definitions: Definitions) -> Definitions:
        self._generation = -1
        return CreateDataset.__call__(self, definitions)


@dataclass(slots=True)
class _SharesCreation(CreateDataset):
    """Takes a dataset of the same schema for its own."""

    def __call__(self, definitions: Definitions) -> Definitions:
        present = definitions.get(self.schema.name, NOTHING)
        if present.schema == self.schema.of_generation(present.generations):
            return definitions
        return CreateDataset.__call__(self, definitions)


@dataclass(slots=True)
class _Overwrites(CreateDataset):
    """Replaces the schema of an existing dataset."""

    def __call__(self, definitions: Definitions) -> Definitions:
        name = self.schema.name
        present = definitions.get(name, NOTHING)
        if present.creation != self.creation:
            definitions = {**definitions, name: Definition(present.generations)}
        return CreateDataset.__call__(self, definitions)


@dataclass(slots=True)
class _AddsAgain(AddFeatures):
    """Takes its own features for those of another call."""

    def __call__(self, definitions: Definitions) -> Definitions:
        self._start = -1
        return AddFeatures.__call__(self, definitions)


@dataclass(slots=True)
class _ReplacesFeatures(AddFeatures):
    """Adds features to the schema that the dataset began with."""

    def __call__(self, definitions: Definitions) -> Definitions:
        name = self.dataset.partition("@")[0]
        present = definitions.get(name, NOTHING)
        if self._start < 0 and present.schema is not None:
            present = replace(present, schema=present.schema.narrowed(0))
            definitions = {**definitions, name: present}
        return AddFeatures.__call__(self, definitions)


@dataclass(slots=True)
class _DropsAnyGeneration(DropDataset):
    """Drops the dataset that has the name now."""

    def __call__(self, definitions: Definitions) -> Definitions:
        name = self.dataset.partition("@")[0]
        present = definitions.get(name, NOTHING)
        if self._is_begun or present.schema is None:
            return DropDataset.__call__(self, definitions)
        self._is_begun = True
        return {**definitions, name: Definition(present.generations + 1)}


@dataclass(slots=True)
class _ReusesGenerations(DropDataset):
    """Does not count what was dropped."""

    def __call__(self, definitions: Definitions) -> Definitions:
        dropped = DropDataset.__call__(self, definitions)
        if dropped is definitions:
            return definitions
        name = self.dataset.partition("@")[0]
        return {**dropped, name: Definition(dropped[name].generations - 1)}


@dataclass(slots=True)
class _DropsAgain(DropDataset):
    """Takes its own drop for one before the call."""

    def __call__(self, definitions: Definitions) -> Definitions:
        self._is_begun = False
        return DropDataset.__call__(self, definitions)


@dataclass(slots=True)
class _SetsAgain(SetRetention):
    """Sets the policy once more if another call has changed it meanwhile."""

    def __call__(self, definitions: Definitions) -> Definitions:
        present = definitions.get(self.dataset.partition("@")[0], NOTHING)
        if present.retention.retention != self.retention:
            self._version = 0
        return SetRetention.__call__(self, definitions)


@dataclass(slots=True)
class _KeepsVersion(SetRetention):
    """Sets the policy without a new version."""

    def __call__(self, definitions: Definitions) -> Definitions:
        changed = SetRetention.__call__(self, definitions)
        if changed is definitions:
            return definitions
        name = self.dataset.partition("@")[0]
        version = max(1, definitions[name].retention.version)
        self._version = version
        numbered = VersionedRetention(version, self.retention)
        return {**changed, name: replace(changed[name], retention=numbered)}


def _forgets_known(entry: Entry, change: Change, *, known: Definitions, **options: bool) -> Entry:
    """Founds a register without what homes have decided."""
    return definitions.next_entry(entry, change, known={}, **options)


def _founds_at_once(entry: Entry, change: Change, *, known: Definitions, **_: bool) -> Entry:
    """Decides before the register is founded."""
    return definitions.next_entry(entry, change, known=known, is_founding=True)


def _prefers_known(entry: Entry, change: Change, *, known: Definitions, **options: bool) -> Entry:
    """Takes what its node knows for newer than what was agreed on."""
    if entry.data != UNFOUNDED:
        agreed = {**definitions.decode(entry.data), **known}
        entry = replace(entry, data=definitions.encode(agreed))
    return definitions.next_entry(entry, change, known=known, **options)


def _of_register(name: str) -> Rules:
    register, stored = REGISTER_MUTANTS[name]
    return Rules(register=register, stored=stored)


DEFINITION_MUTANTS = {
    "creates_again": Rules(create=_CreatesAgain),
    "shares_creation": Rules(create=_SharesCreation),
    "overwrites": Rules(create=_Overwrites),
    "adds_again": Rules(extend=_AddsAgain),
    "replaces_features": Rules(extend=_ReplacesFeatures),
    "drops_any_generation": Rules(drop=_DropsAnyGeneration),
    "reuses_generations": Rules(drop=_ReusesGenerations),
    "drops_again": Rules(drop=_DropsAgain),
    "sets_again": Rules(retain=_SetsAgain),
    "keeps_version": Rules(retain=_KeepsVersion),
    "forgets_known": Rules(next_entry=_forgets_known),
    "founds_at_once": Rules(next_entry=_founds_at_once),
    "founds_alone": Rules(gathers=False),
    "prefers_known": Rules(next_entry=_prefers_known),
    "counts_half": _of_register("counts_half"),
    "counts_any_directory": _of_register("counts_any_directory"),
    "ignores_promises": _of_register("ignores_promises"),
    "accepted_not_saved": _of_register("accepted_not_saved"),
}
