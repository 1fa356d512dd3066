"""Spark: the evaluator of continuous queries, and the data source for analysts.

The names of the data source are imported on first use, since nodes and Python workers do not need
PySpark, whose import is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from galileo.optional_imports import library

if TYPE_CHECKING:
    from galileo.spark.source.session import read as read
    from galileo.spark.source.session import register as register
    from galileo.spark.source.session import start_session as start_session

__all__ = ["read", "register", "start_session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'galileo.spark' has no attribute {name!r}")
    session = library("galileo.spark.source.session", purpose="the data source of Spark")
    return getattr(session, name)
