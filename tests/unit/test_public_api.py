from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import galileo
from galileo.client import AsyncClient, Client

PUBLIC = [
    "AsyncClient",
    "Broker",
    "Ccq",
    "Channel",
    "Client",
    "Condition",
    "CsvOptions",
    "Feature",
    "GalileoError",
    "GalileoWarning",
    "GridOptions",
    "Into",
    "Kafka",
    "Labels",
    "LocalCluster",
    "Lookup",
    "Mqtt",
    "Near",
    "Nearest",
    "Receipt",
    "Retention",
    "SamplerArchive",
    "SamplerSpec",
    "Schema",
    "Spool",
    "Table",
    "Template",
    "TreeView",
    "Update",
    "Webhook",
    "Window",
    "Within",
    "__version__",
    "cell",
    "connect",
    "during",
    "f",
    "geohash",
    "near",
    "sampler",
    "sampler_archive",
    "to_geojson",
    "to_geopandas",
    "to_xarray",
    "window",
    "within",
    "write_geojson",
    "write_geoparquet",
]
HEAVY = ("grpc", "pyspark", "rdflib", "pandas", "pyarrow", "numpy", "click", "rich")


def test_public_names_are_pinned() -> None:
    assert sorted(galileo.__all__) == PUBLIC
    assert dir(galileo) == PUBLIC


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - {"__version__"}))
def test_public_name_has_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(galileo, name))


def test_public_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'galileo' has no attribute 'conect'"):
        galileo.conect  # noqa: B018


def test_import_galileo_loads_no_heavy_module() -> None:
    """In a fresh interpreter, so that no other test has imported anything."""
    code = f"import sys, galileo; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_import_client_loads_no_spark_or_cli() -> None:
    code = "import sys, galileo; galileo.connect, galileo.LocalCluster; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "grpc" in loaded
    unused = {"pyspark", "rdflib", "pyparsing", "click", "rich", "matplotlib", "geopandas"}
    assert loaded.isdisjoint(unused)


@pytest.mark.parametrize("module", ["galileo.samplers", "galileo.testing.conformance"])
def test_public_module_has_docstring(module: str) -> None:
    assert importlib.import_module(module).__doc__


def calls(cls: type) -> dict[str, inspect.Signature]:
    members = inspect.getmembers(cls, inspect.isfunction)
    return {name: inspect.signature(one) for name, one in members if not name.startswith("_")}


def test_clients_have_same_calls_and_arguments() -> None:
    blocking, awaited = calls(Client), calls(AsyncClient)
    assert set(blocking) == set(awaited)
    for name, signature in awaited.items():
        assert signature.parameters == blocking[name].parameters, name


def test_clients_every_call_has_docstring() -> None:
    for cls in (Client, AsyncClient):
        assert [name for name in calls(cls) if not inspect.getdoc(getattr(cls, name))] == []
    assert "await" not in "".join(inspect.getdoc(getattr(Client, n)) or "" for n in calls(Client))
