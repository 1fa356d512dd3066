"""Definitions of datasets: the rows of a system table, and what changes them.

A definition only grows: the number of dropped datasets first, then the schema, then its features
and the version of the policy. What a change finds, and names in each attempt, is the generation or
the version of the policy: an attempt that is repeated at a later time finds a later one there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TypeAlias

from galileo.errors import CorruptData, GalileoError, InputError, QuotaExceeded
from galileo.model.retention import UNLIMITED, Retention, VersionedRetention
from galileo.model.schema import (
    Schema,
    StoredSchema,
    dropped_dataset,
    existing_dataset,
    features_from_json,
    split_key,
    unknown_dataset,
)
from galileo.model.stored_schema import stored_schema_from_json
from galileo.model.system import DATASETS
from galileo.model.system_rows import Draft, RowKind

FORMAT = 1
"""Of a stored definition."""
NAMES_MAX = 10_000
"""Names of the datasets, tables and channels of a cluster, dropped ones included."""
BYTES_MAX = 3 << 20
"""Bytes of an encoded definition, for which a message between nodes has room."""
CHANGES_MAX = 64
"""Changes of one commit."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What is agreed on about a name.

    Attributes:
        generations: how many datasets of the name were dropped.
        schema: of the present one, None if there is none.
        creation: random id of the call that created it.
        creator: the principal that created the last dataset of the name, "" without a quota.
        retention: its policy.
    """

    generations: int = 0
    schema: StoredSchema | None = None
    creation: str = ""
    creator: str = ""
    retention: VersionedRetention = UNLIMITED


NOTHING = Definition()


def encode(one: Definition) -> str:
    schema = None if one.schema is None else one.schema.to_json()
    policy = one.retention.to_json()
    return json.dumps([FORMAT, one.generations, schema, one.creation, one.creator, policy])


def decode(data: str) -> Definition:
    """The inverse of `encode`.

    Raises:
        CorruptData: it was not written by `encode`.
    """
    try:
        number, generations, schema, creation, creator, policy = json.loads(data)
        if number != FORMAT:
            raise ValueError(f"format {number}, not {FORMAT}")
        return Definition(
            int(generations),
            None if schema is None else stored_schema_from_json(schema),
            str(creation),
            str(creator),
            VersionedRetention.from_json(policy),
        )
    except (ValueError, TypeError, GalileoError) as error:
        raise CorruptData(f"expected the definition of a dataset, got {data!r:.200}") from error


def merged(known: Definition, other: Definition) -> Definition:
    """All that is defined in one or the other of two definitions of a name.

    What a node knows lacks the creator, so that of the other one remains.
    """
    creator = known.creator or other.creator
    if known.generations != other.generations:
        last = max(known, other, key=lambda one: one.generations)
        return replace(last, creator=last.creator or creator)
    created = known if other.schema is None or known.schema is not None else other
    schemas = [one.schema for one in (known, other) if one.schema is not None]
    schema = max(schemas, key=lambda one: one.added, default=None)
    retention = max(known.retention, other.retention, key=lambda one: one.version)
    return replace(created, creator=creator, schema=schema, retention=retention)


DEFINITION_ROWS = RowKind(
    DATASETS,
    NOTHING,
    encode=encode,
    decode=decode,
    merged=merged,
    totals=lambda one: {one.creator: 1} if one.creator else {},
    changes_max=CHANGES_MAX,
)
"""The total of a principal is how many names it was the last to create, dropped ones included."""


# --- changes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateDataset:
    """Creates a dataset in the next generation of its name.

    Attributes:
        name: of the dataset.
        schema_json: of it, in any generation.
        creation: a random id of the call.
        creator: the principal that calls, "" if it has no quota.
        names_max: of names that it may create.
        generation: that the dataset gets; -1 before it is known.

    Raises:
        DatasetExists: the name is taken.
        UnknownDataset: the call was slow, and what it created, or another, is dropped meanwhile.
        QuotaExceeded: the principal has created too many others, dropped ones included.
        InputError: the cluster has too many others, or the definition is too large.
    """

    name: str
    schema_json: str
    creation: str
    creator: str = ""
    names_max: int = 0
    generation: int = -1

    @property
    def schema(self) -> StoredSchema:
        return stored_schema_from_json(self.schema_json)

    def begun(self, present: Definition) -> CreateDataset:
        if present.schema is not None:
            same = present.schema.is_wanted(self.schema)
            raise existing_dataset(present.schema, same=same)
        return replace(self, generation=present.generations)

    def apply(self, draft: Draft[Definition]) -> None:
        schema, name, present = self.schema, self.name, draft[self.name]
        if present.generations > self.generation:
            raise dropped_dataset(name, is_again=present.schema is not None)
        if present.schema is not None:
            if present.creation != self.creation:
                raise existing_dataset(present.schema, same=present.schema.is_wanted(schema))
            return
        self._check_room(draft, present, name)
        created = schema.of_generation(present.generations)
        definition = Definition(present.generations, created, self.creation, self.creator)
        draft.put(name, _sized(definition))

    def _check_room(self, draft: Draft[Definition], present: Definition, name: str) -> None:
        if present == NOTHING and len(draft) >= NAMES_MAX:
            raise InputError(
                f"expected at most {NAMES_MAX} datasets in a cluster, dropped ones included, "
                "got another one; keep what belongs together in one dataset, or use the name of a "
                "dropped one again",
                bound=NAMES_MAX,
            )
        is_another = self.creator and present.creator != self.creator
        if is_another and draft.total(self.creator) >= self.names_max:
            raise QuotaExceeded(
                f"expected at most {self.names_max:,} names of datasets that one principal "
                "creates, dropped ones included (quota datasets_max), got one more; use a dropped "
                "name again, or ask an administrator for a higher quota",
                quota="datasets_max",
                bound=self.names_max,
            )


@dataclass(frozen=True, slots=True)
class AddFeatures:
    """Adds features to the dataset with a key.

    Of two calls that add the same features at the same time, both may succeed.

    Attributes:
        dataset: its key.
        features_json: what is added, as of `features_to_json`.
        start: how many features there were; -1 before it is known.

    Raises:
        InvalidSchema: the dataset has a feature of such a name, or would have too many.
        InputError: the definition would be too large.
        UnknownDataset: there is none with this key, or it was dropped.
    """

    dataset: str
    features_json: str
    start: int = -1

    @property
    def name(self) -> str:
        return split_key(self.dataset)[0]

    def begun(self, present: Definition) -> AddFeatures:
        schema = _schema_of(present, self.dataset)
        schema.with_features(features_from_json(self.features_json))
        return replace(self, start=len(schema.features))

    def apply(self, draft: Draft[Definition]) -> None:
        present = draft[self.name]
        schema, features = _schema_of(present, self.dataset), features_from_json(self.features_json)
        if schema.features[self.start :][: len(features)] == tuple(features):
            return
        wider = replace(present, schema=schema.with_features(features))
        draft.put(self.name, _sized(wider))


@dataclass(frozen=True, slots=True)
class DropDataset:
    """Drops the dataset with a key.

    Of two calls at the same time, both may succeed.

    Raises:
        UnknownDataset: there is none with this key, or it was dropped before.
    """

    dataset: str

    @property
    def name(self) -> str:
        return split_key(self.dataset)[0]

    def begun(self, present: Definition) -> DropDataset:
        check_present(present, self.dataset)
        return self

    def apply(self, draft: Draft[Definition]) -> None:
        name, generation = split_key(self.dataset)
        present = draft[name]
        if present.generations > generation:
            return
        check_present(present, self.dataset)
        draft.put(name, Definition(generation + 1, creator=present.creator))


@dataclass(frozen=True, slots=True)
class SetRetention:
    """Sets the policy of the dataset with a key, in the next version.

    If another call set the same version, that one came later.

    Attributes:
        dataset: its key.
        policy_json: of `Retention`; "" for none.
        version: that the policy gets; 0 before it is known.

    Raises:
        UnknownDataset: there is none with this key, or it was dropped.
    """

    dataset: str
    policy_json: str
    version: int = 0

    @property
    def name(self) -> str:
        return split_key(self.dataset)[0]

    def begun(self, present: Definition) -> SetRetention:
        check_present(present, self.dataset)
        return replace(self, version=present.retention.version + 1)

    def apply(self, draft: Draft[Definition]) -> None:
        present = draft[self.name]
        check_present(present, self.dataset)
        if present.retention.version >= self.version:
            return
        policy = Retention.from_json(self.policy_json) if self.policy_json else None
        numbered = VersionedRetention(self.version, policy)
        draft.put(self.name, replace(present, retention=numbered))


DefinitionChange: TypeAlias = CreateDataset | AddFeatures | DropDataset | SetRetention


def _sized(definition: Definition) -> Definition:
    """The definition. Raises InputError if it is too large."""
    size = len(encode(definition))
    if size > BYTES_MAX:
        raise InputError(
            f"expected a schema whose definition has at most {BYTES_MAX:,} bytes as JSON, got "
            f"{size:,}; use shorter units, queries and tables, or fewer features",
            bound=BYTES_MAX,
        )
    return definition


def check_present(present: Definition, dataset: str) -> StoredSchema:
    """The schema of the dataset with a key.

    Raises:
        UnknownDataset: there is none with this key, or it was dropped.
    """
    name, generation = split_key(dataset)
    if present.generations > generation:
        raise dropped_dataset(name, is_again=present.schema is not None)
    if present.generations < generation or present.schema is None:
        raise unknown_dataset(name, [])
    return present.schema


def _schema_of(present: Definition, dataset: str) -> Schema:
    schema = check_present(present, dataset)
    assert isinstance(schema, Schema), "features of a table"
    return schema
