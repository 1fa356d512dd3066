"""Plays seeded worlds: `python -m simulator --seeds 0:300 --variant V --trace`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from simulator import ALWAYS, FAULTS, VARIANTS, run, shrunk
from simulator.replica_cluster import Stalled
from simulator.replica_mutants import REPLICA_MUTANTS
from simulator.replica_world import run_replicas


def main() -> int:
    options = _parse()
    first, last = (int(part) for part in options.seeds.split(":"))
    if options.world == "replicas":
        return _play_replicas(options, first, last)
    if options.mutants:
        all_wrong = sorted(set(VARIANTS) - {"production"})
        wrong = all_wrong if options.variant == "production" else [options.variant]
        return _kill(wrong, first, last)
    started, counters, delivered = time.process_time(), Counter[str](), 0
    for seed in range(first, last):
        try:
            outcome = run(
                seed,
                options.variant,
                without=options.without,
                trace=print if options.trace else None,
            )
        except Exception as violation:
            _tell(seed, options.variant, violation, is_shrunk=options.shrink)
            return 1
        counters += outcome.counters
        delivered += outcome.delivered
    seconds = time.process_time() - started
    print(f"{last - first} seeds of {options.variant} in {seconds:.1f} s, no violation")
    print(f"{delivered:8} deliveries")
    for name, count in sorted(counters.items()):
        print(f"{count:8} {name}")
    return 0


def _play_replicas(options: argparse.Namespace, first: int, last: int) -> int:
    """Play worlds of replicated partitions, of production or of each mutant."""
    started, counters = time.process_time(), Counter[str]()
    survivors = 0
    for name in REPLICA_MUTANTS if options.mutants else (None,):
        for seed in range(first, last):
            variant = REPLICA_MUTANTS[name] if name else ()
            try:
                counters += run_replicas(seed, *variant, trace=print if options.trace else None)
            except AssertionError as violation:
                if name and isinstance(violation, Stalled):
                    continue
                if name is None:
                    print(f"seed {seed}: {violation}")
                    print(f"repeat with: scripts/sim --world replicas --seeds {seed}:{seed + 1}")
                    return 1
                print(f"{seed - first + 1:6} seeds to kill {name}: {violation}"[:160], flush=True)
                break
        else:
            survivors += name is not None
            if name:
                print(f"       {name} survived {last - first} seeds", flush=True)
    if not options.mutants:
        seconds = time.process_time() - started
        print(f"{last - first} seeds of replicas in {seconds:.1f} s, no violation")
        for counter, count in sorted(counters.items()):
            print(f"{count:8} {counter}")
    return 1 if survivors else 0


def _tell(seed: int, variant: str, violation: Exception, *, is_shrunk: bool) -> None:
    print(f"seed {seed}: {type(violation).__name__}: {violation}")
    again = f"scripts/sim --seeds {seed}:{seed + 1} --variant {variant}"
    if is_shrunk and isinstance(violation, AssertionError):
        without, left = shrunk(seed, variant)
        needed = [kind for kind in (*FAULTS, *ALWAYS) if kind not in without]
        print(f"needs no more than {', '.join(needed) or 'no fault at all'}: {left}")
        again += f" --without {' '.join(sorted(without))}" if without else ""
    print(f"repeat with: {again} --trace")


def _kill(variants: list[str], first: int, last: int) -> int:
    """Find the first seed that convicts each known-wrong variant."""
    survivors = 0
    for variant in variants:
        for seed in range(first, last):
            try:
                run(seed, variant)
            except AssertionError as violation:
                print(f"{seed - first + 1:6} seeds to kill {variant}: {violation}"[:160])
                break
        else:
            survivors += 1
            print(f"       {variant} survived {last - first} seeds")
    return 1 if survivors else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/sim", description="Plays seeded worlds.")
    parser.add_argument("--seeds", default="0:300", metavar="A:B", help="from A up to B, without B")
    parser.add_argument("--world", default="queries", choices=("queries", "replicas"))
    parser.add_argument("--variant", default="production", choices=sorted(VARIANTS))
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument(
        "--without",
        nargs="+",
        default=(),
        choices=(*FAULTS, *ALWAYS),
        metavar="FAULT",
        help=f"faults that do not happen: {', '.join((*FAULTS, *ALWAYS))}",
    )
    parser.add_argument(
        "--shrink", action="store_true", help="take faults away from a violation while it stays"
    )
    parser.add_argument(
        "--mutants", action="store_true", help="count the seeds that convict each wrong variant"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
