"""Datasets that get more features: old frames are read with nulls, and every width can be written.

The random histories compare a store with rows as dicts, to which an added feature adds a None.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from parameters import keep_quick

from galileo.errors import (
    BatchConflict,
    DatasetExists,
    InvalidObservations,
    InvalidSchema,
    Unavailable,
    UnknownDataset,
)
from galileo.model import paths as model_paths
from galileo.model.schema import FEATURES_MAX, Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.replication.values import Epochs
from galileo.storage.backup import backup, restore
from galileo.storage.commits import Commit, Committed
from galileo.storage.compacted_format import read_index
from galileo.storage.compacted_segment import compacted_segment_paths
from galileo.storage.compaction import CompactionOptions
from galileo.storage.frame import decode_header
from galileo.storage.journal import UNKNOWN_FEATURES_AFTER_S, PartitionJournal, decode_frames
from galileo.storage.recovery import Replayed
from galileo.storage.store import Store
from galileo.storage.verify import verify
from galileo.storage.writer import JournalOptions

BASE = Schema("air", [Feature("heat", "K"), Feature("note", type="text", indexed=False)])
GUST = Feature("gust", "m/s")
MORE = [
    GUST,
    Feature("count", type="int"),
    Feature("site", type="text"),
    Feature("wet", type="bool"),
    Feature("remark", type="text", indexed=False),
]
WIDER = BASE.with_features([GUST])
SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=9_000)
PARTITION = 7
VALUES: dict[str, list[Any]] = {
    "float": [1.5, -2.0, None],
    "int": [3, -(2**60), None],
    "text": ["a", "", None],
    "bool": [True, False, None],
}


def observations(schema: Schema, seed: int, rows: int = 5) -> pa.Table:
    """Rows of a schema; the columns of fewer features are the same for the same seed."""
    columns = []
    for field_ in schema.observation_schema:
        chance = random.Random(f"{seed} {field_.name}")
        feature = schema.feature(field_.name)
        if feature is not None:
            values = [chance.choice(VALUES[feature.type]) for _ in range(rows)]
            columns.append(pa.array(values, field_.type))
        elif field_.name == "time":
            times = [chance.randrange(86_400) * 1_000_000 for _ in range(rows)]
            columns.append(pa.array(times, pa.int64()).cast(TIME_TYPE))
        else:
            columns.append(pa.array([chance.uniform(0, 9) for _ in range(rows)]))
    return pa.table(columns, schema=schema.observation_schema)


def commit(schema: Schema, batch: int, *, producer: str = "radar") -> Commit:
    return Commit(producer, batch, *model_paths.index(schema, observations(schema, batch)))


def opened(directory: Path, replayed: list[Replayed] | None = None) -> Store:
    replayed = [] if replayed is None else replayed
    store = Store.open(directory, SMALL, wall=lambda: 1.5e9)
    try:
        store.recover(lambda _, __, commits: replayed.append(commits))
    except BaseException:
        store.close()
        raise
    return store


def replayed_paths(store: Store) -> list[dict[str, Any]]:
    """The paths of all commits, as they are read one by one."""
    journal = store.journal("air", PARTITION)
    return [
        path
        for sequence in range(journal.dropped + 1, journal.last_sequence + 1)
        for path in journal.paths(sequence).to_pylist()
    ]


# --- random histories --------------------------------------------------------------------------


@dataclass
class History:
    """A store beside a list of rows as dicts, one list for each commit."""

    directory: Path
    chance: random.Random
    store: Store = field(init=False)
    logs: list[list[dict[str, Any]]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    schemas: list[Schema] = field(default_factory=lambda: [BASE])

    def __post_init__(self) -> None:
        self.store = opened(self.directory)
        self.store.create_dataset(BASE)

    @property
    def journal(self) -> PartitionJournal:
        return self.store.journal("air", PARTITION)

    @property
    def names(self) -> list[str]:
        return list(self.schemas[-1].observation_schema.names)

    def append(self) -> None:
        """Producers of any version write, in one group."""
        versions = self.chance.choices(self.schemas, k=self.chance.randint(1, 3))
        made = [commit(schema, len(self.commits) + n) for n, schema in enumerate(versions)]
        for one, result in zip(made, self.journal.append(made), strict=True):
            assert isinstance(result, Committed), result
            assert not result.duplicate
            self.logs.append(one.observations.to_pylist())
            self.commits.append(one)
            assert result.sequence == len(self.logs)

    def repeat(self) -> None:
        """A repeated batch, of the producer as it was or with the present schema."""
        if not self.commits:
            return
        number = self.chance.randrange(len(self.commits))
        sent = self.commits[number]
        if self.chance.random() < 0.5:
            rows = [{name: row.get(name) for name in self.names} for row in self.logs[number]]
            table = pa.Table.from_pylist(rows, schema=self.schemas[-1].observation_schema)
            sent = Commit("radar", number, *model_paths.index(self.schemas[-1], table))
        (result,) = self.journal.append([sent])
        assert isinstance(result, Committed), result
        assert (result.sequence, result.duplicate) == (number + 1, True)

    def add(self) -> None:
        at = self.schemas[-1].added
        if at < len(MORE):
            count = self.chance.randint(1, len(MORE) - at)
            self.schemas.append(self.schemas[-1].with_features(MORE[at : at + count]))
            self.store.add_features(self.schemas[-1])

    def open(self) -> None:
        self.store.close()
        replayed: list[Replayed] = []
        self.store = opened(self.directory, replayed)
        paths = [path for commits in replayed for path in commits.paths.to_pylist()]
        assert paths == replayed_paths(self.store)

    def merge(self) -> None:
        self.journal.seal()
        self.journal.merge(EVERYTHING, lambda _: True)

    def drop(self) -> None:
        self.journal.drop(self.journal.dropped + self.chance.randint(1, 6))

    def copy(self) -> None:
        """Goes on in a directory that was restored from a backup."""
        saved, place = self.directory.with_name("saved"), self.directory.with_name("restored")
        for path in (saved, place):
            shutil.rmtree(path, ignore_errors=True)
        backup(self.directory, saved, now=1.6e9)
        restore(saved, place, now=1.8e9)
        self.store.close()
        shutil.rmtree(self.directory)
        place.rename(self.directory)
        self.store = opened(self.directory)

    def check(self) -> None:
        journal = self.journal
        assert journal.last_sequence == len(self.logs)
        for sequence in range(journal.dropped + 1, len(self.logs) + 1):
            expected = [
                {name: row.get(name) for name in self.names} for row in self.logs[sequence - 1]
            ]
            table = journal.read(sequence)
            assert table.schema == self.schemas[-1].observation_schema
            assert table.to_pylist() == expected
            paths = journal.paths(sequence)
            assert paths.schema == self.schemas[-1].path_schema
            firsts = [expected[row] for row in paths.column("row").to_pylist()]
            for feature in self.schemas[-1].indexed:
                values = paths.column(feature.name).to_pylist()
                assert values == [row[feature.name] for row in firsts]


@pytest.mark.parametrize("seed", keep_quick(range(8), 2))
def test_store_with_added_features_equals_rows_as_dicts(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    history = History(tmp_path / "node", chance)
    acts = [history.append] * 5 + [history.repeat] * 2 + [history.add, history.open, history.merge]
    acts += [history.drop, history.copy]
    for _ in range(60):
        chance.choice(acts)()
        history.check()
    assert verify(history.directory).damages == ()
    history.store.close()
    assert history.schemas[-1].added == len(MORE), "the history added too little to say much"


# --- files -------------------------------------------------------------------------------------


def first_frame(directory: Path, sequence: int = 1) -> bytes:
    (path,) = (directory / "journals" / "air" / str(PARTITION)).glob("*.segment")
    data, offset = path.read_bytes(), 0
    while (header := decode_header(data[offset : offset + 384])).sequence < sequence:
        offset += header.frame_bytes
    return data[offset:]


def test_frames_count_the_added_features_that_they_have(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_dataset(BASE)
        store.journal("air", PARTITION).append([commit(BASE, 0)])
        store.add_features(WIDER)
        store.journal("air", PARTITION).append([commit(BASE, 1), commit(WIDER, 2)])
    headers = [decode_header(first_frame(tmp_path, sequence)[:384]) for sequence in (1, 2, 3)]
    assert [header.added for header in headers] == [0, 0, 1]


def test_merged_blocks_keep_commits_as_narrow_as_they_are(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_dataset(BASE)
        journal = store.journal("air", PARTITION)
        journal.append([commit(BASE, 0), commit(BASE, 1)])
        store.add_features(WIDER)
        journal.append([commit(WIDER, 2), commit(BASE, 3)])
        before = journal.frames(0, 4, bytes_max=1 << 20)[1]
        journal.seal()
        assert journal.merge(EVERYTHING, lambda _: True)
        (path,) = compacted_segment_paths(store.partition_directory("air", PARTITION))
        index = read_index(path)
        assert index.numbers("added").tolist() == [0, 0, 1, 0]
        assert [block.entry.commits for block in index.blocks] == [2, 1, 1]
        after = journal.frames(0, 4, bytes_max=1 << 20)[1]
    epochs = Epochs(((1, 0),), 4)
    decoded = [
        decode_frames(data, schema=WIDER, partition=PARTITION, after=0, epochs=epochs)
        for data in (before, after)
    ]
    assert [f.paths for f in decoded[0]] == [f.paths for f in decoded[1]]
    assert [f.header.added for f in decoded[1]] == [0, 0, 1, 0]


def test_store_with_a_schema_older_than_its_commits_is_refused_and_cuts_nothing(
    tmp_path: Path,
) -> None:
    """The last frame is whole: it is no torn tail, though it cannot be read."""
    record = tmp_path / "datasets" / "air.record"
    with opened(tmp_path) as store:
        store.create_dataset(BASE)
        old = record.read_bytes()
        store.add_features(WIDER)
        store.journal("air", PARTITION).append([commit(BASE, 0)])
        store.journal("air", PARTITION).append([commit(WIDER, 1)])
    new, data = record.read_bytes(), first_frame(tmp_path)
    (path,) = (tmp_path / "journals" / "air" / str(PARTITION)).glob("*.segment")
    record.write_bytes(old)
    with opened(tmp_path) as store:
        [error] = store.damaged.values()
        assert error.details["file"] == str(path)
    assert first_frame(tmp_path) == data
    record.write_bytes(new)
    with opened(tmp_path) as store:
        assert store.journal("air", PARTITION).last_sequence == 2


def test_backup_while_features_are_added_has_the_schema_of_its_commits(tmp_path: Path) -> None:
    with opened(tmp_path / "node") as store:
        store.create_dataset(BASE)
        for partition in (3, PARTITION):
            store.journal("air", partition).append([commit(BASE, 0)])

        def add(_: int) -> None:
            """Between the copies of the schema and of the partition."""
            is_copied = list((tmp_path / "saved.partial").glob("journals/air/3/*"))
            if is_copied and not store.schemas()["air"].added:
                store.add_features(WIDER)
                store.journal("air", PARTITION).append([commit(WIDER, 1)])

        backup(tmp_path / "node", tmp_path / "saved", now=1.6e9, progress=add)
        assert store.schemas()["air"].added == 1, "the backup was over before features were added"
    restore(tmp_path / "saved", tmp_path / "restored", now=1.8e9)
    with opened(tmp_path / "restored") as store:
        assert store.schemas() == {"air": WIDER}
        rows = store.journal("air", PARTITION).read(2)
        assert rows.equals(commit(WIDER, 1).observations)


# --- followers ---------------------------------------------------------------------------------


def test_follower_refuses_frames_of_features_that_it_does_not_know_until_it_does(
    tmp_path: Path,
) -> None:
    def replica(name: str) -> PartitionJournal:
        return PartitionJournal.open(
            tmp_path / name,
            schema=BASE,
            partition=PARTITION,
            options=SMALL,
            replay=lambda _: None,
            wall=lambda: 1.0,
        )

    leader, follower = replica("leader"), replica("follower")
    leader.add_features(WIDER)
    with leader.appending(
        [commit(BASE, 0), commit(WIDER, 1)], epoch=4, is_pending=True
    ) as appending:
        assert appending.write()
        appending.finish()
    _, data = leader.frames(0, 2, bytes_max=1 << 20)
    place = {"partition": PARTITION, "after": 0, "epochs": Epochs(leader.epochs, 2)}
    with raises(Unavailable, after_s=UNKNOWN_FEATURES_AFTER_S):
        decode_frames(data, schema=BASE, **place)  # type: ignore[arg-type]
    frames = decode_frames(data, schema=WIDER, **place)  # type: ignore[arg-type]
    follower.add_features(WIDER)
    with follower.appending_frames(0, frames) as appending:
        assert appending.write()
        appending.finish()
    for journal in (leader, follower):
        assert [frame.paths.schema for frame in journal.publish(2)] == [WIDER.path_schema] * 2
    for sequence in (1, 2):
        assert follower.read(sequence).equals(leader.read(sequence))
    leader.close()
    follower.close()


def test_pending_frames_are_published_with_features_that_were_added_meanwhile(
    tmp_path: Path,
) -> None:
    journal = PartitionJournal.open(
        tmp_path,
        schema=BASE,
        partition=PARTITION,
        options=SMALL,
        replay=lambda _: None,
        wall=lambda: 1.0,
    )
    with journal.appending([commit(BASE, 0)], epoch=4, is_pending=True) as appending:
        assert appending.write()
        appending.finish()
    journal.add_features(WIDER)
    (frame,) = journal.publish(1)
    assert frame.paths.schema == WIDER.path_schema
    assert frame.paths.column("gust").null_count == frame.paths.num_rows
    journal.close()


# --- batches -----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        store.create_dataset(BASE)
        yield store


def test_batch_with_values_of_an_added_feature_conflicts_with_the_one_without(
    store: Store,
) -> None:
    journal = store.journal("air", PARTITION)
    journal.append([commit(BASE, 0)])
    store.add_features(WIDER)
    (result,) = journal.append([commit(WIDER, 0)])
    assert isinstance(result, BatchConflict)
    journal.seal()
    assert journal.drop(1).commits == 1
    (result,) = journal.append([commit(WIDER, 0)])
    assert isinstance(result, BatchConflict)


def test_batch_with_a_feature_before_it_is_added_is_refused(store: Store) -> None:
    journal = store.journal("air", PARTITION)
    (result,) = journal.append([commit(WIDER, 0)])
    assert isinstance(result, InvalidObservations)
    store.add_features(WIDER)
    (result,) = journal.append([commit(WIDER, 0)])
    assert isinstance(result, Committed)


def test_batch_of_another_feature_is_refused(store: Store) -> None:
    other = BASE.with_features([Feature("pressure")])
    store.add_features(WIDER)
    (result,) = store.journal("air", PARTITION).append([commit(other, 0)])
    assert isinstance(result, InvalidObservations)


def test_add_features_again_or_fewer_changes_nothing(store: Store) -> None:
    widest = WIDER.with_features([Feature("wet", type="bool")])
    for schema in (widest, widest, WIDER, BASE):
        store.add_features(schema)
        assert store.schemas() == {"air": widest}


def test_add_features_that_are_not_behind_the_present_ones_is_refused(store: Store) -> None:
    store.add_features(WIDER)
    for other in (
        BASE.with_features([Feature("pressure")]),
        Schema("air", [Feature("cold"), *BASE.features[1:]]).with_features([GUST]),
        Schema("air", [*BASE.features, GUST]),
    ):
        with raises(DatasetExists, same=False):
            store.add_features(other)
    with raises(UnknownDataset, dataset="sea"):
        store.add_features(Schema("sea", [GUST]))
    assert store.schemas() == {"air": WIDER}


# --- schemas -----------------------------------------------------------------------------------


def test_with_features_refuses_what_no_dataset_can_have() -> None:
    with raises(InvalidSchema, expected="free_name", feature="heat"):
        BASE.with_features([GUST, Feature("heat", "C")])
    with raises(InvalidSchema, expected="features"):
        BASE.with_features([])
    with raises(InvalidSchema, expected="unique", feature="gust"):
        BASE.with_features([GUST, GUST])
    with raises(InvalidSchema, expected="features", bound=FEATURES_MAX):
        BASE.with_features([Feature(f"f{number}") for number in range(FEATURES_MAX - 1)])
    fullest = BASE.with_features([Feature(f"f{number}") for number in range(FEATURES_MAX - 2)])
    assert len(fullest.features) == FEATURES_MAX


def test_schema_with_added_features_knows_what_it_was() -> None:
    widest = WIDER.with_features([Feature("wet", type="bool")]).of_generation(3)
    assert (WIDER.added, widest.added) == (1, 2)
    assert widest.narrowed(1) == WIDER.of_generation(3)
    assert widest.narrowed(0) == BASE.of_generation(3)
    assert Schema.from_json(widest.to_json()) == widest
    assert widest != Schema("air", widest.features).of_generation(3)
    assert widest.extends(WIDER.of_generation(3))
    assert not WIDER.of_generation(3).extends(widest)
    assert not widest.extends(WIDER)
    for added in (-1, 3):
        with raises(InvalidSchema, expected="added", bound=2):
            widest.narrowed(added)


@pytest.mark.parametrize("added", [-1, 3, 4, "x"])
def test_schema_from_dict_with_a_wrong_number_of_added_features_is_refused(added: Any) -> None:
    with raises(InvalidSchema, expected="schema"):
        Schema.from_dict({**WIDER.to_dict(), "added": added})
