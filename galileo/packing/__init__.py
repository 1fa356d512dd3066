"""Columns of labels in few bytes, for caches and for the wire.

The public names load on first use: a sandboxed process imports `arrow_streams` only, and has no
library for checksums.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from galileo.packing.tables import ROWS_MAX as ROWS_MAX
    from galileo.packing.tables import Compression as Compression
    from galileo.packing.tables import pack as pack
    from galileo.packing.tables import unpack as unpack

__all__ = ["Compression", "ROWS_MAX", "pack", "unpack"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("galileo.packing.tables"), name)
