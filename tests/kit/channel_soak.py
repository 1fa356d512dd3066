"""A storm of kills over a channel of real processes.

`python -m channel_soak --minutes 10 --seed 1` repeats one as far as the operating system does.

A cluster with copies has observers, a subscriber and followers, while its nodes are killed at
random and one loses its disk. In the end what followers got is compared with what calls promised,
and each execution with what loops find on the disks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from channel_users import SETTINGS, Users, describe, judge_disks, storm

from galileo.cluster import LocalCluster

WRONG = ("missed", "repeated", "foreign", "copies that differ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3, choices=(1, 3))
    options = parser.parse_args()
    again = f"scripts/soak --minutes {options.minutes:g} --seed {options.seed}"
    print(f"{again} --nodes {options.nodes} --replicas {options.replicas}", flush=True)
    with tempfile.TemporaryDirectory(prefix="galileo-soak-") as name:
        place = Path(name)
        with LocalCluster(
            options.nodes, 1, place, replicas=options.replicas, settings=SETTINGS
        ) as cluster:
            users = Users(cluster, pause_s=0.3)
            users.go_on(3)
            seconds = 60.0 * options.minutes
            done = storm(
                cluster,
                users,
                seconds=seconds,
                seed=options.seed,
                has_copies=options.replicas > 1,
                report=report,
            )
            report("judging what followers got")
            done["notifications due for certain"] = users.judge()
            users.await_executed()
        report("judging the disks")
        counts = judge_disks(users.audit, cluster)
    print(describe(done))
    print(describe(counts))
    wrong = sum(counts[name] for name in WRONG)
    print("broken" if wrong else "held")
    return 1 if wrong else 0


def report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
