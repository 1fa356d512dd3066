"""Counts of observations by cell, from paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.graph.cancellation import Check, never_cancelled, scan_portions
from galileo.graph.run_scan import RunScan
from galileo.query.columns import take_rows

CELLS_SCHEMA = pa.schema([pa.field("cell", pa.uint64()), pa.field("rows", pa.int64())])

_Counted = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]


def rows_by_cell(tasks: Sequence[RunScan], *, check: Check = never_cancelled) -> pa.Table:
    """The cells of the paths that tasks find, each once, ascending, with their observations."""
    portions: list[_Counted] = []
    for run, rows in scan_portions(tasks, check=check):
        columns = run.paths.columns
        portions.append(
            _count_by_cell(take_rows(columns.cell, rows), take_rows(run.paths.rows, rows))
        )
    cells = np.concatenate([np.empty(0, np.uint64), *(cells for cells, _ in portions)])
    counts = np.concatenate([np.empty(0, np.int64), *(counts for _, counts in portions)])
    return pa.table(list(_count_by_cell(cells, counts)), schema=CELLS_SCHEMA)


def _count_by_cell(cells: npt.NDArray[np.uint64], rows: npt.NDArray[np.integer]) -> _Counted:
    order = np.argsort(cells, kind="stable")
    ordered = cells[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]) != 0)
    if len(starts) == 0:
        return ordered, rows.astype(np.int64)
    return ordered[starts], np.add.reduceat(rows[order].astype(np.int64), starts)
