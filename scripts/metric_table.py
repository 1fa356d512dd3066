"""The table of metrics of docs/metrics.md, from their definitions."""

from __future__ import annotations

from generated_files import markdown_table, replace_part

from galileo.server.metrics import DEFINITIONS

PAGE = "docs/metrics.md"
OWNED = (PAGE,)


def files() -> dict[str, str]:
    rows = [
        [f"`{one.shown}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help]
        for one in DEFINITIONS
    ]
    table = markdown_table(["metric", "type", "labels", "meaning"], *rows)
    return {PAGE: replace_part(PAGE, "metrics", table)}
