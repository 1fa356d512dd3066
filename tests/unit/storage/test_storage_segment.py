"""What is decoded stays decoded: views into the maps of segments, and only as long as these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from journals import make_commit, open_journal

from galileo.errors import CorruptData, DataExpired
from galileo.storage import segment as module
from galileo.storage.compaction import CompactionOptions
from galileo.storage.journal import Commit, PartitionJournal
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)


def decoded(journal: PartitionJournal) -> list[int]:
    return sorted(journal._maps._decoded)


@pytest.fixture
def commits() -> list[Commit]:
    return [make_commit(batch) for batch in range(12)]


@pytest.fixture
def limits() -> dict[str, int]:
    """What stays in memory; tests override it."""
    return {}


@pytest.fixture
def journal(
    tmp_path: Path,
    commits: list[Commit],
    limits: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> PartitionJournal:
    for name, value in limits.items():
        monkeypatch.setattr(module, name, value)
    made: PartitionJournal = open_journal(tmp_path / "p", SMALL).journal
    for commit in commits:
        made.append([commit])
    assert made.segments > 2
    return made


def test_journal_read_commit_is_decoded_once(
    journal: PartitionJournal, commits: list[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = journal.read(2)
    monkeypatch.setattr(module, "decode_body", None)
    assert journal.read(2).equals(first)
    assert first.equals(commits[1].observations)


@pytest.mark.parametrize("limits", [{"DECODED_COMMITS_MAX": 3}], ids=[""])
def test_journal_decoded_cache_keeps_last_read(journal: PartitionJournal) -> None:
    for sequence in (1, 2, 3, 1, 4):
        journal.read(sequence)
    assert decoded(journal) == [1, 3, 4]


def test_journal_decoded_cache_keeps_no_damaged_commit(journal: PartitionJournal) -> None:
    place = journal._segment_of(1, 1)
    data = bytearray(place.path.read_bytes())
    header = journal.header(1)
    data[header.observations_offset + header.observations_bytes // 2] ^= 1
    place.path.write_bytes(data)
    for _ in range(2):
        with raises(CorruptData, offset=576):
            journal.read(1)
    assert decoded(journal) == []


@pytest.mark.parametrize("limits", [{"MAPPED_SEGMENTS_MAX": 1}], ids=[""])
def test_journal_decoded_cache_unmapped_segment_is_dropped(
    journal: PartitionJournal, commits: list[Commit]
) -> None:
    """Else maps, and a file descriptor for each, would stay without bound."""
    journal.read(1)
    journal.read(len(commits))
    assert decoded(journal) == [len(commits)]


def test_journal_decoded_cache_remapped_segment_is_dropped(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "p").journal
    for batch in (1, 2):
        journal.append([make_commit(batch)])
        journal.read(batch)
        assert decoded(journal) == [batch], "the one segment is mapped anew"
    journal.read(1)
    assert decoded(journal) == [1, 2]


def test_journal_decoded_cache_merge_and_drop_clear_it(
    journal: PartitionJournal, commits: list[Commit]
) -> None:
    before = [journal.read(sequence) for sequence in range(1, len(commits) + 1)]
    assert len(decoded(journal)) == len(commits)
    assert journal.merge(CompactionOptions(bytes_min=1, block_bytes=8_000), lambda _: True)
    merged = journal._segments[0].next_sequence
    assert min(decoded(journal)) == merged
    for sequence, table in enumerate(before, start=1):
        assert journal.read(sequence).equals(table)
    journal.seal()
    journal.drop(len(commits))
    assert decoded(journal) == []
    with pytest.raises(DataExpired):
        journal.read(merged)


def test_journal_decoded_cache_file_deleted_meanwhile_is_dropped(
    journal: PartitionJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep the file's space on the disk until the partition is closed."""
    decode = module.decode_body

    def deleted_meanwhile(*args: Any) -> Any:
        batch = decode(*args)
        journal._maps.evict(journal._segment_of(1, 1).path)
        return batch

    monkeypatch.setattr(module, "decode_body", deleted_meanwhile)
    assert journal.read(1).num_rows
    assert decoded(journal) == []
