"""The RDF graph of a growing result: adds new labels without building the graph anew.

The IRI of a vertex is its path, and no triple depends on other labels. So the graph of two label
sets is the union of their graphs, and new labels add only their own triples. Triples of shared
vertices are added again, which a graph stores once.

Labels are also removed. They share vertices with others, so the next query loads the graph anew.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model import keyed
from galileo.model.schema import Schema
from galileo.rdf import to_rdf
from galileo.rdf.graphs import OpenGraph
from galileo.rdf.sparql_process.engine import MEMORY_BYTES_MAX

LABELS_MAX = 500_000
"""At about 10 KB a label, they fit the memory limit of the worker."""
PARTS_MAX = 32
"""Label sets that are kept before they are concatenated."""


class IncrementalGraph(OpenGraph):
    """The RDF view of all labels that were added so far, and not removed.

    Args:
        schema: of the dataset.
        labels_max: labels in total; more are refused.
        memory_bytes_max: address space of each process of its worker.

    Attributes:
        missing: partitions that the labels added last lack.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        labels_max: int = LABELS_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        super().__init__(lambda: to_rdf.ntriples(self.labels), memory_bytes_max=memory_bytes_max)
        self.schema = schema
        self.labels_max = labels_max
        self._parts: list[LabelSet] = [LabelSet.empty(schema)]
        self._reached = Cursor()
        self.missing: tuple[int, ...] = ()
        self._adding = threading.Lock()

    def __len__(self) -> int:
        """Number of labels."""
        return sum(map(len, self._parts))

    @property
    def labels(self) -> LabelSet:
        """All labels that were added, each once."""
        whole = LabelSet.concat(self.schema, list(self._parts))
        return LabelSet(self.schema, whole.table, missing=self.missing)

    def add(
        self, labels: LabelSet, *, withdrawn: LabelSet | None = None, reset: bool = False
    ) -> int:
        """Adds labels; returns the number of new ones.

        A running query sees none of them, the next one all.

        Args:
            labels: of a keyed dataset, they replace those with the same keys.
            withdrawn: those with their keys, or without a key at their places, are removed first.
            reset: whether all are removed first.

        Raises:
            InputError: they are of another dataset, or more than `labels_max` in total; then
                none is added.
        """
        if labels.schema != self.schema:
            raise InputError(
                f"expected labels of {self.schema.name!r} with its schema, got {labels!r}",
                dataset=labels.schema.name,
                expected="labels_of_schema",
            )
        with self._adding:
            kept = self._kept(labels, withdrawn, reset)
            fresh = self._unseen(labels) if kept is None else _without(labels, kept)
            self.missing = labels.missing
            if not len(fresh) and kept is None:
                return 0
            total = len(self if kept is None else kept) + len(fresh)
            if total > self.labels_max:
                raise InputError(
                    f"expected a result of at most {self.labels_max:,} labels, got "
                    f"{total:,}; narrow the query, or allow more with labels_max",
                    parameter="labels_max",
                    expected="labels",
                    bound=self.labels_max,
                )
            if kept is not None:
                self._parts = [kept]
            self._append(fresh)
            if kept is None:
                # If this fails, the next query starts a process and loads all parts.
                self._engine.grow(to_rdf.ntriples(fresh))
            else:
                self._engine.unload()
            return len(fresh)

    def _kept(self, labels: LabelSet, withdrawn: LabelSet | None, reset: bool) -> LabelSet | None:
        """The labels that stay; None for all."""
        gone = labels.table.slice(0, 0) if withdrawn is None else withdrawn.table
        if not (self.schema.is_keyed or gone.num_rows or reset):
            return None
        table = self.labels.table.slice(0, 0 if reset else None)
        table = keyed.still_held(self.schema, table, withdrawn=gone, new=labels.table)
        return None if table.num_rows == len(self) else LabelSet(self.schema, table)

    def _unseen(self, labels: LabelSet) -> LabelSet:
        """The labels that are not in the graph: of later commits, or with unknown identities."""
        is_new = self._reached.past(labels.partitions, labels.sequences)
        if is_new.all():
            return labels
        old = _identities(labels.where(~is_new))
        known = np.concatenate([_identities(part) for part in self._parts])
        is_new[~is_new] = ~np.isin(old, known)
        return labels.where(is_new)

    def _append(self, fresh: LabelSet) -> None:
        parts = [*self._parts, LabelSet(fresh.schema, fresh.table)]
        if len(parts) > PARTS_MAX:
            whole = LabelSet.concat(self.schema, parts)
            parts = [LabelSet(self.schema, whole.table.combine_chunks())]
        self._parts = parts
        self._reached = _advance(self._reached, fresh)

    def source_labels(self) -> LabelSet | None:
        return self.labels

    def _schema(self) -> Schema:
        return self.schema


def _without(labels: LabelSet, others: LabelSet) -> LabelSet:
    return LabelSet(
        labels.schema,
        keyed.without_labels(labels.table, others.table),
        missing=labels.missing,
    )


def _identities(labels: LabelSet) -> npt.NDArray[np.void]:
    """Partition, sequence and row of each label as one value."""
    packed = np.empty((len(labels), 3), dtype=np.int64)
    packed[:, 0], packed[:, 1], packed[:, 2] = labels.partitions, labels.sequences, labels.rows
    return packed.view(np.dtype((np.void, 24))).ravel()


def _advance(reached: Cursor, labels: LabelSet) -> Cursor:
    """The cursor, moved to the last commit of each partition in labels."""
    commits = pa.table({"partition": labels.partitions, "sequence": labels.sequences})
    last = commits.group_by("partition").aggregate([("sequence", "max")]).to_pylist()
    after = {row["partition"]: row["sequence_max"] for row in last}
    return Cursor({**reached, **{p: max(s, reached.get(p, 0)) for p, s in after.items()}})
