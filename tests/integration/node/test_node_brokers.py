"""Who may replace whose subscriptions, at the nodes that store them: compared with a dict."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from lone_nodes import commit_alone
from parameters import keep_quick
from replica_nodes import PARTITIONS, World, expect_crash, play

from galileo.dht import placement
from galileo.errors import (
    Conflict,
    DataExpired,
    Forbidden,
    GalileoError,
    InputError,
    Unavailable,
)
from galileo.model.broker import PATTERN, check_brokers, match_brokers
from galileo.model.channel import Channel
from galileo.model.schema import Feature, Schema
from galileo.model.table import Table, deleted_rows, hashes_of, partitions_of, versions_of
from galileo.node.peers import TablePart, TableTask
from galileo.node.storage_node import StorageNode
from galileo.node.table_cleaner import CLEANER
from galileo.node.table_index import NO_VERSIONS, Versions
from galileo.node.table_shard import TableShard
from galileo.node.versioned_shard import overtaken
from galileo.storage.commits import Commit
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

# --- names and patterns ------------------------------------------------------------------------

LETTERS = "ab*?%_\\.^$[]é\n"


def test_match_brokers_agrees_with_fnmatch() -> None:
    chance = random.Random(1)

    def text(size: int) -> str:
        return "".join(chance.choice(LETTERS) for _ in range(size))

    for _ in range(300):
        patterns = [text(chance.randint(1, 4)) for _ in range(chance.randint(1, 3))]
        names = [text(chance.randint(0, 4)) for _ in range(8)]
        plain = [pattern.replace("[", "[[]") for pattern in patterns]
        expected = [any(fnmatchcase(name, pattern) for pattern in plain) for name in names]
        mask = match_brokers(patterns, pa.array([*names, None]))
        assert mask.to_pylist() == [*expected, False], (patterns, names)


def test_check_brokers_names_the_first_other_one() -> None:
    check_brokers(("mail", "sms-*"), pa.chunked_array([["mail"], ["sms-1", "sms-"]]))
    check_brokers(("mail",), pa.array([], pa.string()))
    with raises(Forbidden, broker="fax"):
        check_brokers(("mail", "sms-*"), pa.array(["mail", "fax", "pager"]))
    with raises(Forbidden, broker=None):
        check_brokers(("*",), pa.array([None], pa.string()))
    assert PATTERN.fullmatch("sms-*")
    assert not any(map(PATTERN.fullmatch, ("", "a/b", "a\n", "x" * 201, "\ud800")))


# --- the order of one partition ------------------------------------------------------------------

PARTITION, OTHER = 0, 1
TABLE = Table("t", {"id": "int", "broker": "text"}, key="id").spread(2)
KEYS = 5


@contextmanager
def opened(directory: Path) -> Iterator[TableShard]:
    """A shard, whose commits may be pending until they are published."""
    options = JournalOptions(durability="none")
    with Store.open(directory, options, wall=lambda: 0.0) as store:
        store.create_dataset(TABLE)
        store.recover(lambda *_: None)
        shard = TableShard(TABLE)
        for partition in (PARTITION, OTHER):
            shard.attach(partition, store.journal(TABLE.name, partition))
        yield shard


def commit_of(batch: int, keys: Sequence[int], *, bound: int | None, since: int = 0) -> Commit:
    rows = versions_of(TABLE, pa.table({"id": keys, "broker": ["b"] * len(keys)}))
    high, low = (pa.array(half) for half in hashes_of(TABLE, rows).T)
    columns = [high, low, pa.array([since] * len(keys)), pa.array([False] * len(keys))]
    paths = pa.RecordBatch.from_arrays(columns, schema=TABLE.path_schema)
    producer = CLEANER if since else "p"
    return Commit(producer, batch, rows, paths, unchanged_since=bound)


def append(shard: TableShard, commits: Sequence[Commit], *, is_pending: bool) -> list[Any]:
    if not is_pending:
        return commit_alone(shard, {PARTITION: commits})[PARTITION]
    appended = shard.append({PARTITION: commits}, terms={PARTITION: 1}, begin=lambda _: ())
    return appended[PARTITION].results


@pytest.mark.parametrize("seed", range(4))
def test_commits_of_changed_keys_are_refused(tmp_path: Path, seed: int) -> None:
    """Some are pending, some in one group, and copies of the cleaner change nothing."""
    chance = random.Random(seed)
    changes, end, published, batch = defaultdict[int, list[int]](list), 0, 0, 0
    found = Counter[str]()
    with opened(tmp_path) as shard:
        for _ in range(60):
            commits, expected, seen = [], [], set[int]()
            for _ in range(chance.randint(1, 4)):
                keys = chance.choices(range(KEYS), k=chance.randint(1, 3))
                batch += 1
                if changes and chance.random() < 0.2:  # A copy of something old.
                    key = chance.choice(list(changes))
                    commits.append(commit_of(batch, [key], bound=None, since=changes[key][-1]))
                    expected.append("Committed")
                    continue
                bound = chance.choice((None, published, chance.randint(0, published)))
                commits.append(commit_of(batch, keys, bound=bound))
                earlier = [sequence for key in keys for sequence in changes.get(key, ())]
                is_overlap = max(earlier, default=0) > published or not seen.isdisjoint(keys)
                if bound is None:
                    expected.append("Committed")
                elif any(bound < sequence <= published for sequence in earlier):
                    expected.append("Conflict")
                else:
                    expected.append("Unavailable" if is_overlap else "Committed")
                seen |= {*keys}  # Also by one that is refused itself.
            results = append(shard, commits, is_pending=True)
            assert [type(one).__name__ for one in results] == expected
            found.update(expected)
            for commit, result in zip(commits, results, strict=True):
                if isinstance(result, Conflict):
                    assert result.details["key"] in commit.observations["id"].to_pylist()
                    sequence = result.details["sequence"]
                    assert commit.unchanged_since is not None
                    assert commit.unchanged_since < sequence <= published
                    assert sequence in changes[result.details["key"]]
                if isinstance(result, GalileoError):
                    continue
                end = result.sequence
                if commit.producer != CLEANER:
                    for key in commit.observations["id"].to_pylist():
                        changes[key].append(end)
            if chance.random() < 0.6:
                published = chance.randint(published, end)
                shard.publish({PARTITION: published})
    assert min(found[kind] for kind in ("Committed", "Conflict", "Unavailable")) > 10


@pytest.mark.parametrize("kind", ["expired", "past-end"])
def test_condition_that_cannot_be_checked_is_refused(tmp_path: Path, kind: str) -> None:
    """A stored batch is answered all the same."""
    with opened(tmp_path) as shard:
        first = commit_of(1, [1], bound=0)
        [stored] = append(shard, [first], is_pending=False)
        append(shard, [commit_of(2, [1], bound=None)], is_pending=False)
        bound, error = (1, DataExpired) if kind == "expired" else (9, InputError)
        if kind == "expired":
            shard._cleaned[PARTITION] = 2
        again, other = append(shard, [first, commit_of(3, [2], bound=bound)], is_pending=False)
        assert (again.sequence, again.duplicate) == (stored.sequence, True)
        assert type(other) is error
        [fresh] = append(shard, [commit_of(3, [2], bound=2)], is_pending=False)
        assert fresh.sequence == 3


def test_change_that_is_cleaned_while_it_is_sought_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as shard:
        for batch in (1, 2):
            append(shard, [commit_of(batch, [1], bound=None)], is_pending=False)

        def find(*_: Any, **__: Any) -> Versions:
            shard._cleaned[PARTITION] = 2  # The cleaner records what it removes, and removes it.
            return NO_VERSIONS

        monkeypatch.setattr(shard.index, "find", find)
        [refused] = append(shard, [commit_of(3, [1], bound=1)], is_pending=False)
        assert isinstance(refused, DataExpired)


def test_batch_that_is_stored_is_answered_though_its_rows_have_changed(tmp_path: Path) -> None:
    with opened(tmp_path) as shard:
        first = commit_of(1, [1], bound=0)
        [stored] = append(shard, [first], is_pending=False)
        append(shard, [commit_of(2, [1], bound=None)], is_pending=False)
        again, other = append(shard, [first, commit_of(3, [1], bound=0)], is_pending=False)
        assert (again.sequence, again.duplicate) == (stored.sequence, True)
        assert isinstance(other, Conflict)
        assert other.details == {"key": 1, "partition": PARTITION, "sequence": 2}
        retried = overtaken(other)
        assert isinstance(retried, Unavailable)
        assert retried.details["after_s"] > 0


@pytest.mark.parametrize("is_pending", [False, True])
def test_batch_with_changed_rows_is_stored_in_no_partition(
    tmp_path: Path, is_pending: bool
) -> None:
    with opened(tmp_path) as shard:
        append(shard, [commit_of(1, [1], bound=None)], is_pending=is_pending)
        parts = {
            PARTITION: [commit_of(2, [1], bound=0), commit_of(3, [3], bound=0)],
            OTHER: [commit_of(2, [2], bound=0), commit_of(4, [2], bound=None)],
        }
        if is_pending:
            appended = shard.append(parts, terms=dict.fromkeys(parts, 1), begin=lambda _: ())
            results = {partition: one.results for partition, one in appended.items()}
        else:
            results = commit_alone(shard, parts)
        refused = {p: [type(one).__name__ for one in each] for p, each in results.items()}
        error = "Unavailable" if is_pending else "Conflict"
        assert refused == {PARTITION: [error, "Committed"], OTHER: [error, "Committed"]}


# --- nodes -----------------------------------------------------------------------------------

IDS = [f"s{number}" for number in range(8)]
CALLERS = {
    "mail": ("mail",),
    "sms": ("sms-*",),
    "both": ("mail", "sms-1"),
    "writer": (),
}
BROKERS = ("mail", "sms-1", "sms-2", "fax")


@dataclass
class Rival:
    """The reader of a node's tables, after whose answers another call stores something.

    Attributes:
        tables: the node's own.
        act: the other call; None: there is none.
    """

    tables: Any
    act: Callable[[], Awaitable[None]] | None = None

    async def read_local(self, task: TableTask) -> AsyncIterator[TablePart]:
        async for part in self.tables.read_local(task):
            yield part
        act, self.act = self.act, None
        if act is not None:
            await act()


class Smog:
    """A channel at the nodes, and a dict of who has which id.

    Attributes:
        owners: the broker of each subscription that is stored.
        changed: the ids that other calls have stored or removed since the last attempt to send.
    """

    def __init__(self, cluster: Any, seed: int) -> None:
        self.cluster, self.chance = cluster, random.Random(seed)
        self.owners: dict[str, str] = {}
        self.changed = set[str]()
        self.batches = self.refusals = self.retries = 0

    async def begin(self) -> None:
        await self.cluster["a"].create_dataset(Schema("air", [Feature("pm10")]))
        smog = await self.cluster["b"].create_dataset(Channel("smog", "air", "pm10 > :least"))
        self.table: Table = smog.subscriptions
        self.rivals = {}
        for node in self.cluster.nodes:
            await node.stored_schema(self.table.key)
            self.rivals[node.name] = node.ingest._tables = Rival(node.tables)

    def node_of(self, subscription: str) -> str:
        rows = pa.table({"id": [subscription]})
        [partition] = partitions_of(self.table, hashes_of(self.table, rows)).tolist()
        return placement.owner(self.cluster.topology, partition)

    def any_node(self) -> StorageNode:
        return self.chance.choice(self.cluster.nodes)

    def batch(self, ids: Sequence[str]) -> tuple[str, pa.Table, list[tuple[str, str | None]]]:
        """A caller, and versions: a broker for each id, None removes it."""
        caller = self.chance.choice(list(CALLERS))
        ids = self.chance.choices(ids, k=self.chance.randint(1, 4))
        if self.chance.random() < 0.3:
            return (
                caller,
                versions_of(self.table, deleted_rows(self.table, pa.table({"id": ids}))),
                [(i, None) for i in ids],
            )
        own = [b for b in BROKERS if is_of(b, CALLERS[caller])]
        named = [self.chance.choice(own) for _ in ids]
        rows = pa.table({"id": ids, "broker": named, "least": [1.0] * len(ids)})
        return caller, versions_of(self.table, rows), list(zip(ids, named, strict=True))

    def apply(
        self, caller: str, versions: Sequence[tuple[str, str | None]], *, overtaken: set[str]
    ) -> bool:
        """Stores versions in the dict, those of a node or none of them; whether all are stored.

        Args:
            caller: sends the versions.
            versions: an id and its broker; None removes the id.
            overtaken: nodes that have to get their part again, as another call changed its ids.
        """
        patterns, is_stored = CALLERS[caller], True
        for node in "abc":
            part = [(one, broker) for one, broker in versions if self.node_of(one) == node]
            earlier = [self.owners[one] for one, _ in part if one in self.owners]
            if node in overtaken or not all(is_of(broker, patterns) for broker in earlier):
                is_stored = False
                continue
            for one, broker in part:
                self.owners.pop(one, None)
                self.changed.add(one)
                if broker is not None:
                    self.owners[one] = broker
        return is_stored

    async def send(self, ids: Sequence[str]) -> None:
        """Sends a batch, again while it is to be tried again; the dict says what becomes of it."""
        caller, rows, versions = self.batch(ids)
        node, self.batches = self.any_node(), self.batches + 1
        named = {"producer": "p", "batch": self.batches, "principal": caller}
        error: GalileoError | None = Unavailable("not sent yet")
        while isinstance(error, Unavailable):
            error = None
            self.changed.clear()
            try:
                await node.ingest.ingest(self.table.key, rows, brokers=CALLERS[caller], **named)
            except (Forbidden, Unavailable) as raised:
                error = raised
                self.retries += isinstance(error, Unavailable)
        if error is not None:
            self.refusals += 1
            assert error.details["subscription"] in {one for one, _ in versions}
            others = [broker for broker in BROKERS if not is_of(broker, CALLERS[caller])]
            assert not any(broker in str(error) for broker in others), error
        # A batch that one node refuses is not sent again to another node where it was overtaken.
        overtaken = {self.node_of(one) for one, _ in versions if one in self.changed}
        is_stored = self.apply(caller, versions, overtaken=overtaken if error else set())
        assert is_stored == (error is None), (caller, versions, self.owners)

    async def step(self) -> None:
        """A batch, and perhaps another one between its check and its commit at a node."""
        if self.chance.random() < 0.5:
            node = self.chance.choice("abc")
            ids = [one for one in IDS if self.node_of(one) == node]
            if ids:
                self.rivals[node].act = lambda: self.send(ids)
        await self.send(IDS)
        for rival in self.rivals.values():
            rival.act = None
        parts = self.cluster["a"].tables.read(TableTask(self.table.key))
        stored = [row async for part in parts for row in part.rows.to_pylist()]
        assert {row["id"]: row["broker"] for row in stored} == self.owners


def is_of(broker: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(broker, pattern) for pattern in patterns)


@pytest.mark.parametrize("seed", keep_quick(range(2), 0))
async def test_subscriptions_of_other_brokers_are_neither_replaced_nor_removed(
    cluster: Any, seed: int
) -> None:
    smog = Smog(cluster, seed)
    await smog.begin()
    while smog.refusals < 20 or smog.retries < 2:
        await smog.step()


# --- copies ------------------------------------------------------------------------------------

OWNED = Table("nam", {"id": "text", "broker": "text"}, key="id").spread(PARTITIONS)
RIVALS = ("mail", "fax", "sms")


class BrokerWorld(World):
    """Brokers that subscribe and remove the same ids at all nodes.

    Attributes:
        refused: batches that were refused.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed, schema=OWNED)
        self.refused = 0

    async def send(self, number: int) -> None:
        chance, broker = random.Random(number), RIVALS[number % 10]
        rows = pa.table({"id": chance.choices(IDS, k=chance.randint(1, 2))})
        if chance.random() < 0.5:
            versions = versions_of(OWNED, deleted_rows(OWNED, rows))
        else:
            versions = versions_of(OWNED, rows.append_column("broker", [[broker] * len(rows)]))
        named = {"producer": "p", "batch": number, "principal": broker, "brokers": (broker,)}
        while not self.is_over:
            hosts = list(self.hosts.values())
            try:
                async with asyncio.timeout(5.0):
                    node = self.random.choice(hosts).node
                    await node.ingest.ingest("nam", versions, **named)
                self.acknowledged.add(number)
                return
            except Forbidden:
                self.refused += 1
                return
            except (GalileoError, TimeoutError, IndexError):
                await asyncio.sleep(0.01)
            except RuntimeError as error:
                expect_crash(error)

    def judge(self) -> None:
        """As the log has it, each row that a broker replaces is its own."""
        super().judge()
        for partition in self.topology.partitions:
            [host, *_] = self.group_of(partition)
            journal, owners = host.node.catalog.table_shard("nam").journals[partition], {}
            for sequence in range(1, journal.last_sequence + 1):
                broker = journal.header(sequence).producer.partition("/")[0]
                for row in journal.read(sequence).to_pylist():
                    assert owners.get(row["id"], broker) == broker, (partition, sequence, row)
                    owners.pop(row["id"], None)
                    if not row["deleted"]:
                        owners[row["id"]] = row["broker"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
async def test_copies_of_subscriptions_replace_none_of_other_brokers(
    tmp_path: Path, seed: int
) -> None:
    world = BrokerWorld(tmp_path, seed)
    await play(
        world,
        producers=len(RIVALS),
        faults=8,
        is_enough=lambda: min(len(world.acknowledged), world.refused) > 10,
    )
