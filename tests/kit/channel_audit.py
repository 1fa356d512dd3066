"""Judges a channel from outside: by its logs on disk, and by what was promised to its users.

The audit keeps a ledger of what was asked for and when, and copies what nodes show, before
retention drops it. It reads bytes by Arrow alone and compares with plain loops.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from galileo.errors import DataExpired
from galileo.model.channel import Channel
from galileo.node.catalog import Catalog
from galileo.node.channel_executor import PRODUCER
from galileo.node.peers import ExecutionsPart
from galileo.node.shard import Shard
from galileo.node.table_cleaner import CLEANER

Positions = dict[int, int]


class Observation(NamedTuple):
    number: int
    temperature: float


class Pair(NamedTuple):
    subscription: str
    observation: Observation


@dataclass(slots=True)
class Version:
    """One state of a subscription; `least` None: it is not there.

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
        is_match = self.least is not None and observation.temperature > self.least
        return self.broker if is_match else None


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
    """

    producer: str
    batch: int
    number: int
    after: Positions
    until: Positions
    subscriptions: int
    shares: dict[str, list[Pair]]
    seen: int


@dataclass(slots=True)
class Reading:
    """What a reader of one broker has taken: executions by partition, and what was gone."""

    broker: str
    taken: dict[int, list[tuple[int, list[Pair]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    gone: set[tuple[int, int]] = field(default_factory=set)

    def take(self, part: ExecutionsPart, *, after: Mapping[int, int]) -> None:
        """Takes a part, together with which its cursor is stored."""
        for partition, last in part.gone.items():
            self.gone |= {(partition, n) for n in range(after[partition] + 1, last + 1)}
        if part.execution is not None:
            pairs = pairs_of(part.execution.observations, part.execution.matches)
            self.taken[part.execution.partition].append((part.execution.number, pairs))


class ChannelAudit:
    """The ledger of a channel over observations with a number and a temperature.

    Its template is true where the temperature is above the parameter `least`.
    """

    def __init__(self, channel: Channel) -> None:
        assert channel.schema is not None
        self.channel = channel
        self.dataset = channel.schema.key
        self.table = channel.subscriptions.key
        self.ledger: dict[str, list[Version]] = defaultdict(lambda: [NEVER])
        self.sent: dict[int, int] = {}
        self.commits: dict[int, dict[int, list[Observation]]] = defaultdict(dict)
        self.changes: dict[int, dict[int, list[Change]]] = defaultdict(dict)
        self.log: dict[int, dict[int, LoggedExecution]] = defaultdict(dict)
        self.certain = 0
        self._ticks = itertools.count(1)

    # --- the ledger ----------------------------------------------------------------------------

    def observe(self, numbers: Iterable[int]) -> None:
        """Notes that observations are about to be sent; repeated calls change nothing."""
        now = next(self._ticks)
        for number in numbers:
            self.sent.setdefault(number, now)

    def change(self, subscriptions: Mapping[str, tuple[str, float | None]]) -> list[Version]:
        """Notes that subscriptions are about to be changed; `settle` the result afterwards."""
        now = next(self._ticks)
        versions = []
        for name, (broker, least) in subscriptions.items():
            versions.append(Version(broker, least, now, None))
            self.ledger[name].append(versions[-1])
        return versions

    def settle(self, versions: Iterable[Version]) -> None:
        """Notes that a call has returned."""
        now = next(self._ticks)
        for version in versions:
            version.returned = now

    # --- the logs ------------------------------------------------------------------------------

    def remember(self, catalog: Catalog) -> None:
        """Copies what a node shows of the three logs."""
        for key, log, decode in (
            (self.dataset, self.commits, self._observations),
            (self.table, self.changes, self._changes),
            (self.channel.key, self.log, self._execution),
        ):
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
            except DataExpired:  # Whoever drops it has copied it.
                continue

    def _observations(self, header: Any, rows: pa.Table) -> list[Observation]:
        return [Observation(row["number"], row["temperature"]) for row in rows.to_pylist()]

    def _changes(self, header: Any, rows: pa.Table) -> list[Change]:
        if header.producer == CLEANER:  # Copies of what counts since earlier commits.
            return []
        return [
            Change(row["id"], row["broker"], None if row["deleted"] else row["least"])
            for row in rows.to_pylist()
        ]

    def _execution(self, header: Any, rows: pa.Table) -> LoggedExecution:
        cut, *shares = rows.to_pylist()
        assert {row["execution"] for row in shares} <= {cut["execution"]}
        assert len({row["broker"] for row in shares}) == len(shares), "a broker is there twice"
        assert (cut["broker"], cut["matches"]) == ("", None)
        return LoggedExecution(
            header.producer,
            header.batch,
            cut["execution"],
            dict(zip(cut["partitions"], cut["after"], strict=True)),
            dict(zip(cut["partitions"], cut["until"], strict=True)),
            cut["subscriptions"],
            {row["broker"]: pairs_of(row["observations"], row["matches"]) for row in shares},
            next(self._ticks),
        )

    # --- the judgement -------------------------------------------------------------------------

    def judge(self, *, may_skip: bool = False) -> None:
        """Judges all logs.

        Args:
            may_skip: whether retention has dropped observations before they were matched.
        """
        self.check_numbers(may_skip=may_skip)
        self.check_content()
        self.check_promises()

    def check_numbers(self, *, may_skip: bool) -> None:
        """Executions have the numbers 1, 2, 3 …, and each begins where the last one has ended."""
        for partition, log in self.log.items():
            assert sorted(log) == [*range(1, len(log) + 1)], f"p{partition} has gaps"
            cut, subscriptions = dict(self.channel.start), 0
            for sequence in sorted(log):
                one = log[sequence]
                place = f"execution {one.number} of p{partition}"
                assert (one.producer, one.batch, one.number) == (PRODUCER, sequence, sequence), (
                    place
                )
                assert set(cut) <= set(one.until), f"{place} lacks partitions"
                for of, last in one.until.items():
                    begin = cut.get(of, 0)
                    assert one.after[of] == begin or (may_skip and one.after[of] > begin), place
                    assert last >= one.after[of], place
                assert one.until != cut, f"{place} has no commits"
                assert one.subscriptions >= subscriptions, f"{place} has older subscriptions"
                cut, subscriptions = one.until, one.subscriptions

    def check_content(self) -> None:
        """An execution has each observation of its cut with each subscription that it matches."""
        for partition, log in self.log.items():
            for one in log.values():
                expected: dict[str, Counter[Pair]] = defaultdict(Counter)
                there = self.subscriptions(partition, until=one.subscriptions)
                for observation in self.observations(one):
                    for name, version in there.items():
                        broker = version.broker_of(observation)
                        if broker is not None:
                            expected[broker][Pair(name, observation)] += 1
                found = {broker: Counter(pairs) for broker, pairs in one.shares.items()}
                assert found == expected, f"execution {one.number} of p{partition}"

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

    def observations(self, one: LoggedExecution) -> Iterator[Observation]:
        """Those of the commits that an execution has matched."""
        for of, last in one.until.items():
            for sequence in range(one.after[of] + 1, last + 1):
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
        """To which brokers an observation may go for a subscription; None: to nobody."""
        begun, versions = self.sent[observation.number], self.ledger[name]
        returned = [v.returned is not None and v.returned < begun for v in versions]
        first = max(place for place, is_known in enumerate(returned) if is_known)
        possible = [versions[first], *(v for v in versions[first + 1 :] if v.begun < until)]
        return {version.broker_of(observation) for version in possible}

    def check_complete(self, published: Mapping[int, Mapping[int, int]]) -> None:
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

    def check_reading(self, reading: Reading) -> None:
        """A reader has all executions of its broker in their order, but for those that were gone."""
        for partition, log in self.log.items():
            expected = [
                (log[n].number, Counter(log[n].shares[reading.broker]))
                for n in sorted(log)
                if reading.broker in log[n].shares and (partition, n) not in reading.gone
            ]
            taken = [(number, Counter(pairs)) for number, pairs in reading.taken[partition]]
            assert taken == expected, f"{reading.broker} of p{partition}"


def pairs_of(observations: bytes, matches: bytes) -> list[Pair]:
    """Subscriptions with their observations, of two Arrow streams."""
    rows = pa.ipc.open_stream(observations).read_all().to_pylist()
    found = [Observation(row["number"], row["temperature"]) for row in rows]
    pairs, used = [], set[int]()
    for match in pa.ipc.open_stream(matches).read_all().to_pylist():
        used |= set(match["rows"])
        pairs += [Pair(name, found[row]) for name in match["subscriptions"] for row in match["rows"]]
    assert used == {*range(len(found))}, "observations without a match"
    return pairs
