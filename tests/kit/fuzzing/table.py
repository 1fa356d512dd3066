"""All targets."""

from __future__ import annotations

from fuzzing import client_input, files, stored_input
from fuzzing.targets import Target

TARGETS: tuple[Target, ...] = (
    *client_input.TARGETS,
    *stored_input.TARGETS,
    *files.TARGETS,
)


def named(name: str) -> Target:
    return next(target for target in TARGETS if target.name == name)
