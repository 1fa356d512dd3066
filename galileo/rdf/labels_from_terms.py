"""Finds the labels that the RDF terms of a result name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model.times import TIME_MAX_US, iso
from galileo.rdf import terms, to_rdf

BLOCKS_MAX = 10_000
"""Blocks of a sub-query, which names each by its cell and time."""

Mask = npt.NDArray[np.bool_]


def labels_named(labels: LabelSet, columns: Mapping[str, pa.Array]) -> LabelSet:
    """The labels that the terms of the one column that names any stand for.

    Args:
        labels: what the graph was made of.
        columns: IRIs and texts of one or several variables; null where unbound.

    Raises:
        InputError: none of several columns names labels, or more than one does.
    """
    masks = {name: _named(labels, column) for name, column in columns.items()}
    naming = [name for name, mask in masks.items() if mask.any()]
    unbound = all(column.null_count == len(column) for column in columns.values())
    if len(naming) == 1 or unbound or len(columns) == 1:
        chosen = naming or list(columns)
        return labels.where(masks[chosen[0]] if chosen else np.zeros(len(labels), dtype=np.bool_))
    which = f"{naming} do; say which" if naming else f"none of {list(columns)} does"
    raise InputError(f"expected one variable whose terms name labels, {which}")


def block_ids(labels: LabelSet) -> list[str]:
    ids: list[str] = pc.unique(labels.blocks()).sort().to_pylist()
    return ids


def sub_query(labels: LabelSet) -> str:
    """CQL2 JSON for the blocks of labels, and what their own query asks for."""
    cells, buckets = labels.geohashes(), labels.buckets
    found = pa.table({"cell": cells, "bucket": pa.array(buckets)})
    groups = found.group_by(["bucket", "cell"]).aggregate([])
    if not 1 <= groups.num_rows <= BLOCKS_MAX:
        raise InputError(
            f"expected an answer that names 1 to {BLOCKS_MAX:,} blocks, got {groups.num_rows:,}"
        )
    width = labels.schema.time_bucket_us
    times = groups.group_by("bucket").aggregate([("cell", "list")]).sort_by("bucket").to_pylist()
    by_cells: dict[tuple[str, ...], list[int]] = {}
    for time in times:
        by_cells.setdefault(tuple(sorted(time["cell_list"])), []).append(time["bucket"])
    places = [_blocks(cells, starts, width) for cells, starts in by_cells.items()]
    tree = _joined("or", places)
    return json.dumps(_joined("and", [tree, json.loads(labels.query)]) if labels.query else tree)


def _blocks(cells: tuple[str, ...], starts: list[int], width_us: int) -> Any:
    """Cells at the same times; buckets that follow each other are one span."""
    spans = [_span(first, last + width_us) for first, last in _runs(starts, width_us)]
    place = {"op": "in", "args": [{"property": "geohash"}, list(cells)]}
    return _joined("and", [place, _joined("or", spans)])


def _runs(starts: list[int], width_us: int) -> Iterator[tuple[int, int]]:
    """First and last of ascending starts that follow each other."""
    edges = np.flatnonzero(np.diff(starts) != width_us)
    firsts = np.concatenate([[0], edges + 1]).tolist()
    lasts = np.concatenate([edges, [len(starts) - 1]]).astype(int).tolist()
    yield from ((starts[a], starts[b]) for a, b in zip(firsts, lasts, strict=True))


def _span(start_us: int, end_us: int) -> Any:
    time = {"property": "datetime"}
    ends = [{"op": ">=", "args": [time, {"timestamp": iso(start_us)}]}]
    if end_us <= TIME_MAX_US:  # No text says when the last bucket of all ends, and nothing follows.
        ends.append({"op": "<", "args": [time, {"timestamp": iso(end_us)}]})
    return _joined("and", ends)


def _joined(op: str, parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else {"op": op, "args": parts}


def _named(labels: LabelSet, column: pa.Array) -> Mask:
    """Which labels the terms of a column stand for."""
    texts = pc.unique(column.cast(pa.large_string()).drop_null())
    mask = np.zeros(len(labels), dtype=np.bool_)
    if not len(texts) or not len(labels):
        return mask
    vertices = _below(texts, terms.VERTEX)
    if len(vertices):
        for paths in to_rdf.vertex_paths(labels):
            mask |= _among(paths, vertices)
    blocks = pa.concat_arrays([texts, _below(texts, terms.BLOCK)])
    return mask | _among(labels.blocks(), blocks) | _among(labels.texts(), texts)


def _below(texts: pa.Array, prefix: str) -> pa.Array:
    """What follows a prefix, of those that have it."""
    mine = texts.filter(pc.starts_with(texts, prefix))
    return pc.utf8_slice_codeunits(mine, len(prefix))


def _among(values: pa.Array, wanted: pa.Array) -> Mask:
    found = pc.is_in(values.cast(pa.large_string()), value_set=wanted)
    return np.asarray(found.to_numpy(zero_copy_only=False))
