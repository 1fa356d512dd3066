"""Spark: the evaluator of continuous queries, and the data source for analysts.

The names for analysts load on first use: nodes and Python workers need other parts alone, and
PySpark takes a while.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from galileo.spark.source.session import read as read
    from galileo.spark.source.session import register as register
    from galileo.spark.source.session import start_session as start_session

__all__ = ["read", "register", "start_session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'galileo.spark' has no attribute {name!r}")
    return getattr(importlib.import_module("galileo.spark.source.session"), name)
