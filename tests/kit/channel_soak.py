"""A storm of kills over a channel of real processes.

`python -m channel_soak --minutes 10 --seed 1` repeats one as far as the operating system does.

A cluster with copies has observers, a subscriber and followers, while its nodes are killed at
random and one loses its disk. One broker has a webhook, to which two workers push that are killed,
too. In the end what followers got is compared with what calls promised, each execution with what
loops find on the disks, and what was pushed with these executions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from channel_users import (
    SETTINGS,
    Follower,
    PushedFollower,
    Users,
    describe,
    judge_disks,
    storm,
)
from hostile_soak import Explosion, Site, Soak, comparisons, explosions
from sink_outage import GROWTH_MIB_MAX, Outage

from galileo.cluster import LocalCluster

WRONG = ("missed", "repeated", "foreign", "copies that differ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3, choices=(1, 3))
    parser.add_argument(
        "--sink-outage",
        type=float,
        metavar="MINUTES",
        help="no kills: a webhook is away for so long, and then slow",
    )
    parser.add_argument(
        "--hostile",
        type=int,
        nargs="?",
        const=100,
        metavar="CONNECTIONS",
        help="no kills: a writer, a follower and a map beside so many hostile connections",
    )
    parser.add_argument("--bombs", action="store_true", help="no kills: each bomb by each caller")
    parser.add_argument(
        "--shares", action="store_true", help="no kills: callers beside idle, slow and greedy ones"
    )
    options = parser.parse_args()
    again = f"scripts/soak --minutes {options.minutes:g} --seed {options.seed}"
    print(f"{again} --nodes {options.nodes} --replicas {options.replicas}", flush=True)
    with tempfile.TemporaryDirectory(prefix="galileo-soak-") as name:
        place = Path(name)
        if options.sink_outage:
            return outage(place, options)
        if options.hostile or options.bombs or options.shares:
            return hostile(place, options)
        with LocalCluster(
            options.nodes, 1, place, replicas=options.replicas, settings=SETTINGS
        ) as cluster:
            types = (Follower, Follower, PushedFollower)
            users = Users(cluster, follower_types=types, pause_s=0.3)
            pushed = users.followers[-1]
            assert isinstance(pushed, PushedFollower)
            with cluster.worker() as one, cluster.worker() as other:
                users.go_on(3)
                done = storm(
                    cluster,
                    users,
                    seconds=60.0 * options.minutes,
                    seed=options.seed,
                    has_copies=options.replicas > 1,
                    workers=(one, other),
                    report=report,
                )
                pushed.end()
                report(f"judging what followers got; {pushed.describe()}")
                done["notifications due for certain"] = users.judge()
                users.await_executed()
                pushed.await_all()
        report("judging the disks")
        counts = judge_disks(users.audit, cluster)
        users.audit.check_reader(pushed.reader)
    print(describe(done))
    print(pushed.describe())
    print(describe(counts))
    wrong = sum(counts[name] for name in WRONG)
    print("broken" if wrong else "held")
    return 1 if wrong else 0


def outage(place: Path, options: argparse.Namespace) -> int:
    """The scenario of `sink_outage`."""
    with LocalCluster(options.nodes, 1, place, replicas=options.replicas) as cluster:
        growth_mib = Outage(cluster, report).play(60.0 * options.sink_outage)
    is_flat = growth_mib < GROWTH_MIB_MAX
    print(f"all delivered in order; the worker has grown by {growth_mib:.0f} MiB at most")
    print("held" if is_flat else "broken")
    return 0 if is_flat else 1


def hostile(place: Path, options: argparse.Namespace) -> int:
    """The scenarios of `hostile_soak`."""
    is_held = True
    with Site(place, nodes=options.nodes, replicas=options.replicas) as site:
        if options.hostile:
            soak = Soak(site, report)
            try:
                soak.run(connections=options.hostile, minutes=options.minutes, seed=options.seed)
            finally:
                print(*soak.table(), sep="\n", flush=True)
        if options.shares:
            for comparison in comparisons(site, minutes=options.minutes, seed=options.seed):
                report(str(comparison))
                is_held &= comparison.is_held
        if options.bombs:
            report(f"{Explosion.HEAD}\n| --- | --- | --- | --- | --- | --- | --- |")
            for explosion in explosions(site):
                report(str(explosion))
                is_held &= explosion.over_mib <= explosion.most_mib
    print("held" if is_held else "broken")
    return 0 if is_held else 1


def report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
