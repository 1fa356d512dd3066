"""Feeds decoders and parsers changed input, guided by coverage, and reports what broke."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import interrupts

from fuzzing import corpus
from fuzzing.corpus import Outcome
from fuzzing.running import campaign, fuzz, keep
from fuzzing.table import TARGETS
from fuzzing.targets import Target

INPUTS = Path(__file__).parents[3] / "build" / "fuzzing"
"""Everything that reached new code on this machine; the corpora have the fewest that do."""
FOUND = 1


def main() -> int:
    arguments = _arguments()
    interrupts.become_exceptions()
    named = arguments.only or [one.name for one in TARGETS]
    chosen = [one for one in TARGETS if one.name in named]
    if arguments.list:
        print("\n".join(f"{one.name:14} {one.does}" for one in chosen))
        return 0
    if arguments.table:
        corpus.write_page(TARGETS)
        return 0
    try:
        outcomes = _fuzzed(chosen, arguments)
        if not arguments.unkept:
            for target in chosen:
                keep(target, inputs=INPUTS / target.name)
    except KeyboardInterrupt:
        print("cancelled", file=sys.stderr)
        return interrupts.CANCELLED
    finally:
        corpus.write_page(TARGETS)
    print(
        json.dumps([asdict(one) | {"input": one.input.hex()} for one in outcomes], indent=2)
        if arguments.json
        else _table(outcomes)
    )
    return FOUND if any(one.finding for one in outcomes) else 0


def _fuzzed(chosen: list[Target], arguments: argparse.Namespace) -> list[Outcome]:
    if arguments.minutes:
        return campaign(
            chosen,
            inputs=INPUTS,
            minutes=arguments.minutes,
            seed=arguments.seed,
            workers=arguments.workers,
            report=_report,
        )
    outcomes: list[Outcome] = []
    for target in chosen:
        print(f"{target.name}: {target.does}, {arguments.seconds} s", file=sys.stderr, flush=True)
        inputs = INPUTS / target.name
        outcomes.append(fuzz(target, seconds=arguments.seconds, seed=arguments.seed, inputs=inputs))
        corpus.add_record(outcomes[-1])
        _report(outcomes[-1])
    return outcomes


def _table(outcomes: list[Outcome]) -> str:
    rows = ["| target | runs | CPU time, s | memory, MB | |", "|---|---:|---:|---:|---|"]
    rows += [
        f"| {one.target} | {one.runs:,} | {one.cpu_s:.0f} | {one.memory_mb} | {one.verdict} |"
        for one in outcomes
    ]
    return "\n".join(rows)


def _report(outcome: Outcome) -> None:
    text = f"{outcome.target}: {outcome.verdict}, {outcome.runs:,} runs, "
    text += f"{outcome.cpu_s:.0f} s, {outcome.memory_mb} MB at most"
    if outcome.finding:
        text += f"\n{outcome.finding}\n  with {outcome.input.hex()}"
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    names = [one.name for one in TARGETS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument(
        "--minutes", type=float, help="go on for so long, with what had least CPU time next"
    )
    parser.add_argument("--workers", type=int, default=1, help="targets at a time (default: 1)")
    parser.add_argument("--unkept", action="store_true", help="leave the corpora as they are")
    parser.add_argument("--table", action="store_true", help="write the page's table, and end")
    parser.add_argument("--seed", type=int, default=1, help="of what is random (default: 1)")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
