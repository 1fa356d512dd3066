"""New rows, indexed once for the subscriptions of all partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from galileo.query.index.prefixes import Places
from galileo.query.predicates import ObservationColumns
from galileo.query.query import observation_columns
from galileo.query.subscriptions.parameter_query import ParameterQuery
from galileo.query.subscriptions.point_grid import PointGrid
from galileo.query.subscriptions.row_orders import RowOrder, row_order

T = TypeVar("T")


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
        match = self._query.constant.match_observations
        return self._once("rows", lambda: np.flatnonzero(match(self.observations)))

    @property
    def points(self) -> ObservationColumns:
        """Those observations, which the other indices number from 0."""
        return self._once("points", self._read_points)

    @property
    def grid(self) -> PointGrid:
        """The points by their places; there has to be one."""
        points = self.points
        return self._once("grid", lambda: PointGrid(points.latitude, points.longitude))

    def order(self, name: str, *, folded: bool) -> RowOrder:
        """The points in the order of a feature, as `row_order`."""
        points = self.points
        return self._once((name, folded), lambda: row_order(points, name, folded=folded))

    def _read_points(self) -> ObservationColumns:
        columns = observation_columns(self.observations, self._query.features)
        is_whole = len(self.rows) == self.observations.num_rows
        return columns if is_whole else columns.take(self.rows)

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            made: T = self._made[key]
            return made
