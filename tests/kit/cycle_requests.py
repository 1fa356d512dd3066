"""Requests of cycles, made of rows rather than columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from galileo.cycle import CycleRequest
from galileo.hashing import digest
from galileo.model.schema import Schema


def cycle_request(
    schema: Schema,
    queries: Sequence[str],
    *,
    after: Sequence[Sequence[int]],
    partitions: Iterable[int] = (0,),
    cursors: Sequence[int] | None = None,
    dataset: str = "",
    samplers: Sequence[str] = (),
    nodes: Mapping[str, Iterable[int]] | None = None,
    committed: Sequence[int] = (),
) -> CycleRequest:
    """A request with an item for each query.

    Args:
        schema: of the labels.
        queries: texts.
        after: rows of sequences.
        partitions: of the columns of `after`.
        cursors: of each item its row; by default the first.
        dataset: by default the key of the schema.
        samplers: of each item its sampler as JSON, "" for none; by default none.
        nodes: partitions by address, of which the first node with a partition is asked.
        committed: of each partition.
    """
    columns, count = list(partitions), len(queries)
    distinct = sorted({text for text in samplers if text})
    numbers = [distinct.index(text) + 1 if text else 0 for text in samplers] or [0] * count
    addresses = list(nodes or {"": columns})
    owned = [set(some) for some in (nodes or {"": columns}).values()]
    owners = [next((n for n, some in enumerate(owned) if p in some), -1) for p in columns]
    return CycleRequest(
        dataset=dataset or schema.key,
        schema_json=schema.to_json(),
        partitions=np.array(columns, dtype=np.int32),
        after=np.array(after, dtype=np.int64).reshape(-1),
        cursors=np.array([0] * count if cursors is None else cursors, dtype=np.int32),
        digests=np.frombuffer(b"".join(map(digest, queries)), dtype=np.uint8),
        items=np.arange(count, dtype=np.uint32),
        samplers_json=tuple(distinct),
        samplers=np.array(numbers, dtype=np.uint32),
        is_compressed=np.zeros(count, dtype=np.bool_),
        addresses=tuple(addresses),
        owners=np.array(owners, dtype=np.int32),
        committed=np.array(committed, dtype=np.int64),
    )
