"""Histories of a log, and the forks at which its commits were lost.

The upper half of a commit's sequence is its *history*, the lower half its number. A partition is
founded in history 0, so that sequences are 1, 2, 3 …; it begins a later history whenever commits
may have been lost. The next commit of each log then is number 1 of that history: the log *jumps*,
which leaves a *fork*. A sequence thus never means two commits, and later commits are above.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

HISTORY_BITS = 31
NUMBER_BITS = 32
HISTORY_MAX = 2**HISTORY_BITS - 1
BEGIN_S = 1_735_689_600
"""Histories count seconds from here, the begin of 2025."""


def history_of(sequence: int) -> int:
    """The history in which a commit was made."""
    return sequence >> NUMBER_BITS


def first_of(history: int) -> int:
    """The sequence of a history's first commit, and the lowest term of its leaders."""
    return (history << NUMBER_BITS) + 1


def next_history(known: int, now: float) -> int:
    """A history that is later than all that were begun before.

    Args:
        known: the latest history that the caller knows. A directory that is restored twice does
            not know what came after its backup, but that took more than a second.
        now: seconds since 1970.
    """
    return max(int(now) - BEGIN_S, known + 1)


def count_commits(after: int, until: int) -> int:
    """The commits in (after, until], as far as numbers say; those after the last jump at least."""
    return until - max(after, first_of(history_of(until)) - 1)


def next_sequence(last: int, history: int) -> int:
    """The sequence of the commit that a log gets after `last` in a history."""
    return max(last + 1, first_of(history))


def follows(sequence: int, last: int) -> bool:
    """Whether a log may have `sequence` directly after `last`: the next one, or a jump."""
    return sequence == last + 1 or (
        history_of(sequence) > history_of(last) and sequence == first_of(history_of(sequence))
    )


@dataclass(frozen=True, slots=True)
class Forks:
    """The jumps of a log, in order.

    Attributes:
        pairs: for each, the last sequence before it (0 where there is none), and the first after.
    """

    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def history(self) -> int:
        """The latest history."""
        return history_of(self.pairs[-1][1]) if self.pairs else 0

    def following(self, sequence: int) -> int:
        """The sequence that comes directly after another one."""
        return next((first for last, first in self.pairs if last == sequence), sequence + 1)

    def preceding(self, sequence: int) -> int:
        """The sequence that comes directly before another one."""
        return next((last for last, first in self.pairs if first == sequence), sequence - 1)

    def floor(self, sequence: int) -> int:
        """The last sequence of the log that is not above a number."""
        return min([sequence, *(last for last, first in self.pairs if first > sequence)])

    def ranges(self, after: int, until: int) -> Iterator[tuple[int, int]]:
        """The commits (after, until] in ranges without jumps: the first and last of each."""
        for last, first in self.pairs:
            stop = min(last, until)
            if after < stop:
                yield after + 1, stop
            after = max(after, first - 1)
        if after < until:
            yield after + 1, until

    def count(self, after: int, until: int) -> int:
        """The number of commits in (after, until]."""
        return sum(last - first + 1 for first, last in self.ranges(after, until))

    def between(self, after: int, until: int) -> Forks:
        """The jumps to commits in (after, until]."""
        pairs = tuple(pair for pair in self.pairs if after < pair[1] <= until)
        return self if len(pairs) == len(self.pairs) else Forks(pairs)

    def jumped(self, last: int, sequence: int) -> Forks:
        """These forks, after the log has got `sequence` directly after `last`."""
        return self if sequence == last + 1 else Forks((*self.pairs, (last, sequence)))

    def after(self, last: int, history: int) -> Forks:
        """These forks, and that of a history which the log has entered after its commit `last`.

        They are the same ones if `history` is not a later one.
        """
        return self if history <= self.history else self.jumped(last, first_of(history))

    def is_ahead(self, sequence: int) -> bool:
        """Whether a position is of a later history than this log, which is late then."""
        return history_of(sequence) > self.history

    def last_common(self, sequence: int) -> int | None:
        """Where a reader that has handled the commits up to `sequence` has to go on.

        Returns:
            None if all commits that were read are in this log, or if the log is late (`is_ahead`).
            Else the last commit that the reader's history shares with this log. It is 0 for a
            history that the log never had, for nothing says where that one began.
        """
        # A range may begin behind number 0 of a history, which comes before its first commit.
        place = bisect_right(self.pairs, sequence + 1, key=itemgetter(1))
        if place == len(self.pairs):
            return None
        last = self.pairs[place][0]
        if sequence <= last:
            return None
        known = history_of(self.pairs[place - 1][1]) if place else 0
        return last if history_of(sequence) == known else 0

    def are_lost(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Mask of the positions of which `last_common` is a commit or 0."""
        if not self.pairs:
            return np.zeros(sequences.shape, dtype=np.bool_)
        last, first = np.array(self.pairs, dtype=np.int64).T
        place = np.searchsorted(first - 1, sequences, side="right")
        before: npt.NDArray[np.int64] = np.append(last, np.iinfo(np.int64).max)[place]
        return sequences > before
