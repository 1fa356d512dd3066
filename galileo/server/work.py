"""What the continuous machine has done for it: processing cycles, rescans, confirmations.

A cycle asks Spark only about what can be new: partitions that cannot hold a match, by
placement or by the feature graph, are answered here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from galileo.ccq import events as ccq
from galileo.ccq.model import Failure
from galileo.cursor import ORIGIN, Cursor
from galileo.dht import placement
from galileo.errors import Bug, GalileoError, SamplerFailed
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.node.scans import Tail
from galileo.node.storage_node import StorageNode
from galileo.query import Query, parse
from galileo.rpc.peers import GrpcPeers
from galileo.samplers import SamplerSpec, apply, load
from galileo.wire.codec import cursor_from_pb, cursor_to_pb, table_of
from galileo.wire.pb import evaluator_pb2
from galileo.wire.status import error_from_pb

QUERIES_KEPT = 4_096

Evaluate = Callable[
    [evaluator_pb2.EvaluateRequest], Awaitable[Sequence[evaluator_pb2.EvaluateResult]]
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Question:
    """One item of a cycle: what is certain already, and which partitions are to be asked."""

    item: ccq.CycleItem
    query: Query
    certain: Cursor
    ask: frozenset[int]


class ContinuousWork:
    """Carries out the effects of `Continuous` that take long.

    Args:
        node: for scans and for what is known.
        peers: for confirmations.
        evaluate: runs one Spark job.
        is_dead: whether a node is held dead, so that a cycle does not wait for it.
    """

    def __init__(
        self,
        node: StorageNode,
        peers: GrpcPeers,
        *,
        evaluate: Evaluate,
        is_dead: Callable[[str], bool],
    ) -> None:
        self._node = node
        self._peers = peers
        self._evaluate = evaluate
        self._is_dead = is_dead
        self._parsed = lru_cache(QUERIES_KEPT)(parse)

    async def __call__(
        self, effect: ccq.StartCycle | ccq.Backfill | ccq.ConfirmSequences
    ) -> ccq.ContinuousEvent:
        """Does it; the event that answers."""
        if isinstance(effect, ccq.ConfirmSequences):
            return await self._confirm(effect)
        try:
            if isinstance(effect, ccq.StartCycle):
                return await self._cycle(effect)
            return await self._backfill(effect)
        except Exception as error:
            failure = _failure_of(error)
            if isinstance(effect, ccq.StartCycle):
                return ccq.CycleFailed(effect.cycle_id, failure)
            return ccq.BackfillFailed(effect.request, failure)

    # --- cycles ------------------------------------------------------------------------------

    async def _cycle(self, effect: ccq.StartCycle) -> ccq.CycleFinished:
        questions = [self._question(item) for item in effect.items]
        asked = [question for question in questions if question.ask]
        answers = {}
        if asked:
            request = evaluator_pb2.EvaluateRequest(
                nodes=self._live_nodes(), items=[_item_to_pb(question) for question in asked]
            )
            for answer in await self._evaluate(request):
                answers[answer.ccq_id, answer.term] = answer
        results = [
            _result(question, answers.get((question.item.ccq.id, question.item.term)))
            for question in questions
        ]
        return ccq.CycleFinished(effect.cycle_id, tuple(results))

    def _question(self, item: ccq.CycleItem) -> _Question:
        query = self._query(item.ccq.query, item.ccq.dataset)
        known = self._node.view.sequences(item.ccq.dataset)
        wanted = frozenset(item.partitions)
        possible = self._node.scans.candidates(query) & wanted
        spared = self._node.view.spared(query, possible)
        # A synopsis that speaks of less than was evaluated spares nothing new.
        spared = Cursor({p: s for p, s in spared.items() if s > item.after[p]})
        certain = Cursor({p: known[p] for p in wanted - possible}).join(spared)
        return _Question(item, query, certain, possible - set(spared))

    def _live_nodes(self) -> list[evaluator_pb2.NodeAddress]:
        owned = placement.partitions_by_node(self._node.topology)
        return [
            evaluator_pb2.NodeAddress(
                name=node.name, address=node.address, partitions=sorted(owned[node.name])
            )
            for node in self._node.topology.nodes
            if not self._is_dead(node.name)
        ]

    def _query(self, text: str, dataset: str) -> Query:
        return self._parsed(text, self._node.catalog.schema(dataset))

    # --- rescans -----------------------------------------------------------------------------

    async def _backfill(self, effect: ccq.Backfill) -> ccq.BackfillFinished:
        query = self._query(effect.ccq.query, effect.ccq.dataset)
        wanted = frozenset(effect.until)
        possible = self._node.scans.candidates(query) & wanted
        labels, tail = await self.scan(
            query,
            partitions=possible,
            after=effect.after,
            until=effect.until,
            labels_max=effect.labels_max,
        )
        sampled = await self.sample(labels, effect.ccq.sampler)
        certain = Cursor({p: effect.until[p] for p in wanted - possible})
        return ccq.BackfillFinished(
            effect.request, sampled, tail.frontier.join(certain), tuple(sorted(tail.missing))
        )

    async def scan(
        self,
        query: Query,
        *,
        partitions: frozenset[int],
        after: Cursor,
        until: Cursor,
        labels_max: int,
    ) -> tuple[LabelSet, Tail]:
        """All labels of (after, until], up to the frontier that the tail names."""
        tables, tail = [], Tail(ORIGIN, partitions)
        parts = self._node.scans.between(
            query, partitions=partitions, after=after, until=until, labels_max=labels_max
        )
        async for part in parts:
            if isinstance(part, Tail):
                tail = part
            else:
                tables.append(LabelSet(query.schema, part))
        return LabelSet.concat(query.schema, tables).until(tail.frontier), tail

    async def sample(self, labels: LabelSet, spec: SamplerSpec | None) -> LabelSet:
        """The labels that the CCQ's sampler keeps.

        Raises:
            SamplerFailed: it raised, or gave no mask.
        """
        if spec is None:
            return labels
        chosen = load(spec)
        try:
            return await asyncio.to_thread(apply, chosen, labels, seed=spec.seed)
        except Exception as error:
            raise SamplerFailed(
                f"sampler {spec.name!r} failed on {len(labels)} labels: "
                f"{type(error).__name__}: {error}"
            ) from error

    # --- confirmations -----------------------------------------------------------------------

    async def _confirm(self, effect: ccq.ConfirmSequences) -> ccq.SequencesConfirmed:
        owners = placement.owners(self._node.topology)
        nodes = sorted({owners[p] for p in effect.partitions if p in owners})
        answers = await asyncio.gather(
            *(self._sequences_at(node, effect.dataset) for node in nodes)
        )
        told = dict(zip(nodes, answers, strict=True))
        reached, unreachable = ORIGIN, []
        for partition in effect.partitions:
            answer = told.get(owners.get(partition, ""), ORIGIN)
            if answer is None:
                unreachable.append(partition)
            else:
                reached = reached.join({partition: answer[partition]})
        return ccq.SequencesConfirmed(effect.request, reached, tuple(unreachable))

    async def _sequences_at(self, node: str, dataset: str) -> Cursor | None:
        """What a node has committed; None where it does not answer."""
        if node == self._node.name:
            shard = self._node.catalog.shards.get(dataset)
            return shard.published() if shard else ORIGIN
        try:
            status = (await self._peers.status(node)).nodes[0]
        except GalileoError:
            return None
        found = [one for one in status.datasets if one.dataset == dataset]
        return cursor_from_pb(found[0].sequences) if found else ORIGIN


def _item_to_pb(question: _Question) -> evaluator_pb2.EvaluateItem:
    item = question.item
    return evaluator_pb2.EvaluateItem(
        ccq_id=item.ccq.id,
        term=item.term,
        dataset=item.ccq.dataset,
        schema_json=question.query.schema.to_json(),
        query_json=item.ccq.query,
        after=cursor_to_pb(item.after),
        partitions=sorted(question.ask),
        sampler_json=item.ccq.sampler.to_json() if item.ccq.sampler else "",
    )


def _result(question: _Question, answer: evaluator_pb2.EvaluateResult | None) -> ccq.CycleResult:
    item = question.item
    labels: LabelSet | None = None
    reached, failure = question.certain, None
    if answer is not None and answer.HasField("error"):
        failure = _failure_of(error_from_pb(answer.error))
    elif answer is not None:
        reached = reached.join(cursor_from_pb(answer.reached))
        schema: Schema = question.query.schema
        labels = LabelSet(schema, table_of(answer.labels, schema.label_schema))
    return ccq.CycleResult(item.ccq.id, item.term, item.after, labels, reached, failure)


def _failure_of(error: Exception) -> Failure:
    if not isinstance(error, GalileoError):
        log.error("work for a continuous query failed", exc_info=error)
        error = Bug(f"work for a continuous query failed: {error!r}; see the node's log")
    details = tuple(
        (key, value) for key, value in error.details.items() if isinstance(value, str | int | float)
    )
    return Failure(error.kind, error.message, details)
