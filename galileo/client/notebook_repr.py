"""What notebooks show of results: small tables that take the notebook's own colours."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

ROWS_SHOWN = 10
COLUMNS_SHOWN = 12
TEXT_SHOWN = 80
"""Characters of a value; the rest is cut."""

_CELL = "padding:2px 8px;text-align:left;border-bottom:1px solid rgba(128,128,128,.3)"


def card(
    title: str,
    facts: Mapping[str, Any] | None = None,
    *,
    rows: Sequence[Mapping[str, Any]] = (),
    of: int | None = None,
) -> str:
    """A title, a line of facts, and a table of the first rows.

    Args:
        title: shown bold.
        facts: names and values; empty ones (None, "", (), False) are left out.
        rows: of which the first are shown.
        of: how many there are, where `rows` are only some.
    """
    shown_facts = {name: value for name, value in (facts or {}).items() if not _empty(value)}
    line = " · ".join(f"{escape(name)} {_shown(value)}" for name, value in shown_facts.items())
    body = f"<b>{escape(title)}</b>" + (f"<br>{line}" if line else "")
    return f"<div>{body}{table(rows, of=of)}</div>"


def table(rows: Sequence[Mapping[str, Any]], *, of: int | None = None) -> str:
    """The first rows as a table; nothing for none."""
    if not rows:
        return ""
    names = list(rows[0])[:COLUMNS_SHOWN]
    head = _row((escape(name) for name in names), "th")
    shown = "".join(_row((_shown(row[name]) for name in names), "td") for row in rows[:ROWS_SHOWN])
    left = (len(rows) if of is None else of) - min(len(rows), ROWS_SHOWN)
    more = f"<div>… and {left:,} more</div>" if left > 0 else ""
    return f'<table style="border-collapse:collapse">{head}{shown}</table>{more}'


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{cell}</{tag}>' for cell in cells) + "</tr>"


def _empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | tuple) and not value)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:,.6g}"
    elif isinstance(value, dt.datetime):
        text = value.isoformat().replace("+00:00", "Z")
    elif isinstance(value, tuple | list):
        text = ", ".join(str(part) for part in value)
    else:
        text = str(value)
    return escape(text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…")
