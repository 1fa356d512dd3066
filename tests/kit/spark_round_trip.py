"""A program that reads, writes and streams a dataset in the session of a master; says what came.

python spark_round_trip.py MASTER ADDRESS SOURCE TARGET CHECKPOINT
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

import galileo.spark

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SMALL = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}


def main(master: str, address: str, source: str, target: str, checkpoint: str) -> None:
    settings = {} if master.startswith("sc://") else {**LOOPBACK, **SMALL}
    spark = galileo.spark.start_session(master, heap_mb=512, settings=settings)
    frame = galileo.spark.read(spark, address, source, query="temperature > 280")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain("formatted")
    places = {"address": address, "dataset": target}
    for _ in range(2):
        frame.write.format("galileo").mode("append").options(job="once", **places).save()
    stream = spark.readStream.format("galileo").options(address=address, dataset=source)
    query = (
        stream.option("query", "NOT temperature > 280")
        .load()
        .writeStream.format("galileo")
        .options(checkpointLocation=checkpoint, **places)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = frame.count()
    spark.stop()
    print(json.dumps({"rows": rows, "pushed": "GreaterThan(temperature,280" in shown.getvalue()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
