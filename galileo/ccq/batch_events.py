"""Events and effects about submissions of many CCQs at once.

They belong to the vocabulary of `galileo.ccq.events`, whose rules are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.model import Ccq, Failure


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One CCQ of a batch, of which nothing was evaluated yet.

    Attributes:
        ccq: with an id chosen by who submits; the same CCQ may be submitted again.
        candidates: nodes that may hold matches; their groups are polled first.
    """

    ccq: Ccq
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchSubmitted:
    """Many CCQs at once; answered by AnswerBatch, or by RefuseSubmit for all of them.

    Attributes:
        items: all of one owner.
        owned_max: that it may have alive; None: as many as there may be.
    """

    request: int
    items: tuple[BatchItem, ...]
    owned_max: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one CCQ of a batch.

    Attributes:
        coordinator: that runs it, in `term`; empty where it was refused.
        failure: why; then it may be submitted again, alone or with others.
    """

    ccq_id: str
    coordinator: str = ""
    term: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """An outcome for each item, in their order."""

    request: int
    outcomes: tuple[Outcome, ...]
