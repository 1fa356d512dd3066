"""Writes the files that are made from others; `--check` only compares.

    scripts/generate            writes all of them
    scripts/generate --check    fails where one is not current, and names it

Each generator is a module of this directory. Its `OWNED` has glob patterns of the files that it
writes; its `files` returns the text of each, or of a page with the part that it writes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, cast

ROOT = Path(__file__).parents[1]
GENERATORS = (
    "wire_stubs",
    "blocking_client",
    "api_reference",
    "call_table",
    "command_reference",
    "access_table",
    "metric_table",
    "format_table",
)
"""In an order in which each can import what those before it have written."""


class Generator(Protocol):
    OWNED: tuple[str, ...]

    def files(self) -> Mapping[str, str]: ...


def load(name: str) -> Generator:
    return cast(Generator, importlib.import_module(name))


def outdated(generator: Generator, root: Path = ROOT) -> Iterator[tuple[Path, str | None]]:
    """Files that are not current, with the text that they have to have; None: there is none."""
    texts = {root / name: text for name, text in generator.files().items()}
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            yield path, text
    for pattern in generator.OWNED:
        yield from ((path, None) for path in sorted(root.glob(pattern)) if path not in texts)


def write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def replace_part(page: str, name: str, part: str) -> str:
    """The text of a page with what lies between the two comments of that name replaced."""
    begin, end = f"<!-- {name}: written by scripts/generate -->", f"<!-- end of {name} -->"
    text = (ROOT / page).read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise LookupError(f"{page}: expected each of {begin} and {end} once")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{part}\n\n{end}{rest.partition(end)[2]}"


def markdown_table(*rows: list[str]) -> str:
    """A table, of which the first row is the head."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *others])


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the files that are made from others.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    status = 0
    for name in GENERATORS:
        for path, text in list(outdated(load(name))):
            shown = path.relative_to(ROOT)
            if is_check:
                print(f"{shown} is not current: run scripts/generate", file=sys.stderr)
                status = 1
            else:
                write(path, text)
                print(shown)
    return status


if __name__ == "__main__":
    sys.exit(main())
