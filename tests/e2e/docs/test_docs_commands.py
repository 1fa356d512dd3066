"""docs/commands has every command and option."""

from __future__ import annotations

import itertools
import re

import click
import command_reference

from galileo.cli.main import main


def paths(command: click.Command, path: str) -> list[str]:
    below = command.commands.items() if isinstance(command, click.Group) else ()
    return [path, *(p for name, one in below for p in paths(one, f"{path} {name}"))]


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
