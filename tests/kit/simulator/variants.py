"""What a variant of the machines is made of."""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.machine import Continuous
from simulator.evaluator import Evaluate, by_sequence


@dataclass(frozen=True, slots=True)
class Conduct:
    """How storage and readers behave around the machines; production errs in none of these.

    Attributes:
        replies_before_sync: storage acknowledges what the disk may still lose.
        evaluates_unsynced: scans see it, too.
        stores_batches_again: storage does not recognise a repeated batch.
        stores_token_first: readers store the token, and their labels in a second step.
        forgets_windows: tokens do not contain the reader's progress in windows.
        takes_stale_answers: readers take an answer that they no longer wait for.
        drops_what_is_unfetched: retention passes readers though it must not.
        conceals_what_is_gone: scans say that they saw everything, what was dropped included.
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
    """The machine under test, how its cycles are evaluated, and what surrounds it.

    Attributes:
        has_cursors: whether its resume tokens mean what production's mean, so that each single
            answer can be judged by them.
    """

    machine: type[Continuous] = Continuous
    evaluate: Evaluate = by_sequence
    has_cursors: bool = True
    conduct: Conduct = Conduct()
