"""The one place where the optional libraries behind NetCDF and GRIB are imported."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from galileo.errors import ConfigError

# What has to be imported before a library, if it is installed. The ecCodes wheel puts a PROJ of
# its own among the global symbols of the process; a pyproj that is imported later calls that one
# instead of its own and crashes. Imported earlier, each keeps its own.
BEFORE = {"eccodes": ("pyproj",)}


def library(module: str, *, purpose: str) -> Any:
    """The module of that name.

    Raises:
        ConfigError: it is not installed, or fails to load; the message says what to install.
    """
    for earlier in BEFORE.get(module, ()):
        if importlib.util.find_spec(earlier) is not None:
            importlib.import_module(earlier)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs the package {module!r}, which does not load ({error}); "
            "install it with: pip install 'galileo-store[formats]'",
            module=module,
        ) from error
