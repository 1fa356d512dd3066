"""Variants of the machines and their environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from galileo.ccq.machine import Continuous
from galileo.ccq.model import Record
from galileo.ccq.placement import CcqChange, Lost, due_change
from galileo.ccq.records import CCQ_ROWS
from galileo.model.system_rows import Draft, RowKind, Rows
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
        answers_uncommitted: the leader of the system partition answers for commits that fail.
        offers_nothing: nodes do not offer a new leader what it lacks.
        denies_unasked: a node calls a CCQ unknown that its machine does not know.
    """

    replies_before_sync: bool = False
    evaluates_unsynced: bool = False
    stores_batches_again: bool = False
    stores_token_first: bool = False
    forgets_windows: bool = False
    takes_stale_answers: bool = False
    drops_what_is_unfetched: bool = False
    conceals_what_is_gone: bool = False
    answers_uncommitted: bool = False
    offers_nothing: bool = False
    denies_unasked: bool = False


class DueChange(Protocol):
    """What the leader of the system partition does with a record; mutants replace it."""

    def __call__(
        self, record: Record, *, is_gone: Callable[[str], bool], wall: float
    ) -> CcqChange | Lost | None: ...


@dataclass(frozen=True, slots=True)
class Variant:
    """The machine under test, the evaluation of its cycles, and its environment.

    Attributes:
        has_cursors: whether its resume tokens have the meaning of production, so that every answer
            can be checked.
        rows: the rows of the system partition.
        rows_type: holds them at the leader.
        changes: what carries changes of some types out in place of `apply`.
        due_change: what the leader does with a record.
    """

    machine: type[Continuous] = Continuous
    evaluate: Evaluate = by_sequence
    has_cursors: bool = True
    conduct: Conduct = Conduct()
    rows: RowKind[Record] = CCQ_ROWS
    rows_type: type[Rows[Record]] = Rows
    changes: Mapping[type, Callable[[Any, Draft[Any]], None]] = field(default_factory=dict)
    due_change: DueChange = due_change
