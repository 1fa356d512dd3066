"""Merges groups of observations that come from paths, rows and nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array
from galileo.errors import InputError
from galileo.graph.columns import StringDictionary
from galileo.graph.group_keys import (
    Ints,
    columns_from_array,
    key_array,
    key_width,
    sent_array,
    type_of,
)
from galileo.graph.groups import Groups, Measure, groups_of_observations
from galileo.model.grouping import OBSERVATIONS, STATISTICS, FeatureKey, Grouping, Key, parts_of
from galileo.model.schema import Feature, Schema
from galileo.query.columns import from_arrow

GROUPS_MAX = 1_000_000
"""Groups of one answer."""
MERGE_ROWS = 1 << 18
"""Groups that wait before they are merged, unless more are left than a half of these."""


class GroupMerger:
    """Merges groups as they come; of one thread at a time.

    It holds at most a few times the groups of the answer, and `MERGE_ROWS`.
    """

    def __init__(self, grouping: Grouping, schema: Schema) -> None:
        self._grouping = grouping
        self._schema = schema
        self._texts = StringDictionary()
        self._waiting: list[Groups] = []
        self._rows = 0
        self._groups = 0

    def add_paths(self, groups: Groups, texts: StringDictionary) -> None:
        """Adds groups of a metadata graph, which has its own dictionary of texts."""
        groups, columns, at = groups.merged(), list[Ints](), 0
        for key in self._grouping.keys:
            width = key_width(key, self._schema)
            columns += groups.keys[at : at + width]
            if isinstance(key, FeatureKey) and type_of(key, self._schema) == "text":
                array = key_array(key, columns[-1:], self._schema, texts)
                columns[-1:] = columns_from_array(key, array, self._texts)
            at += width
        self._add(Groups(tuple(columns), groups.observations, groups.measures))

    def add_observations(self, table: pa.Table) -> None:
        if table.num_rows:
            self._add(groups_of_observations(table, self._grouping, self._texts).merged())

    def add_table(self, table: pa.Table) -> None:
        """Adds the groups of `partial` of another node."""
        arrays = [one_array(column) for column in table.columns]
        keys: list[Ints] = []
        for key in self._grouping.keys:
            keys += columns_from_array(key, arrays.pop(0), self._texts)
        observations = arrays.pop(0).to_numpy()
        measures = []
        for _, statistics in self._grouping.statistics:
            count, *parts = [arrays.pop(0).to_numpy() for _ in ("", *parts_of(statistics))]
            measures.append(Measure(count, dict(zip(parts_of(statistics), parts, strict=True))))
        self._add(Groups(tuple(keys), observations, tuple(measures)))

    def _add(self, groups: Groups) -> None:
        if len(groups) == 0:
            return
        self._waiting.append(groups)
        self._rows += len(groups)
        if self._rows > max(MERGE_ROWS, 2 * self._groups):
            self._merge()

    def _merge(self) -> Groups:
        whole = Groups.concat([self._nothing(), *self._waiting]).merged()
        whole = whole if len(whole) else self._nothing()
        self._waiting = [whole]
        self._rows = self._groups = len(whole)
        if self._groups > GROUPS_MAX:
            raise InputError(
                f"expected at most {GROUPS_MAX:,} groups by "
                f"{', '.join(map(str, self._grouping.keys))}, got more; group by larger cells or "
                "longer windows, or narrow the query",
                parameter="by",
                bound=GROUPS_MAX,
            )
        return whole

    def _nothing(self) -> Groups:
        """No groups; of no keys, the group of no observations."""
        count = 0 if self._grouping.keys else 1
        width = sum(key_width(key, self._schema) for key in self._grouping.keys)
        measures = []
        for name, statistics in self._grouping.statistics:
            feature = self._schema.feature(name)
            assert feature is not None, "the grouping was not checked"
            nothing = from_arrow(pa.nulls(count, feature.arrow_type))
            measures.append(Measure.of(nothing, np.ones(count, dtype=np.int64), statistics))
        keys = tuple(np.zeros(0, dtype=np.int64) for _ in range(width))
        return Groups(keys, np.zeros(count, dtype=np.int64), tuple(measures))

    def partial(self) -> pa.Table:
        """The groups for `add_table` of another node: keys, observations, parts of statistics."""
        whole = self._merge()
        columns = [*self._key_arrays(whole, sent_array), pa.array(whole.observations)]
        names = [*(f"key{number}" for number in range(len(self._keys))), OBSERVATIONS]
        for number, measure in enumerate(whole.measures):
            for name, part in {"count": measure.count, **measure.parts}.items():
                columns.append(pa.array(part))
                names.append(f"{name}{number}")
        return pa.table(columns, names=names)

    @property
    def _keys(self) -> tuple[Key, ...]:
        return self._grouping.keys

    def _key_arrays(self, groups: Groups, array_of: Callable[..., pa.Array]) -> list[pa.Array]:
        arrays, at = [], 0
        for key in self._keys:
            width = key_width(key, self._schema)
            columns = groups.keys[at : at + width]
            arrays.append(array_of(key, columns, self._schema, self._texts))
            at += width
        return arrays

    def answer(self) -> pa.Table:
        """The groups ascending by their keys, null last, with columns `Grouping.names`."""
        whole = self._merge()
        columns = [*self._key_arrays(whole, key_array), pa.array(whole.observations)]
        for (name, statistics), measure in zip(
            self._grouping.statistics, whole.measures, strict=True
        ):
            feature = self._schema.feature(name)
            assert feature is not None, "the grouping was not checked"
            columns += [_statistic(measure, statistic, feature) for statistic in statistics]
        table = pa.table(columns, names=list(self._grouping.names()))
        return self._sorted(table)

    def _sorted(self, table: pa.Table) -> pa.Table:
        """By the keys; they are in order already unless a text, whose codes have none, is a key."""
        keys = [key for key in self._keys if isinstance(key, FeatureKey)]
        if all(type_of(key, self._schema) != "text" for key in keys):
            return table
        names = table.column_names[: len(self._keys)]
        order = [(name, "ascending") for name in names]
        return table.take(pc.sort_indices(table, sort_keys=order))


def _statistic(measure: Measure, statistic: str, feature: Feature) -> pa.Array:
    """The column of a statistic; null in groups without a value, the sum too."""
    if not STATISTICS[statistic].parts:
        return pa.array(measure.count)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = _FOLDS[statistic](measure)
    if feature.type == "bool" and values.dtype == np.int64:
        values = values == 1
    if feature.type == "float32" and statistic in ("min", "max"):
        values = values.astype(np.float32)
    return pa.array(values, mask=measure.count == 0)


_FOLDS: Mapping[str, Callable[[Measure], Any]] = {
    "sum": lambda measure: measure.parts["total"],
    "min": lambda measure: measure.parts["low"],
    "max": lambda measure: measure.parts["high"],
    "mean": lambda measure: measure.parts["total"] / measure.count,
}
"""Each statistic of its parts; one of integers is of the type of the feature."""
