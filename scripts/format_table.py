"""The table of file formats of docs/input.md, from those that can be read."""

from __future__ import annotations

from generated_files import markdown_table, replace_part

from galileo.formats.detection import READERS, Format

PAGE = "docs/input.md"
OWNED = (PAGE,)


def files() -> dict[str, str]:
    rows = [_row(name, format) for name, format in READERS.items()]
    head = ["format", "`format=`", "recognised by", "also needed"]
    return {PAGE: replace_part(PAGE, "formats", markdown_table(head, *rows))}


def _row(name: str, format: Format) -> list[str]:
    signs = [*(["first bytes"] if format.magic else []), *(f"`{s}`" for s in format.suffixes)]
    title = f"{format.title}, plain or `.gz`" if format.is_gzip_allowed else format.title
    needed = f"`pip install 'galileo-store[{format.extra}]'`" if format.extra else ""
    return [title, f"`{name}`", ", ".join(signs), needed]
