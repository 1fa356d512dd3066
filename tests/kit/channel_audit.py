"""Judges a channel from outside: by its logs on disk, and by what was promised to its users.

The audit keeps a ledger of what was asked for and when, and copies what nodes show, before
retention drops it. It reads bytes by Arrow alone and compares with plain loops.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import shapely

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import CorruptData, DataExpired
from galileo.geo.circles import EARTH_RADIUS_M
from galileo.model.channel import Channel
from galileo.model.enrichment import Lookup, Nearest, Step
from galileo.model.schema import Feature, Schema
from galileo.model.table import Table
from galileo.model.times import TIME_TYPE
from galileo.node.catalog import Catalog
from galileo.node.peers import ExecutionsPart, ExecutionsTask
from galileo.node.shard import Shard
from galileo.node.storage_node import StorageNode
from galileo.node.table_cleaner import CLEANER

START_US = 1_330_560_000_000_000
ROWS = 6
"""Of a batch of observations."""
STEP_US = 500_000
"""Microseconds between the times of two batches."""
TEMPLATES = ("temperature > :least", "temperature < 1000 AND temperature > :least")
"""With the first one all commits are read, with the other one those that the graph names."""
LEVELS = Table("levels", {"level": "int", "least": "float"}, "level")
LOOKED_UP = "temperature > levels.least"
"""The template of a channel with `lookup={"levels": ":level"}`."""
BROKERS = ("east", "north", "west")

Positions = dict[int, int]
Row = dict[str, Any]


SLOTS = 5
"""Keys of a keyed dataset of observations."""


class Observation(NamedTuple):
    """`slot` is the key, in a keyed dataset; what deletes a key has nothing else."""

    number: int
    temperature: float
    slot: int = 0

    @staticmethod
    def of(row: Row) -> Observation:
        return Observation(row["number"], row["temperature"], row.get("slot", 0))

    @property
    def time_us(self) -> int:
        return START_US + self.number // ROWS * STEP_US


class Pair(NamedTuple):
    """`left`: the observation matches the subscription no longer."""

    subscription: str
    observation: Observation
    left: bool = False


@dataclass(slots=True)
class Version:
    """One state of a subscription, or of a row of `LEVELS`; `least` None: it is not there.

    Where subscriptions have rows of `LEVELS`, `least` of a subscription is the level.

    Attributes:
        begun: when the call began.
        returned: when it returned; None: not yet.
    """

    broker: str
    least: float | None
    begun: int = 0
    returned: int | None = 0

    def broker_of(self, observation: Observation) -> str | None:
        """Who gets an observation."""
        return self.broker if self.matches(observation) else None

    def matches(self, observation: Observation) -> bool:
        return self.least is not None and observation.temperature > self.least


NEVER = Version("", None)


class Change(NamedTuple):
    """A row of the table's log."""

    id: str
    broker: str
    least: float | None


@dataclass(frozen=True, slots=True)
class LoggedExecution:
    """What a commit of the channel's log says.

    Attributes:
        seen: when some node was first seen to show it.
        references: the commits up to which tables were read that enrich observations, by name.
        delivered: the observations of all shares, with what enriches them.
        due_us: when it was due, of a repetitive channel.
    """

    number: int
    after: Positions
    until: Positions
    subscriptions: int
    shares: dict[str, list[Pair]]
    seen: int
    references: dict[str, Positions]
    delivered: list[Row]
    due_us: int


@dataclass(slots=True)
class Reader:
    """Follows a broker by a cursor, which it stores together with what it takes.

    Attributes:
        taken: executions by partition.
        gone: partitions and commits that were dropped before they were read.
    """

    channel: str
    broker: str
    cursor: Cursor = EMPTY_CURSOR
    taken: dict[int, list[tuple[int, list[Pair]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    gone: set[tuple[int, int]] = field(default_factory=set)

    async def read(self, node: StorageNode, *, parts_max: int | None = None) -> None:
        """Takes what is new; a part behind so many is lost before it is stored."""
        task = ExecutionsTask(self.channel, self.broker, self.cursor)
        count = 0
        async with aclosing(node.channel_reader.read(task)) as parts:
            async for part in parts:
                if count == parts_max:
                    return
                self._take(part)
                count += 1

    def _take(self, part: ExecutionsPart) -> None:
        for partition, last in part.gone.items():
            self.gone |= {(partition, n) for n in range(self.cursor[partition] + 1, last + 1)}
        if part.execution is not None:
            pairs = pairs_of(part.execution.observations, part.execution.matches)
            self.taken[part.execution.partition].append((part.execution.number, pairs))
        self.cursor = self.cursor.join(part.reached)


def air(name: str, *, is_keyed: bool = False) -> Schema:
    """A dataset of observations with numbers and temperatures; keyed by their slots."""
    features = [Feature("number", type="int", indexed=False), Feature("temperature")]
    if is_keyed:
        features.append(Feature("slot", type="int"))
    key = ["slot"] if is_keyed else []
    return Schema(name, features, geohash_precision=2, time_bucket="6h", key=key)


def numbers_of(batch: int) -> range:
    return range(ROWS * batch, ROWS * (batch + 1))


def batch_of(number: int) -> pa.Table:
    """Numbered observations all over the world."""
    made = random.Random(number)
    return pa.table(
        [
            pa.array([made.uniform(-80, 80) for _ in range(ROWS)]),
            pa.array([made.uniform(-170, 170) for _ in range(ROWS)]),
            pa.array([START_US + number * STEP_US] * ROWS, pa.int64()).cast(TIME_TYPE),
            pa.array(numbers_of(number), pa.int64()),
            pa.array([float(made.randrange(40)) for _ in range(ROWS)]),
        ],
        schema=air("air").observation_schema,
    )


def versions_of(number: int) -> pa.Table:
    """Numbered observations that replace and delete each other, each slot at its own place."""
    made, rows = random.Random(number), batch_of(number)
    slots = [made.randrange(SLOTS) for _ in range(ROWS)]
    gone = [made.random() < 0.25 for _ in range(ROWS)]
    columns: dict[str, Any] = {
        "latitude": [-60.0 + 30 * slot for slot in slots],
        "longitude": [-150.0 + 70 * slot for slot in slots],
        "time": rows.column("time"),
        "number": rows.column("number"),
        "temperature": rows.column("temperature"),
        "slot": pa.array(slots, pa.int64()),
        "deleted": gone,
    }
    return pa.table(columns)


Changes = dict[str, tuple[str, float | None]]
"""Brokers and values of subscriptions by id; None removes one."""


def rows_of(table: Table, changes: Changes) -> pa.Table:
    parameter = parameter_of(table)
    rows = [
        {"id": name, "broker": broker, parameter: least, "deleted": least is None}
        for name, (broker, least) in changes.items()
    ]
    return pa.Table.from_pylist(rows, schema=table.observation_schema)


def parameter_of(table: Table) -> str:
    """The one parameter of a table of subscriptions."""
    [parameter] = {name for name, _ in table.columns} - {"id", "broker"}
    return parameter


class ChannelAudit:
    """The ledger of a channel over observations with a number and a temperature.

    Its template is true where the temperature is above the parameter `least`, or above `least` of
    the row of `LEVELS` that a subscription has.

    Attributes:
        values: what `least` of a subscription can be.
        levels: the versions of the rows of `LEVELS`.
    """

    def __init__(self, channel: Channel) -> None:
        assert channel.schema is not None
        self.channel = channel
        self.dataset = channel.schema.key
        self.is_keyed = channel.schema.is_keyed
        self.table = channel.subscriptions.key
        self.parameter = parameter_of(channel.subscriptions)
        self.values = range(8 if channel.lookup else 40)
        self.ledger: dict[str, list[Version]] = defaultdict(lambda: [NEVER])
        self.levels: dict[float, list[Version]] = defaultdict(lambda: [NEVER])
        self.sent: dict[int, int] = {}
        self.commits: dict[int, dict[int, list[Observation]]] = defaultdict(dict)
        self.changes: dict[int, dict[int, list[Change]]] = defaultdict(dict)
        self.log: dict[int, dict[int, LoggedExecution]] = defaultdict(dict)
        self.versions: dict[str, dict[int, dict[int, list[Row]]]] = {
            table.name: defaultdict(dict) for table in channel.references
        }
        self.upserts: list[tuple[int, str, Cursor]] = []
        self.certain = self.joined = 0
        self._ticks = itertools.count(1)

    # --- the ledger ----------------------------------------------------------------------------

    def now(self) -> int:
        """A number that grows with each event; for all threads."""
        return next(self._ticks)

    def observe(self, numbers: Iterable[int]) -> None:
        """Notes that observations are about to be sent; repeated calls change nothing."""
        now = self.now()
        for number in numbers:
            self.sent.setdefault(number, now)

    def random_change(self, name: str, chance: random.Random) -> tuple[str, float | None]:
        """Another subscription, the same once more, or none."""
        last, kind = self.ledger[name][-1], chance.random()
        if kind < 0.25:
            return "", None
        if kind < 0.4 and last.least is not None:
            return last.broker, last.least
        return chance.choice(BROKERS), float(chance.choice(self.values))

    def change(self, changes: Changes) -> list[Version]:
        """Notes that subscriptions are about to be changed; `settle` the result afterwards."""
        now = self.now()
        versions = []
        for name, (broker, least) in changes.items():
            versions.append(Version(broker, least, now, None))
            self.ledger[name].append(versions[-1])
        return versions

    def change_levels(self, rows: Mapping[float, float | None]) -> list[Version]:
        """Notes that rows of `LEVELS` are about to be changed; None deletes one."""
        now = self.now()
        versions = {level: Version("", least, now, None) for level, least in rows.items()}
        for level, version in versions.items():
            self.levels[level].append(version)
        return [*versions.values()]

    def settle(self, versions: Iterable[Version]) -> None:
        """Notes that a call has returned."""
        now = self.now()
        for version in versions:
            version.returned = now

    def upserted(self, table: str, reached: Cursor) -> None:
        """Notes that a call has returned that changed a table that enriches observations."""
        self.upserts.append((self.now(), table, reached))

    # --- the logs ------------------------------------------------------------------------------

    def remember(self, catalog: Catalog, *, executions_only: bool = False) -> None:
        """Copies what a node shows of the logs, or of that of executions."""
        logs: list[tuple[str, dict[int, Any], Any]] = [
            (self.channel.key, self.log, self._execution),
            (self.dataset, self.commits, self._observations),
            (self.table, self.changes, self._changes),
        ]
        logs += [
            (table.key, self.versions[table.name], self._versions)
            for table in self.channel.references
        ]
        for key, log, decode in logs[:1] if executions_only else logs:
            shard = catalog.shards.get(key)
            for partition in () if shard is None else tuple(shard.journals):
                assert shard is not None
                self._remember(shard, partition, log[partition], decode)

    def _remember(self, shard: Shard, partition: int, log: dict[int, Any], decode: Any) -> None:
        journal = shard.journals[partition]
        for sequence in range(journal.dropped + 1, shard.published_sequence(partition) + 1):
            if sequence in log:
                continue
            try:
                log[sequence] = decode(journal.header(sequence), journal.read(sequence))
            except (DataExpired, CorruptData):  # Copied by who drops it, or when it is mended.
                continue

    def remember_commits(
        self, commits: Mapping[tuple[str, int, int], tuple[pa.Table, pa.RecordBatch]]
    ) -> int:
        """Copies what a node has on its disk: rows and paths by dataset, partition and sequence.

        Returns:
            How many commits are others than those that are known of another node.
        """
        differences = 0
        for (key, partition, sequence), (rows, keys) in sorted(commits.items(), key=itemgetter(0)):
            of_key: dict[str, tuple[dict[int, dict[int, Any]], Any]] = {
                self.dataset: (self.commits, self._observations),
                self.table: (self.changes, self._changes),
                self.channel.key: (self.log, self._execution),
            }
            if key == self.dataset and not rows.num_rows:  # The record of a batch.
                self.commits[partition].setdefault(sequence, [])
            if key not in of_key or not rows.num_rows:
                continue
            log, decode = of_key[key]
            is_copy = key == self.table and any(keys.column("since").to_pylist())
            one = [] if is_copy else decode(None, rows)
            known = log[partition].setdefault(sequence, one)
            if isinstance(one, LoggedExecution):
                one = replace(one, seen=known.seen)
            differences += known != one
        return differences

    def _observations(self, header: Any, rows: pa.Table) -> list[Observation]:
        if header is not None and header.producer == CLEANER:
            return []
        return [Observation.of(row) for row in rows.to_pylist()]

    def _changes(self, header: Any, rows: pa.Table) -> list[Change]:
        if (
            header is not None and header.producer == CLEANER
        ):  # Copies of what counts since earlier commits.
            return []
        return [
            Change(row["id"], row["broker"], None if row["deleted"] else row[self.parameter])
            for row in rows.to_pylist()
        ]

    def _versions(self, header: Any, rows: pa.Table) -> list[Row]:
        return [] if header.producer == CLEANER else rows.to_pylist()

    def _execution(self, header: Any, rows: pa.Table) -> LoggedExecution:
        cut, *shares = rows.to_pylist()
        assert {row["execution"] for row in shares} <= {cut["execution"]}
        assert len({row["broker"] for row in shares}) == len(shares), "a broker is there twice"
        assert (cut["broker"], cut["matches"]) == ("", None)
        references: dict[str, Positions] = {table.name: {} for table in self.channel.references}
        if references:
            names = ("references", "reference_partitions", "reference_until")
            for name, partition, until in zip(*(cut[name] for name in names), strict=True):
                references[name][partition] = until
        return LoggedExecution(
            cut["execution"],
            dict(zip(cut["partitions"], cut["after"], strict=True)),
            dict(zip(cut["partitions"], cut["until"], strict=True)),
            cut["subscriptions"],
            {row["broker"]: pairs_of(row["observations"], row["matches"]) for row in shares},
            self.now(),
            references,
            [one for row in shares for one in read_rows(row["observations"])],
            rows.column("due")[0].value if self.channel.is_repetitive else 0,
        )

    # --- the judgement -------------------------------------------------------------------------

    def judge(self, *, may_skip: bool = False) -> None:
        """Judges all logs.

        Args:
            may_skip: whether retention has dropped observations before they were matched.
        """
        self.check_numbers(may_skip=may_skip)
        self.check_content()
        self.check_lookups()
        self.check_enrichment()
        self.check_promises()

    def check_numbers(self, *, may_skip: bool) -> None:
        """Executions have the numbers 1, 2, 3 …, and each begins where the last one has ended.

        Those of a repetitive channel are due at different multiples of the period.
        """
        for partition, log in self.log.items():
            assert sorted(log) == [*range(1, len(log) + 1)], f"p{partition} has gaps"
            cut, subscriptions, due_us = dict(self.channel.start), 0, 0
            references: dict[str, Positions] = {}
            for sequence in sorted(log):
                one = log[sequence]
                place = f"execution {one.number} of p{partition}"
                assert one.number == sequence, f"{place} is commit {sequence}"
                assert set(cut) <= set(one.until), f"{place} lacks partitions"
                for of, last in one.until.items():
                    begin = cut.get(of, 0)
                    assert one.after[of] == begin or (may_skip and one.after[of] > begin), place
                    assert last >= one.after[of], place
                is_changed = self.channel.compares and (
                    one.subscriptions > subscriptions or one.references != references
                )
                if self.channel.is_repetitive:
                    assert one.due_us % self.channel.period_us == 0, f"{place} is at no multiple"
                    assert one.due_us > due_us, f"{place} was due before"
                    is_changed = bool(self.subscriptions(partition, until=one.subscriptions))
                assert one.until != cut or is_changed, f"{place} has nothing new"
                assert one.subscriptions >= subscriptions, f"{place} has older subscriptions"
                for step in self.channel.lookup:
                    known, read = references.get(step.table, {}), one.references[step.table]
                    assert all(read.get(p, 0) >= known[p] for p in known), f"{place} has older rows"
                cut, subscriptions, due_us = one.until, one.subscriptions, one.due_us
                references = one.references

    def check_content(self) -> None:
        """An execution has the pairs that loops over the logs find between its cuts."""
        for partition, log in self.log.items():
            last = None
            for sequence in sorted(log):
                one = log[sequence]
                expected = self._due(partition, one, last)
                found = {broker: Counter(pairs) for broker, pairs in one.shares.items()}
                assert found == expected, f"execution {one.number} of p{partition}"
                last = one

    def count(self) -> Counter[str]:
        """As `check_content`: how many notifications there are, and how many are wrong."""
        counts = Counter[str](missed=0, repeated=0, foreign=0)
        for partition, log in self.log.items():
            last, delivered = None, Counter[Pair]()
            for sequence in sorted(log):
                one = log[sequence]
                due = of_brokers(self._due(partition, one, last))
                found = of_brokers(one.shares)
                counts["missed"] += (due - found).total()
                counts["foreign"] += (found - due).total()
                counts["notifications"] += found.total()
                delivered.update(all_pairs(one))
                last = one
            if self.channel.new in ("observations", "both"):
                counts["repeated"] += delivered.total() - len(delivered)
            counts["executions"] += len(log)
        return counts

    def _due(
        self, partition: int, one: LoggedExecution, last: LoggedExecution | None
    ) -> dict[str, Counter[Pair]]:
        """What an execution delivers after the last one."""
        due = defaultdict[str, Counter[Pair]](Counter)
        there = self.with_rows(self.subscriptions(partition, until=one.subscriptions), one)
        before, after = dict[str, Version](), 0
        if last is not None:
            after = last.subscriptions
            before = self.with_rows(self.subscriptions(partition, until=after), last)
        changed = {
            change.id
            for sequence in range(after + 1, one.subscriptions + 1)
            for change in self.changes[partition].get(sequence, ())
        }
        if last is not None and self.channel.lookup:
            stored = self.stored_levels(last, one)
            of_rows = self.subscriptions(partition, until=one.subscriptions)
            changed |= {name for name, version in of_rows.items() if version.least in stored}
        is_new = {name for name in there if self.channel.new != "both" or name in changed}
        for observation, name in itertools.product(self.matched(one), sorted(is_new)):
            if there[name].matches(observation):
                due[there[name].broker][Pair(name, observation)] += 1
        if self.channel.new == "either":
            for observation, name in itertools.product(self.history(one), sorted(changed)):
                held = before.get(name, NEVER).matches(observation)
                holds = there.get(name, NEVER).matches(observation)
                if holds and not held:
                    due[there[name].broker][Pair(name, observation)] += 1
                if held and not holds and self.channel.leave:
                    due[before[name].broker][Pair(name, observation, left=True)] += 1
        if self.channel.leave:
            for (old, new), name in itertools.product(self.replaced(one), before):
                holds = new is not None and there.get(name, NEVER).matches(new)
                if before[name].matches(old) and not holds:
                    due[before[name].broker][Pair(name, old, left=True)] += 1
        return due

    def with_rows(self, there: dict[str, Version], one: LoggedExecution) -> dict[str, Version]:
        """Subscriptions with `least` of the rows that an execution has read, if they have some."""
        if not self.channel.lookup:
            return there
        rows = self.rows(LEVELS.name, one.references[LEVELS.name])
        least = {row["level"]: row["least"] for row in rows}
        return {
            name: replace(version, least=least.get(version.least))
            for name, version in there.items()
        }

    def stored_levels(self, last: LoggedExecution, one: LoggedExecution) -> set[float]:
        """The keys of the rows of `LEVELS` that were stored or deleted between two executions."""
        known, read = last.references[LEVELS.name], one.references[LEVELS.name]
        return {
            row["level"]
            for partition, log in self.versions[LEVELS.name].items()
            for sequence, rows in log.items()
            if known.get(partition, 0) < sequence <= read.get(partition, 0)
            for row in rows
        }

    def check_lookups(self) -> None:
        """Executions have read what the calls had stored that had returned before observations."""
        executions = [one for log in self.log.values() for one in log.values()]
        for one, step in itertools.product(executions, self.channel.lookup):
            positions = one.references[step.table]
            last = max((self.sent[seen.number] for seen in self.observations(one)), default=0)
            for returned, table, reached in self.upserts:
                if table == step.table and returned < last:
                    assert all(positions.get(p, 0) >= reached[p] for p in reached), (
                        "rows are missed"
                    )

    def check_enrichment(self) -> None:
        """Observations are joined with the rows of the commits that the execution names.

        These are at least those of the calls that had returned when an observation was sent.
        """
        self.joined = 0
        executions = [one for log in self.log.values() for one in log.values()]
        for one, step in itertools.product(executions, self.channel.enrich):
            positions = one.references[step.table]
            there = self.rows(step.table, positions)
            for row in one.delivered:
                self.joined += joined_rows(row, step, there)
            sent = [self.sent[row["number"]] for row in one.delivered]
            for returned, table, reached in self.upserts:
                if table == step.table and returned < max(sent, default=0):
                    is_part = isinstance(step, Lookup)  # Of large tables, rows of some keys.
                    asked = [p for p in reached if p in positions or not is_part]
                    assert all(positions.get(p, 0) >= reached[p] for p in asked), "rows are missed"

    def rows(self, table: str, until: Positions) -> list[Row]:
        """Those of a table that are there after some commits."""
        of_table = next(one for one in self.channel.references if one.name == table)
        there: dict[Any, Row] = {}
        for partition, last in until.items():
            log = self.versions[table][partition]
            for sequence in sorted(log):
                for row in log[sequence] if sequence <= last else ():
                    key = tuple(row[name] for name in of_table.key_columns)
                    there.pop(key, None)
                    if not row["deleted"]:
                        there[key] = row
        return [*there.values()]

    def subscriptions(self, partition: int, *, until: int) -> dict[str, Version]:
        """Those of a partition as they are after a commit of the table."""
        there: dict[str, Version] = {}
        log = self.changes[partition]
        for sequence in sorted(log):
            for change in log[sequence] if sequence <= until else ():
                there.pop(change.id, None)
                if change.least is not None:
                    there[change.id] = Version(change.broker, change.least)
        return there

    def current(self, until: Positions) -> dict[int, Observation]:
        """What counts after some commits of a keyed dataset, by slot."""
        there = dict[int, Observation]()
        for of, last in until.items():
            for sequence in range(1, last + 1):
                for one in self.commits[of][sequence]:
                    there.pop(one.slot, None)
                    if one.temperature is not None:
                        there[one.slot] = one
        return there

    def replaced(self, one: LoggedExecution) -> Iterator[tuple[Observation, Observation | None]]:
        """What counts no longer, of a keyed dataset, with what counts in its place."""
        if self.is_keyed:
            there = self.current(one.until)
            for slot, observation in self.current(one.after).items():
                if there.get(slot) != observation:
                    yield observation, there.get(slot)

    def observations(self, one: LoggedExecution) -> Iterator[Observation]:
        """Those of the commits that an execution has matched."""
        if self.is_keyed:
            before = self.current(one.after).values()
            yield from (new for new in self.current(one.until).values() if new not in before)
            return
        for of, last in one.until.items():
            for sequence in range(one.after[of] + 1, last + 1):
                yield from self.commits[of][sequence]

    def matched(self, one: LoggedExecution) -> Iterator[Observation]:
        """Those that an execution has to match with all subscriptions that count."""
        if not self.channel.is_repetitive:
            return self.observations(one)
        oldest_us = one.due_us - (self.channel.age_max_us or one.due_us)
        there = itertools.chain(self.history(one), self.observations(one))
        return (one for one in there if one.time_us >= oldest_us)

    def history(self, one: LoggedExecution) -> Iterator[Observation]:
        """Those of the commits before an execution, which still count."""
        if self.is_keyed:
            there = self.current(one.until).values()
            yield from (old for old in self.current(one.after).values() if old in there)
            return
        for of, last in one.after.items():
            for sequence in range(1, last + 1):
                yield from self.commits[of][sequence]

    def check_promises(self) -> None:
        """Each subscription gets what the calls that had returned before demand, and gets it once.

        A call that had not returned when an observation was sent, or begun when the execution was
        seen, may count or not.
        """
        self.certain = 0
        known = {p: self.names(p) for p in range(self.channel.partitions)}
        acknowledged = {name for name, of_name in self.ledger.items() if of_name[1].returned}
        assert acknowledged <= set().union(*known.values()), "an acknowledged change is lost"
        if self.channel.new == "either":
            self._check_fences()
        elif self.channel.new == "observations":
            self._check_observations(known)
        elif self.channel.is_repetitive:
            self._check_repeats(known)
        else:
            self._check_both()

    def _check_both(self) -> None:
        """Each observation is delivered once, and some version of the subscription matches it."""
        delivered = Counter(
            pair for log in self.log.values() for one in log.values() for pair in all_pairs(one)
        )
        for pair, count in delivered.items():
            assert count == 1, f"{pair} is delivered {count} times"
            versions = itertools.chain.from_iterable(
                map(self.looked_up, self.ledger[pair.subscription])
            )
            assert any(one.matches(pair.observation) for one in versions)
        self.certain = len(delivered)

    def _check_fences(self) -> None:
        """Each subscription has entered, and with `leave` is in, what its last version matches.

        When everything is executed, and all calls have returned.
        """
        if self.is_keyed:
            self._check_folded()
            return
        inside = Counter[tuple[str, int]]()
        for log in self.log.values():
            for sequence in sorted(log):
                for pair in all_pairs(log[sequence]):
                    inside[pair.subscription, pair.observation.number] += -1 if pair.left else 1
        there = [one for log in self.commits.values() for commit in log.values() for one in commit]
        for (name, versions), observation in itertools.product(self.ledger.items(), there):
            [*_, last] = self.looked_up(versions[-1])
            count, holds = inside[name, observation.number], last.matches(observation)
            if self.channel.leave:
                assert count == holds, f"{name} is in {observation} {count} times"
            else:
                assert count or not holds, f"{name} has not entered {observation}"
            self.certain += holds

    def _check_folded(self) -> None:
        """As `_check_fences`, for who folds what is delivered by subscription and key."""
        inside, entered = dict[tuple[str, int], int](), set[tuple[str, int]]()
        for log in self.log.values():
            for sequence in sorted(log):
                for name, observation, left in all_pairs(log[sequence]):
                    if left:
                        number = inside.pop((name, observation.slot), None)
                        assert number == observation.number, f"{name} has not {observation}"
                    else:
                        inside[name, observation.slot] = observation.number
                        entered.add((name, observation.number))
        there = self.current({of: max(log) for of, log in self.commits.items() if log})
        expected = {
            (name, slot): observation.number
            for name, versions in self.ledger.items()
            for slot, observation in there.items()
            if self.looked_up(versions[-1])[-1].matches(observation)
        }
        if self.channel.leave:
            assert inside == expected, "what is delivered does not add up to what matches"
        missing = {(name, number) for (name, _), number in expected.items()} - entered
        assert not missing, f"{missing} have not entered"
        self.certain += len(expected)

    def looked_up(self, version: Version) -> list[Version]:
        """A version of a subscription with each version of its row, if it has one."""
        if not self.channel.lookup:
            return [version]
        return [replace(version, least=row.least) for row in self.levels[version.least]]

    def _check_repeats(self, known: Mapping[int, set[str]]) -> None:
        """The last executions deliver what the last versions of all subscriptions match.

        When everything is executed, and all calls have returned.
        """
        for partition, log in self.log.items():
            last = log[max(log)]
            there = [*self.matched(last)]
            for name in known[partition] if self.needs_changes(partition) else ():
                [*_, version] = self.looked_up(self.ledger[name][-1])
                due = Counter(Pair(name, one) for one in there if version.matches(one))
                for broker in BROKERS:
                    pairs = [p for p in last.shares.get(broker, ()) if p.subscription == name]
                    expected = due if broker == version.broker else Counter[Pair]()
                    assert Counter(pairs) == expected, f"{name} has not got what matches last"
                self.certain += due.total()

    def _check_observations(self, known: Mapping[int, set[str]]) -> None:
        for partition, log in self.log.items():
            names, delivered = known[partition], Counter[tuple[str, int]]()
            for one in log.values():
                shares = [
                    (pair.subscription, pair.observation.number, broker)
                    for broker, pairs in one.shares.items()
                    for pair in pairs
                ]
                brokers = {(name, number): broker for name, number, broker in shares}
                delivered.update((name, number) for name, number, _ in shares)
                for observation in self.observations(one):
                    for name in names:
                        outcomes = self.outcomes(name, observation, until=one.seen)
                        outcome = brokers.get((name, observation.number))
                        assert outcome in outcomes, (
                            f"{name} and observation {observation} of p{partition}: "
                            f"{outcome} instead of {outcomes}"
                        )
                        self.certain += len(outcomes) == 1 and outcome is not None
            assert set(delivered.values()) <= {1}, "a subscription has an observation twice"

    def names(self, partition: int) -> set[str]:
        """All subscriptions that a partition of the table has ever had."""
        return {change.id for changes in self.changes[partition].values() for change in changes}

    def outcomes(self, name: str, observation: Observation, *, until: int) -> set[str | None]:
        """To which brokers an observation may go for a subscription; None: to no broker."""
        begun = self.sent[observation.number]
        versions = possible(self.ledger[name], begun=begun, until=until)
        if self.channel.lookup:
            versions = [
                replace(version, least=row.least)
                for version in versions
                for row in possible(self.levels[version.least], begun=begun, until=until)
            ]
        return {version.broker_of(observation) for version in versions}

    def needs_changes(self, partition: int) -> bool:
        """Whether the last execution has to have seen all changes of the subscriptions."""
        if not self.channel.is_repetitive:
            return self.channel.compares
        return bool(self.subscriptions(partition, until=max(self.changes[partition], default=0)))

    def check_complete(self, published: Mapping[str, Mapping[int, int]]) -> None:
        """Every partition has matched everything.

        Args:
            published: the last commits of the dataset and of each log, by key.
        """
        dataset = {p: s for p, s in published[self.dataset].items() if s}
        for partition in range(self.channel.partitions):
            log = self.log[partition]
            assert len(log) == published[self.channel.key].get(partition, 0)
            last = log[max(log)].until if log else dict(self.channel.start)
            assert last == dataset, f"p{partition} has not matched everything"
            changes = [sequence for sequence, of in self.changes[partition].items() if of]
            if changes and self.needs_changes(partition):
                assert log[max(log)].subscriptions >= max(changes), f"p{partition} lacks changes"
            for step in self.channel.lookup if self.channel.compares else ():
                read = log[max(log)].references[step.table]
                for of, versions in self.versions[step.table].items():
                    stored = max((n for n, rows in versions.items() if rows), default=0)
                    assert read.get(of, 0) >= stored, f"p{partition} lacks rows"

    def check_reader(self, reader: Reader) -> None:
        """A reader has the executions of its broker in their order, except those that were gone."""
        for partition, log in self.log.items():
            expected = [
                (log[n].number, Counter(log[n].shares[reader.broker]))
                for n in sorted(log)
                if reader.broker in log[n].shares and (partition, n) not in reader.gone
            ]
            taken = [(number, Counter(pairs)) for number, pairs in reader.taken[partition]]
            assert taken == expected, f"{reader.broker} of p{partition}"


def possible(versions: list[Version], *, begun: int, until: int) -> list[Version]:
    """Those that an execution may have seen.

    Args:
        versions: in their order.
        begun: when an observation was sent; what had returned before, it has to see.
        until: when the execution was seen; what began later, it cannot have seen.
    """
    returned = [v.returned is not None and v.returned < begun for v in versions]
    first = max(place for place, is_known in enumerate(returned) if is_known)
    return [versions[first], *(v for v in versions[first + 1 :] if v.begun < until)]


def read_rows(stream: bytes) -> list[Row]:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    rows: list[Row] = pa.ipc.open_stream(stream, options=options).read_all().to_pylist()
    return rows


def joined_rows(row: Row, step: Step, there: list[Row]) -> int:
    """How many rows of a table an observation is joined with; they have to be the right ones."""
    if isinstance(step, Lookup):
        assert isinstance(step.on, str)
        [known] = [one for one in there if one["number"] == row[step.on]] or [None]
        assert row[f"{step.table}.stars"] == (known and known["stars"])
        return known is not None
    assert isinstance(step, Nearest)
    apart = {one["id"]: distance_m(row, shapely.from_wkb(one["place"])) for one in there}
    nearest = sorted(metres for metres in apart.values() if metres <= step.within_m)[: step.count]
    found = row[step.table]
    assert [one["distance"] for one in found] == pytest.approx(nearest, abs=1.0)
    for one in found:
        assert one["distance"] == pytest.approx(apart[one["id"]], abs=1.0)
    return len(found)


def distance_m(row: Row, place: shapely.Point) -> float:
    """By the law of cosines."""
    y, x = math.radians(row["latitude"]), math.radians(row["longitude"] - place.x)
    other = math.radians(place.y)
    cosine = math.sin(y) * math.sin(other) + math.cos(y) * math.cos(other) * math.cos(x)
    return EARTH_RADIUS_M * math.acos(max(-1.0, min(1.0, cosine)))


def of_brokers(shares: Mapping[str, Iterable[Pair]]) -> Counter[tuple[str, Pair]]:
    """Each pair with its broker, as often as it is there."""
    return Counter(
        (broker, pair) for broker, pairs in shares.items() for pair in Counter(pairs).elements()
    )


def all_pairs(one: LoggedExecution) -> Iterator[Pair]:
    return itertools.chain.from_iterable(one.shares.values())


def pairs_of(observations: bytes, matches: bytes) -> list[Pair]:
    """Subscriptions with their observations, of two Arrow streams."""
    rows = read_rows(observations)
    found = [Observation.of(row) for row in rows]
    pairs, used = [], set[int]()
    for match in read_rows(matches):
        used |= set(match["rows"])
        pairs += [
            Pair(name, found[row], match["left"])
            for name in match["subscriptions"]
            for row in match["rows"]
        ]
    assert used == {*range(len(found))}, "observations without a match"
    return pairs
