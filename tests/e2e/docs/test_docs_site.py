"""Pages that are made from the code, the navigation that lists them, and the site they make."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import api_reference
import click
import command_reference
import pytest

import galileo
import galileo.client
from galileo.cli.main import main
from galileo.model.quotas import KINDS

ROOT = Path(__file__).parents[3]
OUTSIDE = {"index.md", "dev/architecture.md", "dev/contributing.md"}
"""Pages that scripts/site_pages.py adds from the top of the repository."""


def test_site_navigation_lists_every_page_once() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    listed = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} - {"README.md"}
    pages = {page for page in pages if not page.startswith("dev/decisions/0")}
    notebooks = {str(path.relative_to(docs).with_suffix(".md")) for path in docs.rglob("*.ipynb")}
    assert sorted(listed) == sorted(pages | notebooks | OUTSIDE)


@pytest.mark.slow
def test_site_builds_strictly_and_loads_nothing_from_elsewhere() -> None:
    built = subprocess.run([ROOT / "scripts" / "docs"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    site = ROOT / "out" / "site"
    assert len(list(site.rglob("*.html"))) > 80
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]*src=\"?https?://|<link[^>]*stylesheet[^>]*https?://"
    )
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


# --- docs/api has every public name and call -----------------------------------------------------


def test_api_reference_links_every_public_name() -> None:
    pages = api_reference.pages()
    public = {*galileo.__all__, *galileo.client.__all__} - {"__version__"}
    links = re.findall(r"\[`(\w+)`\]\((\w+\.md)#(\w+)\)", pages["README.md"])
    assert {name for name, _, _ in links} >= public
    for name, file, anchor in links:
        headings = re.findall(r"^#+ (.*)$", pages[file], re.MULTILINE)
        assert [h for h in headings if h.lower().replace(" ", "-") == anchor] == [name]


def test_api_reference_has_every_call_of_the_client() -> None:
    text = api_reference.pages()["client.md"]
    calls = [name for name in dir(galileo.Client) if not name.startswith("_")]
    assert all(f"### Client.{name}\n" in text for name in calls)
    assert "await client" not in text.partition("## AsyncClient")[0]
    assert "```pycon\n>>> labels = client.query(" in text


# --- docs/commands has every command and option --------------------------------------------------


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


# --- docs/security.md explains every quota -------------------------------------------------------


def test_security_page_explains_every_quota(page: Callable[[str], Any]) -> None:
    [rows] = page("docs/security.md").tables("Quotas")
    named = [name.strip("`") for quotas, *_ in rows for name in quotas.split(", ")]
    assert sorted(named) == sorted(KINDS)
