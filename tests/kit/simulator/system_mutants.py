"""Mistakes of the system tables that `system_world` must convict."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from galileo.model.system_rows import Draft, Position, RowChange, RowPage, Rows
from galileo.node.definitions import CreateDataset, Definition, SetRetention
from galileo.node.replication.replicas import Replicas
from galileo.node.system_tables import SystemPartition, SystemTable
from galileo.storage.commits import Commit
from galileo.storage.journal import PartitionJournal
from simulator.system_world import run_system

TABLES = "galileo.node.system_tables.SystemTable"
PARTITION = "galileo.node.system_tables.SystemPartition"
RULES = "galileo.node.definitions"
begin, read_published = SystemTable.__init__, SystemTable._read_published
make_page = Rows.page
create, retain = CreateDataset.apply, SetRetention.apply


def _leads_for_ever(self: SystemPartition) -> None:
    """Answers without a lease."""


async def _reads_afterwards(self: SystemTable[Any]) -> Rows[Any]:
    """Answers with what was known before, and reads what else is published only then."""
    known = copy.deepcopy(self._rows)
    await read_published(self)
    return known


def _creates_again(self: CreateDataset, draft: Draft[Definition]) -> None:
    """Creates the dataset once more if it was dropped since the call began."""
    create(replace(self, generation=draft[self.name].generations), draft)


def _sets_again(self: SetRetention, draft: Draft[Definition]) -> None:
    """Sets the policy with each attempt."""
    retain(replace(self, version=draft[self.name].retention.version + 1), draft)


class _NoLock:
    """Lets any number of consumers in."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


class _Alone:
    """Carries each change out by itself, whatever else is carried out."""

    def __init__(self, tables: SystemTable[Any]) -> None:
        self._tables = tables

    async def call(self, change: RowChange) -> Definition:
        outcomes: list[Definition | Exception] = [*await self._tables._carry_out([change])]
        if isinstance(outcome := outcomes[0], Exception):
            raise outcome
        return outcome

    def begin(self, change: RowChange) -> asyncio.Future[Definition]:
        return asyncio.ensure_future(self.call(change))


def _has_many_consumers(self: SystemTable[Any], *args: Any, **options: Any) -> None:
    begin(self, *args, **options)
    mutated: Any = self
    mutated._changing, mutated._calls = _NoLock(), _Alone(self)


def _unchecked(*args: Any, unchanged_since: int, **options: Any) -> Commit:
    """A commit that replaces whatever is there."""
    return Commit(*args, **options)


def _goes_on_anywhere(
    self: Rows[Any], after: Position, topic: str, *, until: int, term: int
) -> RowPage:
    """Takes a position of another leader for one of its own."""
    return make_page(self, replace(after, term=term), topic, until=until, term=term)


async def _offers_nothing(self: SystemTable[Any], *_: object) -> None: ...


def _skips_the_rest(self: Rows[Any], sequence: int, name: str) -> Sequence[tuple[int, str]]:
    """Leaves out the other names of the commit in which a page ends."""
    return sorted((at, name) for name, at in self.sequences.items() if at > sequence)


MANY_CONSUMERS = {f"{TABLES}.__init__": _has_many_consumers}
"""No mistake: the journal refuses what another consumer has made obsolete."""


def _uses_sequences_again(last: int, history: int) -> int:
    """Goes on behind the last commit that is left."""
    return last + 1


def _begins_no_history(self: Replicas, partition: int, history: int) -> int:
    """Founds a partition anew in the history that it had."""
    known = self._live.move_of(partition)
    return 0 if known is None else known.number


def _forgets_jump(self: PartitionJournal, segment: Any) -> None:
    """Notes no jump."""
    self._segments.append(segment)


SYSTEM_MUTANTS: Mapping[str, Mapping[str, Any]] = {
    "answers_without_lease": {f"{PARTITION}.check_lead": _leads_for_ever},
    "answers_before_it_has_read": {f"{TABLES}._read_published": _reads_afterwards},
    "creates_again": {f"{RULES}.CreateDataset.apply": _creates_again},
    "sets_again": {f"{RULES}.SetRetention.apply": _sets_again},
    "consumers_unchecked": {**MANY_CONSUMERS, "galileo.node.system_tables.Commit": _unchecked},
    "position_of_another_log": {"galileo.model.system_rows.Rows.page": _goes_on_anywhere},
    "offers_nothing": {
        f"{TABLES}._offer": _offers_nothing,
        f"{TABLES}._gather": _offers_nothing,
    },
    "sequences_used_again": {
        "galileo.storage.journal.next_sequence": _uses_sequences_again,
        "galileo.replication.values.next_sequence": _uses_sequences_again,
    },
    "history_not_raised": {
        "galileo.node.replication.replicas.Replicas._lowest_term": _begins_no_history,
        "galileo.dht.topology_changes.next_history": lambda known, now: known,
    },
    "jump_not_noted": {"galileo.storage.journal.PartitionJournal._begin_segment": _forgets_jump},
    "page_skips_names": {"galileo.model.system_rows.Rows.after": _skips_the_rest},
}


def run_system_variant(
    seed: int,
    variant: str,
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
) -> Counter[str]:
    """`run_system` of "production", or with a mistake."""
    return run_system(seed, without=without, trace=trace, mutate=SYSTEM_MUTANTS.get(variant))
