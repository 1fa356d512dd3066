"""What ten continuous queries add to each node's memory, and where they run (paper, Fig. 7).

Two clusters take the same blocks, on the same partitions of nodes of the same names; in one of them
the queries stand. Nobody fetches, so every label is in a cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchmarks import ccq_memory
from benchmarks.sizes import Bench

from evaluation.sizes import Sizes


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Of one node, in bytes: without queries, with them, and how many of them it runs."""

    node: str
    without: float
    beside: float
    ccqs: int


@dataclass(frozen=True, slots=True)
class ClusterMemory:
    """Attributes:
    blocks, ccqs, results: stored, standing, and cached by each of these.
    cached: bytes of all caches, as the nodes count them.
    evaluator_without, evaluator_beside: of the evaluator's processes.
    """

    blocks: int
    ccqs: int
    results: int
    nodes: tuple[NodeMemory, ...]
    cached: float
    evaluator_without: float
    evaluator_beside: float


def measure(sizes: Sizes, bench: Bench) -> ClusterMemory:
    blocks = ccq_memory.forecast(bench)
    count = bench.sizes.memory_ccqs
    without = ccq_memory.run(bench, blocks, ccqs=0, nodes=sizes.memory_nodes)
    beside = ccq_memory.run(bench, blocks, ccqs=count, nodes=sizes.memory_nodes)
    runs = Counter(beside.coordinators)
    if sum(runs.values()) != count:
        raise AssertionError(f"expected {count} continuous queries, the cluster lists {runs}")
    names = [f"node-{number + 1}" for number in range(sizes.memory_nodes)]
    if unknown := set(runs) - set(names):
        raise AssertionError(f"expected coordinators among {names}, got {sorted(unknown)}")
    pairs = zip(names, without.proportional, beside.proportional, strict=True)
    return ClusterMemory(
        blocks.table.num_rows,
        count,
        bench.sizes.memory_results,
        tuple(NodeMemory(name, before, after, runs[name]) for name, before, after in pairs),
        beside.cached,
        without.evaluator,
        beside.evaluator,
    )
