"""Writes the table of methods and roles of docs/security.md from the rules; `--check` compares."""

from __future__ import annotations

import sys
from pathlib import Path

from galileo.rpc.access import PUBLIC, RULES, Role

TARGET = Path(__file__).parents[1] / "docs" / "security.md"
BEGIN, END = "<!-- methods: scripts/access_table.py -->", "<!-- end of methods -->"
ROLES = (Role.READER, Role.WRITER, Role.SAMPLER_AUTHOR, Role.ADMIN, Role.NODE)


def table() -> str:
    """A row for every method with a rule, a column for each role."""
    head = ["method", "no proof", *(role.value for role in ROLES)]
    rows = [head, ["---"] * len(head)]
    for method in sorted({*RULES, *PUBLIC}):
        is_public, roles = method in PUBLIC, RULES.get(method, frozenset())
        marks = ["yes" if is_public or role in roles else "" for role in ROLES]
        rows.append([f"`{method.rpartition('.')[2]}`", "yes" if is_public else "", *marks])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def written(page: str) -> str:
    """The page with the table as it has to be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    page = TARGET.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(written(page) != page)
    TARGET.write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
