"""What scripts/lock and scripts/check need to know about requirements.lock.

lockfile.py inputs   requirements to resolve beside those of pyproject.toml
lockfile.py header   the comment on top, with the fingerprint of what was resolved
lockfile.py check    fails when pyproject.toml has changed since
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
FINGERPRINT = "# fingerprint of the dependencies in pyproject.toml: "

BESIDE = (
    # The build back end asks for it when it installs a checkout in editable mode.
    "editables>=0.5,<1",
    # The eccodes wheels of different platforms disagree about this dependency, and a resolver
    # reads only one of them.
    "eccodeslib; platform_system != 'Windows'",
    # pandas 2, which Spark requires, warns at every pd.Timedelta("1h") under NumPy 2.5.
    "numpy<2.5",
)


def inputs() -> list[str]:
    return [*_project()["build-system"]["requires"], *BESIDE]


def header() -> str:
    return (
        "# Exact versions of everything that Galileo and its tests need, with checksums.\n"
        "# Written by scripts/lock; install with pip alone: pip install -r requirements.lock\n"
        f"{FINGERPRINT}{fingerprint()}\n"
    )


def fingerprint() -> str:
    """Changes exactly when what is to be resolved changes."""
    project = _project()["project"]
    resolved = {
        "python": project["requires-python"],
        "dependencies": project["dependencies"],
        "extras": project["optional-dependencies"],
        "beside": inputs(),
    }
    return hashlib.sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()


def check() -> None:
    if f"{FINGERPRINT}{fingerprint()}" not in LOCK.read_text().splitlines():
        sys.exit(
            f"{LOCK.name} was made for other dependencies than those of pyproject.toml; "
            "run scripts/lock"
        )


def _project() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def main(command: str) -> None:
    if command == "inputs":
        print("\n".join(inputs()))
    elif command == "header":
        print(header(), end="")
    elif command == "check":
        check()
    else:
        sys.exit(f"expected inputs, header or check, got {command!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) == 2 else "")
