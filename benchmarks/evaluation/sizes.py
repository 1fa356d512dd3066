"""How much is measured: what the paper did as far as one machine can, or little of everything."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks import sizes as bench_sizes


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts of what the parts measure.

    Attributes:
        bench: for what is measured as `scripts/bench` does.
        stored, results: observations, and the results of the queries about them (Fig. 6).
        labels: results of which the size is taken (Table I).
        memory_nodes: of the cluster of which the memory is taken (Fig. 7).
        streamed, stream_s: blocks of each stream, and over how many seconds they are sent
            (Table II).
        stream_intervals_s: update intervals of the queries that stand meanwhile.
        nodes: of the clusters that are compared.
        scaling_rows, scaling_batch, scaling_news: observations in each, in a batch, and those that
            are new in a tick; `scaling_scans`: how often they are looked at.
        worlds: simulated ones for each number of nodes.
        fresh_intervals_s: update intervals of which the freshness is taken.
        subscribers, nearby_subscribers: to areas, and to what is near them; rising (Big Active
            Data, 7.2 and 7.3).
        glued_subscribers: with how many the ways to glue are tried.
        most_subscribers, most_peer_subscribers: further ones to areas, of Galileo alone and of what
            it is compared with.
        subscriber_runs, most_runs: executions that are timed with each number of them.
    """

    bench: bench_sizes.Sizes
    stored: int = 1_000_000
    results: tuple[int, ...] = (0, 1_000, 2_500, 5_000, 7_500, 10_000)
    labels: tuple[int, ...] = (1_000, 10_000, 100_000)
    memory_nodes: int = 6
    streamed: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    stream_s: float = 30.0
    stream_intervals_s: tuple[float, ...] = (1.0, 5.0, 10.0)
    nodes: tuple[int, ...] = (1, 2, 4, 8, 16)
    scaling_rows: int = 800_000
    scaling_batch: int = 50_000
    scaling_news: int = 100_000
    scaling_scans: int = 16
    worlds: int = 10
    fresh_intervals_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 5.0)
    subscribers: tuple[int, ...] = (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000)
    nearby_subscribers: tuple[int, ...] = (125_000, 250_000, 500_000, 1_000_000)
    glued_subscribers: int = 1_000_000
    most_subscribers: tuple[int, ...] = (64_000_000, 128_000_000, 200_000_000)
    most_peer_subscribers: tuple[int, ...] = (12_000_000, 16_000_000, 20_000_000, 24_000_000)
    subscriber_runs: int = 3
    most_runs: int = 2


FULL = Sizes(replace(bench_sizes.FULL, kills=20, fresh_blocks_per_s=2_000, fresh_s=20.0))
QUICK = Sizes(
    replace(bench_sizes.QUICK, runs=3, kills=2),
    stored=20_000,
    results=(0, 100, 500),
    labels=(1_000, 4_000),
    memory_nodes=2,
    streamed=(100, 2_000),
    stream_s=3.0,
    stream_intervals_s=(0.5, 1.0),
    nodes=(1, 2),
    scaling_rows=8_000,
    scaling_batch=1_000,
    scaling_news=2_000,
    scaling_scans=4,
    worlds=2,
    fresh_intervals_s=(0.5, 1.0),
    subscribers=(2_000, 4_000),
    nearby_subscribers=(2_000, 4_000),
    glued_subscribers=2_000,
    most_subscribers=(4_000, 8_000),
    most_peer_subscribers=(4_000,),
    subscriber_runs=2,
    most_runs=1,
)
