"""What is fuzzed: functions from bytes of strangers to values, and what must hold of them.

A target takes any bytes. It may reject them by a `GalileoError` that is not an `InternalError`;
any other exception, a crash, an endless loop and unbounded memory are findings. What it accepts it
checks as far as it can, with `assert`, so that silent acceptance of nonsense is a finding too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from galileo.errors import CorruptData, GalileoError, InternalError

SLOW_S = 10
"""One input that takes longer is a finding."""
SLOW_APART_S = 90
"""Where a process of its own has to be started first, and libraries to be imported in it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is fuzzed.

    Attributes:
        name: of the target, and of its corpus.
        does: what it decodes, for the table.
        run: takes the bytes; raises as the module says.
        seeds: valid inputs to begin with.
        bytes_max: of an input.
        is_apart: whether a process of its own does it, since libraries in C that were not written
            for hostile files crash. That takes a hundred times longer, and
            without its coverage.
        weight: of its share in CPU time; parsers of Galileo's own have more.
    """

    name: str
    does: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]
    bytes_max: int = 4096
    is_apart: bool = False
    weight: int = 1

    @property
    def slow_s(self) -> int:
        return SLOW_APART_S if self.is_apart else SLOW_S


def refused(target: Target, data: bytes) -> bool:
    """Runs a target; whether it refused the bytes.

    Raises:
        Exception: a finding.
    """
    try:
        target.run(data)
    except GalileoError as error:
        if isinstance(error, InternalError) and not isinstance(error, CorruptData):
            raise
        return True
    return False
