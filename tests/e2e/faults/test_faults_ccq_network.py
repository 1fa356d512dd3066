"""Networks between nodes that are cut, cut one way, or lose packets; with and without copies."""

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
from fault_injection.growth_world import Settings, growth_world
from fault_injection.networks import Link, Network
from fault_injection.requirements import NETWORK
from fault_injection.trial import Trial

from galileo.cluster import LocalCluster
from galileo.spark.runtime_dir import RuntimeDir

HERE = "client"
NODES = ("node-1", "node-2", "node-3")
PORT = 7701
KINDS = ("cut off", "cut off outwards", "cut off inwards", "cut between two", "loss everywhere")
SETTINGS: Settings = {"security": {"insecure": True}}
BETWEEN_S = (3.0, 5.0)
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
    _play_apart(trial, "one")


@pytest.mark.fault(
    "replica-cuts",
    "disks lost, leaders replaced",
    needs=(NETWORK,),
    rounds=8,
    lasting=True,
    holds="nodes of a cluster with three copies are cut off, cut off one way, cut from each other, "
    "and packets are lost: every acknowledged observation is stored once, on each disk; a complete "
    "answer has all that was acknowledged before; every label is delivered once",
)
def test_replica_cuts(trial: Trial) -> None:
    _play_apart(trial, "three")


def _play_apart(trial: Trial, copies: str) -> None:
    """Plays it in another process, which has a network namespace of its own, as each node has."""
    numbers = (trial.random.randrange(2**31), trial.rounds, trial.lasts_s)
    words = [copies, str(trial.directory), *map(str, numbers)]
    command = ["unshare", "--net", sys.executable, __file__, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout
    found = json.loads(output)
    trial.counts.update(found["counts"])
    trial.complaints += found["complaints"]


def play(trial: Trial, copies: str, *, seed: int) -> None:
    with Network((HERE, *NODES), seed=seed, here=HERE) as network:
        addresses = [f"{network.hosts[name].address}:{PORT}" for name in NODES]
        place = trial.directory / "cluster"
        place.mkdir()
        (place / "addresses.json").write_text(json.dumps(addresses))
        try:
            (_play_three if copies == "three" else _play_one)(trial, network)
        finally:
            _end_evaluators(trial.directory)
        trial.counts["packets"] = network.carried
        trial.counts["packets dropped"] = network.dropped


def _play_one(trial: Trial, network: Network) -> None:
    cluster = three_nodes(trial, settings=SETTINGS)
    _spread(trial, network, cluster)
    with ccq_world(trial, cluster) as world:
        for _ in trial.each_round():
            _cut(trial, network)
            wait_for_updates(world, timeout_s=UPDATES_S)


def _play_three(trial: Trial, network: Network) -> None:
    with growth_world(
        trial,
        nodes=len(NODES),
        replicas=len(NODES),
        settings=SETTINGS,
        prepare=lambda cluster: _spread(trial, network, cluster),
    ) as world:
        for _ in trial.each_round():
            with world.step("cut"):
                began = time.monotonic()
                _cut(trial, network)
                world.outages.append((began, time.monotonic()))
                time.sleep(trial.random.uniform(*BETWEEN_S))
                world.check()


def _spread(trial: Trial, network: Network, cluster: LocalCluster) -> None:
    """Puts the nodes on hosts of their own, each with an evaluator of its own."""
    for node in cluster.nodes:
        own = f"GALILEO_EVALUATOR__DIRECTORY={trial.directory / 'evaluators' / node.name}"
        node.prefix = (*network.hosts[node.name].prefix, "env", own)


def _cut(trial: Trial, network: Network) -> None:
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


def main(copies: str, directory: str, seed: str, rounds: str, lasts_s: str) -> None:
    trial = Trial(Path(directory), int(rounds), random.Random(int(seed)), float(lasts_s))
    play(trial, copies, seed=int(seed))
    print(json.dumps({"counts": trial.counts, "complaints": trial.complaints}))


if __name__ == "__main__":
    main(*sys.argv[1:])
