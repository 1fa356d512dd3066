"""Numbers of Hypothesis examples: fewer without `scripts/test --all`."""

from __future__ import annotations

from hypothesis import settings

ALL = settings.get_profile("all").max_examples


def examples(count: int) -> settings:
    """`count` with `scripts/test --all`, and the default share of it without."""
    return settings(max_examples=max(5, count * settings().max_examples // ALL))


def every(step: int) -> int:
    """The step of a loop over all positions of a file: 1 with `scripts/test --all`."""
    return 1 if settings().max_examples >= ALL else step
