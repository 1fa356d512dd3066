"""Waits for the feature graphs of nodes, which follow commits by a moment."""

from __future__ import annotations

import time

import galileo

WITHIN_S = 300.0


def wait_for_synopses(cluster: galileo.LocalCluster, dataset: str) -> None:
    """Returns when the feature graph of every node has all commits of now."""
    deadline = time.monotonic() + WITHIN_S
    for node in cluster.nodes:
        with galileo.connect(node.address) as client:
            stored = client.query(dataset).frontier
            while not client.estimate(dataset).frontier.covers(stored):
                assert time.monotonic() < deadline, f"{node.name} lacks synopses of {dataset}"
                time.sleep(0.05)
