"""What scripts/lock and scripts/check need to know about the three lock files.

lockfile.py inputs FILE   requirements to resolve, in addition to those of the extra `dev`
lockfile.py header FILE   the comment on top, with the fingerprint of what was resolved
lockfile.py check         fails when pyproject.toml has changed since the files were written

`requirements.lock` has everything that Galileo and its tests need, `requirements-docs.lock` what
`scripts/docs` needs: those packages would make each installation slower. `deploy/requirements.lock`
has what an image of a node needs, in the versions of `requirements.lock`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MAIN = "requirements.lock"
DOCS = "requirements-docs.lock"
IMAGE = "deploy/requirements.lock"
PURPOSES = {
    MAIN: "everything that Galileo and its tests need",
    DOCS: "what scripts/docs needs to build the site",
    IMAGE: "everything that deploy/Containerfile installs",
}
FINGERPRINT = "# fingerprint of the dependencies in pyproject.toml: "

ADDITIONAL = (
    # The build back end asks for it when it installs a checkout in editable mode.
    "editables>=0.5,<1",
    # The eccodes wheels of different platforms disagree about this dependency, and a resolver
    # reads only one of them.
    "eccodeslib; platform_system != 'Windows'",
    # pandas 2, which Spark requires, warns at every pd.Timedelta("1h") under NumPy 2.5.
    "numpy<2.5",
)


def inputs(name: str) -> list[str]:
    """The requirements that a lock file adds to those of `pyproject.toml`'s extra `dev`."""
    project = _project()
    if name == DOCS:
        requirements: list[str] = project["project"]["optional-dependencies"]["docs"]
        return requirements
    build = ["setuptools"] if name == IMAGE else []  # PySpark is built from its source.
    return [*project["build-system"]["requires"], *ADDITIONAL, *build]


def header(name: str) -> str:
    return (
        f"# Exact versions of {PURPOSES[name]}, with checksums.\n"
        f"# Written by scripts/lock; install with pip alone: pip install -r {name}\n"
        f"{FINGERPRINT}{fingerprint(name)}\n"
    )


def fingerprint(name: str) -> str:
    """Changes exactly when the requirements to resolve change."""
    project = _project()["project"]
    extras = dict(project["optional-dependencies"])
    del extras["docs"]
    resolved = {
        "python": project["requires-python"],
        "dependencies": project["dependencies"],
        "extras": extras,
        "beside": inputs(name),
    }
    if name == DOCS:
        resolved = {"python": project["requires-python"], "docs": inputs(name)}
    return hashlib.sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()


def check() -> None:
    for name in PURPOSES:
        if f"{FINGERPRINT}{fingerprint(name)}" not in (ROOT / name).read_text().splitlines():
            sys.exit(
                f"{name} was made for other dependencies than those of pyproject.toml; "
                "run scripts/lock"
            )


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def main(arguments: list[str]) -> None:
    match arguments:
        case ["inputs", name] if name in PURPOSES:
            print("\n".join(inputs(name)))
        case ["header", name] if name in PURPOSES:
            print(header(name), end="")
        case ["check"]:
            check()
        case _:
            sys.exit(f"expected inputs FILE, header FILE or check, got {arguments}")


if __name__ == "__main__":
    main(sys.argv[1:])
