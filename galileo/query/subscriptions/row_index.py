"""New rows, indexed once for the subscriptions of all partitions."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.query.index.prefixes import Places
from galileo.query.predicates import ObservationColumns
from galileo.query.query import observation_columns
from galileo.query.subscriptions.parameter_query import ParameterQuery
from galileo.query.subscriptions.point_grid import PointGrid
from galileo.query.subscriptions.row_orders import RowOrder, row_order


class RowIndex:
    """Observations, and the indices of them that matching needs.

    Each index is made when it is needed, once, also if several threads match.

    Args:
        query: the template of the subscriptions.
        observations: of `Schema.observation_schema`; of the features at least those that the query
            reads.

    Attributes:
        observations: all of them.
    """

    def __init__(self, query: ParameterQuery, observations: pa.Table) -> None:
        self.observations = observations
        self._query = query
        self._lock = threading.RLock()
        self._made: dict[Hashable, Any] = {}

    @property
    def rows(self) -> Places:
        """Numbers of the observations that match the part of the template without parameters."""
        with self._lock:
            if "rows" not in self._made:
                mask = self._query.constant.match_observations(self.observations)
                self._made["rows"] = np.flatnonzero(mask)
            rows: Places = self._made["rows"]
            return rows

    @property
    def points(self) -> ObservationColumns:
        """Those observations, which the other indices number from 0."""
        with self._lock:
            if "points" not in self._made:
                columns = observation_columns(self.observations, self._query.features)
                is_whole = len(self.rows) == self.observations.num_rows
                self._made["points"] = columns if is_whole else columns.take(self.rows)
            points: ObservationColumns = self._made["points"]
            return points

    @property
    def grid(self) -> PointGrid:
        """The points by their places; there has to be one."""
        with self._lock:
            if "grid" not in self._made:
                self._made["grid"] = PointGrid(self.points.latitude, self.points.longitude)
            grid: PointGrid = self._made["grid"]
            return grid

    def order(self, name: str, *, folded: bool) -> RowOrder:
        """The points in the order of a feature, as `row_order`."""
        with self._lock:
            key = name, folded
            if key not in self._made:
                self._made[key] = row_order(self.points, name, folded=folded)
            order: RowOrder = self._made[key]
            return order
