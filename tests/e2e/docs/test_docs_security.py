"""The table of methods is what scripts/access_table.py writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import access_table

from galileo.model.quotas import KINDS


def test_the_table_is_that_of_the_rules(page: Callable[[str], Any]) -> None:
    text = page("docs/security.md").text
    assert text.count(access_table.BEGIN) == text.count(access_table.END) == 1
    assert access_table.written(text) == text, "run .venv/bin/python scripts/access_table.py"
    assert access_table.written(text.replace("| yes |", "| |", 1)) == text


def test_every_quota_is_explained(page: Callable[[str], Any]) -> None:
    [rows] = page("docs/security.md").tables("Quotas")
    named = [name.strip("`") for quotas, *_ in rows for name in quotas.split(", ")]
    assert sorted(named) == sorted(KINDS)
