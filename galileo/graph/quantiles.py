"""Bounds of the quantiles of a feature, from bounds alone.

Each entry of the synopses has between `low` and `high` matching paths, all with values in [lo, hi].
The fewest paths lie at or below x if every entry that ends by x has its least number and every
other one its greatest, beyond x; the most lie below x if every entry that begins below x has its
greatest number there and every other one its least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from galileo.errors import InputError
from galileo.model.schema import Schema

QUANTILES_MAX = 1_000

_ROUNDING = 1e-12

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class QuantileBounds:
    """Bounds of one quantile of the matching paths that have a value.

    The quantile of n values is the one at position ceil(share * n), at least 1, in ascending order.

    Attributes:
        share: from 0 (the least value) to 1 (the greatest).
        low: lower bound.
        high: upper bound.
        value: an estimate between them.
    """

    share: float
    low: float
    high: float
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Bounds of groups of values; arrays of shape (k,).

    Attributes:
        lo: least value of a group.
        hi: greatest value.
        low: least number of values.
        high: greatest number of values; above 0.
    """

    lo: Floats
    hi: Floats
    low: Counts
    high: Counts


def check_quantiles(schema: Schema, feature: str | None, shares: Sequence[float]) -> None:
    """Raise `InputError` unless the feature is numeric and the shares are valid."""
    if len(shares) > QUANTILES_MAX:
        raise InputError(
            f"expected at most {QUANTILES_MAX:,} quantiles, got {len(shares):,}",
            parameter="quantiles",
            bound=QUANTILES_MAX,
        )
    if wrong := [f"{share:g}" for share in shares if not 0 <= share <= 1]:
        raise InputError(
            f"expected quantiles from 0 to 1, got {', '.join(wrong)}", parameter="quantiles"
        )
    numeric = [f.name for f in schema.indexed if f.type != "text"]
    if shares and feature not in numeric:
        raise InputError(
            f"expected an indexed feature of dataset {schema.name!r} that has numbers "
            f"({', '.join(numeric) or 'it has none'}), got {feature!r}",
            expected="numeric_feature",
            feature=feature,
        )


def quantiles(groups: Bounded, shares: Sequence[float]) -> tuple[QuantileBounds, ...]:
    """Bounds of quantiles over all groups; empty without groups.

    It takes the time of sorting k groups three times, and O(log k) for each share.
    """
    if len(groups.lo) == 0:
        return ()
    wanted = np.array(shares, dtype=np.float64)
    low, high = _lowest(groups, wanted), _highest(groups, wanted)
    values = np.minimum(np.maximum(_guess(groups, wanted), low), high)
    columns = (column.tolist() for column in (low, high, values))
    return tuple(map(QuantileBounds, shares, *columns))


def _highest(groups: Bounded, shares: Floats) -> Floats:
    """The least end of a group by which each share is certainly reached."""
    order = np.argsort(groups.hi, kind="stable")
    ends = groups.hi[order]
    # The first of equal ends does not yet count the others; the last one does.
    last = np.flatnonzero(np.append(ends[1:] != ends[:-1], True))
    below = np.cumsum(groups.low[order])[last]
    count = below + groups.high.sum() - np.cumsum(groups.high[order])[last]

    def is_reached(at: Counts) -> Mask:
        rank = np.minimum(shares * count[at] * (1 + _ROUNDING), count[at])
        reached: Mask = below[at] >= np.maximum(rank, 1)
        return reached

    reached = _first(is_reached, shape=len(shares), end=len(last))
    return ends[last][np.minimum(reached, len(last) - 1)]


def _lowest(groups: Bounded, shares: Floats) -> Floats:
    """The greatest start of a group below which each share is certainly not reached."""
    order = np.argsort(groups.lo, kind="stable")
    begins, high, low = groups.lo[order], groups.high[order], groups.low[order]
    first = np.flatnonzero(np.append(True, begins[1:] != begins[:-1]))
    below = (np.cumsum(high) - high)[first]
    count = below + low.sum() - (np.cumsum(low) - low)[first]

    def is_reached(at: Counts) -> Mask:
        reached: Mask = below[at] >= np.maximum(shares * count[at] * (1 - _ROUNDING), 1)
        return reached

    # Nothing lies below the first start, so it never reaches a share.
    return begins[first][_first(is_reached, shape=len(shares), end=len(first)) - 1]


def _first(holds: Callable[[Counts], Mask], *, shape: int, end: int) -> Counts:
    """The first index from 0 at which a condition holds for each of several shares; else `end`.

    Args:
        holds: takes an index below `end` for each share. Past the first index at which the
            condition of a share holds it holds at all.
        shape: number of shares.
        end: number of indices.
    """
    low, high = np.zeros(shape, dtype=np.int64), np.full(shape, end, dtype=np.int64)
    for _ in range(end.bit_length()):
        middle = np.minimum((low + high) // 2, end - 1)
        held = holds(middle)
        high = np.where(held, np.minimum(middle, high), high)
        low = np.where(held, low, np.minimum(middle + 1, high))
    return high


def _guess(groups: Bounded, shares: Floats) -> Floats:
    """Estimates with the mean number of values of each group, all at its middle.

    The middle of an interval between both infinities is 0.
    """
    with np.errstate(invalid="ignore"):
        middle = np.nan_to_num(groups.lo / 2 + groups.hi / 2, posinf=np.inf, neginf=-np.inf)
    order = np.argsort(middle, kind="stable")
    reached = np.cumsum((groups.low + groups.high)[order] / 2)
    at = np.searchsorted(reached, shares * reached[-1])
    estimates: Floats = middle[order][np.minimum(at, len(middle) - 1)]
    return estimates
