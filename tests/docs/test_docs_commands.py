"""docs/commands.md is what scripts/command_reference.py writes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from galileo.cli.main import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "command_reference.py"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("command_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths(command: click.Command, path: str) -> list[str]:
    below = command.commands.items() if isinstance(command, click.Group) else ()
    return [path, *(p for name, one in below for p in paths(one, f"{path} {name}"))]


def test_the_reference_is_current(writer: ModuleType) -> None:
    again = "run .venv/bin/python scripts/command_reference.py"
    assert writer.TARGET.read_text() == writer.reference(), again


def test_every_command_and_option_is_in_it(writer: ModuleType) -> None:
    text = writer.reference()
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert sorted(headings) == sorted(paths(main, "galileo"))
    for option in main.commands["ingest"].params:
        if isinstance(option, click.Option):
            assert all(f"`{name}`" in text for name in option.opts)


def test_an_old_reference_is_noticed(
    writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "commands.md"
    monkeypatch.setattr(writer, "TARGET", old)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert writer.main() == 1
    old.write_text("# Commands\n")
    assert writer.main() == 1
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    assert writer.main() == 0
    assert old.read_text() == writer.reference()


@pytest.mark.slow
def test_it_runs_as_a_script() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
