"""Bombs: small requests that would unpack to large ones."""

from __future__ import annotations

import time

import pytest
from fault_injection.bombs import NODE_BOMBS, Bomb
from fault_injection.bystanders import (
    DATASET,
    PATIENCE,
    client_calls,
    fill,
    quantile_ms,
    repeated,
    weighed,
)
from fault_injection.trial import Trial
from hostile_soak import Site, explosions

from galileo.cluster import LocalCluster

ROWS = 1_000
OVER_MIB_MAX = 300
"""What the node may take for one: a message of 64 MiB has to be received before it can be refused,
and gRPC for Python has it twice for a moment."""
TAKES_MAX_S = 30.0
HARMLESS = ("UNIMPLEMENTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION")


@pytest.mark.fault(
    "bombs",
    "bombs",
    rounds=1,
    holds="small things that would become large (gzip, lz4, zstd, zip, protobuf, nesting): each "
    f"is refused within {OVER_MIB_MAX} MiB and {TAKES_MAX_S:.0f} s, and another client is served",
)
def test_bombs(trial: Trial) -> None:
    settings = {"samplers": {"uploads": "sandboxed"}}
    with LocalCluster(1, 1, trial.directory / "cluster", settings=settings) as cluster:
        fill(cluster.client(timeout=PATIENCE), ROWS)
        for _ in trial.each_round():
            for bomb in NODE_BOMBS:
                _one(trial, cluster, bomb)
        count = cluster.client(timeout=PATIENCE).count(DATASET)
        trial.expect(count >= ROWS, f"expected at least {ROWS} observations, got {count}")


def _one(trial: Trial, cluster: LocalCluster, bomb: Bomb) -> None:
    (node,) = cluster.nodes
    made = bomb.made()
    with (
        weighed(node.pid) as memory,
        repeated(*client_calls(cluster.client(timeout=PATIENCE))) as waits_s,
    ):
        started = time.monotonic()
        answer = bomb.send(node.address, content=made)
        took_s = time.monotonic() - started
    trial.say(f"{bomb.name}: {answer} in {took_s:.2f} s, {memory.over_mib:.0f} MiB")
    trial.counts["bombs"] += 1
    trial.figures[f"{bomb.name}: MiB"] = round(memory.over_mib)
    trial.figures[f"{bomb.name}: s"] = round(took_s, 2)
    trial.figures[f"{bomb.name}: sent, KB"] = round(len(made) / 1e3, 1)
    if waits_s:
        trial.figures[f"{bomb.name}: p99 of another, ms"] = quantile_ms(waits_s, 0.99)
    trial.expect(node.running, f"{bomb.name}: the node is dead")
    trial.expect(answer in HARMLESS, f"{bomb.name}: expected a refusal, got {answer}")
    size = f"{memory.over_mib:.0f} MiB, {OVER_MIB_MAX} are allowed"
    trial.expect(memory.over_mib <= OVER_MIB_MAX, f"{bomb.name}: the node took {size}")
    trial.expect(took_s <= TAKES_MAX_S, f"{bomb.name}: it took {took_s:.1f} s")


@pytest.mark.fault(
    "gateway-bombs",
    "bombs",
    rounds=1,
    holds="each format of a body in each shape that becomes large: a gateway takes at most 1 MiB "
    "for one of a stranger or of a reader, and 8 times the unpacked size and 32 MiB for one of a "
    "writer; another client is served",
)
def test_gateway_bombs(trial: Trial) -> None:
    with Site(trial.directory) as site:
        for _ in trial.each_round():
            for explosion in explosions(site):
                name = explosion.name
                trial.say(str(explosion))
                trial.counts["bombs"] += 1
                trial.figures[f"{name}: MiB"] = round(explosion.over_mib, 1)
                size = f"{explosion.over_mib:.1f} MiB, {explosion.most_mib:.0f} are allowed"
                trial.expect(explosion.over_mib <= explosion.most_mib, f"{name} took {size}")
        trial.expect(site.gateway.running, "the gateway is dead")
