"""Makes things fail on real processes, disks and files, and says what held."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import interrupts

from faults.markdown import update
from faults.registry import Outcome
from faults.report import facts, summed, table
from faults.running import RunOptions, run_all
from faults.table import SCENARIOS

BROKEN = 1


def main() -> int:
    given = _arguments()
    if given.list:
        print("\n".join(f"{one.row:28} {one.name:20} {one.does}" for one in SCENARIOS))
        return 0
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    named = [one for one in SCENARIOS if not given.only or one.name in given.only]
    options = RunOptions(given.rounds, given.seed, given.minutes, given.directory)
    outcomes: list[Outcome] = []
    try:
        for outcome in run_all(named, options, say):
            outcomes.append(outcome)
            say(f"{outcome.name}: {outcome.verdict} {outcome.reason or facts(outcome)}")
    except KeyboardInterrupt:
        say("cancelled")
        return interrupts.CANCELLED
    told = summed(outcomes)
    if given.markdown_file is not None:
        update(given.markdown_file, told, SCENARIOS)
    return _tell(told, as_json=given.json)


def _tell(outcomes: Sequence[Outcome], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        print(table(outcomes))
    return BROKEN if any(outcome.verdict == "broken" for outcome in outcomes) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    names = [one.name for one in SCENARIOS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, help="of each scenario, in place of its own number")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: 1)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="repeat with further seeds for so long"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--markdown-file", type=Path, help="whose tables of verdicts to renew")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument("--directory", type=Path, help="on the disk to use")
    return parser.parse_args()


if __name__ == "__main__":
    interrupts.become_exceptions()
    logging.getLogger("galileo").setLevel(logging.ERROR)  # what is cut off is expected here
    sys.exit(main())
