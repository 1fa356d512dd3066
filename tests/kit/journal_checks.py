"""What a journal must hold, read by every call that it has."""

from __future__ import annotations

from collections.abc import Sequence

from expected_errors import raises

from galileo.errors import DataExpired
from galileo.storage.commits import Commit, Committed
from galileo.storage.journal import PartitionJournal


def check_holds(
    journal: PartitionJournal, commits: Sequence[Commit], *, dropped: int = 0, partition: int = 7
) -> None:
    """The journal has the commits behind `dropped`, and names the others."""
    kept = commits[dropped:]
    assert (journal.dropped, journal.last_sequence) == (dropped, len(commits))
    assert journal.rows_total == sum(commit.observations.num_rows for commit in kept)
    assert journal.paths_total == sum(commit.paths.num_rows for commit in kept)
    for sequence in range(1, dropped + 1):
        for read in (journal.read, journal.paths, journal.header):
            with raises(DataExpired, partitions=[partition]):
                read(sequence)
    for sequence, commit in enumerate(kept, start=dropped + 1):
        assert journal.read(sequence).equals(commit.observations)
        assert journal.paths(sequence).equals(commit.paths)
        header = journal.header(sequence)
        assert (header.sequence, header.producer) == (sequence, commit.producer)
        assert (header.batch, header.partition) == (commit.batch, partition)
        assert (header.rows, header.paths) == (commit.observations.num_rows, commit.paths.num_rows)


def check_knows(
    journal: PartitionJournal, commits: Sequence[Commit], *, dropped: int, partition: int = 7
) -> None:
    """As `check_holds`; and the journal takes none of the commits again, dropped ones neither."""
    check_holds(journal, commits, dropped=dropped, partition=partition)
    for sequence, commit in enumerate(commits, start=1):
        rows, paths = commit.observations.num_rows, commit.paths.num_rows
        assert journal.append([commit]) == [Committed(sequence, rows, paths, duplicate=True)]


def seal_and_drop(journal: PartitionJournal) -> None:
    journal.seal()
    journal.drop(journal.last_sequence)
