"""All targets."""

from __future__ import annotations

from fuzzing import asked, encoded, files, stored, values
from fuzzing.targets import Target

TARGETS: tuple[Target, ...] = (
    *values.TARGETS,
    *asked.TARGETS,
    *encoded.TARGETS,
    *stored.TARGETS,
    *files.TARGETS,
)


def named(name: str) -> Target:
    return next(target for target in TARGETS if target.name == name)
