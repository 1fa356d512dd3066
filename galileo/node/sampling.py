"""Samples of one-shot queries: taken at the nodes that store the labels, then merged.

A sampler decides about whole commits. The pieces of a scan are cut anywhere, so they are put
together first, in windows that end between commits, each a bounded scan of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Protocol, TypeAlias

import pyarrow as pa

from galileo import samplers
from galileo.cursor import Cursor
from galileo.errors import GalileoError, MessageTooLarge
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.node import query_limits
from galileo.samplers import (
    MergingSampler,
    Observe,
    Sampler,
    SamplerSpec,
    needs_observations,
    observed_parts,
    scope_of,
)

Pieces: TypeAlias = Iterator[pa.RecordBatch | None]
FirstPieces: TypeAlias = Generator[pa.RecordBatch | None, None, Cursor]
"""Pieces, then the commits up to which they are complete."""


class Scan(Protocol):
    """The labels of the first commits past a cursor, cut anywhere."""

    def __call__(self, *, after: Cursor, labels_max: int) -> FirstPieces: ...


def merges_here(chosen: Sampler) -> bool:
    """Whether a node merges the samples of its commits before it hands them on."""
    scope = scope_of(chosen)
    if not isinstance(chosen, MergingSampler) or scope == "commit":
        return False
    return scope == "node" or chosen.regroups


def merging_at_last(schema: Schema, chosen: Sampler, spec: SamplerSpec) -> SampleMerger | None:
    """What takes the samples of all nodes and merges them; None where samples are not merged.

    Nothing is merged before everything is there: labels of a node that fails midway do not count.
    """
    if scope_of(chosen) != "global":
        return None
    return SampleMerger(schema, chosen, spec, again=False)


def sampled_pieces(
    scan: Scan,
    schema: Schema,
    *,
    after: Cursor,
    until: Cursor,
    sampler: tuple[Sampler, SamplerSpec],
    observe: Observe,
) -> Pieces:
    """What a sampler keeps of the commits (after, until], as pieces like those of the scan.

    Args:
        scan: a bounded scan of the commits up to `until`; called more than once.
        schema: of the dataset.
        after: exclusive.
        until: inclusive; names every partition of the query.
        sampler: and what names it.
        observe: reads the observations of labels, for a sampler that looks at them.

    Raises:
        InputError: its options do not fit the dataset.
        SamplerFailed: it raised, or gave no mask.
        MessageTooLarge: there is too much to merge.
    """
    chosen, spec = sampler
    labels_max = query_limits.WINDOW_LABELS_MAX
    windows = _windows(scan, schema, labels_max, after=after, until=until)
    samples = _per_commit(windows, sampler=sampler, observe=observe)
    if not merges_here(chosen):
        yield from samples
        return
    regroups = bool(getattr(chosen, "regroups", False))
    merging = SampleMerger(schema, chosen, spec, again=regroups)
    for piece in samples:
        if piece is not None:
            merging.add(pa.Table.from_batches([piece]))
        yield None
    yield from merging.result().table.to_batches()


class SampleMerger:
    """Takes what a sampler kept of many commits, and merges it.

    Args:
        schema: of the dataset.
        chosen: the sampler.
        spec: that names it.
        again: whether what is held may be merged whenever there is much of it.
    """

    def __init__(
        self,
        schema: Schema,
        chosen: Sampler,
        spec: SamplerSpec,
        *,
        again: bool,
    ) -> None:
        self._schema = schema
        self._spec = spec
        self._chosen = chosen
        self._again = again
        self._held: list[LabelSet] = []
        self._count = 0

    def add(self, table: pa.Table) -> None:
        """Takes labels; raises `MessageTooLarge` where they are too many to hold."""
        self._held.append(LabelSet(self._schema, table))
        self._count += table.num_rows
        if self._again and self._count > query_limits.WINDOW_LABELS_MAX:
            self._held = [self.result()]
            self._count = len(self._held[0])
        merged_max = query_limits.MERGED_LABELS_MAX
        if self._count > merged_max:
            raise MessageTooLarge(
                f"expected at most {merged_max} sampled labels to merge, got more; ask a narrower "
                "query, or take a smaller sample or one of each commit",
                bound=merged_max,
            )

    def result(self, *, until: Cursor | None = None) -> LabelSet:
        """What is left of what was taken; of the commits up to `until` alone, where given."""
        labels = LabelSet.concat(self._schema, self._held)
        if until is not None:
            labels = labels.until(until)
        with _SamplerErrors(self._spec, labels):
            return samplers.merge(self._chosen, labels, seed=self._spec.seed)


def _per_commit(
    windows: Iterator[LabelSet | None],
    *,
    sampler: tuple[Sampler, SamplerSpec],
    observe: Observe,
) -> Pieces:
    """What `sample` keeps."""
    chosen, spec = sampler
    for labels in windows:
        if labels is None:
            yield None
        elif not needs_observations(chosen):
            yield from _sample_batches(chosen, labels, spec)
        else:
            for part in observed_parts(labels, samplers.OBSERVED_ROWS_MAX):
                observations = observe(part)
                yield None
                yield from _sample_batches(chosen, part, spec, observations)


def _sample_batches(
    chosen: Sampler, labels: LabelSet, spec: SamplerSpec, observations: pa.Table | None = None
) -> Pieces:
    with _SamplerErrors(spec, labels):
        sample = samplers.apply(chosen, labels, seed=spec.seed, observations=observations)
    yield from sample.table.to_batches()
    yield None


def _windows(
    scan: Scan, schema: Schema, labels_max: int, *, after: Cursor, until: Cursor
) -> Iterator[LabelSet | None]:
    """All labels, whole commits at a time, and None after every piece of work."""
    while True:
        batches, after = yield from _collect(scan(after=after, labels_max=labels_max))
        yield LabelSet(schema, pa.Table.from_batches(batches, schema=schema.label_schema))
        if after.covers(until):
            return


def _collect(
    pieces: FirstPieces,
) -> Generator[None, None, tuple[list[pa.RecordBatch], Cursor]]:
    batches: list[pa.RecordBatch] = []
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return batches, end.value
        if piece is not None:
            batches.append(piece)
        yield None


class _SamplerErrors:
    """Says of whatever a sampler raises whose fault it is."""

    def __init__(self, spec: SamplerSpec, labels: LabelSet) -> None:
        self._spec = spec
        self._size = len(labels)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, GalileoError):
            raise samplers.failed(error, self._spec, labels=self._size) from error
