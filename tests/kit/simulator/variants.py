"""Variants of the machines and their environment."""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.machine import Continuous
from simulator.evaluator import Evaluate, by_sequence


@dataclass(frozen=True, slots=True)
class Conduct:
    """Mistakes of storage and readers; production has none.

    Attributes:
        replies_before_sync: storage acknowledges unsynced commits.
        evaluates_unsynced: scans read unsynced commits.
        stores_batches_again: storage does not recognise a repeated batch.
        stores_token_first: readers store the token before the labels.
        forgets_windows: tokens do not contain the reader's progress in windows.
        takes_stale_answers: readers accept answers to abandoned requests.
        drops_what_is_unfetched: retention passes readers though it must not.
        conceals_what_is_gone: scans do not report deleted commits.
    """

    replies_before_sync: bool = False
    evaluates_unsynced: bool = False
    stores_batches_again: bool = False
    stores_token_first: bool = False
    forgets_windows: bool = False
    takes_stale_answers: bool = False
    drops_what_is_unfetched: bool = False
    conceals_what_is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """The machine under test, the evaluation of its cycles, and its environment.

    Attributes:
        has_cursors: whether its resume tokens have the meaning of production, so that every answer
            can be checked.
    """

    machine: type[Continuous] = Continuous
    evaluate: Evaluate = by_sequence
    has_cursors: bool = True
    conduct: Conduct = Conduct()
