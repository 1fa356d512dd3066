"""Entry point of a contained process; a module of its own, so that it imports nothing else."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_LAZY = "pandas"


class LazyModule(ModuleType):
    """A module that is imported at the first access to an attribute.

    Few samplers need pandas, which takes as long to import as all other modules together.
    """

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def begin() -> None:
    """Serves requests until their pipe is closed."""
    sys.modules[_LAZY] = LazyModule(_LAZY)
    importlib.import_module("galileo.containment.worker").main(sys.argv[1])
