"""Keeps pandas out of processes that do not use it.

pyarrow imports pandas, where it is installed, when the first array is made from Python values. In
a node, that is a third of the time of its start and 35 MB of memory, for nothing. A sampler may
use pandas, though, and then expects of pyarrow what it does with pandas, such as nulls for the
NaN of a Series.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


def defer_pandas() -> None:
    """Has pyarrow import pandas when something else in this process does, not before.

    Call it before the first array is made; later it changes nothing.
    """
    if "pandas" in sys.modules:
        return
    finder = _PandasFinder()
    sys.meta_path.insert(0, finder)
    pa.array([])
    finder.is_hiding = False


class _PandasFinder(MetaPathFinder):
    """Hides pandas from the first attempt of pyarrow, and later shows pyarrow what is imported."""

    def __init__(self) -> None:
        self.is_hiding = True
        self._is_searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "pandas" or self._is_searching:
            return None
        if self.is_hiding:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _showing(spec.loader.exec_module)  # type: ignore[assignment, method-assign]
        return spec


def _showing(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def execute_and_show(module: ModuleType) -> None:
        execute(module)
        pa.table({}).to_pandas()  # This attempts the import again, unlike the making of arrays.

    return execute_and_show
