"""The generated code of messages against the dependencies of the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]


def test_generated_code_accepts_every_protobuf_that_may_be_installed() -> None:
    """Protobuf refuses to import code that a newer version has generated."""
    generated = {
        version
        for path in (ROOT / "galileo" / "wire").rglob("*_pb2.py")
        for version in re.findall(r"^# Protobuf Python Version: (\S+)$", path.read_text(), re.M)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = map(Requirement, project["dependencies"])
    [protobuf] = [one.specifier for one in requirements if one.name == "protobuf"]
    assert [f">={version}" for version in generated] == [
        str(bound) for bound in protobuf if bound.operator == ">="
    ]
