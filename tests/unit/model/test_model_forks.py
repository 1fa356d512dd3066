"""Forks of logs, compared with whole logs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from galileo.cursor import CommitRange
from galileo.model.forks import (
    HISTORY_MAX,
    Forks,
    count_commits,
    first_of,
    follows,
    history_of,
    next_sequence,
)


def test_sequence_of_latest_history_fits_into_63_bits() -> None:
    assert first_of(0) == 1
    assert history_of(first_of(HISTORY_MAX)) == HISTORY_MAX
    assert first_of(HISTORY_MAX) < 2**63


@pytest.mark.parametrize(
    ("sequence", "last", "is_legal"),
    [
        (1, 0, True),
        (8, 7, True),
        (9, 7, False),
        (7, 7, False),
        (first_of(3), 7, True),
        (first_of(3), 0, True),
        (first_of(3) + 1, 7, False),
        (first_of(3), first_of(3) + 4, False),
        (first_of(2), first_of(3), False),
    ],
)
def test_follows_next_sequence_and_jump_only(sequence: int, last: int, is_legal: bool) -> None:
    assert follows(sequence, last) is is_legal


def forks_of(log: list[int]) -> Forks:
    jumps = zip([0, *log], log, strict=False)
    return Forks(tuple((last, first) for last, first in jumps if first != last + 1))


@pytest.mark.parametrize("seed", range(50))
def test_last_common_equals_shared_prefix_of_whole_logs(seed: int) -> None:
    """Logs that were each founded from a prefix of an earlier one, by comparison of all commits."""
    rng = random.Random(seed)
    log = list(range(1, rng.randint(1, 8)))
    logs = [(0, log)]
    for history in sorted(rng.sample(range(1, 40), 6)):
        _, source = rng.choice(logs)
        log = source[: rng.randint(0, len(source))]
        for _ in range(rng.randint(0, 4)):
            log.append(next_sequence(log[-1] if log else 0, history))
        logs.append((history, log))
    for history, log in logs:
        last = log[-1] if log else 0
        forks = forks_of(log).after(last, history)
        assert forks.history == history
        known = {0, *map(history_of, log), history}
        for _, other in logs:
            for count in range(1, len(other) + 1):
                position = other[count - 1]
                answer = forks.last_common(position)
                if forks.is_ahead(position):
                    assert answer is None
                elif position in log:
                    assert answer is None
                    assert log[:count] == other[:count]
                elif history_of(position) in known:
                    shared = [a for a, b in zip(log, other[:count], strict=False) if a == b]
                    assert answer == (shared[-1] if shared else 0)
                else:
                    assert answer == 0


@pytest.mark.parametrize("seed", range(20))
def test_are_lost_equals_last_common(seed: int) -> None:
    rng, pairs, last = random.Random(seed), [], 0
    for history in sorted(rng.sample(range(1, 9), rng.randint(0, 5))):
        last += rng.randint(0, 3)
        pairs.append((last, first_of(history)))
        last = first_of(history)
    forks = Forks(tuple(pairs))
    near = [first_of(history) + step for history in range(9) for step in (-2, -1, 0, 1, 4)]
    sequences = np.array([-1, *near], dtype=np.int64)
    expected = [forks.last_common(sequence) is not None for sequence in sequences.tolist()]
    assert forks.are_lost(sequences).tolist() == expected


def test_last_common_unknown_history_is_beginning() -> None:
    """A backup of commits 1 to 8 was restored, then one of commits 1 to 10."""
    assert Forks(((10, first_of(6)),)).last_common(first_of(5) + 2) == 0


@pytest.mark.parametrize("seed", range(20))
def test_forks_of_random_log_equal_list(seed: int) -> None:
    rng = random.Random(seed)
    log: list[int] = []
    for _ in range(20):
        last = log[-1] if log else 0
        log.append(next_sequence(last, history_of(last) + rng.choice([0, 0, 1, 3])))
    forks, places = forks_of(log), [0, *log]
    for before, sequence in zip(places, log, strict=False):
        assert forks.following(before) == sequence
        assert forks.preceding(sequence) == before
    numbers = [*places, *(sequence + 1 for sequence in places)]
    for number in [n for n in numbers if n <= log[-1]]:
        assert forks.floor(number) == max(place for place in places if place <= number)
    for after in numbers:
        for until in numbers:
            inside = [sequence for sequence in log if after < sequence <= until]
            if until > log[-1] or (after not in places and after + 1 not in places):
                continue
            ranges = forks.ranges(after, until)
            within = [n for first, last in ranges for n in range(first, last + 1)]
            assert within == inside
            assert forks.count(after, until) == len(inside)
            assert count_commits(after, until) <= max(0, until - after)


def test_position_before_first_commit_of_history_is_in_it() -> None:
    forks = Forks(((10, first_of(4)),))
    assert forks.last_common(first_of(4) - 1) is None
    assert [*forks.ranges(first_of(4) - 1, first_of(4))] == [(first_of(4), first_of(4))]


def test_commit_range_across_jump_counts_what_is_known() -> None:
    assert CommitRange(0, 3, 7).commits == 5
    assert CommitRange(0, 11, first_of(4) + 2).commits == 3
