"""Machines whose records are saved as the tests say."""

from __future__ import annotations

import pytest
from ccq_driver import SELDOM

from galileo.ccq import machine, state


@pytest.fixture(autouse=True)
def _seldom_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines do not look for records to be saved; those that wait are due at once."""
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", SELDOM)
    monkeypatch.setattr(state, "SAVE_AFTER_S", 0.0)
