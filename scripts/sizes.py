"""Fails for functions above 70 lines and modules above 500; generated code is exempt."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("galileo", "plugins", "scripts", "tests")
GENERATED = (ROOT / "galileo/wire/pb", ROOT / "galileo/client/blocking_calls.py")

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500


def modules() -> Iterator[Path]:
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            if not any(path.is_relative_to(one) for one in GENERATED):
                yield path


def violations(path: Path) -> Iterator[str]:
    text = path.read_text()
    name = path.relative_to(ROOT)
    lines = len(text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{name}: {lines} lines; at most {MODULE_LINES_MAX}: split the module"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield (
                    f"{name}:{node.lineno}: {node.name} has {length} lines; "
                    f"at most {FUNCTION_LINES_MAX}: split the function"
                )


def main() -> None:
    found = [violation for path in modules() for violation in violations(path)]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
