"""Definitions of datasets, as the nodes of a cluster with copies agree on them.

Theory of operation. A hash deals the names of datasets to `SLOTS` registers
(`galileo.dht.register`). The value of one has the definition of each of its names: how many
datasets of the name were dropped, the schema of the present one, and its retention policy. There is
one register for many names, because a voter that changes has to be changed in each, and more than
one, because the whole value travels with each change.

A definition only grows: the number of dropped datasets first, then the schema, then its features
and the version of the policy. So definitions of one name that were agreed on at any time merge in
any order. What nodes know of datasets is of that kind, and each change first adds what its node
knows (`merge`).

A register begins without a value (`UNFOUNDED`). Before it, the home of each dataset decided alone.
A node founds the value when every node of the cluster has answered what it knows, and does not act
as a home any more. From then on the register decides.

A change may be applied several times: by `Register`, until the result is chosen or another change
was in its place. Each change remembers what it found first, so it has its effect at most once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from galileo.dht import topology_changes
from galileo.dht.register import Entry, RegisterState, first_state, node_of, seat_of
from galileo.dht.topology import Topology
from galileo.errors import Unavailable
from galileo.hashing import text64
from galileo.model.retention import UNLIMITED, Retention, VersionedRetention
from galileo.model.schema import (
    Feature,
    Schema,
    StoredSchema,
    dropped_dataset,
    existing_dataset,
    split_key,
    unknown_dataset,
)
from galileo.model.stored_schema import stored_schema_from_json

SLOTS = 8
"""Registers; a part of what is stored, which cannot be changed."""
UNFOUNDED = ""
"""The value of a register before it decides."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What is agreed on about a name.

    Attributes:
        generations: how many datasets of the name were dropped.
        schema: of the present one, None if there is none.
        creation: random id of the call that created it; "" where a home did.
        retention: its policy.
    """

    generations: int = 0
    schema: StoredSchema | None = None
    creation: str = ""
    retention: VersionedRetention = UNLIMITED


Definitions: TypeAlias = Mapping[str, Definition]
"""Definitions by name."""
Change: TypeAlias = Callable[[Definitions], Definitions]
"""Changes definitions, or returns its argument where nothing is left to do."""
NOTHING = Definition()


def slot_of(name: str) -> int:
    """The register that decides about a name."""
    return text64("definition", name) % SLOTS


def encode(definitions: Definitions) -> str:
    return json.dumps({name: _to_plain(one) for name, one in definitions.items()}, sort_keys=True)


def decode(data: str) -> dict[str, Definition]:
    """The inverse of `encode`; nothing is defined where no value was founded."""
    raw = json.loads(data) if data else {}
    return {
        name: Definition(
            generations,
            None if schema is None else stored_schema_from_json(schema),
            creation,
            VersionedRetention.from_json(retention),
        )
        for name, (generations, schema, creation, retention) in raw.items()
    }


def _to_plain(one: Definition) -> tuple[int, str | None, str, str]:
    schema = None if one.schema is None else one.schema.to_json()
    return one.generations, schema, one.creation, one.retention.to_json()


def merge(agreed: Definitions, known: Definitions) -> dict[str, Definition]:
    """All that is defined in one or the other."""
    missing = {name: _merged(agreed.get(name, NOTHING), one) for name, one in known.items()}
    return {**agreed, **missing}


def _merged(agreed: Definition, known: Definition) -> Definition:
    if agreed.generations != known.generations:
        return max(agreed, known, key=lambda one: one.generations)
    created = known if agreed.schema is None else agreed
    schemas = [one.schema for one in (agreed, known) if one.schema is not None]
    schema = max(schemas, key=lambda one: one.added, default=None)
    retention = max(agreed.retention, known.retention, key=lambda one: one.version)
    return replace(created, schema=schema, retention=retention)


# --- changes -----------------------------------------------------------------------------------


def keep(definitions: Definitions) -> Definitions:
    """Changes no definition."""
    return definitions


@dataclass(slots=True)
class CreateDataset:
    """Creates a dataset in the next generation of its name.

    Args:
        schema: of it, in any generation.
        creation: a random id of the call.

    Raises:
        DatasetExists: the name is taken.
        UnknownDataset: the call was slow, and what it created, or another, is dropped meanwhile.
    """

    schema: StoredSchema
    creation: str
    _generation: int = field(default=-1, init=False)

    def __call__(self, definitions: Definitions) -> Definitions:
        name = self.schema.name
        present = definitions.get(name, NOTHING)
        if self._generation < 0:
            self._generation = present.generations
        if present.generations > self._generation:
            raise dropped_dataset(name, is_again=present.schema is not None)
        if present.schema is None:
            created = self.schema.of_generation(present.generations)
            return {**definitions, name: Definition(present.generations, created, self.creation)}
        if present.creation != self.creation:
            same = present.schema.is_wanted(self.schema)
            raise existing_dataset(present.schema, same=same)
        return definitions


@dataclass(slots=True)
class AddFeatures:
    """Adds features to the dataset with a key.

    Of two calls that add the same features at the same time, both may succeed.

    Raises:
        InvalidSchema: the dataset has a feature of such a name, or would have too many.
        UnknownDataset: there is none with this key, or it was dropped.
    """

    dataset: str
    features: tuple[Feature, ...]
    _start: int = field(default=-1, init=False)

    def __call__(self, definitions: Definitions) -> Definitions:
        present = present_of(definitions, self.dataset)
        schema = present.schema
        assert isinstance(schema, Schema), "a dataset without a schema"
        is_begun = self._start >= 0
        if is_begun and schema.features[self._start :][: len(self.features)] == self.features:
            return definitions
        wider = schema.with_features(self.features)
        self._start = len(schema.features)
        return {**definitions, schema.name: replace(present, schema=wider)}


@dataclass(slots=True)
class DropDataset:
    """Drops the dataset with a key.

    Of two calls at the same time, both may succeed.

    Raises:
        UnknownDataset: there is none with this key, or it was dropped before.
    """

    dataset: str
    _is_begun: bool = field(default=False, init=False)

    def __call__(self, definitions: Definitions) -> Definitions:
        name, generation = split_key(self.dataset)
        if self._is_begun and definitions.get(name, NOTHING).generations > generation:
            return definitions
        present_of(definitions, self.dataset)
        self._is_begun = True
        return {**definitions, name: Definition(generation + 1)}


@dataclass(slots=True)
class SetRetention:
    """Sets the policy of the dataset with a key, in the next version.

    If another call set the same version, that one came later.

    Raises:
        UnknownDataset: there is none with this key, or it was dropped.
    """

    dataset: str
    retention: Retention | None
    _version: int = field(default=0, init=False)

    def __call__(self, definitions: Definitions) -> Definitions:
        present = present_of(definitions, self.dataset)
        if not self._version:
            self._version = present.retention.version + 1
        if present.retention.version >= self._version:
            return definitions
        numbered = VersionedRetention(self._version, self.retention)
        return {**definitions, split_key(self.dataset)[0]: replace(present, retention=numbered)}


def present_of(definitions: Definitions, dataset: str) -> Definition:
    """The definition of the dataset with a key.

    Raises:
        UnknownDataset: there is none with this key, or it was dropped.
    """
    name, generation = split_key(dataset)
    present = definitions.get(name, NOTHING)
    if present.generations > generation:
        raise dropped_dataset(name, is_again=present.schema is not None)
    if present.generations < generation or present.schema is None:
        raise unknown_dataset(name, [])
    return present


# --- the register of a slot --------------------------------------------------------------------


def first_register(topology: Topology) -> RegisterState:
    """The state of a slot's register at a node that has none.

    All voters have to answer the first change, which so learns of any other before it.
    """
    voters = topology_changes.definition_voters(topology)
    return first_state((seat_of(name, "") for name in voters), UNFOUNDED)


def next_entry(
    entry: Entry, change: Change, *, known: Definitions, is_founding: bool = False
) -> Entry:
    """The entry after a change of definitions.

    Args:
        entry: as it is.
        change: of the definitions.
        known: what this node knows, which is added.
        is_founding: whether `known` has what every node knows, and no home decides any more.

    Raises:
        Unavailable: the value is not founded yet.
        GalileoError: of the change.
    """
    if entry.data == UNFOUNDED and not is_founding:
        raise Unavailable(
            "the nodes have not agreed yet on the datasets that there are, which takes until each "
            "of them has been started once; try again",
            after_s=0.5,
        )
    agreed = decode(entry.data)
    changed = change(merge(agreed, known))
    if entry.data != UNFOUNDED and changed == agreed:
        return entry
    return replace(entry, data=encode(changed))


def with_seats(entry: Entry, topology: Topology, directory: Callable[[str], str]) -> Entry:
    """The entry with the voters that a topology wants, in their present directories.

    Voters change when the directory of each new one is known.

    Args:
        entry: as it is.
        topology: of the cluster.
        directory: the random name of a node's directory, "" where it is not known.
    """
    known = {node_of(seat): seat for seat in entry.voters}
    wanted = topology_changes.definition_voters(topology, known.keys())
    names = wanted if all(name in known or directory(name) for name in wanted) else known
    seats = (seat_of(name, directory(name)) if directory(name) else known[name] for name in names)
    return replace(entry, voters=tuple(seats))


def needs_repair(entry: Entry, topology: Topology, directory: Callable[[str], str]) -> bool:
    """Whether a register is not founded, or other voters or directories should be named."""
    return entry.data == UNFOUNDED or with_seats(entry, topology, directory) != entry
