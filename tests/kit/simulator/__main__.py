"""Plays seeded worlds: `python -m simulator --seeds 0:300 --variant V --trace`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from simulator import ALWAYS, FAULTS, VARIANTS, Outcome, run, shrunk
from simulator.channel_mutants import CHANNEL_MUTANTS, run_channel_variant
from simulator.channel_world import CHANNEL_FAULTS
from simulator.delivery_mutants import DELIVERY_MUTANTS
from simulator.delivery_world import FAULTS as DELIVERY_FAULTS
from simulator.delivery_world import run_deliveries
from simulator.replica_cluster import Stalled
from simulator.replica_faults import FAULTS as REPLICA_FAULTS
from simulator.replica_mutants import REPLICA_MUTANTS
from simulator.replica_world import run_replicas
from simulator.replicated_mutants import REPLICATED_VARIANTS
from simulator.replicated_world import BOTH_FAULTS, run_replicated
from simulator.shrinking import Play
from simulator.system_mutants import SYSTEM_MUTANTS, run_system_variant
from simulator.system_world import FAULTS as SYSTEM_FAULTS


@dataclass(frozen=True, slots=True)
class _World:
    """A kind of worlds: how one is played, its variants and its kinds of faults."""

    play: Play
    variants: Collection[str]
    faults: Collection[str]


def _play_replicas(
    seed: int,
    variant: str,
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
) -> Counter[str]:
    mistakes = REPLICA_MUTANTS.get(variant, ())
    return run_replicas(seed, *mistakes, without=without, trace=trace)


PROGRESS_SEEDS = 500
CCQ_FAULTS = (*FAULTS, *ALWAYS)
WORLDS = {
    "deliveries": _World(run_deliveries, ("production", *DELIVERY_MUTANTS), DELIVERY_FAULTS),
    "queries": _World(run, VARIANTS, CCQ_FAULTS),
    "replicas": _World(_play_replicas, ("production", *REPLICA_MUTANTS), REPLICA_FAULTS),
    "replicated-ccqs": _World(
        run_replicated, REPLICATED_VARIANTS, (*CCQ_FAULTS, *REPLICA_FAULTS, *BOTH_FAULTS)
    ),
    "system": _World(
        run_system_variant, ("production", *SYSTEM_MUTANTS), (*SYSTEM_FAULTS, "recovery")
    ),
    "channels": _World(run_channel_variant, ("production", *CHANNEL_MUTANTS), CHANNEL_FAULTS),
}


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    world = WORLDS[options.world]
    for given, known in (([options.variant], world.variants), (options.without, world.faults)):
        wrong = sorted(set(given) - set(known))
        if wrong:
            parser.error(f"expected one of {', '.join(dict.fromkeys(known))}, got {wrong[0]}")
    first, last = (int(part) for part in options.seeds.split(":"))
    if options.mutants:
        all_wrong = sorted(set(world.variants) - {"production"})
        wrong = all_wrong if options.variant == "production" else [options.variant]
        return _kill(world, wrong, first, last)
    started, counters, delivered = time.process_time(), Counter[str](), 0
    for seed in range(first, last):
        if seed > first and (seed - first) % PROGRESS_SEEDS == 0:
            print(f"{seed - first} seeds, {time.process_time() - started:.0f} s", file=sys.stderr)
        try:
            trace = print if options.trace else None
            outcome = world.play(seed, options.variant, without=options.without, trace=trace)
        except Exception as violation:
            _report(seed, options, violation)
            return 1
        if isinstance(outcome, Outcome):
            delivered += outcome.delivered
            outcome = outcome.counters
        assert isinstance(outcome, Counter)
        counters += outcome
    seconds = time.process_time() - started
    print(f"{last - first} seeds of {options.variant} in {seconds:.1f} s, no violation")
    print(f"{delivered:8} deliveries")
    for name, count in sorted(counters.items()):
        print(f"{count:8} {name}")
    return 0


def _report(seed: int, options: argparse.Namespace, violation: Exception) -> None:
    world, variant = WORLDS[options.world], options.variant
    print(f"seed {seed}: {type(violation).__name__}: {violation}")
    again = f"scripts/sim --world {options.world} --seeds {seed}:{seed + 1} --variant {variant}"
    without = frozenset(options.without)
    if options.shrink and isinstance(violation, AssertionError):
        without, left = shrunk(seed, variant, play=world.play, kinds=world.faults)
        needed = [kind for kind in dict.fromkeys(world.faults) if kind not in without]
        print(f"needs no more than {', '.join(needed) or 'no fault at all'}: {left}")
    again += f" --without {' '.join(sorted(without))}" if without else ""
    print(f"repeat with: {again} --trace")


def _kill(world: _World, variants: list[str], first: int, last: int) -> int:
    """Find the first seed that convicts each known-wrong variant; no progress proves nothing."""
    survivors = 0
    for variant in variants:
        for seed in range(first, last):
            try:
                world.play(seed, variant)
            except Stalled:
                continue
            except AssertionError as violation:
                found = f"{seed - first + 1:6} seeds to kill {variant}: {violation}"
                print(found[:160], flush=True)
                break
        else:
            survivors += 1
            print(f"       {variant} survived {last - first} seeds", flush=True)
    return 1 if survivors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/sim", description="Plays seeded worlds.")
    parser.add_argument("--seeds", default="0:300", metavar="A:B", help="from A up to B, without B")
    parser.add_argument("--world", default="queries", choices=WORLDS)
    parser.add_argument("--variant", default="production", help="of the machines of that world")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument(
        "--without",
        nargs="+",
        default=(),
        metavar="FAULT",
        help="faults of that world that do not happen",
    )
    parser.add_argument(
        "--shrink", action="store_true", help="take faults away from a violation while it stays"
    )
    parser.add_argument(
        "--mutants", action="store_true", help="count the seeds that convict each wrong variant"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
