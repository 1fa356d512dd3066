"""Repeats the paper's evaluation on this machine, and writes docs/dev/paper.md with its plots."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import interrupts
from benchmarks.machine import Machine
from benchmarks.sizes import Bench

from evaluation import stored
from evaluation.page import whole
from evaluation.registry import PARTS, Part
from evaluation.sizes import FULL, QUICK

ROOT = Path(__file__).parents[2]
FAILED = 1
PAGE = "paper.md"


@dataclass(frozen=True, slots=True)
class Places:
    """Where results are kept, and where the page is written, with `img` beside it."""

    results: Path
    page: Path


def main() -> int:
    given = _arguments()
    interrupts.become_exceptions()
    places = _places(given)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    parts = [] if given.page_only else _wanted(given, places)
    try:
        failed = _measure_all(parts, given, say=say, results=places.results)
    except KeyboardInterrupt:
        say(f"cancelled; finished parts are in {places.results}: go on with --resume")
        return interrupts.CANCELLED
    write_page(places)
    say(f"written: {places.page}")
    if failed:
        say(
            f"failed: {', '.join(failed)}; the page has what was measured of them before, if it was"
        )
    return FAILED if failed else 0


def _measure_all(
    parts: Sequence[Part],
    given: argparse.Namespace,
    *,
    say: Callable[[str], None],
    results: Path,
) -> list[str]:
    """Measures parts one behind the other and stores each; the names of those that failed."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="galileo-paper-", dir=given.directory) as scratch:
        for number, part in enumerate(parts):
            left_s = 0 if given.quick else sum(one.about_s for one in parts[number:])
            left = f", about {left_s / 60:.0f} min to go" if left_s else ""
            say(f"-- {part.name} ({number + 1} of {len(parts)}{left}): {part.title}")
            try:
                stored.save(results, measured(part, Path(scratch), quick=given.quick, say=say))
            except Exception as error:
                say(f"{part.name} failed:\n{''.join(traceback.format_exception(error))}")
                failed.append(part.name)
    return failed


def measured(part: Part, scratch: Path, *, quick: bool, say: Callable[[str], None]) -> stored.Taken:
    """The result of a part, with its circumstances."""
    sizes = QUICK if quick else FULL
    machine, started = Machine.here(scratch), time.perf_counter()
    result = part.measure(sizes, Bench(sizes.bench, scratch, say))
    took_s = time.perf_counter() - started
    return stored.Taken(part.name, quick, took_s, machine, os.getloadavg(), result)


def write_page(places: Places) -> None:
    """Writes the page and its pictures from all results that there are."""
    told = [_told(part, places.results) for part in PARTS]
    images = places.page.parent / "img"
    images.mkdir(parents=True, exist_ok=True)
    for name, data in whole.pictures(told).items():
        (images / name).write_bytes(data)
    places.page.write_text(whole.written(told), encoding="utf-8")


def _told(part: Part, results: Path) -> whole.Told:
    taken = stored.load(results, part.name, part.kind)
    section = None if taken is None else part.tell(taken.result)
    return whole.Told(part.name, part.title, taken, section)


def _wanted(given: argparse.Namespace, places: Places) -> list[Part]:
    named = [part for part in PARTS if part.name in (given.only or [one.name for one in PARTS])]
    if not given.resume:
        return named
    return [part for part in named if not stored.path_of(places.results, part.name).exists()]


def _places(given: argparse.Namespace) -> Places:
    """Figures of small sizes never come near the documentation, nor among the others."""
    results = given.results or ROOT / "build" / ("paper-quick" if given.quick else "paper")
    default = results / PAGE if given.quick else ROOT / "docs" / "dev" / PAGE
    return Places(results, given.page or default)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/paper", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, kept and written apart from the others"
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out parts that have a result already"
    )
    parser.add_argument(
        "--page-only", action="store_true", help="measure nothing, write the page from results"
    )
    parser.add_argument(
        "--results", type=Path, help="where results are kept (default: build/paper)"
    )
    parser.add_argument("--page", type=Path, help="the page (default: docs/dev/paper.md)")
    parser.add_argument(
        "--directory", type=Path, help="on the disk to be measured (default: the temporary files')"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
