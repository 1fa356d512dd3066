"""The libraries of the map page, which lie in the repository as npm has them.

vendored_files.py check   fails when a file differs from its digest, or has none; without network
vendored_files.py fetch   fetches the packages, verifies their integrity, writes files and digests
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
import tarfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[1] / "galileo" / "gateway" / "web" / "vendor"
LIST = "VENDOR.toml"
REGISTRY = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
TIMEOUT_S = 120


def main(what: str) -> int:
    if what == "fetch":
        for package in packages():
            fetch(package)
    wrong = list(problems())
    for problem in wrong:
        print(problem)
    return 1 if wrong else 0


def packages() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = tomllib.loads((DIRECTORY / LIST).read_text())["package"]
    return listed


def problems() -> Iterator[str]:
    """What differs from the list, in words."""
    digests = {name: digest for one in packages() for name, (_, digest) in one["files"].items()}
    present = {path.name for path in DIRECTORY.iterdir()} - {LIST}
    for name in sorted(present | set(digests)):
        if name not in present:
            yield f"{DIRECTORY / name} is absent; run scripts/vendor"
        elif name not in digests:
            yield f"{LIST} does not name {name}"
        elif (found := _sha256((DIRECTORY / name).read_bytes())) != digests[name]:
            yield f"{name} was changed: expected SHA-256 {digests[name]}, found {found}"


def fetch(package: dict[str, Any]) -> None:
    """Writes the files of a package, and their digests."""
    name, version = package["name"], package["version"]
    url = f"{REGISTRY}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        data = answer.read()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if integrity != package["integrity"]:
        sys.exit(f"{url}: expected integrity {package['integrity']}, got {integrity}")
    text = (DIRECTORY / LIST).read_text()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for target, (source, digest) in package["files"].items():
            member = archive.extractfile(f"package/{source}")
            assert member is not None, f"{source} is a file"
            content = member.read()
            (DIRECTORY / target).write_bytes(content)
            old, new = (f'"{target}" = ["{source}", "{one}"]' for one in (digest, _sha256(content)))
            text = text.replace(old, new)
    (DIRECTORY / LIST).write_text(text)
    print(f"{name} {version}: {', '.join(package['files'])}")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
