"""Processes that die while they write, and disks that are really full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import journals
import pytest
from fault_injection import strace
from fault_injection.disks import MemoryDisk
from fault_injection.requirements import memory_disk_missing, strace_missing
from journals import make_commit, open_journal

from galileo.errors import PartitionReadOnly
from galileo.storage.writer import JournalOptions

FIRST = f"{1:020d}.segment"

# Arguments: journal directory, first batch, number of groups (0: for ever). Reports each
# acknowledged commit as "batch sequence"; groups have one or two commits.
CHILD = f"""
import sys
sys.path.insert(0, {str(Path(journals.__file__).parent)!r})
from journals import make_commit, open_journal
from pathlib import Path
from galileo.errors import GalileoError
from galileo.storage.writer import JournalOptions
options = JournalOptions(segment_bytes_max=20_000)
journal = open_journal(Path(sys.argv[1]), options).journal
batch, groups = int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
done = 0
while not groups or done < groups:
    done += 1
    group = [make_commit(batch + n, rows=20) for n in range(1 + batch % 3)]
    batch += len(group)
    for commit, result in zip(group, journal.append(group)):
        if isinstance(result, GalileoError):
            print("refused", commit.batch, result.kind, flush=True)
        else:
            print(commit.batch, result.sequence, flush=True)
"""


def child(directory: Path, *, batch: int, groups: int = 0) -> list[str]:
    return [sys.executable, "-c", CHILD, str(directory), str(batch), str(groups)]


def check_holds(journal: Any, reported: dict[int, int]) -> None:
    """All that was reported is there, under its sequence, and no batch is there twice."""
    batches = [journal.header(n).batch for n in range(1, journal.last_sequence + 1)]
    assert len(set(batches)) == len(batches)
    for batch, sequence in reported.items():
        assert batches[sequence - 1] == batch
    for sequence, batch in enumerate(batches, start=1):
        assert journal.read(sequence).equals(make_commit(batch, rows=20).observations)


@pytest.mark.parametrize(
    "rounds", [(7, 23), pytest.param((1, 7, 23, 2, 40), marks=pytest.mark.slow)]
)
def test_journal_process_killed_keeps_reported_commits_once(
    tmp_path: Path, rounds: tuple[int, ...]
) -> None:
    """Each child is killed after that many reports."""
    reported: dict[int, int] = {}
    for reports in rounds:
        first = max(0, max(reported, default=0) - 4)  # retries what may have been acknowledged
        command = child(tmp_path, batch=first)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            lines = [process.stdout.readline() for _ in range(reports)]
            process.kill()
            lines += [line for line in process.stdout if line.endswith("\n")]
        for line in lines:
            batch, sequence = map(int, line.split())
            assert reported.setdefault(batch, sequence) == sequence
    assert len(reported) >= rounds[-1]
    check_holds(open_journal(tmp_path).journal, reported)


def injected(tmp_path: Path, fault: tuple[str, str, str], *, groups: int) -> list[str]:
    """What a child reported under one injected fault: name of the call, what happens, when."""
    why = strace_missing()
    if why is not None:
        pytest.skip(why)
    name, what, when = fault
    command = strace.traced(
        child(tmp_path / "7", batch=0, groups=groups),
        strace.fault(strace.CALLS[name], what, when=when),
        trace=tmp_path / "trace",
    )
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("call", "when"),
    [
        pytest.param("pwritev", "1", marks=pytest.mark.slow),
        pytest.param("pwritev", "3", marks=pytest.mark.slow),
        ("fdatasync", "2"),
        pytest.param("fdatasync", "5", marks=pytest.mark.slow),
    ],
)
def test_journal_process_killed_at_system_call_keeps_reported_commits(
    tmp_path: Path, call: str, when: str
) -> None:
    lines = injected(tmp_path, (call, "signal=SIGKILL", when), groups=6)
    reported = {int(batch): int(sequence) for batch, sequence in map(str.split, lines[1:])}
    assert lines[0] == "ready"
    assert len(reported) < 9
    journal = open_journal(tmp_path / "7").journal
    check_holds(journal, reported)
    assert journal.append([make_commit(0, rows=20)])[0].sequence == 1


@pytest.mark.slow
def test_journal_failed_sync_stops_writes_for_good(tmp_path: Path) -> None:
    lines = injected(tmp_path, ("fdatasync", "error=EIO", "3"), groups=5)
    reported = [line for line in lines[1:] if not line.startswith("refused")]
    refused = [line for line in lines[1:] if line.startswith("refused")]
    assert reported == ["0 1", "1 2", "2 3"]
    assert len(refused) == 4
    assert all(line.endswith("partition_read_only") for line in refused)
    journal = open_journal(tmp_path / "7").journal
    check_holds(journal, {0: 1, 1: 2, 2: 3})
    assert journal.last_sequence == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 64 KiB of its own."""
    why = memory_disk_missing()
    if why is not None:
        pytest.skip(why)
    with MemoryDisk(tmp_path / "small", size_bytes=64 << 10) as disk:
        yield disk.directory


def test_journal_full_disk_refuses_then_recovers(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(30_000))
    directory, options = small_disk / "7", JournalOptions(retry_after_s=0.05)
    journal = open_journal(directory, options).journal
    commits = [make_commit(batch, rows=100) for batch in range(20)]
    refused: Any = None
    stored = 0
    while refused is None:
        result = journal.append([commits[stored]])[0]
        refused = result if isinstance(result, PartitionReadOnly) else None
        stored += refused is None
    assert stored > 0
    assert os.strerror(errno.ENOSPC) in refused.message
    assert (directory / FIRST).stat().st_size == journal.bytes_on_disk
    for sequence in range(1, stored + 1):
        assert journal.read(sequence).equals(commits[sequence - 1].observations)

    ballast.unlink()
    time.sleep(refused.details["after_s"])
    assert journal.append([commits[stored]])[0].sequence == stored + 1
    assert journal.stopped is None
    journal.close()
    again = open_journal(directory).journal
    assert again.last_sequence == stored + 1
    again.close()
