"""Seals: commits without rows, after which a log takes no commits of earlier range epochs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from journals import SCHEMA, make_commit, open_journal

from galileo.errors import RangesChanged
from galileo.model.forks import Forks
from galileo.model.times import TIME_MIN_US
from galileo.storage import retention
from galileo.storage.commits import SEAL, Commit, Committed, record_of, seal_of
from galileo.storage.compaction import CompactionOptions
from galileo.storage.journal import PartitionJournal
from galileo.storage.recovery import Replayed
from galileo.storage.retention import BATCHES, LogStart
from galileo.storage.store import Store
from galileo.storage.verify import verify
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=8_000)
EPOCHS = 4


def unhurried(_: int) -> bool:
    return True


def outcome(result: object) -> str:
    if isinstance(result, Committed):
        return "known" if result.duplicate else "new"
    return type(result).__name__


@pytest.mark.parametrize("seed", range(8))
def test_journal_with_seals_equals_model(tmp_path: Path, seed: int) -> None:
    """Whatever becomes of the files, a log refuses what is older than its last seal."""
    chance, sealed = random.Random(seed), 1
    known: set[tuple[str, int]] = set()
    recorded, seen = dict[int, int](), set[int]()
    journal: PartitionJournal = open_journal(tmp_path, SMALL).journal
    for _ in range(60):
        act = chance.choice(["append", "record"] * 3 + ["seal", "open", "merge", "drop"])
        if act == "append":
            epoch, number = chance.randint(1, EPOCHS), chance.randrange(30)
            name = f"p{epoch}"
            commit = replace(make_commit(number, rows=9, producer=name), range_epoch=epoch)
            wanted = "new" if epoch >= sealed else "RangesChanged"
            wanted = "known" if (name, number) in known else wanted
            assert outcome(journal.append([commit])[0]) == wanted
            known |= set() if wanted == "RangesChanged" else {(name, number)}
        elif act == "record":
            number, digest = chance.randrange(9), chance.choice([1, 2**62 + 2, 2**62 + 3])
            record = record_of(SCHEMA, "p1", number, digest=digest)
            first = recorded.setdefault(number, digest)
            wanted = "BatchConflict" if first != digest else "known" if number in seen else "new"
            assert outcome(journal.append([record])[0]) == wanted
            seen.add(number)
        elif act == "seal":
            epoch = chance.randint(sealed, EPOCHS)
            [result] = journal.append([seal_of(SCHEMA, epoch)])
            assert isinstance(result, Committed)
            if result.sequence > journal.dropped:
                assert journal.read(result.sequence).num_rows == 0
            sealed = max(sealed, epoch)
        elif act == "open":
            journal.close()
            journal = open_journal(tmp_path, SMALL).journal
        elif act == "merge":
            journal.seal()
            journal.merge(EVERYTHING, unhurried)
        else:
            journal.seal()
            journal.drop(chance.randint(0, journal.last_sequence))
        assert journal.sealed_epoch == sealed
    journal.close()


def test_journal_commit_behind_a_seal_of_its_group_is_refused(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    group = [make_commit(0), seal_of(SCHEMA, 2), make_commit(1), seal_of(SCHEMA, 2), make_commit(0)]
    results = journal.append(group)
    assert [outcome(one) for one in results] == ["new", "new", "RangesChanged", "known", "known"]
    assert isinstance(results[2], RangesChanged)
    assert results[2].details["range_epoch"] == 2
    assert journal.last_sequence == 2


def test_journal_pending_seal_refuses_and_is_not_seen(tmp_path: Path) -> None:
    journal = PartitionJournal.open(
        tmp_path,
        schema=SCHEMA,
        partition=7,
        options=SMALL,
        replay=lambda commits: None,
        wall=lambda: 1.0,
    )

    def lead(commit: Commit) -> str:
        with journal.appending([commit], epoch=1, is_pending=True) as appending:
            if appending.group.headers and appending.write():
                appending.finish()
        return outcome(appending.results[0])

    assert lead(make_commit(0)) == "new"
    assert lead(seal_of(SCHEMA, 2)) == "new"
    assert (lead(make_commit(1)), journal.sealed_epoch) == ("RangesChanged", 1)
    journal.truncate(1)  # Another leader did not have the seal.
    assert lead(make_commit(1)) == "new"
    assert lead(seal_of(SCHEMA, 2)) == "new"
    journal.publish(3)
    assert (lead(make_commit(2)), journal.sealed_epoch) == ("RangesChanged", 2)
    journal.close()


def test_log_start_keeps_a_seal_that_is_older_than_the_batches_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def batches(producer: str, first: int, count: int) -> pa.Table:
        rows = [(producer, first + n, first + n, 1, 1, None) for n in range(count)]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, BATCHES, strict=True)]
        return pa.Table.from_arrays(arrays, schema=BATCHES)

    monkeypatch.setattr(retention, "BATCHES_KEPT_MAX", 5)
    mark = LogStart().advance(3, batches(SEAL, 2, 2), Forks(), bound=3)
    mark = mark.advance(20, batches("radar", 4, 17), Forks(), bound=20)
    assert mark.batches.last_batch(SEAL) is None
    assert LogStart.from_bytes(mark.to_bytes()).sealed_epoch == 3
    assert LogStart.from_bytes(LogStart(4).to_bytes()).sealed_epoch == 1


@pytest.mark.parametrize("is_merged", [False, True])
def test_verify_directory_with_seals_is_ok(tmp_path: Path, is_merged: bool) -> None:
    with Store.open(tmp_path, SMALL, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        store.create_dataset(SCHEMA)
        alone, mixed = store.journal("nam", 3), store.journal("nam", 12)
        alone.append([seal_of(SCHEMA, 2)])
        mixed.append([make_commit(0), seal_of(SCHEMA, 2)])
        for journal in (alone, mixed) if is_merged else ():
            journal.seal()
            assert journal.merge(EVERYTHING, unhurried)
    report = verify(tmp_path, progress=lambda size: None)
    assert (report.ok, report.commits) == (True, 3)
    replayed: list[Replayed] = []
    with Store.open(tmp_path, SMALL, wall=lambda: 1.5e9) as store:
        store.recover(lambda dataset, partition, commits: replayed.append(commits))
        assert {journal.sealed_epoch for journal in store.journals().values()} == {2}
    assert sorted(len(commits.counts) for commits in replayed) == [1, 2]


def test_newest_us_of_seals_alone_is_before_all_times() -> None:
    assert SCHEMA.newest_us(seal_of(SCHEMA, 2).paths) == TIME_MIN_US
