"""Hooks of mkdocs: adds the pages outside docs/ and the notebooks to the site, and mends links.

The same files are read on a code host, where links lead to files of the repository. In the site
the README is the front page, a notebook is a page, and a linked file of the repository is a copy.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "dev/architecture.md",
    "CONTRIBUTING.md": "dev/contributing.md",
}
"""Pages at the top of the repository, and where they are in the site."""
INDEX = "docs/README.md"
"""The list of all pages on a code host; in the site the navigation has its place."""
COPIES = "files"

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that docs/ does not have."""
    for source, uri in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=text))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        cells = json.loads(notebook.content_string)["cells"]
        text = "\n\n".join(part for cell in cells for part in _cell(cell))
        uri = notebook.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links that lead to files of the repository lead to pages of the site."""
    uri = page.file.src_uri
    sources = {target: source for source, target in OUTSIDE.items()}
    source = sources.get(uri, f"docs/{uri}")

    def mended(link: re.Match[str]) -> str:
        is_image, text, target = link.groups()
        path, hash_, anchor = target.partition("#")
        if not path or ":" in path:
            return link[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if (ROOT / found).is_dir():
            return text
        to = posixpath.relpath(_site_uri(found, config, files), posixpath.dirname(uri) or ".")
        return f"{is_image}[{text}]({to}{hash_}{anchor})"

    mended_text = _outside_code(markdown, mended)
    if uri == OUTSIDE["README.md"]:
        page.meta["hide"] = ["navigation"]
    if uri.startswith("notebooks/"):
        name = posixpath.basename(uri).removesuffix(".md")
        heading, _, rest = mended_text.partition("\n")
        mended_text = f"{heading}\n\n[Download this notebook]({name}.ipynb)\n{rest}"
    return mended_text


def _site_uri(path: str, config: MkDocsConfig, files: Files) -> str:
    """Where a file of the repository is in the site."""
    if path == INDEX:
        return OUTSIDE["README.md"]
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/"):
        uri = path.removeprefix("docs/")
        return uri.removesuffix(".ipynb") + ".md" if uri.endswith(".ipynb") else uri
    uri = f"{COPIES}/{path}"
    if files.get_file_from_path(uri) is None and (ROOT / path).is_file():
        files.append(File.generated(config, uri, content=(ROOT / path).read_bytes()))
    return uri


def _outside_code(markdown: str, replace: Callable[[re.Match[str]], str]) -> str:
    """Replaces links, except in fenced code."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    """A cell of a notebook and its outputs, as Markdown."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            yield f'<img class="output" alt="" src="data:image/png;base64,{data["image/png"]}">'
        elif "text/html" in data:
            html = re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))
            yield f'<div class="output">\n{html}\n</div>'
        else:
            text = "".join(output.get("text", data.get("text/plain", "")))
            yield f"```text\n{text.rstrip()}\n```"
