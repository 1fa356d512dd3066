"""The navigation of the site lists the pages, and the site builds without a warning."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

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
