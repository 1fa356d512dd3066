"""Runs uploaded samplers in sandboxed processes.

The process lives under bubblewrap, with namespaces of its own and no capabilities, sees the
interpreter and the few packages that samplers work with, read-only, has its memory, threads and
files bounded, and filters its own system calls before any sent code is imported. What it answers
is a mask of a known length; nothing else of it is ever parsed. See docs/samplers.md for what was
tried against it, and docs/dev/decisions/0024-containment.md for why it is so.

The public names load on first use: the contained process imports its own modules from this
package, and none of its parent's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from galileo.containment.limits import ContainmentLimits as ContainmentLimits
    from galileo.containment.pool import ContainedSamplers as ContainedSamplers
    from galileo.containment.probe import unavailable_reason as unavailable_reason
    from galileo.containment.sampler import ContainedSampler as ContainedSampler

_HOMES = {
    "ContainedSampler": "galileo.containment.sampler",
    "ContainedSamplers": "galileo.containment.pool",
    "ContainmentLimits": "galileo.containment.limits",
    "unavailable_reason": "galileo.containment.probe",
}

__all__ = ["ContainedSampler", "ContainedSamplers", "ContainmentLimits", "unavailable_reason"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
