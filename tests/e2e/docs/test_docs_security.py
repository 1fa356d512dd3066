"""docs/security.md explains every quota."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from galileo.model.quotas import KINDS


def test_security_page_explains_every_quota(page: Callable[[str], Any]) -> None:
    [rows] = page("docs/security.md").tables("Quotas")
    named = [name.strip("`") for quotas, *_ in rows for name in quotas.split(", ")]
    assert sorted(named) == sorted(KINDS)
