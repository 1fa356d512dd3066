"""Tests compare errors by class and details, and say in their name what is tested."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from galileo import errors

ROOT = Path(__file__).parents[3]
FOLDERS = ("tests/unit", "tests/property", "plugins/samplers/tests", "plugins/sandbox/tests")
ERRORS = {cls.__name__ for cls in errors.by_kind().values()}
SENTENCES = re.compile(r"test_(an?|the|it|they|what|who|whose|where|there|no_one|nothing)_")
NAME_CHARS_MAX = 85


def calls(path: Path, having: re.Pattern[str]) -> Iterator[ast.Call]:
    """The calls of a file; none where a pattern that they have is not in it, which is quick."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text if having.search(text) else "")
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def class_name(call: ast.Call) -> str:
    """The last name of what is called or expected, such as `InputError`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def files_of(folder: str) -> list[Path]:
    paths = sorted((ROOT / folder).rglob("test_*.py"))
    assert paths
    return paths


@pytest.mark.parametrize("folder", FOLDERS)
def test_tests_of_errors_compare_details_instead_of_prose(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in files_of(folder)
        for call in calls(path, re.compile(r"\bmatch\s*="))
        if class_name(call) == "raises" and any(word.arg == "match" for word in call.keywords)
        if call.args and ast.unparse(call.args[0]).rpartition(".")[2] in ERRORS
    ]
    assert not found, "\n".join(["Write raises(Error, key=value) of expected_errors:", *found])


@pytest.mark.parametrize("folder", FOLDERS)
def test_tests_are_named_by_unit_condition_and_result(folder: str) -> None:
    found = [
        name
        for path in files_of(folder)
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        if SENTENCES.match(name) or len(name) > NAME_CHARS_MAX
    ]
    assert not found, "\n".join(["Write test_<unit>_<condition>_<result>:", *found])


def test_details_of_errors_have_documented_keys() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    table = text.partition("\n## Details\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|.*?\|", table, re.MULTILINE))))
    documented |= {"limit", "quota", "missing_columns", "unknown_columns"}
    sources = [*(ROOT / "galileo").rglob("*.py"), *ROOT.glob("plugins/*/galileo_*/*.py")]
    used = {
        word.arg
        for path in sources
        for call in calls(path, re.compile(rf"\b(?:{'|'.join(ERRORS)})\("))
        if class_name(call) in ERRORS
        for word in call.keywords
        if word.arg is not None
    }
    assert sorted(used - documented) == []
    assert sorted(documented - used) == ["cursor", "request", "token"], "added to errors of nodes"
