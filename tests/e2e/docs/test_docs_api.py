"""docs/api is what scripts/api_reference.py writes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import api_reference
import pytest

import galileo
import galileo.client

SCRIPT = Path(__file__).parents[3] / "scripts" / "api_reference.py"


def test_the_reference_is_current() -> None:
    there = {path.name: path.read_text() for path in api_reference.TARGET.glob("*.md")}
    assert there == api_reference.pages(), "run .venv/bin/python scripts/api_reference.py"


def test_every_public_name_has_a_heading_and_a_link_that_leads_to_it() -> None:
    pages = api_reference.pages()
    public = {*galileo.__all__, *galileo.client.__all__} - {"__version__"}
    links = re.findall(r"\[`(\w+)`\]\((\w+\.md)#(\w+)\)", pages["README.md"])
    assert {name for name, _, _ in links} >= public
    for name, file, anchor in links:
        headings = re.findall(r"^#+ (.*)$", pages[file], re.MULTILINE)
        assert [h for h in headings if h.lower().replace(" ", "-") == anchor] == [name]


def test_every_call_of_a_client_is_in_it() -> None:
    text = api_reference.pages()["client.md"]
    calls = [name for name in dir(galileo.Client) if not name.startswith("_")]
    assert all(f"### Client.{name}\n" in text for name in calls)
    assert "await client" not in text.partition("## AsyncClient")[0]
    assert "```pycon\n>>> labels = client.query(" in text


def test_an_old_reference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "api"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert api_reference.main(target) == 1
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    assert api_reference.main(target) == 0
    (target / "gone.md").write_text("")
    assert api_reference.main(target) == 0
    assert {path.name for path in target.iterdir()} == set(api_reference.pages())
