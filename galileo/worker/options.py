"""Options of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker may reach.

    Attributes:
        secrets: file of the rules that say which sinks may use which secrets; None for none.
        allow: hosts, and networks such as "10.0.0.0/8", that sinks may reach although their
            addresses are not public.
    """

    secrets: Path | None = None
    allow: tuple[str, ...] = ()
