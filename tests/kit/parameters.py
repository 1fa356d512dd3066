"""Parameters of tests of which a few are quick."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def keep_quick(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All the values, of which those that are not named run with `scripts/test --all` alone.

    Raises:
        ValueError: one of `quick` is none of the values.
    """
    whole = list(values)
    if absent := [value for value in quick if value not in whole]:
        raise ValueError(f"expected values that are among the parameters, got {absent}")
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in whole]
