"""Bounds of the quantiles of a feature, from bounds alone.

Each entry of the synopses has between `low` and `high` matching paths, all with values in [lo, hi].
The fewest paths lie at or below x if every entry that ends by x has its least number and every
other one its greatest, beyond x; the most lie below x if every entry that begins below x has its
greatest number there and every other one its least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from galileo.errors import InputError
from galileo.model.schema import Schema

QUANTILES_MAX = 1_000

_ROUNDING = 1e-12

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quantile:
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


def quantiles(groups: Bounded, shares: Sequence[float]) -> tuple[Quantile, ...]:
    """Bounds of quantiles over all groups; empty without groups."""
    if len(groups.lo) == 0:
        return ()
    return tuple(_quantile(groups, share) for share in shares)


def _quantile(groups: Bounded, share: float) -> Quantile:
    low, high = _lowest(groups, share), _highest(groups, share)
    return Quantile(share, low, high, min(max(_guess(groups, share), low), high))


def _highest(groups: Bounded, share: float) -> float:
    """The least end of a group by which the share is certainly reached."""
    order = np.argsort(groups.hi, kind="stable")
    ends = groups.hi[order]
    below = np.cumsum(groups.low[order])
    beyond = groups.high.sum() - np.cumsum(groups.high[order])
    count = below + beyond
    rank = np.minimum(share * count * (1 + _ROUNDING), count)
    # The first of equal ends does not yet count the others; the last one does.
    last = np.append(ends[1:] != ends[:-1], True)
    reached = last & (below >= np.maximum(rank, 1))
    return float(ends[np.argmax(reached)]) if reached.any() else float(ends[-1])


def _lowest(groups: Bounded, share: float) -> float:
    """The greatest start of a group below which the share is certainly not reached."""
    order = np.argsort(groups.lo, kind="stable")
    begins = groups.lo[order]
    first = np.append(True, begins[1:] != begins[:-1])
    below = np.cumsum(groups.high[order]) - groups.high[order]
    beyond = groups.low.sum() - (np.cumsum(groups.low[order]) - groups.low[order])
    rank = np.maximum(share * (below + beyond) * (1 - _ROUNDING), 1)
    short = first & (below < rank)
    return float(begins[np.flatnonzero(short)[-1]])


def _guess(groups: Bounded, share: float) -> float:
    """Estimate with the mean number of values of each group, all at its middle.

    The middle of an interval between both infinities is 0.
    """
    with np.errstate(invalid="ignore"):
        middle = np.nan_to_num(groups.lo / 2 + groups.hi / 2, posinf=np.inf, neginf=-np.inf)
    order = np.argsort(middle, kind="stable")
    reached = np.cumsum((groups.low + groups.high)[order] / 2)
    at = int(np.searchsorted(reached, share * reached[-1]))
    return float(middle[order][min(at, len(middle) - 1)])
