"""Finds the labels that the RDF terms of a result identify."""

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
"""Blocks of a sub-query, which has the cell and time of each."""

Mask = npt.NDArray[np.bool_]


def find_labels(labels: LabelSet, columns: Mapping[str, pa.Array]) -> LabelSet:
    """The labels that the terms of a column identify.

    Args:
        labels: of the graph.
        columns: IRIs and texts of one or several variables; null where unbound.

    Raises:
        InputError: none of several columns identifies labels, or more than one does.
    """
    masks = {name: _find(labels, column) for name, column in columns.items()}
    matching = [name for name, mask in masks.items() if mask.any()]
    unbound = all(column.null_count == len(column) for column in columns.values())
    if len(matching) == 1 or unbound or len(columns) == 1:
        names = matching or list(columns)
        return labels.where(masks[names[0]] if names else np.zeros(len(labels), dtype=np.bool_))
    which = f"{matching} do; name one" if matching else f"none of {list(columns)} does"
    raise InputError(
        f"expected one variable whose terms identify labels; {which}",
        expected="one_variable",
        properties=matching or list(columns),
    )


def block_ids(labels: LabelSet) -> list[str]:
    ids: list[str] = pc.unique(labels.blocks()).sort().to_pylist()
    return ids


def sub_query(labels: LabelSet) -> str:
    """CQL2 JSON for the blocks of labels, combined with the query of the labels."""
    cells, buckets = labels.geohashes(), labels.buckets
    blocks = pa.table({"cell": cells, "bucket": pa.array(buckets)})
    groups = blocks.group_by(["bucket", "cell"]).aggregate([])
    if not 1 <= groups.num_rows <= BLOCKS_MAX:
        raise InputError(
            f"expected labels of 1 to {BLOCKS_MAX:,} blocks, got {groups.num_rows:,}",
            expected="blocks",
            bound=BLOCKS_MAX,
        )
    width = labels.schema.time_bucket_us
    times = groups.group_by("bucket").aggregate([("cell", "list")]).sort_by("bucket").to_pylist()
    by_cells: dict[tuple[str, ...], list[int]] = {}
    for time in times:
        by_cells.setdefault(tuple(sorted(time["cell_list"])), []).append(time["bucket"])
    places = [_blocks(cells, starts, width) for cells, starts in by_cells.items()]
    tree = _combine("or", places)
    return json.dumps(_combine("and", [tree, json.loads(labels.query)]) if labels.query else tree)


def _blocks(cells: tuple[str, ...], starts: list[int], width_us: int) -> Any:
    """A condition for cells at the same times; consecutive buckets are one span."""
    spans = [_span(first, last + width_us) for first, last in _runs(starts, width_us)]
    place = {"op": "in", "args": [{"property": "geohash"}, list(cells)]}
    return _combine("and", [place, _combine("or", spans)])


def _runs(starts: list[int], width_us: int) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive starts."""
    edges = np.flatnonzero(np.diff(starts) != width_us)
    firsts = np.concatenate([[0], edges + 1]).tolist()
    lasts = np.concatenate([edges, [len(starts) - 1]]).astype(int).tolist()
    yield from ((starts[a], starts[b]) for a, b in zip(firsts, lasts, strict=True))


def _span(start_us: int, end_us: int) -> Any:
    time = {"property": "datetime"}
    ends = [{"op": ">=", "args": [time, {"timestamp": iso(start_us)}]}]
    if end_us <= TIME_MAX_US:  # The end of the last possible bucket has no text form.
        ends.append({"op": "<", "args": [time, {"timestamp": iso(end_us)}]})
    return _combine("and", ends)


def _combine(op: str, parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else {"op": op, "args": parts}


def _find(labels: LabelSet, column: pa.Array) -> Mask:
    """A mask of the labels that the terms of a column identify."""
    texts = pc.unique(column.cast(pa.large_string()).drop_null())
    mask = np.zeros(len(labels), dtype=np.bool_)
    if not len(texts) or not len(labels):
        return mask
    vertices = _strip_prefix(texts, terms.VERTEX)
    if len(vertices):
        for paths in to_rdf.vertex_paths(labels):
            mask |= _is_in(paths, vertices)
    blocks = pa.concat_arrays([texts, _strip_prefix(texts, terms.BLOCK)])
    return mask | _is_in(labels.blocks(), blocks) | _is_in(labels.texts(), texts)


def _strip_prefix(texts: pa.Array, prefix: str) -> pa.Array:
    """The rest of the texts that have a prefix."""
    matching = texts.filter(pc.starts_with(texts, prefix))
    return pc.utf8_slice_codeunits(matching, len(prefix))


def _is_in(values: pa.Array, wanted: pa.Array) -> Mask:
    mask = pc.is_in(values.cast(pa.large_string()), value_set=wanted)
    return np.asarray(mask.to_numpy(zero_copy_only=False))
