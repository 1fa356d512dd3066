"""What coordinators ask their evaluator, and tasks ask the owners of partitions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from galileo.cycle import CycleAnswer, CycleRequest, Matches
from galileo.wire.services import EVALUATOR_SERVICE, INTERNAL_SERVICE
from galileo.wire.typed_service import TypedService


@dataclass(frozen=True, slots=True, eq=False)
class JobAnswer:
    """The result of a call of the evaluator.

    Attributes:
        answers: of each request those of all tasks.
        job_s: how long the job took.
    """

    answers: tuple[tuple[CycleAnswer, ...], ...]
    job_s: float


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Jobs of an evaluator since its start.

    Attributes:
        evaluations: that looked for something.
        empty_jobs: that only kept Spark awake.
    """

    evaluations: int
    empty_jobs: int


class Evaluator(Protocol):
    """The evaluator of a host, as the nodes of the host call it."""

    async def evaluate(self, requests: Sequence[CycleRequest]) -> JobAnswer:
        """Runs a job for requests of one or several datasets."""

    async def ping(self) -> JobCounts:
        """Renews the lease of the evaluator."""


class Owner(Protocol):
    """A node, as the tasks of evaluators call it."""

    async def match(self, request: CycleRequest) -> AsyncGenerator[Matches, None]:
        """What is new for the items of a request, in messages for `galileo.wire.matches`."""
        yield Matches()  # Without it, the contract would be no generator.

    async def observations(
        self, dataset: str, digest: bytes, parts: pa.Buffer, added: int
    ) -> AsyncGenerator[pa.Buffer, None]:
        """The observations of labels that a standing query matched, as Arrow streams.

        Args:
            dataset: its key.
            digest: of the query, which the observations match, too.
            parts: an Arrow stream of `galileo.samplers.numbered_parts`.
            added: how many of the features that were added to the dataset they have.
        """
        yield parts  # As above.

    async def find_sampler_archive(self, digest: str, facts_only: bool) -> pa.Buffer:
        """The archive of an uploaded sampler, or nothing, if only its state is of interest."""


EVALUATOR = TypedService(EVALUATOR_SERVICE, Evaluator)
OWNER = TypedService(INTERNAL_SERVICE, Owner)
"""Part of the internal service: tasks do not know the types of its other calls."""
