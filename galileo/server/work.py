"""What the continuous machine has done for it: processing cycles, rescans, confirmations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache

from galileo.ccq import elsewhere
from galileo.ccq import events as ccq
from galileo.ccq.model import Failure
from galileo.ccq.pack_files import from_bytes
from galileo.ccq.packs import PackedLabels, packed
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
from galileo.server.cycling import Cycling, Evaluate
from galileo.server.spills import SpillDirectory
from galileo.wire.codec import cursor_from_pb, cursor_to_pb, stretches_from_pb
from galileo.wire.pb import continuous_pb2

QUERIES_KEPT = 4_096

log = logging.getLogger(__name__)


class ContinuousWork:
    """Carries out the effects of `Continuous` that take long.

    Args:
        node: for scans and for what is known.
        peers: for confirmations.
        evaluate: runs one Spark job.
        is_dead: whether a node is held dead, so that a cycle does not wait for it.
        spills: the files of caches.
    """

    def __init__(
        self,
        node: StorageNode,
        peers: GrpcPeers,
        *,
        evaluate: Evaluate,
        is_dead: Callable[[str], bool],
        spills: SpillDirectory,
    ) -> None:
        self._node = node
        self._peers = peers
        self._spills = spills
        self._parsed = lru_cache(QUERIES_KEPT)(parse)
        self._cycling = Cycling(
            node,
            evaluate=evaluate,
            stand=self._stand,
            is_dead=is_dead,
            failure_of=_failure_of,
        )

    async def __call__(
        self,
        effect: ccq.StartCycle
        | ccq.Backfill
        | ccq.ConfirmSequences
        | ccq.GatherPacks
        | elsewhere.SpillPacks
        | elsewhere.LoadPacks
        | elsewhere.AskHolder,
    ) -> ccq.ContinuousEvent:
        """Does it; the event that answers."""
        match effect:
            case ccq.GatherPacks():
                return await _gather(effect)
            case elsewhere.SpillPacks():
                return await self._spills.write(effect)
            case elsewhere.LoadPacks():
                return await self._spills.read(effect)
            case ccq.ConfirmSequences():
                return await self._confirm(effect)
            case elsewhere.AskHolder():
                return await self._ask_holder(effect)
        try:
            if isinstance(effect, ccq.StartCycle):
                return await self._cycling.run(effect)
            return await self._backfill(effect)
        except Exception as error:
            failure = _failure_of(error)
            if isinstance(effect, ccq.StartCycle):
                return ccq.CycleFailed(effect.cycle_id, failure)
            return ccq.BackfillFailed(effect.request, failure)

    async def _stand(self, node: str, dataset: str, texts: Sequence[str]) -> None:
        if node == self._node.name:
            await self._node.matching.stand(dataset, texts)
        else:
            await self._peers.stand(node, dataset, texts)

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
        compressed = effect.ccq.compression == "lz4"
        found = await asyncio.to_thread(packed, sampled, compressed=compressed)
        certain = Cursor({p: effect.until[p] for p in wanted - possible})
        return ccq.BackfillFinished(
            effect.request,
            found,
            tail.frontier.join(certain),
            tuple(sorted(tail.missing)),
            tail.gone,
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
        found = LabelSet.concat(query.schema, tables).until(tail.frontier)
        return found.after(tail.gone) if tail.gone else found, tail

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

    # --- holders -----------------------------------------------------------------------------

    async def _ask_holder(
        self, effect: elsewhere.AskHolder
    ) -> elsewhere.HolderAnswered | elsewhere.HolderFailed:
        """Asks a node for what it holds, over the network though it were this one."""
        request = continuous_pb2.HeldRequest(
            ccq_id=effect.ccq.id,
            term=effect.term,
            after=cursor_to_pb(effect.after),
            labels_max=effect.labels_max,
        )
        parts, tail = [], continuous_pb2.HeldTail()
        try:
            async for part in self._peers.held(effect.node, request):
                parts.append(part.data)
                tail.MergeFrom(part.tail)
            schema = self._node.catalog.schema(effect.ccq.dataset)
            labels = await asyncio.to_thread(_from_parts, parts, schema)
        except GalileoError as error:
            log.info("%s does not hold labels of %s: %s", effect.node, effect.ccq.id, error)
            return elsewhere.HolderFailed(effect.request)
        if not tail.is_held:
            return elsewhere.HolderFailed(effect.request)
        reached, gone = cursor_from_pb(tail.reached), tuple(stretches_from_pb(tail.gone))
        return elsewhere.HolderAnswered(effect.request, labels, reached, gone)

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


def _from_parts(parts: Sequence[bytes], schema: Schema) -> PackedLabels | None:
    data = b"".join(parts)
    return from_bytes(data, schema) if data else None


async def _gather(effect: ccq.GatherPacks) -> ccq.PacksGathered:
    compressed = effect.ccq.compression == "lz4"
    try:
        labels = await asyncio.to_thread(effect.labels.gathered, compressed=compressed)
    except GalileoError as error:
        log.error("labels of %s could not be put together: %s", effect.ccq.id, error)
        labels = None
    return ccq.PacksGathered(effect.ccq.id, effect.term, labels)


def _failure_of(error: Exception) -> Failure:
    if not isinstance(error, GalileoError):
        log.error("work for a continuous query failed", exc_info=error)
        error = Bug(f"work for a continuous query failed: {error!r}; see the node's log")
    details = tuple(
        (key, value) for key, value in error.details.items() if isinstance(value, str | int | float)
    )
    return Failure(error.kind, error.message, details)
