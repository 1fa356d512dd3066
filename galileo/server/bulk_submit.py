"""Submission of many CCQs with one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from galileo.ccq.events import AnswerBatch, BatchItem, BatchSubmitted, ContinuousEvent, Outcome
from galileo.ccq.model import Ccq
from galileo.election.events import RefuseSubmit
from galileo.errors import GalileoError, InputError, QuotaExceeded, UnknownProperty
from galileo.model.schema import Schema
from galileo.node.storage_node import StorageNode
from galileo.query import Query, parse
from galileo.rpc.continuous import Submission, SubmittedLater
from galileo.samplers import SamplerSpec
from galileo.server.cluster_ccqs import ClusterCcqs

SUBMIT_TIMEOUT_S = 20.0
SUBMISSIONS_MAX = 1_000
"""Continuous queries that are submitted with one call."""

Asked: TypeAlias = Submission | GalileoError
"""A submission, or the error of one that could not be decoded."""


class BulkSubmitter:
    """Submits many CCQs.

    Args:
        node: provides the schemas.
        ask: sends an event to the machine and waits for the answers.
        checked: builds the CCQ of a submission; raises InputError.
        candidates: the nodes that may hold matches of a query.
        load: loads a sampler for a dataset; raises if it cannot be used.
        ccqs: counts the CCQs of the cluster.
        check_capacity: raises Overloaded if the cluster has too many CCQs.
        reply: builds the reply from a CCQ, its coordinator and its term.
    """

    def __init__(
        self,
        node: StorageNode,
        *,
        ask: Callable[..., Awaitable[Any]],
        checked: Callable[[Submission, Query], Ccq],
        candidates: Callable[[Query], tuple[str, ...]],
        load: Callable[..., Awaitable[Any]],
        reply: Callable[[Ccq, str, int], SubmittedLater],
        ccqs: ClusterCcqs,
        check_capacity: Callable[[int], None],
    ) -> None:
        self._node = node
        self._ask = ask
        self._checked = checked
        self._candidates = candidates
        self._load = load
        self._reply = reply
        self._ccqs = ccqs
        self._check_capacity = check_capacity

    async def submit(self, submissions: Sequence[Asked]) -> list[SubmittedLater | GalileoError]:
        """Starts the election of coordinators; the first cycles find existing matches.

        Returns:
            For each submission its reply or its error.

        Raises:
            InputError: there are too many submissions.
            TransientError: nothing was submitted, or the outcome is unknown.
        """
        if len(submissions) > SUBMISSIONS_MAX:
            raise InputError(
                f"expected at most {SUBMISSIONS_MAX:,} continuous queries, got {len(submissions):,}"
            )
        schemas = await self._schemas(submissions)
        made = await asyncio.to_thread(self._items, submissions, schemas)
        if await self._learn_features(submissions, made, schemas):
            made = await asyncio.to_thread(self._items, submissions, schemas)
        made = await self._with_samplers(made)
        quotas = [one.quotas for one in submissions if isinstance(one, Submission)]
        made = await self._within_quota(made, quotas[0].ccqs_max) if quotas else made
        items = tuple(one for one in made if isinstance(one, BatchItem))
        outcomes = iter(await self._submitted(items) if items else ())
        return [
            self._result(one.ccq, next(outcomes)) if isinstance(one, BatchItem) else one
            for one in made
        ]

    async def _schemas(self, submissions: Sequence[Asked]) -> dict[str, Schema | GalileoError]:
        schemas: dict[str, Schema | GalileoError] = {}
        for dataset in {one.dataset for one in submissions if isinstance(one, Submission)}:
            try:
                schemas[dataset] = await self._node.named(dataset)
            except GalileoError as error:
                schemas[dataset] = error
        return schemas

    async def _learn_features(
        self,
        submissions: Sequence[Asked],
        made: Sequence[BatchItem | GalileoError],
        schemas: dict[str, Schema | GalileoError],
    ) -> bool:
        """Looks schemas up again that lack features; returns whether one has more of them."""
        unknown = {
            asked.dataset: str(item.details["property"])
            for asked, item in zip(submissions, made, strict=True)
            if isinstance(asked, Submission) and isinstance(item, UnknownProperty)
        }
        known = dict(schemas)
        for dataset, name in unknown.items():
            schema = schemas[dataset]
            if isinstance(schema, Schema):
                schemas[dataset] = await self._node.schema_with(schema, [name])
        return schemas != known

    def _items(
        self, submissions: Sequence[Asked], schemas: dict[str, Schema | GalileoError]
    ) -> list[BatchItem | GalileoError]:
        """Checks submissions; takes about 0.5 ms each, so call it in a thread."""
        is_placed = len(self._node.topology.groups) > 1
        return [self._item(one, schemas, is_placed=is_placed) for one in submissions]

    def _item(
        self, asked: Asked, schemas: dict[str, Schema | GalileoError], *, is_placed: bool
    ) -> BatchItem | GalileoError:
        if isinstance(asked, GalileoError):
            return asked
        schema = schemas[asked.dataset]
        if isinstance(schema, GalileoError):
            return schema
        try:
            query = parse(asked.query, schema)
            candidates = self._candidates(query) if is_placed else ()
            return BatchItem(self._checked(asked, query), candidates)
        except GalileoError as error:
            return error

    async def _with_samplers(
        self, made: list[BatchItem | GalileoError]
    ) -> list[BatchItem | GalileoError]:
        """Replaces items whose sampler this node cannot use by errors."""
        named = {(i.ccq.sampler, i.ccq.dataset) for i in made if isinstance(i, BatchItem)}
        errors: dict[tuple[SamplerSpec | None, str], GalileoError] = {}
        for sampler, dataset in named:
            try:
                if sampler is not None:
                    await self._load(sampler, dataset=dataset)
            except GalileoError as error:
                errors[sampler, dataset] = error
        return [
            errors.get((one.ccq.sampler, one.ccq.dataset), one)
            if isinstance(one, BatchItem)
            else one
            for one in made
        ]

    async def _within_quota(
        self, made: list[BatchItem | GalileoError], owned_max: int
    ) -> list[BatchItem | GalileoError]:
        """Replaces new items that exceed the quota of their owner by errors.

        Raises:
            Overloaded: the cluster has too many CCQs.
        """
        items = [one for one in made if isinstance(one, BatchItem)]
        if not items:
            return made
        self._check_capacity(await self._ccqs.total())
        free = owned_max - await self._ccqs.owned_by(items[0].ccq.owner)
        if len(items) <= free:
            return made
        known = await self._ccqs.known([one.ccq.id for one in items])
        within: list[BatchItem | GalileoError] = []
        for one in made:
            is_new = isinstance(one, BatchItem) and one.ccq.id not in known
            free -= is_new
            within.append(quota_exceeded(owned_max) if is_new and free < 0 else one)
        return within

    async def _submitted(self, items: tuple[BatchItem, ...]) -> Sequence[Outcome]:
        def make(request: int) -> ContinuousEvent:
            return BatchSubmitted(request, items)

        owner = items[0].ccq.owner
        with self._ccqs.submitting(owner, len(items)):
            answer = await self._ask(make, timeout_s=SUBMIT_TIMEOUT_S)
        if isinstance(answer, RefuseSubmit):
            raise answer.failure.to_error()
        assert isinstance(answer, AnswerBatch)
        count = sum(outcome.failure is None for outcome in answer.outcomes)
        self._ccqs.record_submitted(owner, count)
        return answer.outcomes

    def _result(self, made: Ccq, outcome: Outcome) -> SubmittedLater | GalileoError:
        if outcome.failure is not None:
            return outcome.failure.to_error()
        return self._reply(made, outcome.coordinator, outcome.term)


def quota_exceeded(owned_max: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"expected at most {owned_max:,} continuous queries alive of one owner (quota ccqs_max), "
        "got one more; cancel some, let them expire, or ask an administrator for a higher quota",
        quota="ccqs_max",
        bound=owned_max,
    )
