"""What fuzzing keeps: inputs, findings, and records of executions, CPU time and memory.

Inputs are those that reach code which others do not, in a file for each target, an input a line in
hexadecimal. The table in docs/dev/fuzzing.md is made of records and findings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzzing.targets import Target

INPUTS = Path(__file__).parents[3] / "tests" / "property" / "fuzzing" / "corpora"
FINDINGS = INPUTS.with_name("findings")


def load(name: str) -> list[bytes]:
    """The inputs of a target, its findings last."""
    return [*_read(INPUTS / f"{name}.hex"), *findings(name)]


def save(name: str, inputs: Iterable[bytes]) -> None:
    """Replaces the inputs of a target, findings excepted; the shortest first."""
    _write(INPUTS / f"{name}.hex", set(inputs) - set(findings(name)))


def findings(name: str) -> list[bytes]:
    """Inputs with which a target did once what it must not."""
    return _read(FINDINGS / f"{name}.hex")


def add_finding(name: str, data: bytes) -> None:
    _write(FINDINGS / f"{name}.hex", {*findings(name), data})


def _read(path: Path) -> list[bytes]:
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def _write(path: Path, inputs: Iterable[bytes]) -> None:
    lines = [data.hex() for data in sorted(set(inputs), key=lambda data: (len(data), data))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines if line))


ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests" / "property" / "fuzzing" / "records.json"
PAGE = ROOT / "docs" / "dev" / "fuzzing.md"
BEGIN = "<!-- Written by scripts/fuzz from tests/property/fuzzing/records.json. -->\n"
END = "<!-- End of what is written. -->\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What fuzzing a target came to.

    Attributes:
        runs: executions.
        cpu_s: CPU time of the process that made them.
        memory_mb: the most that the process took.
        finding: the end of the process' words about an input that must not have done that.
        input: that input.
    """

    target: str
    runs: int
    memory_mb: int
    cpu_s: float = 0.0
    finding: str = ""
    input: bytes = b""

    @property
    def verdict(self) -> str:
        return "found" if self.finding else "clean"


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


def load_records() -> dict[str, Record]:
    if not FILE.exists():
        return {}
    return {name: Record(**values) for name, values in json.loads(FILE.read_text()).items()}


def add_record(outcome: Outcome) -> None:
    """Notes a run."""
    records = load_records()
    records[outcome.target] = records.get(outcome.target, Record()).and_(outcome)
    lines = {name: asdict(record) for name, record in sorted(records.items())}
    FILE.write_text(json.dumps(lines, indent=2) + "\n")


def table(targets: Iterable[Target]) -> str:
    """As Markdown; the last line has the sums."""
    records = load_records()
    rows = [
        "| target | executions | CPU time, min | memory, MB | findings | inputs kept |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    sums = [0, 0.0, 0, 0]
    for target in targets:
        record = records.get(target.name, Record())
        minutes = record.cpu_s / 60
        found, kept = len(findings(target.name)), len(load(target.name))
        rows.append(
            f"| `{target.name}` | {record.runs:,} | {minutes:.1f} | {record.memory_mb:,} "
            f"| {found} | {kept} |"
        )
        counts = (record.runs, minutes, found, kept)
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
    rows.append(f"| all | {sums[0]:,} | {sums[1]:.1f} | | {sums[2]} | {sums[3]} |")
    return "\n".join(rows) + "\n"


def write_page(targets: Iterable[Target]) -> None:
    """Puts the table where the page has it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(targets)}\n{END}{after}")
