from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journals import make_commit, open_journal

from galileo.storage.compacted_format import read_index
from galileo.storage.compacted_segment import compacted_segment_paths
from galileo.storage.compaction import CompactionOptions
from galileo.storage.frame import FrameHeader
from galileo.storage.history import RANGE, LogHistory, commit_digests, merged_digests
from galileo.storage.journal import PartitionJournal
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=8_000)
COMMITS = 3 * RANGE + 17


def header(sequence: int, **changes: Any) -> FrameHeader:
    made = FrameHeader(
        partition=7,
        sequence=sequence,
        group=sequence,
        producer=f"radar {sequence % 3}",
        batch=sequence % 50,
        rows=sequence % 7,
        paths=1,
        committed_at_us=-5 if sequence % 2 else 1_330_560_000_000_000,
        paths_bytes=64,
        observations_bytes=64,
        paths_crc=sequence,
        observations_crc=0,
        epoch=sequence // 100,
        committed=sequence,
    )
    return replace(made, **changes)


def history(last: int, dropped: int = 0) -> LogHistory:
    made = LogHistory(dropped)
    for sequence in range(dropped + 1, last + 1):
        made.add(header(sequence))
    return made


def commit_digest(one: FrameHeader) -> int:
    return int(commit_digests([one])[0])


@functools.cache
def sums() -> list[int]:
    """The sum of the digests of so many first commits."""
    digests = commit_digests([header(n) for n in range(1, 20_000)]).tolist()
    return [0, *itertools.accumulate(digests)]


def expected(after: int, until: int) -> int:
    return (sums()[until] - sums()[after]) % 2**64


def known(last: int, dropped: int = 0) -> list[int]:
    marks = [n for n in range(dropped, last + 1) if n % RANGE == 0]
    begin = max([dropped, *marks])
    return [*marks, *range(begin + 1, last + 1)]


@pytest.mark.parametrize("dropped", [0, 1, RANGE - 1, RANGE, RANGE + 1])
def test_log_history_digests_are_sums_over_ranges(dropped: int) -> None:
    last = COMMITS
    made = history(last, dropped)
    points = [n for n in known(last, dropped) if n % RANGE in (0, 1, 16)]
    for after in points:
        for until in points:
            if after <= until:
                assert made.digest(after, until) == expected(after, until)
    assert made.digest(0, RANGE + 5) is None
    assert made.digest(0, last + 1) is None
    assert made.first_mark() == -(-dropped // RANGE) * RANGE


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 99},
        {"producer": "radar 9"},
        {"batch": 777},
        {"rows": 3_000},
        {"paths": 2},
        {"committed_at_us": 0},
    ],
)
def test_commit_digest_differs_in_what_every_copy_has(changes: dict[str, Any]) -> None:
    assert commit_digest(header(9, **changes)) != commit_digest(header(9))


def test_commit_digest_leaves_out_how_a_copy_is_stored() -> None:
    stored = {"group": 3, "committed": 1, "paths_bytes": 128, "paths_crc": 5, "observations_crc": 6}
    assert commit_digest(header(9, **stored)) == commit_digest(header(9))


def test_commit_digest_differs_if_commits_change_places() -> None:
    swapped = [header(1, batch=2), header(2, batch=1)]
    right = [header(1, batch=1), header(2, batch=2)]
    assert sum(map(commit_digest, swapped)) % 2**64 != sum(map(commit_digest, right)) % 2**64


def test_log_history_removed_commits_leave_what_was_before() -> None:
    made, chosen, last = history(0), random.Random(3), 0
    for _ in range(200):
        for _ in range(chosen.randrange(2 * RANGE) if chosen.random() < 0.1 else 3):
            last += 1
            made.add(header(last))
        for _ in range(min(last, chosen.randrange(RANGE) if chosen.random() < 0.1 else 2)):
            made.remove(header(last), last - 1)
            last -= 1
        for until in (last, last // RANGE * RANGE):
            assert made.digest(0, until) == expected(0, until)
        assert made.digest(0, last + 1) is None


def test_log_history_forgets_what_is_dropped() -> None:
    made = history(COMMITS)
    made.drop(RANGE + 1)
    assert made.first_mark() == 2 * RANGE
    assert made.digest(RANGE, COMMITS) is None
    assert made.digest(2 * RANGE, COMMITS) == expected(2 * RANGE, COMMITS)
    made.add(header(COMMITS + 1))
    assert made.digest(2 * RANGE, COMMITS + 1) == expected(2 * RANGE, COMMITS + 1)
    made.drop(COMMITS + 1)
    assert made.digest(2 * RANGE, COMMITS + 1) is None


def digest_of(journal: PartitionJournal) -> int:
    digest = journal.history.digest(0, journal.last_sequence)
    assert digest is not None
    return digest


def test_journal_history_is_the_same_after_merging_and_restarts(stored: Path) -> None:
    journal = open_journal(stored, SMALL).journal
    for batch in range(100, 100 + RANGE):
        journal.append([make_commit(batch)])
    before = digest_of(journal)
    assert journal.merge(EVERYTHING, lambda _: True)
    assert digest_of(journal) == before
    (merged,) = compacted_segment_paths(stored)
    index = read_index(merged)
    digests = merged_digests(index).tolist()
    assert digests == [commit_digest(index.header(n)) for n in range(len(digests))]
    assert len(digests) > RANGE / 2
    for batch in range(1_000, 1_020):
        journal.append([make_commit(batch)])
    assert journal.merge(EVERYTHING, lambda _: True)
    assert len(compacted_segment_paths(stored)) == 2
    before = digest_of(journal)
    journal.close()
    again = open_journal(stored, SMALL).journal
    assert digest_of(again) == before
    assert again.history.digest(0, RANGE) == journal.history.digest(0, RANGE)
    again.append([make_commit(99)])
    assert digest_of(again) != before
