"""The Python code of proto/, with types."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "galileo/wire/v1"
OWNED = (f"{PACKAGE}/*_pb2*.py*",)


def files() -> dict[str, str]:
    protos = sorted(ROOT.glob(f"proto/{PACKAGE}/*.proto"))
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=proto"]
        command += [f"--plugin=protoc-gen-mypy={plugin}", f"--python_out={out}"]
        command.append(f"--mypy_out=quiet:{out}")
        subprocess.run(
            [*command, *(str(path.relative_to(ROOT)) for path in protos)], cwd=ROOT, check=True
        )
        written = (path for path in out.rglob("*_pb2*") if path.is_file())
        return {str(path.relative_to(out)): path.read_text(encoding="utf-8") for path in written}
