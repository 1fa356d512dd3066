"""docs/api has every public name and call."""

from __future__ import annotations

import re

import api_reference

import galileo
import galileo.client


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
