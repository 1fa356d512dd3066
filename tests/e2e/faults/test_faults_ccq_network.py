"""Networks between nodes that are cut, cut one way, or lose packets."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fault_injection.ccq_world import ccq_world, three_nodes, wait_for_updates
from fault_injection.networks import Link, Network
from fault_injection.requirements import NETWORK
from fault_injection.trial import Trial

from galileo.cluster import LocalCluster
from galileo.spark.runtime_dir import RuntimeDir

HERE = "client"
NODES = ("node-1", "node-2", "node-3")
PORT = 7701
KINDS = ("cut off", "cut off outwards", "cut off inwards", "cut between two", "loss everywhere")
CUT_S = (3.0, 8.0)
"""Longer than `membership.failure_timeout_s`."""
LOSS = (0.02, 0.2)
UPDATES_S = 300.0
END_TIMEOUT_S = 15.0


@pytest.mark.fault(
    "network-cuts",
    "partition, one-way, loss",
    needs=(NETWORK,),
    rounds=5,
    lasting=True,
    holds="nodes cut off, cut off one way, cut from each other, and packets lost: every reader is "
    "handed every label once, no frontier is ahead of what was handed out, and it heals",
)
def test_network_cuts(trial: Trial) -> None:
    """Plays it in another process, which has a network namespace of its own, as each node has."""
    numbers = (trial.random.randrange(2**31), trial.rounds, trial.lasts_s)
    words = [str(trial.directory), *map(str, numbers)]
    command = ["unshare", "--net", sys.executable, __file__, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout
    found = json.loads(output)
    trial.counts.update(found["counts"])
    trial.complaints += found["complaints"]


def play(trial: Trial, *, seed: int) -> None:
    with Network((HERE, *NODES), seed=seed, here=HERE) as network:
        cluster = _cluster(trial, network)
        try:
            with ccq_world(trial, cluster) as world:
                for _ in trial.each_round():
                    _one(trial, network)
                    wait_for_updates(world, timeout_s=UPDATES_S)
        finally:
            _end_evaluators(trial.directory)
        trial.counts["packets"] = network.carried
        trial.counts["packets dropped"] = network.dropped


def _cluster(trial: Trial, network: Network) -> LocalCluster:
    """Its nodes on hosts of their own, each with an evaluator of its own."""
    addresses = [f"{network.hosts[name].address}:{PORT}" for name in NODES]
    place = trial.directory / "cluster"
    place.mkdir()
    (place / "addresses.json").write_text(json.dumps(addresses))
    cluster = three_nodes(trial, settings={"security": {"insecure": True}})
    for node in cluster.nodes:
        own = f"GALILEO_EVALUATOR__DIRECTORY={trial.directory / 'evaluators' / node.name}"
        node.prefix = (*network.hosts[node.name].prefix, "env", own)
    return cluster


def _one(trial: Trial, network: Network) -> None:
    kind = trial.random.choice([*KINDS])
    node = trial.random.choice(NODES)
    other = trial.random.choice([one for one in NODES if one != node])
    links, share = _links(trial, network, kind, node, other)
    trial.say(f"{kind}: {node}" + (f" and {other}" if kind == "cut between two" else ""))
    with network.losing(links, share):
        time.sleep(trial.random.uniform(*CUT_S))
    trial.counts[kind] += 1


def _links(
    trial: Trial, network: Network, kind: str, node: str, other: str
) -> tuple[list[Link], float]:
    around = network.around(node)
    if kind == "loss everywhere":
        everywhere = {link for name in network.hosts for link in network.around(name)}
        return sorted(everywhere), trial.random.uniform(*LOSS)
    chosen = {
        "cut off": around,
        "cut off outwards": [link for link in around if link[0] == node],
        "cut off inwards": [link for link in around if link[1] == node],
        "cut between two": [(node, other), (other, node)],
    }
    return chosen[kind], 1.0


def _end_evaluators(directory: Path) -> None:
    for place in (directory / "evaluators").glob("*"):
        process = RuntimeDir(place).holder()
        if process is not None:
            process.terminate()
            for one in psutil.wait_procs([process], timeout=END_TIMEOUT_S)[1]:
                one.kill()


def main(directory: str, seed: str, rounds: str, lasts_s: str) -> None:
    trial = Trial(Path(directory), int(rounds), random.Random(int(seed)), float(lasts_s))
    play(trial, seed=int(seed))
    print(json.dumps({"counts": trial.counts, "complaints": trial.complaints}))


if __name__ == "__main__":
    main(*sys.argv[1:])
