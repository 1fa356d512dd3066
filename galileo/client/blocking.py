"""The blocking client: an `AsyncClient` on an event loop of its own thread."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from galileo.client.async_client import NOT_SENT, AsyncClient
from galileo.client.async_samplers import SamplerLike
from galileo.client.exploration import CHILDREN
from galileo.client.findings import (
    Children,
    Estimate,
    FeatureSummary,
    Neighbours,
    QueryExplanation,
    Vertex,
)
from galileo.client.ingestion import BATCH_ROWS, Batches, Progress, is_stream
from galileo.client.loop_thread import Handed, LoopThread
from galileo.client.many import ManyUpdates
from galileo.client.moving import MoveProgress
from galileo.client.proof import Proof
from galileo.client.queries import LabelBatches
from galileo.client.results import (
    Caller,
    Ccq,
    CcqInfo,
    ClusterStatus,
    Labels,
    QueryEnd,
    Receipt,
    RetentionReport,
    RevokedSampler,
    SentSampler,
    Update,
)
from galileo.client.sparql_views import SparqlView
from galileo.client.spool import Spool
from galileo.client.submitting import Submission, Submitted
from galileo.labels import LabelSet
from galileo.model.retention import Retention
from galileo.model.schema import Schema
from galileo.model.times import Duration
from galileo.model.windows import Window
from galileo.query.builder import QueryLike
from galileo.rdf.growing import LABELS_MAX
from galileo.sampler_archives import SamplerArchive

Result = TypeVar("Result")


def connect(
    address: str,
    *more: str,
    timeout: Duration | None = None,
    token: str = "",
    token_file: str | Path = "",
    tls: str | Path = "",
    insecure: bool = False,
) -> Client:
    """A client of the cluster that a node at "host:port" belongs to.

    Args:
        address: of any node.
        more: of others, tried when the first is away.
        timeout: retry unreachable or busy nodes for up to this long.
        token: that proves who calls, where the cluster asks; else from GALILEO_TOKEN.
        token_file: a file of it, which nobody else may read; else from GALILEO_TOKEN_FILE.
        tls: a directory with certificate.pem, key.pem and authority.pem, as `galileo certs`
            makes it; else from GALILEO_TLS.
        insecure: whether the token may travel unencrypted to other machines.
    """
    proof = Proof(token, token_file, tls, insecure)
    return Client(address, *more, timeout=timeout, proof=proof)


class Client:
    """A cluster, from the outside; every call blocks, Ctrl-C cancels it.

    The calls are those of `AsyncClient`, which documents them.
    """

    def __init__(
        self, *addresses: str, timeout: Duration | None = None, proof: Proof | None = None
    ) -> None:
        self._loop = LoopThread("galileo-client")
        try:
            self._client = self._run(_made(addresses, timeout, proof))
        except BaseException:
            self._loop.close()
            raise

    def __repr__(self) -> str:
        return repr(self._client).replace("<AsyncClient", "<Client", 1)

    def __reduce__(self) -> Any:
        raise TypeError(NOT_SENT)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every call that is under way with `Cancelled`; again is harmless."""
        self._loop.close(self._client.close())

    def create_dataset(self, schema: Schema, *, retention: Retention | None = None) -> None:
        self._run(self._client.create_dataset(schema, retention=retention))

    def set_retention(self, dataset: str, retention: Retention | None) -> None:
        self._run(self._client.set_retention(dataset, retention))

    def retention(self, dataset: str) -> Retention | None:
        return self._run(self._client.retention(dataset))

    def apply_retention(self, dataset: str) -> tuple[RetentionReport, ...]:
        return self._run(self._client.apply_retention(dataset))

    def send_sampler(self, archive: SamplerArchive) -> SentSampler:
        return self._run(self._client.send_sampler(archive))

    def sent_samplers(self) -> list[SentSampler]:
        return self._run(self._client.sent_samplers())

    def revoke_sampler(self, digest: str) -> RevokedSampler:
        return self._run(self._client.revoke_sampler(digest))

    def datasets(self) -> list[Schema]:
        return self._run(self._client.datasets())

    def schema(self, dataset: str) -> Schema:
        return self._run(self._client.schema(dataset))

    def ingest(
        self,
        dataset: str,
        data: Batches,
        *,
        producer: str | None = None,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
    ) -> Receipt:
        handed = Handed(data) if is_stream(data) else None
        work = self._client.ingest(
            dataset,
            data if handed is None else handed,
            producer=producer,
            batch_rows=batch_rows,
            progress=progress,
        )
        return self._loop.run(work, handed=handed)

    def query(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        sampler: SamplerLike | None = None,
        progress: Progress | None = None,
    ) -> Labels:
        return self._run(self._client.query(dataset, query, sampler=sampler, progress=progress))

    def query_batches(
        self, dataset: str, query: QueryLike = "", *, sampler: SamplerLike | None = None
    ) -> BlockingLabelBatches:
        batches = self._client.query_batches(dataset, query, sampler=sampler)
        return BlockingLabelBatches(batches, self._iterate(batches))

    def read(
        self, labels: LabelSet, *, exact: bool = True, progress: Progress | None = None
    ) -> pa.Table:
        return self._run(self._client.read(labels, exact=exact, progress=progress))

    def read_batches(self, labels: LabelSet, *, exact: bool = True) -> BlockingTables:
        tables = self._iterate(self._client.read_batches(labels, exact=exact))
        return BlockingTables(labels, tables)

    def select(
        self, dataset: str, query: QueryLike = "", *, columns: Sequence[str] = ()
    ) -> pa.Table:
        return self._run(self._client.select(dataset, query, columns=columns))

    def count(self, dataset: str, query: QueryLike = "") -> int:
        return self._run(self._client.count(dataset, query))

    def explain(self, dataset: str, query: QueryLike = "") -> QueryExplanation:
        return self._run(self._client.explain(dataset, query))

    def nearest(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        latitude: float,
        longitude: float,
        k: int = 10,
        within_m: float | None = None,
    ) -> Neighbours:
        return self._run(
            self._client.nearest(
                dataset, query, latitude=latitude, longitude=longitude, k=k, within_m=within_m
            )
        )

    def summarise(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        feature: str,
        bins: int | Sequence[float] | None = None,
    ) -> FeatureSummary:
        return self._run(self._client.summarise(dataset, query, feature=feature, bins=bins))

    def children(
        self,
        dataset: str,
        vertex: str | Sequence[Any] = "",
        *,
        order: Sequence[str] | None = None,
        limit: int = CHILDREN,
        after: Any = None,
    ) -> Children:
        return self._run(
            self._client.children(dataset, vertex, order=order, limit=limit, after=after)
        )

    def tree(
        self,
        dataset: str,
        vertex: str | Sequence[Any] = "",
        *,
        order: Sequence[str] | None = None,
        depth: int | None = None,
    ) -> Iterator[Vertex]:
        return self._iterate(self._client.tree(dataset, vertex, order=order, depth=depth))

    def estimate(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        feature: str | None = None,
        quantiles: Sequence[float] = (),
    ) -> Estimate:
        return self._run(
            self._client.estimate(dataset, query, feature=feature, quantiles=quantiles)
        )

    def submit(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        interval: Duration,
        expiration: Duration,
        sampler: SamplerLike | None = None,
        compression: str = "none",
        window: Window | None = None,
    ) -> Ccq:
        return self._run(
            self._client.submit(
                dataset,
                query,
                interval=interval,
                expiration=expiration,
                sampler=sampler,
                compression=compression,
                window=window,
            )
        )

    def fetch(
        self, ccq_id: str, *, token: str = "", wait: Duration | None = None, labels_max: int = 0
    ) -> Update:
        return self._run(self._client.fetch(ccq_id, token=token, wait=wait, labels_max=labels_max))

    def watch(
        self, ccq_id: str, *, token: str = "", labels_max: int = 0, spool: Spool | None = None
    ) -> Iterator[Update]:
        return self._iterate(
            self._client.watch(ccq_id, token=token, labels_max=labels_max, spool=spool)
        )

    def sparql_view(
        self,
        ccq_id: str,
        *,
        token: str = "",
        spool: Spool | None = None,
        labels_max: int = LABELS_MAX,
    ) -> SparqlView:
        return self._run(
            self._client.sparql_view(ccq_id, token=token, spool=spool, labels_max=labels_max)
        )

    def submit_many(
        self, submissions: Sequence[Submission], *, progress: Progress | None = None
    ) -> list[Submitted]:
        return self._run(self._client.submit_many(submissions, progress=progress))

    def fetch_many(
        self, tokens: Mapping[str, str], *, wait: Duration | None = None, labels_max: int = 0
    ) -> ManyUpdates:
        return self._run(self._client.fetch_many(tokens, wait=wait, labels_max=labels_max))

    def watch_many(
        self, tokens: Mapping[str, str], *, labels_max: int = 0
    ) -> Iterator[ManyUpdates]:
        return self._iterate(self._client.watch_many(tokens, labels_max=labels_max))

    def list_ccqs(self) -> list[CcqInfo]:
        return self._run(self._client.list_ccqs())

    def cancel(self, ccq_id: str) -> None:
        self._run(self._client.cancel(ccq_id))

    def status(self) -> ClusterStatus:
        return self._run(self._client.status())

    def whoami(self) -> Caller:
        return self._run(self._client.whoami())

    def drain(self, node: str, *, undo: bool = False) -> None:
        self._run(self._client.drain(node, undo=undo))

    def move(self, partition: int, *, to: str) -> Iterator[MoveProgress]:
        return self._iterate(self._client.move(partition, to=to))

    def topology_json(self) -> str:
        return self._run(self._client.topology_json())

    def _run(self, work: Awaitable[Result]) -> Result:
        return self._loop.run(work)

    def _iterate(self, items: Any) -> Generator[Any, None, None]:
        """Steps through an async generator; closing the iterator closes it too."""
        try:
            while True:
                try:
                    item = self._run(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._loop.end(items)


class BlockingTables(Iterator[pa.Table]):
    """Observations in pieces; `close` it where it is not read to its end."""

    def __init__(self, labels: LabelSet, steps: Generator[pa.Table, None, None]) -> None:
        self._labels = labels
        self._steps = steps

    @property
    def arrow_schema(self) -> pa.Schema:
        """Of the pieces, also where there is none."""
        return self._labels.schema.observation_schema

    def __next__(self) -> pa.Table:
        return next(self._steps)

    def close(self) -> None:
        """Ends the reading at the nodes, too; harmless where it has ended."""
        self._steps.close()


class BlockingLabelBatches:
    """`LabelBatches` for `for`; leave a `with` block or `close` it where it is not read to its end.

    Attributes:
        end: how far the answer goes; None until all labels were given.
    """

    def __init__(self, batches: LabelBatches, steps: Generator[Labels, None, None]) -> None:
        self._batches = batches
        self._steps = steps

    @property
    def end(self) -> QueryEnd | None:
        return self._batches.end

    @property
    def arrow_schema(self) -> pa.Schema | None:
        """Of the labels as tables, also where there are none; None until the answer has begun."""
        schema = self._batches.schema
        return None if schema is None else Labels.empty(schema).to_arrow().schema

    def __iter__(self) -> BlockingLabelBatches:
        return self

    def __next__(self) -> Labels:
        return next(self._steps)

    def __enter__(self) -> BlockingLabelBatches:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the answer at the nodes, too; harmless where it has ended."""
        self._steps.close()


async def _made(
    addresses: tuple[str, ...], timeout: Duration | None, proof: Proof | None
) -> AsyncClient:
    return AsyncClient(*addresses, timeout=timeout, proof=proof)
