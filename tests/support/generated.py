"""How many examples Hypothesis generates for a test."""

from __future__ import annotations

from hypothesis import settings

ALL = settings.get_profile("all").max_examples


def examples(count: int) -> settings:
    """So many with `scripts/test --all`, and the same part of them as of all others without."""
    return settings(max_examples=max(5, count * settings().max_examples // ALL))
