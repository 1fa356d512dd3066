"""Plays seeded worlds: `python -m galileo.testing.simulator --seeds 0:300 --variant V --trace`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from galileo.testing.simulator import VARIANTS, run


def main() -> int:
    options = _parse()
    first, last = (int(part) for part in options.seeds.split(":"))
    started, counters = time.process_time(), Counter[str]()
    for seed in range(first, last):
        try:
            outcome = run(seed, options.variant, trace=print if options.trace else None)
        except Exception as violation:
            print(f"seed {seed}: {type(violation).__name__}: {violation}")
            again = f"scripts/sim --seeds {seed}:{seed + 1} --variant {options.variant} --trace"
            print(f"repeat with: {again}")
            return 1
        counters += outcome.counters
    print(f"{last - first} seeds of {options.variant} in {time.process_time() - started:.1f} s")
    for name, count in sorted(counters.items()):
        print(f"{count:8} {name}")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/sim", description="Plays seeded worlds.")
    parser.add_argument("--seeds", default="0:300", metavar="A:B", help="from A up to B, without B")
    parser.add_argument("--variant", default="production", choices=sorted(VARIANTS))
    parser.add_argument("--trace", action="store_true", help="print every event")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
