"""SPARQL over what a continuous query has found so far, kept up to date as more comes.

The follower takes updates one at a time and adds each one's labels to a graph together with the
token that stands for them. What is withdrawn is removed. With a spool, labels and token are durable
before they are added, and a view that is opened again begins with what the spool holds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Protocol

from galileo.client.results import Update
from galileo.client.spool import Spool
from galileo.cursor import CommitRange
from galileo.errors import Cancelled, GalileoError, TransientError
from galileo.labels import LabelSet
from galileo.rdf import Cancellation, IncrementalGraph, SparqlResult
from galileo.rdf.graphs import ROWS_MAX, TIMEOUT_S
from galileo.rdf.incremental_graph import LABELS_MAX


class Updates(Protocol):
    """Where updates come from: an `AsyncClient`."""

    async def fetch(self, ccq_id: str, *, token: str = "") -> Update: ...

    def watch(
        self, ccq_id: str, *, token: str = "", spool: Spool | None = None
    ) -> AsyncIterator[Update]: ...


class SparqlView:
    """A graph of all labels that a continuous query has brought; safe to share between threads.

    Labels that the query withdraws, of a keyed dataset, leave the graph. A query sees whole
    updates: all labels of one, or none. Close the view, or use it in a `with` block, to end the
    following and the process that answers.

    Attributes:
        ccq_id: of the CCQ.
        graph: what is asked.
    """

    def __init__(self, ccq_id: str, graph: IncrementalGraph) -> None:
        self.ccq_id = ccq_id
        self.graph = graph
        self._token = ""
        self._gone: tuple[CommitRange, ...] = ()
        self._ended: GalileoError | None = None
        self._changed = threading.Condition()
        self._follower: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Labels held."""
        return len(self.graph)

    def __repr__(self) -> str:
        return f"<SparqlView of {self.ccq_id}: {len(self):,} labels>"

    @property
    def token(self) -> str:
        """Says what the graph holds, as a watch from the same beginning would have given it."""
        return self._token

    @property
    def labels(self) -> LabelSet:
        """All labels that the graph was made of."""
        return self.graph.labels

    @property
    def missing(self) -> tuple[int, ...]:
        """Partitions whose nodes were away at the last update; what they hold comes later."""
        return self.graph.missing

    @property
    def gone(self) -> tuple[CommitRange, ...]:
        """All that retention had dropped before it was looked at; the graph has none of it."""
        return self._gone

    @property
    def ended(self) -> GalileoError | None:
        """Why nothing more will come: the CCQ's end, or a limit; None while it is followed."""
        return self._ended

    def sparql(
        self,
        text: str,
        *,
        timeout_s: float = TIMEOUT_S,
        rows_max: int = ROWS_MAX,
        cancel: Cancellation | None = None,
    ) -> SparqlResult:
        """Answers a query over what has come; see `galileo.rdf.sparql` for limits and errors.

        Example:
            >>> answer = view.sparql("SELECT ?t { ?label f:temperature ?t } ORDER BY ?t")
            >>> answer.to_pandas()["t"].to_list()
            [291.0, 292.5]
        """
        return self.graph.sparql(text, timeout_s=timeout_s, rows_max=rows_max, cancel=cancel)

    def cancel(self) -> None:
        """Stops the queries that run or wait; the view goes on.

        Example:
            >>> view.cancel()
        """
        self.graph.cancel()

    def wait(self, *, labels: int, timeout_s: float) -> bool:
        """Waits until so many labels are held; whether they came in time.

        Example:
            >>> view.wait(labels=2, timeout_s=60)
            True
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: len(self) >= labels or self._ended is not None, timeout_s
            ) and (len(self) >= labels)

    def apply(self, update: Update) -> int:
        """Adds an update that follows what the view has; returns how many labels were new.

        Raises:
            InputError: it is of another dataset, or the graph is full; then nothing is added.

        Example:
            >>> view.apply(client.fetch(ccq, token=view.token))
            0
        """
        new = self.graph.add(update.labels, withdrawn=update.withdrawn, reset=update.reset)
        with self._changed:
            self._token = update.token
            self._gone += update.gone
            self._changed.notify_all()
        return new

    def close(self) -> None:
        """Ends the following, and the process; again is harmless.

        Example:
            >>> view.close()
        """
        if (follower := self._follower) is not None:
            loop = follower.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(follower.cancel)
        self.graph.close()

    def __enter__(self) -> SparqlView:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _end(self, error: GalileoError) -> None:
        with self._changed:
            self._ended = error
            self._changed.notify_all()


async def open_view(
    updates: Updates, ccq_id: str, *, token: str, spool: Spool | None, labels_max: int = LABELS_MAX
) -> SparqlView:
    """A view that holds everything there is by now, and is followed from there on."""
    if spool is not None:
        spool.check(ccq_id)
        token = spool.token or token
    update = await updates.fetch(ccq_id, token=token)
    view = SparqlView(ccq_id, IncrementalGraph(update.labels.schema, labels_max=labels_max))
    try:
        if spool is not None:
            await asyncio.to_thread(_recall, view, spool)
        while True:
            await asyncio.to_thread(_take, view, update, spool)
            if not update.more:
                break
            update = await updates.fetch(ccq_id, token=update.token)
    except BaseException:
        view.close()
        raise
    view._follower = asyncio.create_task(_follow(view, updates, spool))
    return view


def _recall(view: SparqlView, spool: Spool) -> None:
    view._gone = spool.gone
    for held in spool.updates():
        view.graph.add(held.labels, withdrawn=held.withdrawn, reset=held.reset)


def _take(view: SparqlView, update: Update, spool: Spool | None) -> None:
    if spool is not None and update.is_news:
        spool.store(view.ccq_id, update)
    view.apply(update)


async def _follow(view: SparqlView, updates: Updates, spool: Spool | None) -> None:
    """Adds what comes until the CCQ ends, the graph is full, or the view is closed."""
    token = "" if spool is not None and spool.token else view.token
    try:
        async for update in updates.watch(view.ccq_id, token=token, spool=spool):
            await asyncio.to_thread(view.apply, update)
    except GalileoError as error:
        view._end(error)
    except OSError as error:  # no process, thread or descriptor to be had for the graph
        view._end(
            TransientError(f"the graph could not be kept up to date: {error}; open the view again")
        )
    except asyncio.CancelledError:
        view._end(Cancelled("the view is closed; open it again"))
        raise
