"""docs/commands is what scripts/command_reference.py writes."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import click
import command_reference
import pytest

from galileo.cli.main import main

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "command_reference.py"


def paths(command: click.Command, path: str) -> list[str]:
    below = command.commands.items() if isinstance(command, click.Group) else ()
    return [path, *(p for name, one in below for p in paths(one, f"{path} {name}"))]


def test_command_pages_are_current() -> None:
    there = {path.name: path.read_text() for path in command_reference.TARGET.glob("*.md")}
    assert there == command_reference.pages(), "run .venv/bin/python scripts/command_reference.py"


def test_command_pages_have_every_command_once_and_links_to_it() -> None:
    pages = command_reference.pages()
    headings = {name: re.findall(r"^## (galileo.*)$", text, re.M) for name, text in pages.items()}
    assert sorted(itertools.chain(*headings.values())) == sorted(paths(main, "galileo"))
    links = re.findall(r"\[`([\w-]+)`\]\((\w+\.md)#galileo-([\w-]+)\)", pages["README.md"])
    assert {name for name, _, _ in links} == set(main.commands)
    assert all(f"galileo {name}" in headings[file] and name == to for name, file, to in links)


def test_command_pages_have_every_option_of_a_command() -> None:
    text = "".join(command_reference.pages().values())
    for option in main.commands["ingest"].params:
        if isinstance(option, click.Option):
            assert all(f"`{name}`" in text for name in option.opts)


def test_command_reference_check_notices_an_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "commands"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert command_reference.main(target) == 1
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    assert command_reference.main(target) == 0
    (target / "old.md").write_text("")
    assert command_reference.main(target) == 0
    assert {path.name for path in target.iterdir()} == set(command_reference.pages())


@pytest.mark.slow
def test_command_reference_runs_as_a_script() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
