"""Merges groups of observations that come from paths, rows and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from galileo.graph.group_values import GroupValues
from galileo.graph.groups import PARTS, Extremes, Groups, Measure, groups_of_observations
from galileo.model.grouping import OBSERVATIONS, FeatureKey, Grouping, Key, known, parts_of
from galileo.model.schema import Feature, Schema
from galileo.query.columns import NULL_CODE, TextColumn, from_arrow

GROUPS_MAX = 1_000_000
"""Groups of one answer."""
VALUES_MAX = 1 << 25
"""Values of one answer that percentiles are computed of, those in sketches included."""
MERGE_ROWS = 1 << 18
"""Groups, and values of these, that wait before they are merged, unless more are left than a half
of them."""


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
        self._merged_rows = 0

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
        for name, statistics in self._grouping.statistics:
            count, parts, texts = arrays.pop(0).to_numpy(), {}, self._texts_of(name)
            for part in parts_of(statistics):
                width = len(PARTS[part].missing(np.dtype(np.float64)))
                each = [arrays.pop(0) for _ in range(width)]
                if texts is not None:
                    each[-1], *_ = columns_from_array(FeatureKey(name), each[-1], texts)
                parts[part] = tuple(map(np.asarray, each))
            has_values = any(known(name).share is not None for name in statistics)
            values = (
                GroupValues.from_arrow(*(arrays.pop(0) for _ in range(3))) if has_values else None
            )
            measures.append(Measure(count, parts, values, texts))
        self._add(Groups(tuple(keys), observations, tuple(measures)))

    def _add(self, groups: Groups) -> None:
        if len(groups) == 0:
            return
        self._waiting.append(groups)
        self._rows += groups.weight
        if self._rows > max(MERGE_ROWS, 2 * self._merged_rows):
            self._merge()

    def _merge(self) -> Groups:
        whole = Groups.concat([self._nothing(), *self._waiting]).merged()
        whole = whole.reduced() if len(whole) else self._nothing()
        self._waiting = [whole]
        self._rows = self._merged_rows = whole.weight
        by = ", ".join(map(str, self._grouping.keys))
        if len(whole) > GROUPS_MAX:
            raise InputError(
                f"expected at most {GROUPS_MAX:,} groups by {by}, got more; group by larger cells "
                "or longer windows, or narrow the query",
                parameter="by",
                bound=GROUPS_MAX,
            )
        if whole.weight - len(whole) > VALUES_MAX:
            raise InputError(
                f"expected groups by {by} with at most {VALUES_MAX:,} values for percentiles, got "
                "more; narrow the query, or group by larger cells or longer windows, of whose "
                "values sketches are kept",
                parameter="statistics",
                bound=VALUES_MAX,
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
            ones = np.ones(count, dtype=np.int64)
            texts = self._texts_of(name)
            measures.append(Measure.of(nothing, ones, statistics, times=ones, texts=texts))
        keys = tuple(np.zeros(0, dtype=np.int64) for _ in range(width))
        return Groups(keys, np.zeros(count, dtype=np.int64), tuple(measures))

    def _texts_of(self, name: str) -> StringDictionary | None:
        return self._texts if type_of(FeatureKey(name), self._schema) == "text" else None

    def partial(self) -> pa.Table:
        """The groups for `add_table` of another node: keys, observations, parts of statistics."""
        whole = self._merge()
        columns = [*self._key_arrays(whole, sent_array), pa.array(whole.observations)]
        names = [*(f"key{number}" for number in range(len(self._keys))), OBSERVATIONS]
        for number, measure in enumerate(whole.measures):
            values = {} if measure.values is None else measure.values.to_arrow(len(whole))
            parts: list[Any] = [measure.count]
            for arrays in measure.parts.values():
                parts += [*arrays[:-1], _sent_values(measure, arrays[-1])]
            columns += [*map(pa.array, parts), *values.values()]
            names += [f"part{number}.{at}" for at in range(len(parts) + len(values))]
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

    @property
    def rank_error(self) -> float:
        """`GroupValues.rank_error` of the answer."""
        values = (m.values for groups in self._waiting for m in groups.measures)
        return max((v.rank_error for v in values if v is not None), default=0.0)

    def answer(self) -> pa.Table:
        """The groups ascending by their keys, null last, with columns `Grouping.names`."""
        whole = self._merge()
        columns = [*self._key_arrays(whole, key_array), pa.array(whole.observations)]
        for (name, statistics), measure in zip(
            self._grouping.statistics, whole.measures, strict=True
        ):
            feature = self._schema.feature(name)
            assert feature is not None, "the grouping was not checked"
            columns += _statistics(measure, statistics, feature)
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


def _statistics(measure: Measure, names: Sequence[str], feature: Feature) -> list[pa.Array]:
    """The columns of statistics; null in groups without a value, the sum too."""
    shares = [share for name in names if (share := known(name).share) is not None]
    percentiles: Iterator[Any] = iter(())
    if measure.values is not None:
        percentiles = iter(measure.values.percentiles(shares, len(measure.count)))
    columns = []
    for name in names:
        if known(name).share is None:
            columns.append(_statistic(measure, name, feature))
        else:
            columns.append(pa.array(next(percentiles), mask=measure.count == 0))
    return columns


def _sent_values(measure: Measure, values: Extremes) -> Any:
    """Values of a part; texts for their codes."""
    if measure.texts is None:
        return values
    codes = np.where(measure.count > 0, values, NULL_CODE).astype(np.int32)
    return measure.texts.bound(TextColumn(codes, pa.array([], pa.string()))).to_arrow()


def _statistic(measure: Measure, name: str, feature: Feature) -> pa.Array:
    if name == "count":
        return pa.array(measure.count)
    if measure.texts is not None:
        return _sent_values(measure, _FOLDS[name](measure))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = _FOLDS[name](measure)
    if feature.type == "bool" and values.dtype == np.int64:
        values = values == 1
    if feature.type == "float32" and name in ("min", "max", "first", "last"):
        values = values.astype(np.float32)
    return pa.array(values, mask=measure.count < known(name).values_min)


_FOLDS: Mapping[str, Callable[[Measure], Any]] = {
    "sum": lambda measure: measure.parts["total"][0],
    "min": lambda measure: measure.parts["low"][0],
    "max": lambda measure: measure.parts["high"][0],
    "mean": lambda measure: measure.parts["total"][0] / measure.count,
    "std": lambda measure: np.sqrt(measure.parts["spread"][1] / (measure.count - 1)),
    "first": lambda measure: measure.parts["first"][1],
    "last": lambda measure: measure.parts["last"][1],
}
"""Each statistic of its parts; one of integers is of the type of the feature."""
