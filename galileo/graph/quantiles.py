"""Quantiles of a feature from bounds alone: between which values they certainly lie.

Each entry of the synopses holds between `low` and `high` matching paths, all with values in
[lo, hi]. Of the paths that match, the fewest lie at or below x if every entry that ends by
x holds its least and every other one its most, beyond x; the most lie below x if every
entry that begins below x holds its most there and every other one its least.
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
    """Where a share of the matching paths that have a value ends.

    The quantile of n values is the one at position ceil(share * n), at least 1, of their
    ascending order.

    Attributes:
        share: from 0 (the least value) to 1 (the greatest).
        low: the quantile is at least this.
        high: at most this.
        value: a guess between them.
    """

    share: float
    low: float
    high: float
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Groups of values of which only bounds are known; arrays of shape (k,).

    Attributes:
        lo: least value of a group.
        hi: greatest value.
        low: how many values at least.
        high: how many at most; above 0.
    """

    lo: Floats
    hi: Floats
    low: Counts
    high: Counts


def check_quantiles(schema: Schema, feature: str | None, shares: Sequence[float]) -> None:
    """Raises `InputError` where these quantiles cannot be estimated."""
    if len(shares) > QUANTILES_MAX:
        raise InputError(f"expected at most {QUANTILES_MAX:,} quantiles, got {len(shares):,}")
    if wrong := [f"{share:g}" for share in shares if not 0 <= share <= 1]:
        raise InputError(f"expected quantiles from 0 to 1, got {', '.join(wrong)}")
    numeric = [f.name for f in schema.indexed if f.type != "text"]
    if shares and feature not in numeric:
        raise InputError(
            f"expected an indexed feature of dataset {schema.name!r} that has numbers "
            f"({', '.join(numeric) or 'it has none'}), to tell quantiles of, got {feature!r}"
        )


def quantiles(groups: Bounded, shares: Sequence[float]) -> tuple[Quantile, ...]:
    """Bounds of quantiles over all groups; none where there is no group."""
    if len(groups.lo) == 0:
        return ()
    return tuple(_quantile(groups, share) for share in shares)


def _quantile(groups: Bounded, share: float) -> Quantile:
    low, high = _lowest(groups, share), _highest(groups, share)
    return Quantile(share, low, high, min(max(_guess(groups, share), low), high))


def _highest(groups: Bounded, share: float) -> float:
    """The least end by which the share is reached, however the values lie."""
    order = np.argsort(groups.hi, kind="stable")
    ends = groups.hi[order]
    below = np.cumsum(groups.low[order])
    beyond = groups.high.sum() - np.cumsum(groups.high[order])
    count = below + beyond
    wanted = np.minimum(share * count * (1 + _ROUNDING), count)
    # The first of equal ends does not yet count the others; the last one does.
    last = np.append(ends[1:] != ends[:-1], True)
    reached = last & (below >= np.maximum(wanted, 1))
    return float(ends[np.argmax(reached)]) if reached.any() else float(ends[-1])


def _lowest(groups: Bounded, share: float) -> float:
    """The greatest beginning below which the share is not reached, however the values lie."""
    order = np.argsort(groups.lo, kind="stable")
    begins = groups.lo[order]
    first = np.append(True, begins[1:] != begins[:-1])
    below = np.cumsum(groups.high[order]) - groups.high[order]
    beyond = groups.low.sum() - (np.cumsum(groups.low[order]) - groups.low[order])
    wanted = np.maximum(share * (below + beyond) * (1 - _ROUNDING), 1)
    short = first & (below < wanted)
    return float(begins[np.flatnonzero(short)[-1]])


def _guess(groups: Bounded, share: float) -> float:
    """As if each group held the mean of its least and most, all at its middle.

    What reaches from one infinity to the other has its middle at 0.
    """
    with np.errstate(invalid="ignore"):
        middle = np.nan_to_num(groups.lo / 2 + groups.hi / 2, posinf=np.inf, neginf=-np.inf)
    order = np.argsort(middle, kind="stable")
    reached = np.cumsum((groups.low + groups.high)[order] / 2)
    at = int(np.searchsorted(reached, share * reached[-1]))
    return float(middle[order][min(at, len(middle) - 1)])
