"""Takes first figures of Galileo on this machine, and prints them as Markdown."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import interrupts

from benchmarks.report import Report
from benchmarks.sizes import FULL, QUICK, Bench
from benchmarks.suite import AREAS, COMPARISONS, run

NOT_INSTALLED = 2
FAILED = 1


def main() -> int:
    given = _arguments()
    interrupts.become_exceptions()
    named = [area for area in (*AREAS, *COMPARISONS) if area.name in (given.only or ())]
    areas = named or ((*AREAS, *COMPARISONS) if given.all else AREAS)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="galileo-bench-", dir=given.directory) as scratch:
            # A database's own user reads what is written here for it.
            Path(scratch).chmod(0o755)
            report = run(areas, Bench(QUICK if given.quick else FULL, Path(scratch), say))
    except KeyboardInterrupt:
        say("cancelled; nothing was written")
        return interrupts.CANCELLED
    text = report.to_json() + "\n" if given.json else report.to_markdown()
    if given.markdown_file is not None:
        given.markdown_file.write_text(report.to_markdown(), encoding="utf-8")
        say(f"written to {given.markdown_file}")
    if given.markdown_file is None or given.json:
        print(text, end="")
    return _status(report, say)


def _status(report: Report, say: Callable[[str], None]) -> int:
    """The exit status: whether an area failed, or nothing could be measured at all."""
    failed = [section.name for section in report.sections if section.failure]
    if failed:
        say(f"failed: {', '.join(failed)}; the others are in the report")
        return FAILED
    return NOT_INSTALLED if all(section.missing for section in report.sections) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    names = [area.name for area in (*AREAS, *COMPARISONS)]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--all", action="store_true", help="the comparisons with other software too"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    parser.add_argument("--markdown-file", type=Path, help="write the Markdown to this file")
    parser.add_argument(
        "--directory", type=Path, help="on the disk to be measured (default: the temporary files')"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
