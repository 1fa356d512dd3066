from __future__ import annotations

import itertools
import math
from typing import Literal

import numpy as np
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.graph.feature_graph import FeatureGraph
from galileo.graph.quantiles import Bounded, quantiles
from galileo.graph.synopsis import Synopsis
from galileo.query.query import parse

SHARES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]) | st.floats(0, 1)


def truth(values: list[float], share: float) -> float:
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def test_least_value_is_not_that_of_a_group_that_may_be_empty() -> None:
    groups = Bounded(np.array([0.0, 5.0]), np.array([1.0, 6.0]), np.array([0, 2]), np.array([3, 2]))
    [least] = quantiles(groups, [0.0])
    assert (least.low, least.high) == (0.0, 6.0)


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)),
        min_size=1,
        max_size=4,
    ),
    share=SHARES,
)
@examples(150)
def test_quantiles_random_groups_bounds_are_tightest(
    spans: list[tuple[int, int, int, int]], share: float
) -> None:
    """Against every way in which the groups could be filled with values at their two ends."""
    groups = [(lo, lo + wide, low, max(low + more, 1)) for lo, wide, low, more in spans]
    lo, hi, low, high = (np.array(column) for column in zip(*groups, strict=True))
    [found] = quantiles(Bounded(lo.astype(float), hi.astype(float), low, high), [share])
    fillings = [
        [
            [a] * below + [b] * (count - below)
            for count in range(n, m + 1)
            for below in range(count + 1)
        ]
        for a, b, n, m in groups
    ]
    possible = [
        truth([value for part in filling for value in part], share)
        for filling in itertools.product(*fillings)
        if any(filling)
    ]
    assert found.low <= min(possible)
    assert max(possible) <= found.high
    assert found.low <= found.value <= found.high
    assert {found.low, found.high} <= {*lo.tolist(), *hi.tolist()}


def one_by_one(groups: Bounded, share: float) -> tuple[float, float]:
    """Bounds of one quantile, from a look at all groups for each end and each start."""
    highest, lowest = float(groups.hi.max()), float(groups.lo.min())
    for end in sorted(set(groups.hi.tolist()), reverse=True):
        below = groups.low[groups.hi <= end].sum()
        count = below + groups.high[groups.hi > end].sum()
        if below >= max(min(share * count * (1 + 1e-12), count), 1):
            highest = end
    for start in sorted(set(groups.lo.tolist())):
        below = groups.high[groups.lo < start].sum()
        count = below + groups.low[groups.lo >= start].sum()
        if below < max(share * count * (1 - 1e-12), 1):
            lowest = start
    return lowest, highest


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 40),
    ends=st.sampled_from([4, 1000]),
    counts=st.sampled_from([2, 1_000, 10**9]),
    shares=st.lists(SHARES, max_size=20),
)
@examples(150)
def test_quantiles_random_shares_together_are_those_of_each_alone(
    seed: int, size: int, ends: int, counts: int, shares: list[float]
) -> None:
    rng = np.random.default_rng(seed)
    lo = rng.integers(0, ends, size).astype(float)
    low = rng.integers(0, counts, size)
    groups = Bounded(
        lo,
        lo + rng.integers(0, ends, size),
        low,
        np.maximum(low + rng.integers(0, counts, size), 1),
    )
    found = quantiles(groups, shares)
    assert [one.share for one in found] == shares
    assert [(one.low, one.high) for one in found] == [one_by_one(groups, s) for s in shares]
    assert [one for share in shares for one in quantiles(groups, [share])] == list(found)


def test_quantiles_sorts_the_groups_once_for_all_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Bounded(np.zeros(3), np.ones(3), np.ones(3, dtype=int), np.ones(3, dtype=int))
    sizes: list[int] = []
    argsort = np.argsort

    def counted(values: np.ndarray, *, kind: Literal["stable"]) -> np.ndarray:
        sizes.append(len(values))
        return argsort(values, kind=kind)

    monkeypatch.setattr(np, "argsort", counted)
    quantiles(groups, [0.5] * 1_000)
    assert sizes == [3, 3, 3]


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    limit=st.integers(1, 40),
    text=st.integers(0, 20),
    feature=st.sampled_from(["temperature", "humidity", "gusts", "raining"]),
    share=SHARES,
)
@examples(150)
def test_quantiles_random_history_bound_exact_quantile(
    world, dumb_store, query_texts, seed, sizes, limit, text, feature, share
):
    store, graph = dumb_store(world.schema), FeatureGraph(world.schema)
    for partition, size in enumerate(sizes):
        synopsis = Synopsis(world.schema, partition=partition, epoch=1, entries_max=limit)
        batch = world.batch(seed + partition, size)
        store.insert(batch, partition=partition, sequence=1)
        synopsis.add(batch, 1)
        graph.apply(synopsis.changes_since(None))
    query = parse(query_texts[text], world.schema)
    values = [row[feature] for row in store.scan(query) if row[feature] is not None]
    found = graph.quantiles(query, feature, [share])
    assert found or not values
    if found and values:
        assert found[0].low <= truth(values, share) <= found[0].high


def test_quantiles_no_match_is_empty(world) -> None:
    graph = FeatureGraph(world.schema)
    everything = parse("", world.schema)
    assert graph.quantiles(everything, "gusts", [0.5]) == ()
    synopsis = Synopsis(world.schema, partition=0, epoch=1)
    synopsis.add(world.batch(1, 20), 1)
    graph.apply(synopsis.changes_since(None))
    assert graph.quantiles(parse("temperature > 1000", world.schema), "gusts", [0.5]) == ()
    assert len(graph.quantiles(everything, "gusts", [0.5, 1.0])) == 2


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("temperature > 290", 290, np.inf),
        ("temperature > 270 AND temperature <= 290", 270, 290),
        ("temperature BETWEEN 270 AND 280 OR temperature IN (285, 290)", 270, 290),
        ("NOT (temperature < 270 OR gusts IS NULL)", 270, np.inf),
        ("(temperature > 290 AND temperature < 280) OR temperature = 285", 285, 285),
        ("gusts IS NOT NULL", -np.inf, np.inf),
        ("temperature <> 290", -np.inf, np.inf),
        ("temperature > 290 AND temperature < 280", np.inf, -np.inf),
    ],
)
def test_quantiles_condition_on_feature_bounds_values(
    world, text: str, least: float, most: float
) -> None:
    graph, synopsis = FeatureGraph(world.schema), Synopsis(world.schema, partition=0, epoch=1)
    synopsis.add(world.batch(1, 200), 1)
    graph.apply(synopsis.changes_since(None))
    found = graph.quantiles(parse(text, world.schema), "temperature", [0.0, 0.25, 0.5, 1.0])
    assert len(found) == (4 if least <= most else 0)
    for one in found:
        assert least <= one.low <= one.value <= one.high <= most


@pytest.mark.parametrize("feature", ["station", "note", "tempo"])
def test_quantiles_other_feature_raises(world, feature) -> None:
    with raises(InputError, expected="numeric_feature", feature=feature):
        FeatureGraph(world.schema).quantiles(parse("", world.schema), feature, [0.5])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_quantiles_between_infinities_is_finite(share: float) -> None:
    lo, hi, count = np.array([-np.inf]), np.array([np.inf]), np.array([3])
    [found] = quantiles(Bounded(lo, hi, count, count), [share])
    assert (found.low, found.value, found.high) == (-np.inf, 0.0, np.inf)
