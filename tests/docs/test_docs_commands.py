"""docs/commands is what scripts/command_reference.py writes."""

from __future__ import annotations

import importlib.util
import itertools
import re
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


def test_command_pages_are_current(writer: ModuleType) -> None:
    there = {path.name: path.read_text() for path in writer.TARGET.glob("*.md")}
    assert there == writer.pages(), "run .venv/bin/python scripts/command_reference.py"


def test_command_pages_have_every_command_once_and_links_to_it(writer: ModuleType) -> None:
    pages = writer.pages()
    headings = {name: re.findall(r"^## (galileo.*)$", text, re.M) for name, text in pages.items()}
    assert sorted(itertools.chain(*headings.values())) == sorted(paths(main, "galileo"))
    links = re.findall(r"\[`([\w-]+)`\]\((\w+\.md)#galileo-([\w-]+)\)", pages["README.md"])
    assert {name for name, _, _ in links} == set(main.commands)
    assert all(f"galileo {name}" in headings[file] and name == to for name, file, to in links)


def test_command_pages_have_every_option_of_a_command(writer: ModuleType) -> None:
    text = "".join(writer.pages().values())
    for option in main.commands["ingest"].params:
        if isinstance(option, click.Option):
            assert all(f"`{name}`" in text for name in option.opts)


def test_command_reference_check_notices_an_old_page(
    writer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "TARGET", tmp_path / "commands")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert writer.main() == 1
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    assert writer.main() == 0
    (tmp_path / "commands" / "old.md").write_text("")
    assert writer.main() == 0
    assert {path.name for path in (tmp_path / "commands").iterdir()} == set(writer.pages())


@pytest.mark.slow
def test_command_reference_runs_as_a_script() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
