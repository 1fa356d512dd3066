"""How many examples a test tries: fewer without `scripts/test --all`."""

from __future__ import annotations

from hypothesis import settings

ALL = settings.get_profile("all").max_examples


def examples(count: int) -> settings:
    """So many with `scripts/test --all`, and the same part of them as of all others without."""
    return settings(max_examples=max(5, count * settings().max_examples // ALL))


def every(step: int) -> int:
    """The step of a loop over all places of a file: 1 with `scripts/test --all`."""
    return 1 if settings().max_examples >= ALL else step
