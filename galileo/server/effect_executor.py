"""Executes effects of the continuous-query machine: cycles, rescans, confirmations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pyarrow as pa

from galileo.ccq import events as ccq
from galileo.ccq.model import CcqDefinition
from galileo.ccq.pack_codec import from_bytes
from galileo.cursor import EMPTY_CURSOR, Cursor, continued
from galileo.dht import placement
from galileo.errors import (
    Failure,
    GalileoError,
    HistoryChanged,
    InternalError,
    SamplerFailed,
    SamplerRevoked,
    TransientError,
)
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.node.cluster_scan import ScanEnd
from galileo.node.peers import ReadTask
from galileo.node.row_reader import translate_dropped_to_retry
from galileo.node.storage_node import StorageNode
from galileo.packs import PackedLabels, pack_labels
from galileo.query import Query, parse
from galileo.rpc.peers import GrpcPeers
from galileo.samplers import (
    Sampler,
    SamplerSpec,
    apply,
    failed,
    needs_observations,
    numbered_parts,
    observed_parts,
    observed_schema,
)
from galileo.server.ccq_records import CcqRecords
from galileo.server.cycle_executor import CycleExecutor, Evaluate
from galileo.server.spill_files import SpillFiles
from galileo.wire.codec import cursor_from_pb

QUERIES_KEPT = 4_096

log = logging.getLogger(__name__)


class EffectExecutor:
    """Executes the long effects of `Continuous`.

    Args:
        node: for scans and the view of the cluster.
        peers: for confirmations.
        evaluate: runs one Spark job.
        is_dead: whether a node counts as dead, so that a cycle does not wait for it.
        spills: the spill files.
        records: of continuous queries.
    """

    def __init__(
        self,
        node: StorageNode,
        peers: GrpcPeers,
        *,
        evaluate: Evaluate,
        is_dead: Callable[[str], bool],
        spills: SpillFiles,
        records: Callable[[], CcqRecords],
    ) -> None:
        self._node = node
        self._records = records
        self._peers = peers
        self._spills = spills
        self._parsed = lru_cache(QUERIES_KEPT)(parse)
        self._cycling = CycleExecutor(
            node,
            evaluate=evaluate,
            register_queries=self._register_queries,
            is_dead=is_dead,
            failure_of=_failure_of,
        )

    async def __call__(self, effect: ccq.Task) -> ccq.ContinuousEvent:
        """Executes an effect and returns the resulting event."""
        match effect:
            case ccq.CompactPacks():
                return await _gather(effect)
            case ccq.SpillPacks():
                return await self._spills.write(effect)
            case ccq.LoadPacks():
                return await self._spills.read(effect)
            case ccq.ConfirmSequences():
                return await self._confirm(effect)
            case ccq.ReadHandedOffCache():
                return await self._ask_holder(effect)
        try:
            match effect:
                case ccq.ChangeRecords():
                    return await self._records().carry_out(effect)
                case ccq.ElectNodes():
                    return await self._records().elect(effect)
                case ccq.StartCycle():
                    return await self._cycle(effect)
                case ccq.Backfill():
                    return await self._backfill(effect)
        except Exception as error:
            return _failed(effect, _failure_of(error))

    async def _cycle(self, effect: ccq.StartCycle) -> ccq.CycleFinished:
        failed, items = self.refused(effect.items)
        if not items:
            return ccq.CycleFinished(effect.cycle_id, tuple(failed))
        finished = await self._cycling.run(replace(effect, items=tuple(items)))
        return replace(finished, results=(*finished.results, *failed))

    def refused(
        self, items: Sequence[ccq.CycleItem]
    ) -> tuple[list[ccq.CycleResult], list[ccq.CycleItem]]:
        """Splits items into results of those with a revoked sampler, and the others."""
        failed, others = [], []
        for item in items:
            spec = item.ccq.sampler
            try:
                if spec is not None and spec.archive:
                    self._node.samplers.check_not_revoked(spec.archive)
                others.append(item)
            except SamplerRevoked as error:
                failure = _failure_of(error)
                failed.append(
                    ccq.CycleResult(item.ccq.id, item.term, item.after, None, EMPTY_CURSOR, failure)
                )
        return failed, others

    async def _register_queries(self, node: str, dataset: str, texts: Sequence[str]) -> None:
        if node == self._node.name:
            await self._node.matching.register_queries(dataset, texts)
        else:
            await self._peers.register_queries(node, dataset, texts)

    async def _schema(self, made: CcqDefinition) -> Schema:
        """The schema of the labels of a CCQ; errors as `StorageNode.narrowed`."""
        return await self._node.narrowed(made.dataset, made.added)

    # --- rescans -----------------------------------------------------------------------------

    async def _backfill(self, effect: ccq.Backfill) -> ccq.BackfillFinished:
        query = self._parsed(effect.ccq.query, await self._schema(effect.ccq))
        wanted = frozenset(effect.until)
        possible = self._node.scans.candidates(query) & wanted
        scan = partial(
            self.scan,
            query,
            partitions=possible,
            after=effect.after,
            labels_max=effect.labels_max,
        )
        certain = Cursor({p: effect.until[p] for p in wanted - possible})
        try:
            labels, tail = await scan(until=effect.until)
        except HistoryChanged as error:
            until = continued(effect.until, error)
            if continued(effect.after, error) != effect.after or until == effect.until:
                await self._node.scans.check_history(effect.ccq.dataset, effect.after)
                raise
            # The cache has labels of lost commits, which its next cycle finds out. The reader has
            # none of them, and gets what there is of the other ones.
            labels, tail = await scan(until=until)
            certain = certain.join({p: s for p, s in effect.until.items() if until[p] != s})
        sampled = await self.sample(labels, effect.ccq.sampler, query=query)
        packed = await asyncio.to_thread(pack_labels, sampled, effect.ccq.compression)
        return ccq.BackfillFinished(
            effect.request,
            packed,
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
    ) -> tuple[LabelSet, ScanEnd]:
        """All labels of (after, until], up to the frontier in the tail."""
        parts = self._node.scans.between(
            query, partitions=partitions, after=after, until=until, labels_max=labels_max
        )
        labels, tail = await gathered(query, parts)
        return labels.after(tail.gone) if tail.gone else labels, tail

    async def sample(self, labels: LabelSet, spec: SamplerSpec | None, *, query: Query) -> LabelSet:
        """The labels that the CCQ's sampler keeps.

        Raises:
            SamplerFailed: it raised an error, or did not return a mask.
            NotPermitted, SandboxUnavailable, SamplerRevoked: the uploaded sampler is not run.
            TransientError: a node with observations for the sampler is unreachable.
        """
        if spec is None:
            return labels
        sampler = await self.load(spec, dataset=labels.schema.key)
        if not needs_observations(sampler):
            return await _chosen(sampler, labels, spec)
        kept = [
            await _chosen(sampler, part, spec, await self._observed(part, query))
            for part in observed_parts(labels)
        ]
        return LabelSet.concat(labels.schema, kept)

    async def load(self, spec: SamplerSpec, *, dataset: str) -> Sampler:
        """Loads a sampler for labels of a dataset.

        Raises:
            UnknownSampler, InputError: the sampler is unknown, or its options are wrong.
            NotPermitted, SandboxUnavailable, SamplerRevoked: the uploaded sampler is not run.
        """
        return await self._node.samplers.load(spec, owner=dataset)

    async def _observed(self, labels: LabelSet, query: Query) -> pa.Table:
        """The observations of labels of any nodes, for a sampler."""
        task = ReadTask.of(query, numbered_parts(labels))
        with translate_dropped_to_retry():
            async with aclosing(self._node.reading.read(task)) as pieces:
                tables = [table async for table in pieces]
        return pa.concat_tables([observed_schema(query.schema).empty_table(), *tables])

    # --- holders -----------------------------------------------------------------------------

    async def _ask_holder(
        self, effect: ccq.ReadHandedOffCache
    ) -> ccq.CacheReadAnswered | ccq.CacheReadFailed:
        """Reads a handed-off cache; over the network even at this node."""
        pieces = self._peers.handed_off_cache(
            effect.node,
            effect.ccq.id,
            term=effect.term,
            after=effect.after,
            labels_max=effect.labels_max,
        )
        try:
            parts = [piece async for piece in pieces]
            if not parts:
                return ccq.CacheReadFailed(effect.request)
            schema = await self._schema(effect.ccq)
            labels = await asyncio.to_thread(_from_parts, [part.data for part in parts], schema)
        except GalileoError as error:
            name = effect.ccq.id
            log.info(
                "%s does not hold labels of %s: %s", effect.node, name, error, extra={"ccq": name}
            )
            return ccq.CacheReadFailed(effect.request)
        return ccq.CacheReadAnswered(effect.request, labels, parts[-1].reached, parts[-1].gone)

    # --- confirmations -----------------------------------------------------------------------

    async def _confirm(self, effect: ccq.ConfirmSequences) -> ccq.SequencesConfirmed:
        owners = placement.owners(self._node.topology)
        nodes = sorted({owners[p] for p in effect.partitions if p in owners})
        answers = await asyncio.gather(
            *(self._sequences_at(node, effect.dataset) for node in nodes)
        )
        labels_by_node = dict(zip(nodes, answers, strict=True))
        nothing = _Held(EMPTY_CURSOR, frozenset())
        reached, unreachable = EMPTY_CURSOR, []
        for partition in effect.partitions:
            owner = owners.get(partition)
            answer = nothing if owner is None else labels_by_node[owner]
            if answer is None or (owner is not None and partition not in answer.partitions):
                unreachable.append(partition)  # Unreachable, or the partition has moved.
            else:
                reached = reached.join({partition: answer.sequences[partition]})
        return ccq.SequencesConfirmed(effect.request, reached, tuple(unreachable))

    async def _sequences_at(self, node: str, dataset: str) -> _Held | None:
        """The commits of a node; None if it does not answer, or has a later topology.

        Which partitions can hold matches depends on the topology, so commits under a later one
        count only when this node has it.
        """
        if node == self._node.name:
            shard = self._node.catalog.shards.get(dataset)
            return _Held(shard.published() if shard else EMPTY_CURSOR, self._node.partitions)
        try:
            status = (await self._peers.status(node)).nodes[0]
        except GalileoError:
            return None
        if status.topology_version > self._node.topology.version:
            return None
        statuses = [one for one in status.datasets if one.dataset == dataset]
        sequences = cursor_from_pb(statuses[0].sequences) if statuses else EMPTY_CURSOR
        return _Held(sequences, frozenset(status.partitions))


@dataclass(frozen=True, slots=True)
class _Held:
    """The commits of a dataset at a node, and its partitions."""

    sequences: Cursor
    partitions: frozenset[int]


async def gathered(
    query: Query, scan: AsyncGenerator[pa.Table | ScanEnd, None]
) -> tuple[LabelSet, ScanEnd]:
    """All labels of a scan, up to the frontier in its tail."""
    tables, tail = [], ScanEnd(EMPTY_CURSOR, frozenset())
    async with aclosing(scan) as parts:
        async for part in parts:
            if isinstance(part, ScanEnd):
                tail = part
            else:
                tables.append(LabelSet(query.schema, part))
    return LabelSet.concat(query.schema, tables).until(tail.frontier), tail


async def _chosen(
    sampler: Sampler, labels: LabelSet, spec: SamplerSpec, observations: pa.Table | None = None
) -> LabelSet:
    try:
        return await asyncio.to_thread(
            apply, sampler, labels, seed=spec.seed, observations=observations
        )
    except (SamplerFailed, SamplerRevoked, TransientError):
        raise
    except Exception as error:
        raise failed(error, spec, labels=len(labels)) from error


def _from_parts(parts: Sequence[pa.Buffer], schema: Schema) -> PackedLabels | None:
    data = b"".join(parts)
    return from_bytes(data, schema) if data else None


async def _gather(effect: ccq.CompactPacks) -> ccq.PacksCompacted:
    try:
        labels = await asyncio.to_thread(effect.labels.compact, effect.ccq.compression)
    except Exception as error:  # Any error: the cache waits for the result.
        name, why = effect.ccq.id, None if isinstance(error, GalileoError) else error
        template = "cannot compact labels of %s: %s"
        log.error(template, name, error, extra={"ccq": name}, exc_info=why)
        labels = None
    return ccq.PacksCompacted(effect.ccq.id, effect.term, labels)


def _failed(
    effect: ccq.ChangeRecords | ccq.ElectNodes | ccq.StartCycle | ccq.Backfill, failure: Failure
) -> ccq.ContinuousEvent:
    """The event of an effect that could not be executed, so that its work is tried again."""
    match effect:
        case ccq.ChangeRecords(changes):
            return ccq.RecordsChanged(tuple(change.name for change in changes))
        case ccq.ElectNodes(candidacies):
            return ccq.NodesElected({candidacy.key: () for candidacy in candidacies})
        case ccq.StartCycle(cycle_id):
            return ccq.CycleFailed(cycle_id, failure)
        case ccq.Backfill(request):
            return ccq.BackfillFailed(request, failure)


def _failure_of(error: Exception) -> Failure:
    if not isinstance(error, GalileoError):
        log.error("work for a continuous query failed", exc_info=error)
        error = InternalError("work for a continuous query failed; see the node's log")
    details = tuple(
        (key, tuple(value) if isinstance(value, list) else value)
        for key, value in error.details.items()
        if isinstance(value, str | int | float | list)
    )
    return Failure(error.kind, error.message, details)
