"""The order of rows against NumPy's stable sort by every key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.model.sort_keys import differs, merge_order, sort_order

FLOATS = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e-300]
INTS = [0, 1, -1, 2**63 - 1, -(2**63), 2**53, 2**53 + 1]
KINDS: dict[str, list[Any]] = {
    "float64": FLOATS,
    "int64": INTS,
    "int32": [0, 1, -1, 2**31 - 1, -(2**31)],
    "int8": [0, 1, -1],
    "uint64": [0, 1, 2**64 - 1, 2**63],
    "bool": [True, False],
}


@st.composite
def keys(draw: st.DrawFn) -> list[npt.NDArray[Any]]:
    rows = draw(st.integers(1, 40))
    made = []
    for kind in draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5)):
        values = st.sampled_from(KINDS[kind])
        made.append(np.array(draw(st.lists(values, min_size=rows, max_size=rows)), dtype=kind))
    return made


def stable(by: list[npt.NDArray[Any]]) -> list[int]:
    """`lexsort` takes the most significant key last."""
    order: list[int] = np.lexsort(by[::-1]).tolist()
    return order


@given(keys())
@example([np.array([1.5, 1.5]), np.array([3, 3])])
@example([np.array([7, 7, 7]), np.array([2, 2, 2]), np.array([0.0, -0.0, 0.0])])
@example([np.array([True, True]), np.array([0, 2**64 - 1], dtype=np.uint64)])
def test_sort_order_random_keys_equals_stable_sort(by: list[npt.NDArray[Any]]) -> None:
    assert sort_order(by).tolist() == merge_order(by).tolist() == stable(by)


@pytest.mark.parametrize("distinct", [1, 3, 200, 1 << 40])
def test_sort_order_many_rows_equals_stable_sort(distinct: int) -> None:
    generator = np.random.default_rng(distinct)
    by = [
        generator.integers(0, 4, 5_000).astype(np.int32),
        generator.integers(0, distinct, 5_000).astype(np.uint64),
        np.round(generator.normal(283.0, 3.0, 5_000), 1),
        generator.integers(0, 1 << 50, 5_000),
    ]
    assert sort_order(by).tolist() == stable(by)


def test_sort_order_no_rows_is_empty() -> None:
    assert sort_order([np.array([], dtype=np.uint64), np.array([])]).tolist() == []


def test_differs_nan_equals_nan() -> None:
    nan = float("nan")
    assert differs(np.array([nan, nan, 1.0, 1.0, nan])).tolist() == [True, False, True, False, True]
