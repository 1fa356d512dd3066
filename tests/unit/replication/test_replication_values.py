"""Epochs of logs against lists of frames, with jumps to later histories."""

from __future__ import annotations

from random import Random

from galileo.model.forks import history_of, next_sequence
from galileo.replication.values import Epochs, Log

EPOCHS = [1, 2, 3, (1 << 32) + 1, (1 << 32) + 2, (3 << 32) + 1]


def from_list(epochs: list[int]) -> Epochs:
    made = Epochs()
    for sequence, epoch in zip(sequences(epochs), epochs, strict=True):
        made = made.extend(epoch, sequence)
    return made


def sequences(epochs: list[int]) -> list[int]:
    made: list[int] = []
    for epoch in epochs:
        made.append(next_sequence(made[-1] if made else 0, history_of(epoch)))
    return made


def draw(random: Random) -> list[int]:
    chosen = random.sample(EPOCHS, 3)
    return sorted(random.choice(chosen) for _ in range(random.randint(0, 9)))


def test_epochs_random_logs_equal_lists() -> None:
    random = Random(7)
    for _ in range(3_000):
        one, other = draw(random), draw(random)
        log, count = from_list(one), random.randint(0, 9)
        places = sequences(one)
        assert log.end == (places[-1] if places else 0)
        assert [log.at(sequence) for sequence in places] == one
        end = [0, *places][min(count, len(places))]
        assert log.cut(end) == from_list(one[:count])
        frames = [list(zip(sequences(epochs), epochs, strict=True)) for epochs in (one, other)]
        equal = [a == b for a, b in zip(*frames, strict=False)]
        common = equal.index(False) if False in equal else len(equal)
        assert log.common(from_list(other), committed=0) == [0, *places][common]


def test_epochs_random_dropped_logs_have_the_same_common_end() -> None:
    random = Random(9)
    for _ in range(3_000):
        one = draw(random)
        log, places = from_list(one), [0, *sequences(one)]
        kept = random.randint(0, len(one))
        other = from_list([*one[:kept], *([EPOCHS[-1] + 1] * random.randint(0, 2))])
        starts = [places[random.randint(0, kept)] for _ in range(2)]
        common = log.drop(starts[0]).common(other.drop(starts[1]), committed=places[kept])
        assert common == places[kept]


def test_epochs_random_ranges_rebuild_the_log() -> None:
    random = Random(8)
    for _ in range(3_000):
        epochs = draw(random)
        log, places = from_list(epochs), [0, *sequences(epochs)]
        until = random.randint(0, len(epochs))
        after = random.randint(0, until)
        kept = random.randint(after, len(epochs))
        rebuilt = log.cut(places[kept]).append(log.range(places[after], places[until]))
        assert rebuilt == from_list(epochs[: max(kept, until)])


def test_epochs_random_limits_end_before_the_next_jump() -> None:
    random = Random(10)
    for _ in range(3_000):
        epochs = draw(random)
        log, places = from_list(epochs), [0, *sequences(epochs)]
        after, count = random.randint(0, len(epochs)), random.randint(1, 4)
        wanted = places[after + 1 : after + 1 + count]
        dense = [s for n, s in enumerate(wanted) if s == wanted[0] + n]
        assert log.limit(places[after], count) == (dense[-1] if dense else log.end)
        assert Log(log, log.end, 0).lacking(places[after]) == len(epochs) - after
