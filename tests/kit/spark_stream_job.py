"""A program that copies a dataset to another by a stream of Spark, until it is killed.

    python spark_stream_job.py ADDRESS SOURCE TARGET CHECKPOINT

It says "copied ROWS" behind each micro-batch.
"""

from __future__ import annotations

import sys
import time

import galileo.spark


def main(address: str, source: str, target: str, checkpoint: str) -> None:
    spark = galileo.spark.start_session("local[2]", heap_mb=512)
    stream = spark.readStream.format("galileo").options(
        address=address, dataset=source, commits_per_batch=8
    )
    query = (
        stream.load()
        .writeStream.format("galileo")
        .options(address=address, dataset=target, checkpointLocation=checkpoint, batch_rows=100)
        .start()
    )
    reported = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress.batchId > reported and progress.numInputRows:
            reported = progress.batchId
            print(f"copied {progress.numInputRows}", flush=True)
        time.sleep(0.02)
    raise SystemExit(str(query.exception()))


if __name__ == "__main__":
    main(*sys.argv[1:])
