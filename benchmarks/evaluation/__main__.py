"""Repeats the evaluations of two papers on this machine, and renews their pages with plots.

docs/dev/paper.md: C. Tolooee, M. Malensek, S. L. Pallickara: "A Framework for Managing Continuous
Query Evaluations over Voluminous, Multidimensional Datasets", International Conference on Cloud and
Autonomic Computing (CAC), 2014, pages 73 to 82. docs/dev/bad.md: X. Wang, M. J. Carey, V. J.
Tsotras: "Subscribing to Big Data at Scale", 2020. Only what they state as numbers is compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import interrupts

from benchmarks.evaluation import (
    ccqs,
    labels,
    memory,
    retrieval,
    scaling,
    streaming,
    subscribers,
)
from benchmarks.evaluation.page import Block, Taken, renewed
from benchmarks.evaluation.sizes import FULL, QUICK, Sizes
from benchmarks.machine import Machine
from benchmarks.sizes import Bench, NotInstalled

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "docs" / "dev"
FAILED = 1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the evaluation.

    Attributes:
        name: as `--only` takes it, and of its block on the page.
        measure: takes its result.
        tell: what the page has of a result.
        about_s: how long it takes on two quiet cores, in seconds; for the progress alone.
        page: that has its block.
    """

    name: str
    measure: Callable[[Sizes, Bench], Any]
    tell: Callable[[Any], Block]
    about_s: int
    page: str = "paper.md"


PARTS = (
    Part("retrieval", retrieval.measure_retrieval, retrieval.tell_retrieval, 60),
    Part("labels", labels.measure, labels.tell, 20),
    Part("memory", memory.measure, memory.tell, 100),
    Part("streaming", streaming.measure, streaming.tell, 150),
    Part("scaling", scaling.measure, scaling.tell, 120),
    Part("freshness", ccqs.measure_freshness, ccqs.tell_freshness, 140),
    Part("failover", ccqs.measure_failover, ccqs.tell_failover, 90),
    Part("history", retrieval.measure_history, retrieval.tell_history, 180),
    Part("gluing", subscribers.measure_gluing, subscribers.tell_gluing, 80, "bad.md"),
    Part("subscribers", subscribers.measure_local, subscribers.tell_local, 180, "bad.md"),
    Part("most-subscribers", subscribers.measure_most, subscribers.tell_most, 830, "bad.md"),
    Part("most-peers", subscribers.measure_most_peers, subscribers.tell_most_peers, 200, "bad.md"),
    Part("nearby", subscribers.measure_nearby, subscribers.tell_nearby, 160, "bad.md"),
)


def main() -> int:
    arguments = _arguments()
    interrupts.become_exceptions()
    quick = arguments.quick
    results = arguments.results or ROOT / "build" / ("paper-quick" if quick else "paper")
    pages = arguments.pages or (results if quick else TEMPLATES)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    named = [one for one in PARTS if one.name in (arguments.only or [one.name for one in PARTS])]
    if arguments.resume:
        named = [one for one in named if not _file(results, one.name).exists()]
    parts = [] if arguments.page_only else named
    try:
        failed = measure_all(parts, results, quick=quick, say=say)
    except KeyboardInterrupt:
        say(f"cancelled; finished parts are in {results}: go on with --resume")
        return interrupts.CANCELLED
    for page in write_pages(pages, results):
        say(f"written: {page}")
    if failed:
        say(f"failed: {', '.join(failed)}; their pages keep what they had of them")
    return FAILED if failed else 0


def measure_all(parts: Sequence[Part], results: Path, *, quick: bool, say: Say) -> list[str]:
    """Measures and stores parts one after the other; returns the names of those that failed."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="galileo-paper-") as scratch:
        for number, part in enumerate(parts):
            left_s = 0 if quick else sum(one.about_s for one in parts[number:])
            left = f", about {left_s / 60:.0f} min to go" if left_s else ""
            say(f"-- {part.name} ({number + 1} of {len(parts)}{left})")
            try:
                save(results, measured(part, Path(scratch), quick=quick, say=say))
            except NotInstalled as missing:
                say(f"{part.name} skipped: {missing}")
            except Exception as error:
                say(f"{part.name} failed:\n{''.join(traceback.format_exception(error))}")
                failed.append(part.name)
    return failed


def measured(part: Part, scratch: Path, *, quick: bool, say: Say) -> Taken:
    """The result of a part, with its circumstances."""
    sizes = QUICK if quick else FULL
    machine, started = Machine.here(scratch), time.perf_counter()
    result = part.measure(sizes, Bench(sizes.bench, scratch, say))
    took_s = time.perf_counter() - started
    block = part.tell(result)
    return Taken(
        part.name,
        quick,
        took_s,
        machine,
        os.getloadavg(),
        block.lines,
        block.summary,
        {name: draw().decode() for name, draw in block.pictures.items()},
        asdict(result),
    )


def save(results: Path, taken: Taken) -> None:
    """Writes the file of a part whole or not at all."""
    results.mkdir(parents=True, exist_ok=True)
    path = _file(results, taken.part)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(asdict(taken), indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def load(results: Path) -> list[Taken]:
    """The stored results, in the order of the parts."""
    paths = [_file(results, part.name) for part in PARTS]
    raws = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    return [Taken(**{**raw, "machine": Machine(**raw["machine"])}) for raw in raws]


def write_pages(directory: Path, results: Path) -> list[Path]:
    """Renews the pages that have stored results, with their pictures; returns which.

    A page that is not in the directory yet gets the prose of ours.
    """
    taken, written = load(results), []
    for name in dict.fromkeys(part.page for part in PARTS):
        parts = {part.name for part in PARTS if part.page == name}
        if of_page := [one for one in taken if one.part in parts]:
            written.append(directory / name)
            _write_page(written[-1], of_page)
    return written


def _write_page(page: Path, taken: Sequence[Taken]) -> None:
    source = page if page.exists() else TEMPLATES / page.name
    text = renewed(source.read_text(encoding="utf-8"), taken)
    images = page.parent / "img"
    images.mkdir(parents=True, exist_ok=True)
    for one in taken:
        for name, svg in one.pictures.items():
            (images / name).write_text(svg, encoding="utf-8")
    page.write_text(text, encoding="utf-8")


def _file(results: Path, part: str) -> Path:
    return results / f"{part}.json"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/paper", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="small sizes, kept apart")
    parser.add_argument("--resume", action="store_true", help="only parts without a result")
    parser.add_argument("--page-only", action="store_true", help="the pages from stored results")
    parser.add_argument("--results", type=Path, help="directory of results (default: build/paper)")
    parser.add_argument("--pages", type=Path, help="directory of the pages (default: docs/dev)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
