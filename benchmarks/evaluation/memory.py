"""Memory that ten continuous queries add to each node, and where they run (paper, Fig. 7).

Two clusters take the same blocks, on the same partitions of nodes of the same names; one of them
has the queries. Nothing is fetched, so every label is in a cache.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

from benchmarks import ccq_memory
from benchmarks.evaluation import plots
from benchmarks.evaluation.page import Block, percent, picture, table
from benchmarks.evaluation.plots import Axes
from benchmarks.evaluation.sizes import Sizes
from benchmarks.figures import digits, quantity
from benchmarks.sizes import Bench


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


PAPER_CCQS, PAPER_MORE = 10, 0.1171
"""Fig. 7: continuous queries, and by how much the memory of all nodes grew with them."""


def tell(taken: ClusterMemory) -> Block:
    without = sum(node.without for node in taken.nodes)
    beside = sum(node.beside for node in taken.nodes)
    shares = [node.beside / node.without - 1 for node in taken.nodes]
    whole = percent(beside / without - 1)
    each = f"{percent(min(shares))} to {percent(max(shares))}"
    rows = [
        (
            node.node,
            quantity(node.without, "B"),
            quantity(node.beside, "B"),
            percent(share),
            f"{node.ccqs}",
        )
        for node, share in zip(taken.nodes, shares, strict=True)
    ]
    rows.append(("together", quantity(without, "B"), quantity(beside, "B"), whole, f"{taken.ccqs}"))
    axes = Axes(f"{taken.blocks:,} blocks, {taken.ccqs} continuous queries", "", "MB")
    groups = {
        "without": [node.without / 1e6 for node in taken.nodes],
        "with continuous queries": [node.beside / 1e6 for node in taken.nodes],
    }
    busy = sum(1 for node in taken.nodes if node.ccqs)
    return Block(
        [
            *table(("node", "without", "with", "more", "runs"), rows),
            "",
            picture("paper-memory.svg", "Memory of each node without and with queries"),
            "",
            f"All nodes together change by {whole} (the paper: {percent(PAPER_MORE)} with "
            f"{PAPER_CCQS}), single ones by {each}; the standard deviation between nodes is "
            f"{digits(100 * statistics.pstdev(shares))} percentage points. The labels in all "
            f"caches are {quantity(taken.cached, 'B')} as the nodes count them, "
            f"{digits(100 * taken.cached / without)} % of what the nodes take without. The "
            f"election put the queries on {busy} of {len(taken.nodes)} nodes. The evaluator's "
            f"processes, a JVM among them, take {quantity(taken.evaluator_without, 'B')} without "
            f"queries and {quantity(taken.evaluator_beside, 'B')} with them.",
        ],
        {"paper-memory.svg": lambda: plots.bars(axes, [node.node for node in taken.nodes], groups)},
        [
            (
                f"Fig. 7: memory of all nodes with {taken.ccqs} continuous queries",
                f"{percent(PAPER_MORE)} ({PAPER_CCQS} queries)",
                f"{whole}; single nodes {each}",
            )
        ],
    )
