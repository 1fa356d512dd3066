"""A job on a standalone cluster of Spark, compared with the same job in an embedded session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from spark_standalone import Programs, Standalone

from benchmarks import clusters, jobs
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.sizes import Bench
from galileo.cycle import CycleRequest
from galileo.spark.launcher import EvaluatorClient
from galileo.spark.options import EvaluatorOptions, SparkOptions

NODES = 3
WORKERS = 2
WARM_UPS = 200
"""Jobs that do not count: the JVMs of executors compile what runs often only after a while."""
TIMES_EMBEDDED = 1.2


def measure(bench: Bench) -> Iterator[Figure]:
    directory = Path(bench.directory) / "spark"
    directory.mkdir()
    with (
        clusters.cluster(bench.directory, nodes=NODES) as running,
        clusters.ending_children(),
        ExitStack() as stack,
    ):
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, jobs.DATASET)
        after = client.query(jobs.DATASET).frontier
        table = clusters.forecast(bench.sizes.tick_paths, stride=bench.sizes.stride)
        client.ingest(jobs.DATASET, table)
        request = jobs.delta_request(client, [""], after=after)
        programs = Programs(directory)
        stack.callback(programs.stop)
        spark = Standalone(programs)
        bench.say(f"starting a master and {WORKERS} workers of Spark")
        spark.start(workers=WORKERS)
        embedded = clusters.evaluator_options(running)
        distributed = replace(
            embedded,
            runtime_dir=directory / "evaluator",
            spark=SparkOptions(spark.address, cores_max=WORKERS),
        )
        runner = stack.enter_context(asyncio.Runner())
        subjects = [_job(runner, stack, options, request) for options in (distributed, embedded)]
        in_turn(*subjects, runs=WARM_UPS, warm_up=False)
        runs = jobs.JOBS_PER_RUN * bench.sizes.runs
        there, here = in_turn(*subjects, runs=runs, warm_up=False)
        yield Figure(
            f"a warm job on a standalone cluster of {WORKERS} workers, {table.num_rows:,} labels",
            "s",
            there,
            (Peer(f"embedded, local[{WORKERS}]", here),),
            (Goal("at most", TIMES_EMBEDDED, of_peer=True),),
        )


def _job(
    runner: asyncio.Runner,
    stack: ExitStack,
    options: EvaluatorOptions,
    request: CycleRequest,
) -> Callable[[], object]:
    """Runs the job on the evaluator of these options, which starts now."""
    handle = EvaluatorClient(options)
    stack.callback(lambda: runner.run(handle.close()))
    runner.run(handle.ensure())
    return lambda: runner.run(handle.evaluate([request], timeout_s=jobs.TIMEOUT_S))
