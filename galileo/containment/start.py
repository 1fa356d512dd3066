"""Where a contained process begins; imported by nobody else."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_LATE = "pandas"


class Late(ModuleType):
    """Stands for a module that is imported when one first looks into it.

    Few samplers need pandas, which takes as long to import as everything else together.
    """

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def begin() -> None:
    """Serves until there are no more requests."""
    sys.modules[_LATE] = Late(_LATE)
    importlib.import_module("galileo.containment.worker").main(sys.argv[1])
