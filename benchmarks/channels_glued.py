"""A stream processor and a database, joined by a program: what channels are compared with.

Wang, Carey and Tsotras (2020, section 6) join Kafka, Spark Structured Streaming and MongoDB, and
call that a glued system. Here files of tweets take the place
of Kafka, and PostgreSQL that of MongoDB. A streaming query hands each micro-batch to a function
that joins the hateful tweets with the subscriptions in PostgreSQL, and stores the notifications
there. As in the paper, Spark keeps no copy of the subscriptions. There are several ways to do so:

- Spark joins. It reads the subscriptions by JDBC, over one connection for each core: *all* of
  them, or those in areas of the tweets (*filtered*). The tweets are broadcast. The notifications
  are stored by JDBC in batches of rows (*inserted*), or as files that COPY reads (*copied*).
- PostgreSQL joins (*staged*). Spark stores the tweets in a table, and one statement does the rest,
  which is the statement of `channels.Polling`. Then Spark only carries tweets.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import galileo.spark
from benchmarks import postgis
from benchmarks.channels import AREAS, Period
from benchmarks.sizes import NotInstalled

DRIVER = Path("/usr/share/java/postgresql.jar")
CORES = 2
HEAP_MB = 4_096
FETCHED_ROWS = 20_000
INSERTED_ROWS = 10_000
OPTIONS = {
    "driver": "org.postgresql.Driver",
    "fetchsize": str(FETCHED_ROWS),
    "batchsize": str(INSERTED_ROWS),
}
SETTINGS = {
    "spark.jars": str(DRIVER),
    "spark.sql.shuffle.partitions": str(CORES),
    # A query without input looks for files so often; the default of 10 ms slows other systems down.
    "spark.sql.streaming.pollingDelay": "500ms",
}


class NoDriver(NotInstalled):
    """PostgreSQL's JDBC driver is not installed; the text says what to do."""


@contextmanager
def spark() -> Iterator[SparkSession]:
    """A session on this machine, with PostgreSQL's driver.

    Raises:
        NoDriver: the driver is not installed.
    """
    if not DRIVER.exists():
        raise NoDriver(
            f"PostgreSQL's JDBC driver is not at {DRIVER}; on Debian: "
            "apt-get update && apt-get install libpostgresql-jdbc-java"
        )
    session = galileo.spark.start_session(f"local[{CORES}]", heap_mb=HEAP_MB, settings=SETTINGS)
    try:
        session.sql(f"ADD JAR '{DRIVER}'")
        yield session
    finally:
        session.stop()


Handle = Callable[[DataFrame, int], None]


class Glued:
    """A streaming query in one of these ways, over the tables of `channels.Polling`.

    Args:
        session: of Spark.
        server: of PostgreSQL, which also listens at `tcp_port` of the loopback interface.
        directory: a new one, which the server's user can read.
        way: a key of `WAYS`.
    """

    def __init__(
        self,
        session: SparkSession,
        server: postgis.Session,
        *,
        tcp_port: int,
        directory: Path,
        way: str,
    ) -> None:
        self._session, self._server, self._directory = session, server, directory
        self._url = (
            f"jdbc:postgresql://127.0.0.1:{tcp_port}/postgres"
            f"?user={postgis.USER}&reWriteBatchedInserts=true"
        )
        self._arriving, self._arrived = directory / "arriving", directory / "arrived"
        self._arrived.mkdir(parents=True)
        self._notifications = directory / "notifications"
        self._handle = WAYS[way](self)
        self._number = 0
        server.ask("CREATE TABLE IF NOT EXISTS staged (area bigint, number bigint)")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the streaming query within the block."""
        tweets = self._session.readStream.schema("area long, number long, hateful boolean")
        query = (
            tweets.parquet(str(self._arrived))
            .writeStream.foreachBatch(self._handle)
            .option("checkpointLocation", str(self._directory / "checkpoints"))
            .start()
        )
        self._query = query
        try:
            yield
        finally:
            query.stop()

    def period(self, tweets: pa.Table) -> Period:
        """Hands new tweets over; the time is that of the micro-batch, as Spark reports it.

        It begins when Spark looks for new files, and ends when its checkpoint is written.
        """
        self._server.ask("TRUNCATE notifications")
        self._number += 1
        pq.write_table(tweets, self._arriving)
        self._arriving.rename(self._arrived / f"{self._number}.parquet")
        self._query.processAllAvailable()
        [*_, last] = [one for one in self._query.recentProgress if one["numInputRows"]]
        if last["numInputRows"] != len(tweets):
            raise AssertionError(f"expected a batch of {len(tweets):,} tweets, got {last}")
        [rows] = self._server.ask("SELECT count(*) FROM notifications")[1]
        return Period(0.0, last["durationMs"]["triggerExecution"] / 1e3, int(rows))

    def join_all(self, store: Callable[[DataFrame], None]) -> Handle:
        ranges = [
            f"area >= {part * AREAS // CORES} AND area < {(part + 1) * AREAS // CORES}"
            for part in range(CORES)
        ]

        def handle(batch: DataFrame, number: int) -> None:
            store(_joined(self._subscriptions(ranges), _hateful(batch)))

        return handle

    def join_filtered(self, store: Callable[[DataFrame], None]) -> Handle:
        def handle(batch: DataFrame, number: int) -> None:
            tweets = _hateful(batch).cache()
            areas = sorted(row.area for row in tweets.select("area").distinct().collect())
            if areas:
                parts = [areas[part::CORES] for part in range(CORES)]
                conditions = [f"area IN ({', '.join(map(str, part))})" for part in parts if part]
                store(_joined(self._subscriptions(conditions), tweets))
            tweets.unpersist()

        return handle

    def stage(self, batch: DataFrame, number: int) -> None:
        rows = _hateful(batch).coalesce(1)
        rows.write.option("truncate", "true").jdbc(
            self._url, "staged", mode="overwrite", properties=OPTIONS
        )
        self._server.ask(
            "INSERT INTO notifications SELECT s.id, t.number "
            "FROM staged t JOIN subscriptions s ON s.area = t.area"
        )

    def insert(self, notifications: DataFrame) -> None:
        notifications.write.jdbc(self._url, "notifications", mode="append", properties=OPTIONS)

    def copy(self, notifications: DataFrame) -> None:
        shutil.rmtree(self._notifications, ignore_errors=True)
        notifications.write.csv(str(self._notifications))
        files = f"{self._notifications}/part-*"
        self._server.ask(f"COPY notifications FROM PROGRAM 'cat {files}' CSV")

    def _subscriptions(self, conditions: list[str]) -> DataFrame:
        """One partition for each condition."""
        return self._session.read.jdbc(
            self._url, "subscriptions", predicates=conditions, properties=OPTIONS
        )


def _hateful(batch: DataFrame) -> DataFrame:
    return batch.where("hateful").select("area", "number")


def _joined(subscriptions: DataFrame, tweets: DataFrame) -> DataFrame:
    return subscriptions.join(F.broadcast(tweets), "area").select("id", "number")


STAGED = "staged"
WAYS: dict[str, Callable[[Glued], Handle]] = {
    "all, inserted": lambda glued: glued.join_all(glued.insert),
    "filtered, inserted": lambda glued: glued.join_filtered(glued.insert),
    "all, copied": lambda glued: glued.join_all(glued.copy),
    "filtered, copied": lambda glued: glued.join_filtered(glued.copy),
    STAGED: lambda glued: glued.stage,
}
"""By what the module's text calls them."""
