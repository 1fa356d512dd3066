"""Finds the faults that a violation needs, by removing the others."""

from __future__ import annotations

from simulator.faults import ALWAYS, FAULTS
from simulator.world import run


def violation(seed: int, variant: str, *, without: frozenset[str]) -> AssertionError | None:
    """The violation of this world, None without one."""
    try:
        run(seed, variant, without=without)
    except AssertionError as found:
        return found
    return None


def shrunk(seed: int, variant: str) -> tuple[frozenset[str], AssertionError]:
    """The kinds of faults that cannot be removed, and the violation with them.

    Raises:
        ValueError: this world has no violation.
    """
    without = frozenset[str]()
    found = violation(seed, variant, without=without)
    if found is None:
        raise ValueError(f"expected a seed with a violation, got {seed}, in which all is well")
    kinds, before = {*FAULTS, *ALWAYS}, None
    while before != without:
        before = without
        for kind in sorted(kinds - without):
            still = violation(seed, variant, without=without | {kind})
            if still is not None:
                without, found = without | {kind}, still
    return without, found
