"""The table of methods is what scripts/access_table.py writes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from galileo.model.quotas import KINDS

SCRIPT = Path(__file__).parents[2] / "scripts" / "access_table.py"


def test_the_table_is_that_of_the_rules(page: Callable[[str], Any]) -> None:
    spec = importlib.util.spec_from_file_location("access_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = page("docs/security.md").text
    assert text.count(script.BEGIN) == text.count(script.END) == 1
    assert script.written(text) == text, "run .venv/bin/python scripts/access_table.py"
    assert script.written(text.replace("| yes |", "| |", 1)) == text


def test_every_quota_is_explained(page: Callable[[str], Any]) -> None:
    [rows] = page("docs/security.md").tables("Quotas")
    named = [name.strip("`") for quotas, *_ in rows for name in quotas.split(", ")]
    assert sorted(named) == sorted(KINDS)
