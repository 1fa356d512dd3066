"""Epochs of logs against lists of epochs."""

from __future__ import annotations

from random import Random

from galileo.replication.values import Epochs


def from_list(epochs: list[int]) -> Epochs:
    made = Epochs()
    for sequence, epoch in enumerate(epochs, 1):
        made = made.extend(epoch, sequence)
    return made


def draw(random: Random) -> list[int]:
    return sorted(random.randint(1, 4) for _ in range(random.randint(0, 9)))


def test_epochs_random_logs_equal_lists() -> None:
    random = Random(7)
    for _ in range(3_000):
        one, other = draw(random), draw(random)
        log, end = from_list(one), random.randint(0, 9)
        assert log.end == len(one)
        assert [log.at(sequence) for sequence in range(1, len(one) + 1)] == one
        assert log.cut(end) == from_list(one[:end])
        equal = [a == b for a, b in zip(one, other, strict=False)]
        common = equal.index(False) if False in equal else len(equal)
        assert log.common(from_list(other), committed=0) == common


def test_epochs_random_ranges_rebuild_the_log() -> None:
    random = Random(8)
    for _ in range(3_000):
        epochs = draw(random)
        log, until = from_list(epochs), random.randint(0, len(epochs))
        after = random.randint(0, until)
        kept = random.randint(after, len(epochs))
        rebuilt = log.cut(kept).append(log.range(after, until))
        assert rebuilt == from_list(epochs[: max(kept, until)])
