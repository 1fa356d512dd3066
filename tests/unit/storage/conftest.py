"""Commits of the dataset of `journals`, stored and not, and a faulty disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from journals import FaultyDisk, make_commit, open_journal

from galileo.storage.journal import Commit
from galileo.storage.writer import JournalOptions


@pytest.fixture
def faulty_disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def commits() -> list[Commit]:
    return [make_commit(batch, rows=20, producer=f"radar {batch % 3}") for batch in range(12)]


@pytest.fixture
def stored(tmp_path: Path, commits: list[Commit]) -> Path:
    """A partition of twelve commits in several sealed segments and a last one."""
    journal = open_journal(
        tmp_path / "7", JournalOptions(durability="none", segment_bytes_max=6_000)
    ).journal
    for one in commits:
        journal.append([one])
    assert journal.segments > 3
    journal.close()
    return tmp_path / "7"
