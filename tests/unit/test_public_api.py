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
    "Ccq",
    "Client",
    "Condition",
    "Feature",
    "GalileoError",
    "GalileoWarning",
    "Labels",
    "LocalCluster",
    "Receipt",
    "Retention",
    "SamplerArchive",
    "SamplerSpec",
    "Schema",
    "Spool",
    "Submission",
    "TreeView",
    "Update",
    "Window",
    "__version__",
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
    "within",
    "write_geojson",
    "write_geoparquet",
]
HEAVY = ("grpc", "pyspark", "rdflib", "pandas", "pyarrow", "numpy", "click", "rich")


def test_the_public_names_are_these() -> None:
    assert sorted(galileo.__all__) == PUBLIC
    assert dir(galileo) == PUBLIC


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - {"__version__"}))
def test_every_public_name_loads_and_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(galileo, name))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'galileo' has no attribute 'conect'"):
        galileo.conect  # noqa: B018


def test_importing_the_package_costs_nothing() -> None:
    """In a fresh interpreter, so that no other test has imported anything."""
    code = f"import sys, galileo; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_client_does_not_import_spark_or_the_command_line() -> None:
    code = "import sys, galileo; galileo.connect, galileo.LocalCluster; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "grpc" in loaded
    unused = {"pyspark", "rdflib", "pyparsing", "click", "rich", "matplotlib", "geopandas"}
    assert loaded.isdisjoint(unused)


@pytest.mark.parametrize("module", ["galileo.samplers", "galileo.testing.conformance"])
def test_the_other_public_modules_load(module: str) -> None:
    assert importlib.import_module(module).__doc__


def calls(cls: type) -> dict[str, inspect.Signature]:
    members = inspect.getmembers(cls, inspect.isfunction)
    return {name: inspect.signature(one) for name, one in members if not name.startswith("_")}


def test_both_clients_have_the_same_calls_with_the_same_arguments() -> None:
    blocking, awaited = calls(Client), calls(AsyncClient)
    assert set(blocking) == set(awaited)
    for name, signature in awaited.items():
        assert signature.parameters == blocking[name].parameters, name


def test_every_call_of_both_clients_is_documented() -> None:
    for cls in (Client, AsyncClient):
        assert [name for name in calls(cls) if not inspect.getdoc(getattr(cls, name))] == []
    assert "await" not in "".join(inspect.getdoc(getattr(Client, n)) or "" for n in calls(Client))
