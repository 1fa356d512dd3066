"""Extras: what is missing is named when it is used, and never when galileo is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from expected_errors import raises

from galileo.errors import ConfigError, MissingExtra
from galileo.optional_imports import DISTRIBUTION, EXTRAS, LateModule, library, require

ECCODES_AND_PYPROJ = """
from galileo.optional_imports import library
eccodes = library("eccodes", purpose="this test")
handle = eccodes.codes_grib_new_from_samples("polar_stereographic_pl_grib2")
assert len(eccodes.codes_get_array(handle, "latitudes"))
eccodes.codes_release(handle)
import pyproj
x, y = pyproj.Transformer.from_crs(4326, 3857).transform(50.0, 8.0)
assert abs(x - 890555.926) < 0.001, x
"""

WITHOUT = """
import json, sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Missing())
"""

CLIENT = """
import inspect

import pyarrow as pa

import galileo
from galileo import optional_imports
from galileo.client.ingestion import is_stream
from galileo.formats import Mapping
from galileo.formats.grib import open_grib
from galileo.errors import MissingExtra
from galileo.model.observations import normalise
from galileo.query import parse

inspect.getmembers(galileo)  # All public names are there.
schema = galileo.Schema("reports", [galileo.Feature("temperature")])
times = ["2014-03-01T06:00:00Z", "2014-03-01 06:00", "2014/3/1"]
observations = pa.table(
    {"latitude": [40.0] * 3, "longitude": [0.0] * 3, "time": times, "temperature": [1.0] * 3}
)
assert normalise(schema, observations).num_rows == 3
assert is_stream([observations]) and not is_stream(observations)
str((galileo.f.temperature > 1) & galileo.during("2014-03-01", "2014-03-02T06:00+01:00"))

labels = galileo.Labels.empty(schema)
uses = {
    "to_pandas": labels.to_pandas,
    "to_geopandas": labels.to_geopandas,
    "plot": labels.plot,
    "to_xarray": lambda: galileo.to_xarray(labels),
    "rdf": labels.rdf,
    "sparql": lambda: labels.sparql("ASK {}"),
    "LocalCluster": galileo.LocalCluster,
    "query": lambda: parse("temperature > 1", schema),
    "spark": lambda: galileo.spark.start_session,
    "grib": lambda: open_grib(sys.argv[1], Mapping()),
}
found = {}
for name, use in uses.items():
    try:
        use()
    except MissingExtra as error:
        assert error.kind == "missing_extra", error.kind
        assert error.details["command"] in error.message, error.message
        found[name] = error.details["extra"]
print(json.dumps(found))
loaded = {package for packages in optional_imports.EXTRAS.values() for package in packages}
assert not loaded & set(sys.modules), loaded & set(sys.modules)
"""

COMMAND = """
from galileo.cli.main import main
main(sys.argv[1:])
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it where no package of an extra can be imported."""
    packages = {package for packages in EXTRAS.values() for package in packages}
    code = WITHOUT.format(packages=packages) + script
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_client_without_extras_works_and_names_missing_ones() -> None:
    done = run(CLIENT, "forecast.grib2")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "to_pandas": "pandas",
        "to_geopandas": "plots",
        "plot": "plots",
        "to_xarray": "formats",
        "rdf": "rdf",
        "sparql": "rdf",
        "LocalCluster": "server",
        "query": "server",
        "spark": "spark",
        "grib": "formats",
    }


@pytest.mark.parametrize(
    ("arguments", "purpose", "extra"),
    [
        (["serve", "--config", "/dev/null"], "this command", "server"),
        (["up"], "a cluster on this machine", "server"),
        (["sparql", "weather", "ASK {}"], "galileo sparql", "rdf"),
        (["ca", "create", "NEW", "--cluster", "c"], "making certificates", "server"),
    ],
)
@pytest.mark.slow
def test_command_without_extra_ends_with_one_line(
    tmp_path: Path, arguments: list[str], purpose: str, extra: str
) -> None:
    done = run(COMMAND, *(str(tmp_path / "new") if one == "NEW" else one for one in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"galileo: {purpose} needs the extra '{extra}'")
    assert done.stderr.endswith(f"pip install 'galileo-store[{extra}]' [missing_extra]\n")
    assert done.stderr.count("\n") == 1


def test_extras_packages_equal_pyproject() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert project["name"] == DISTRIBUTION
    assert set(extras) == {*EXTRAS, "all", "dev", "docs"}
    assert extras["all"] == [f"{DISTRIBUTION}[{','.join(sorted(EXTRAS))}]"]
    homes = importlib.metadata.packages_distributions()
    for extra, packages in EXTRAS.items():
        names = {
            re.split(r"[>\[]", requirement)[0].lower().replace("-", "_")
            for requirement in extras[extra]
        }
        for package in set(packages) - {"py4j"}:  # It comes with PySpark.
            assert names & {name.lower().replace("-", "_") for name in homes[package]}, package


def test_library_installed_module_is_imported() -> None:
    assert library("json", purpose="this test").loads("1") == 1
    assert LateModule("json", purpose="this test").loads("1") == 1
    require("rdf", purpose="this test")


def test_library_unknown_module_raises_module_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        library("no_such_module", purpose="this test")


def test_library_missing_package_raises_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eccodes", None)
    with raises(
        MissingExtra,
        extra="formats",
        package="eccodes",
        command="pip install 'galileo-store[formats]'",
    ) as caught:
        library("eccodes", purpose="this test")
    assert isinstance(caught.value, ConfigError)
    assert caught.value.details == {
        "extra": "formats",
        "package": "eccodes",
        "command": "pip install 'galileo-store[formats]'",
    }


def test_library_eccodes_and_pyproj_share_process() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("eccodes", "pyproj")):
        pytest.skip("ecCodes or pyproj is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ECCODES_AND_PYPROJ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
