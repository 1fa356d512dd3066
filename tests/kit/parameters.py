"""Parameters of tests; some of them are slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def keep_quick(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All the values, of which those that are not named run with `scripts/test --all` alone.

    A tuple has the values of several parameters.

    Raises:
        ValueError: one of `quick` is none of the values.
    """
    whole = list(values)
    if absent := [value for value in quick if value not in whole]:
        raise ValueError(f"expected values that are among the parameters, got {absent}")
    slow = [one if isinstance(one, tuple) else (one,) for one in whole]
    return [
        one if one in quick else pytest.param(*values, marks=pytest.mark.slow)
        for one, values in zip(whole, slow, strict=True)
    ]


def seeds_in_parts(seeds: int, size: int) -> list[Any]:
    """Divides the seeds from 0 on into ranges that fit into a turn of slow tests.

    Args:
        seeds: how many.
        size: of a range; as many worlds as take at most 100 s.
    """
    return [
        pytest.param(
            range(first, min(first + size, seeds)), marks=pytest.mark.slow(100), id=str(first)
        )
        for first in range(0, seeds, size)
    ]
