"""What fuzzing did so far: executions, CPU time and findings of each target, and the table of it.

The records stand beside the corpora, in `tests/fuzzing/records.json`. The table in
`docs/dev/fuzzing.md` is made of them and of the kept findings, never typed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzzing import corpus
from fuzzing.running import Outcome
from fuzzing.targets import Target

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "fuzzing" / "records.json"
PAGE = ROOT / "docs" / "dev" / "fuzzing.md"
BEGIN = "<!-- Written by scripts/fuzz from tests/fuzzing/records.json. -->\n"
END = "<!-- End of what is written. -->\n"


@dataclass(frozen=True, slots=True)
class Record:
    """Of one target: sums of all runs, and the most memory that one of them took, in MB."""

    runs: int = 0
    cpu_s: float = 0.0
    memory_mb: int = 0

    def and_(self, outcome: Outcome) -> Record:
        return Record(
            self.runs + outcome.runs,
            round(self.cpu_s + outcome.cpu_s, 1),
            max(self.memory_mb, outcome.memory_mb),
        )


def load() -> dict[str, Record]:
    if not FILE.exists():
        return {}
    return {name: Record(**values) for name, values in json.loads(FILE.read_text()).items()}


def add(outcome: Outcome) -> None:
    """Notes a run."""
    records = load()
    records[outcome.target] = records.get(outcome.target, Record()).and_(outcome)
    lines = {name: asdict(record) for name, record in sorted(records.items())}
    FILE.write_text(json.dumps(lines, indent=2) + "\n")


def table(targets: Iterable[Target]) -> str:
    """As Markdown; the last line has the sums."""
    records = load()
    rows = [
        "| target | executions | CPU time, min | memory, MB | findings | inputs kept |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    runs = findings = kept = 0
    minutes = 0.0
    for target in targets:
        record = records.get(target.name, Record())
        found, inputs = len(corpus.findings(target.name)), len(corpus.load(target.name))
        rows.append(
            f"| `{target.name}` | {record.runs:,} | {record.cpu_s / 60:.1f} "
            f"| {record.memory_mb:,} | {found} | {inputs} |"
        )
        runs, findings, kept = runs + record.runs, findings + found, kept + inputs
        minutes += record.cpu_s / 60
    rows.append(f"| all | {runs:,} | {minutes:.1f} | | {findings} | {kept} |")
    return "\n".join(rows) + "\n"


def write_page(targets: Iterable[Target]) -> None:
    """Puts the table where the page has it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(targets)}\n{END}{after}")
