"""Which faults a violation needs: the others are taken away while it still happens."""

from __future__ import annotations

from simulator.faults import ALWAYS, FAULTS
from simulator.world import run


def violation(seed: int, variant: str, *, without: frozenset[str]) -> AssertionError | None:
    """What goes wrong in this world, None for nothing."""
    try:
        run(seed, variant, without=without)
    except AssertionError as found:
        return found
    return None


def shrunk(seed: int, variant: str) -> tuple[frozenset[str], AssertionError]:
    """The kinds of faults without which a world still goes wrong, and how it then does.

    A kind that is left is needed beside the others that are left: in the same world without it,
    all is well.

    Raises:
        ValueError: nothing goes wrong in this world.
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
