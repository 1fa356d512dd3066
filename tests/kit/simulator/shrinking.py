"""Finds the faults that a violation needs, by removing the others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from simulator.faults import ALWAYS, FAULTS
from simulator.world import run


class Play(Protocol):
    """Plays a world of a seed and a variant; raises AssertionError where it breaks a promise."""

    def __call__(
        self,
        seed: int,
        variant: str,
        *,
        without: Collection[str] = (),
        trace: Callable[[str], None] | None = None,
    ) -> object: ...


def violation(
    play: Play, seed: int, variant: str, *, without: frozenset[str]
) -> AssertionError | None:
    """The violation of this world, None without one."""
    try:
        play(seed, variant, without=without)
    except AssertionError as found:
        return found
    return None


def shrunk(
    seed: int, variant: str, *, play: Play = run, kinds: Collection[str] = (*FAULTS, *ALWAYS)
) -> tuple[frozenset[str], AssertionError]:
    """The kinds of faults that cannot be removed, and the violation with them.

    Raises:
        ValueError: this world has no violation.
    """
    try_without = partial(violation, play, seed, variant)
    without = frozenset[str]()
    found = try_without(without=without)
    if found is None:
        raise ValueError(f"expected a seed with a violation, got {seed}, in which all is well")
    before = None
    while before != without:
        before = without
        for kind in sorted({*kinds} - without):
            still = try_without(without=without | {kind})
            if still is not None:
                without, found = without | {kind}, still
    return without, found
