"""Journals of replicated partitions: frames that are durable, and that readers do not see yet."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from expected_errors import raises
from journals import SCHEMA, make_commit
from parameters import keep_quick

from galileo.errors import BatchConflict, CorruptData, InputError
from galileo.model.forks import NUMBER_BITS, Forks, history_of, next_sequence
from galileo.replication.values import Epochs
from galileo.storage.commits import Commit, Committed
from galileo.storage.compaction import CompactionOptions
from galileo.storage.history import commit_digests
from galileo.storage.journal import PartitionJournal, decode_frames
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1)


def opened(directory: Path) -> PartitionJournal:
    return PartitionJournal.open(
        directory,
        schema=SCHEMA,
        partition=7,
        options=SMALL,
        replay=lambda commits: None,
        wall=lambda: 1.0,
    )


def lead(journal: PartitionJournal, commits: list[Commit], *, epoch: int) -> list[object]:
    """Appends commits as a leader does."""
    with journal.appending(commits, epoch=epoch, is_pending=True) as appending:
        if appending.group.headers and appending.write():
            appending.finish()
    return list(appending.results)


def follow(source: PartitionJournal, target: PartitionJournal, size: int) -> None:
    """Brings one journal's next frames to another."""
    after = target.end_sequence
    last, data = source.frames(after, source.end_sequence, bytes_max=size)
    epochs = Epochs(source.epochs, source.end_sequence, forks=source.forks)
    frames = decode_frames(data, schema=SCHEMA, partition=7, after=after, epochs=epochs)
    with target.appending_frames(after, frames) as appending:
        assert appending.write()
        appending.finish()
    assert target.end_sequence == last


class Frames(list[tuple[int, int, int]]):
    """What a journal should have: (sequence, epoch, batch) of each frame, dropped ones included."""

    @property
    def end(self) -> int:
        return self[-1][0] if self else 0

    def until(self, sequence: int) -> list[tuple[int, int, int]]:
        return [frame for frame in self if frame[0] <= sequence]

    def lead(self, results: list[object], epoch: int, batch: int) -> None:
        for n, result in enumerate(results):
            self.append((next_sequence(self.end, history_of(epoch)), epoch, batch + n))
            assert isinstance(result, Committed)
            assert result.sequence == self.end

    @property
    def forks(self) -> Forks:
        jumps = zip([0, *(frame[0] for frame in self)], self, strict=False)
        return Forks(tuple((last, frame[0]) for last, frame in jumps if frame[0] != last + 1))


@pytest.mark.parametrize("seed", keep_quick(range(24), 0, 5, 11, 17))
def test_journals_of_a_leader_and_a_follower_equal_lists(tmp_path: Path, seed: int) -> None:
    """Terms and histories begin, frames are cut, and files are merged and dropped at any time."""
    chance, epoch, batch = random.Random(seed), 1, 0
    places = [tmp_path / "leader" / "7", tmp_path / "follower" / "7"]
    journals = [opened(place) for place in places]
    logs = [Frames(), Frames()]
    seen = [0, 0]
    acts = ["lead", "lead", "follow", "publish", "cut", "open", "merge", "drop"]
    for _ in range(120):
        which = chance.randrange(2)
        leader, log = journals[0], logs[0]
        act = chance.choice(acts)
        if act == "lead":
            made = [make_commit(batch + n, rows=chance.randint(1, 9)) for n in range(3)]
            log.lead(lead(leader, made, epoch=epoch), epoch, batch)
            batch += 3
        elif act == "follow" and len(logs[1]) < len(log) and logs[1] == log[: len(logs[1])]:
            if logs[1].end < leader.dropped:
                continue
            follow(leader, journals[1], chance.choice([1, 4_000, 1 << 20]))
            logs[1] = Frames(log.until(journals[1].end_sequence))
        elif act == "publish":
            until = chance.choice([0, *(frame[0] for frame in logs[which])])
            if logs[which].until(until) == log.until(until):
                published = journals[which].publish(until)
                assert [frame.header.sequence for frame in published] == [
                    frame[0] for frame in logs[which] if seen[which] < frame[0] <= until
                ]
                seen[which] = max(seen[which], until)
        elif act == "cut":
            until = chance.choice([0, *(frame[0] for frame in log)])
            for n in range(2):
                last = max(until, *seen) if n == 0 else max(until, seen[n])
                journals[n].truncate(last)
                logs[n] = Frames(logs[n].until(last))
            epoch += 1
            if chance.random() < 0.5:  # A leader takes frames when all that it has is committed.
                epoch += chance.randint(1, 3) << NUMBER_BITS
                journals[0].publish(logs[0].end)
                seen[0] = logs[0].end
        elif act == "open":
            places[which] = ended(journals[which], places[which], chance)
            journals[which] = opened(places[which])
            assert journals[which].last_sequence <= max(seen), "more than any leader knew"
            journals[which].publish(seen[which])
            seen[which] = journals[which].last_sequence
        elif act == "merge":
            journals[which].seal()
            journals[which].merge(EVERYTHING, lambda size: True)
        elif act == "drop" and logs[1].end >= seen[0]:
            journals[which].drop(chance.choice([0, *(frame[0] for frame in logs[which])]))
        for journal, of, until in zip(journals, logs, seen, strict=True):
            check(journal, of, until)
    for journal, of in zip(journals, logs, strict=True):
        check_digest(journal, of)


def ended(journal: PartitionJournal, place: Path, chance: random.Random) -> Path:
    """The directory that is left after a journal was closed, or its process has died."""
    if chance.random() < 0.5:
        journal.close()
        return place
    copied = place.parent / f"{chance.random()}"
    shutil.copytree(place, copied)
    return copied


def check_digest(journal: PartitionJournal, log: Frames) -> None:
    first, last = journal.history.first_mark(), journal.last_sequence
    headers = [journal.header(frame[0]) for frame in log.until(last) if frame[0] > first]
    expected = sum(commit_digests(headers).tolist()) % 2**64 if headers else 0
    # What is published may end before the jump to pending frames, where no sum is kept.
    if first <= last and not journal.forks.between(last, log.end).pairs:
        assert journal.history.digest(first, last) == expected


def check(journal: PartitionJournal, log: Frames, seen: int) -> None:
    dropped = journal.dropped
    assert journal.end_sequence == log.end
    assert journal.last_sequence == seen
    assert journal.forks == log.forks
    assert journal.history.digest(0, log.end + 1) is None
    epochs = Epochs(journal.epochs, journal.end_sequence, dropped, journal.forks)
    there = [frame for frame in log if frame[0] > dropped]
    assert [epochs.at(sequence) for sequence, _, _ in there] == [epoch for _, epoch, _ in there]
    whole = Epochs()
    for sequence, epoch, _ in log:
        whole = whole.extend(epoch, sequence)
    assert epochs.drop(dropped).runs == whole.drop(dropped).runs
    for sequence, epoch, batch in [f for f in log.until(seen)[-3:] if f[0] > dropped]:
        header = journal.header(sequence)
        assert (header.sequence, header.epoch, header.batch) == (sequence, epoch, batch)
        assert journal.read(sequence).num_rows == header.rows
        assert journal.find_batch("radar", header.batch) == sequence
    files = journal.files()
    ends = [*(int(path.stem) for path, _ in files[1:]), seen + 1]
    for (path, length), end in zip(files, ends, strict=False):
        if path.suffix == ".segment":  # Frames that may be taken back are no part of it.
            frames = [journal.header(f[0]) for f in there if int(path.stem) <= f[0] < end]
            assert length == sum(header.frame_bytes for header in frames)
    for sequence, _, _ in log[len(log.until(seen)) :]:
        with pytest.raises(InputError):
            journal.read(sequence)


def test_appending_of_a_pending_batch_again_names_its_sequence(tmp_path: Path) -> None:
    journal = opened(tmp_path / "7")
    lead(journal, [make_commit(5)], epoch=3)
    [again] = lead(journal, [make_commit(5)], epoch=3)
    assert again == Committed(1, 3, again.paths, duplicate=True)  # type: ignore[attr-defined]
    assert journal.last_sequence == 0
    assert journal.find_batch("radar", 5) is None
    [other] = lead(journal, [make_commit(5, rows=9)], epoch=3)
    assert isinstance(other, BatchConflict)


def test_truncate_lets_the_batch_be_stored_anew(tmp_path: Path) -> None:
    journal = opened(tmp_path / "7")
    lead(journal, [make_commit(5)], epoch=3)
    journal.truncate(0)
    [stored] = lead(journal, [make_commit(5, rows=9)], epoch=4)
    assert isinstance(stored, Committed)
    assert not stored.duplicate
    assert journal.epochs == ((1, 4),)


def test_decode_frames_of_another_epoch_raises_corrupt_data(tmp_path: Path) -> None:
    journal = opened(tmp_path / "7")
    lead(journal, [make_commit(1)], epoch=3)
    _, data = journal.frames(0, 1, bytes_max=1)
    with pytest.raises(CorruptData):
        decode_frames(data, schema=SCHEMA, partition=7, after=0, epochs=Epochs(((1, 4),), 1))
    damaged = bytearray(data)
    damaged[200] ^= 1
    epochs = Epochs(((1, 3),), 1)
    with pytest.raises(CorruptData):
        decode_frames(bytes(damaged), schema=SCHEMA, partition=7, after=0, epochs=epochs)


def test_read_of_a_pending_frame_raises_input_error(tmp_path: Path) -> None:
    journal = opened(tmp_path / "7")
    lead(journal, [make_commit(1)], epoch=3)
    with raises(InputError, last_sequence=0):
        journal.read(1)


def test_truncation_does_not_wait_for_a_merge(tmp_path: Path) -> None:
    """A new leader is followed at once, also while sealed segments are merged."""
    journal = opened(tmp_path / "7")
    journal.append([make_commit(batch) for batch in range(4)])
    journal.seal()
    lead(journal, [make_commit(9)], epoch=2)
    with ThreadPoolExecutor(1) as executor:

        def truncate(_: int) -> bool:
            executor.submit(journal.truncate, 4).result(timeout=10)
            return True

        assert journal.merge(EVERYTHING, truncate)
    assert journal.end_sequence == journal.last_sequence == 4
    lead(journal, [make_commit(10)], epoch=3)
    journal.close()
    again = opened(tmp_path / "7")
    assert (again.last_sequence, again.end_sequence) == (4, 5)
    assert again.epochs == ((1, 0), (5, 3))
