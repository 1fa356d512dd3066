"""The calls of `AsyncClient` about continuous queries: submit, fetch, watch, list, cancel."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from galileo.client import decode, fetching
from galileo.client.arguments import dataset_name, instance_of
from galileo.client.calls import Calls, SamplerLike
from galileo.client.cluster_caller import ANSWER_S
from galileo.client.lost_commits import GoingOn
from galileo.client.results import (
    Ccq,
    CcqInfo,
    CcqLike,
    Update,
    ccq_id_of,
)
from galileo.client.sparql_views import SparqlView, open_view
from galileo.client.spool import Spool
from galileo.cursor import Cursor
from galileo.errors import HistoryChanged, InputError
from galileo.model.times import Duration, seconds
from galileo.model.windows import Window
from galileo.query.builder import QueryLike, query_text
from galileo.rdf.incremental_graph import LABELS_MAX
from galileo.wire.caller import Connection
from galileo.wire.services import CONTINUOUS
from galileo.wire.v1 import continuous_pb2

INTERVAL = "1s"
EXPIRATION = "30d"
"""The default: long enough for an alarm, and an end for queries without readers, whose evaluation
and labels take resources."""
HOLD = "7d"

log = logging.getLogger(__name__)


class AsyncCcqs(Calls):
    """A continuous query is given by its id, or by the result of `submit`."""

    async def submit(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        interval: Duration = INTERVAL,
        expiration: Duration = EXPIRATION,
        sampler: SamplerLike | None = None,
        compression: str = "none",
        window: Window | None = None,
        hold: Duration = HOLD,
    ) -> Ccq:
        """Submits a cached continuous query; it is answered until it expires.

        Args:
            dataset: its name.
            query: CQL2.
            interval: how often new matches are looked for.
            expiration: how long from now it runs. A query that is no longer wanted should be
                cancelled, for until then the cluster evaluates it and keeps its labels.
            sampler: `galileo.sampler(...)` or `galileo.sampler_archive(...)`, thins what is
                found.
            compression: of the cache, "none" or "lz4".
            window: `galileo.Window...`; updates then say which windows their labels belong to,
                and which of them are over.
            hold: how long what the readers of the query may still need is kept if none of them
                fetches, at most 90 days: versions that were replaced or deleted in a keyed dataset,
                and observations that are older than the retention of any dataset. Who fetches later
                gets `Update.reset` or `Update.gone`.

        Raises:
            InputError: an argument is wrong.
            Unavailable: the system partition has no leader, or no node takes the query. It may have
                been stored; `list_ccqs` says so later.

        Example:
            >>> ccq = await client.submit("weather", "temperature > 290", interval="5s")
            >>> len(ccq.initial)
            2
        """
        if window is not None:
            instance_of(Window, window, "windows such as galileo.Window.tumbling('1h')")
        chosen = await self._upload_if_needed(sampler)
        request = continuous_pb2.SubmitRequest(
            ccq_id=f"ccq-{uuid.uuid4().hex}",
            dataset=dataset_name(dataset),
            query=query_text(query),
            interval_s=seconds(interval),
            expiration_s=seconds(expiration),
            sampler_json=chosen.to_json() if chosen else "",
            compression=compression,
            window_json=window.to_json() if window else "",
            hold_s=seconds(hold),
        )

        async def attempt(node: Connection) -> Ccq:
            with node.stream(CONTINUOUS, "Submit", request, timeout_s=ANSWER_S) as stream:
                return await decode.collect_submission(stream)

        ccq = await self._caller.call(attempt)
        self._fetcher.cache_coordinator(ccq.id, ccq.info.coordinator_address)
        return ccq

    async def fetch(
        self, ccq: CcqLike, *, token: str = "", wait: Duration | None = None, labels_max: int = 0
    ) -> Update:
        """What is new for a client that has what `token` says.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update; empty for everything since the beginning.
            wait: for how long to wait for something new; at most a minute. Where no evaluation
                ended in all that time, a warning is logged; `Update.status` says how far it is.
            labels_max: soft bound of the answer; 0 for the node's own.

        Raises:
            InvalidToken: it is damaged or of another CCQ.
            HistoryChanged: commits up to the token were lost; `details["token"]` goes on.
            CcqExpired, CcqCancelled, UnknownCcq: there is nothing to fetch from.

        Example:
            >>> update = await client.fetch(ccq, token=ccq.token)
            >>> len(update.labels), update.more
            (0, False)
        """
        wait_s = 0.0 if wait is None else seconds(wait)
        request = fetching.request(ccq_id_of(ccq), token, wait_s=wait_s, labels_max=labels_max)
        update = await self._fetcher.fetch(request)
        # Where the token has advanced, evaluations have ended, and nothing matched.
        is_news = update.is_news or token not in ("", update.token)
        if 0 < update.interval_s <= wait_s <= update.age_s and not is_news:
            log.warning(
                "fetch of %s found nothing new in %.3g s: %s. An evaluator that starts takes up to "
                "a minute; see galileo doctor",
                request.ccq_id,
                wait_s,
                update.status,
            )
        return update

    def watch(
        self, ccq: CcqLike, *, token: str = "", labels_max: int = 0, spool: Spool | None = None
    ) -> AsyncIterator[Update]:
        """Updates as they come; asking for the next one acknowledges the last.

        One without anything new comes where nothing has for ten seconds, and more is known to have
        been looked at since the last: its frontier says how far.

        Resumes at another node after a failure, until the CCQ ends, which raises `CcqExpired` or
        `CcqCancelled`.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update; empty for everything since the beginning.
            labels_max: soft bound of an update; 0 for the node's own.
            spool: stores each update before it is yielded, and begins where it ends, so that a
                reader that crashes goes on without a gap or a repetition. It has its own token.

        Raises:
            InputError: the spool is of another CCQ, or a token and a spool with one were given.
            SpoolConflict: another reader stores into the same spool.
            TransientError: the spool cannot be written; it is as it was.
            HistoryChanged: commits up to the last update were lost. It is raised once: the same
                iterator then goes on behind them, and so does the spool.

        Example:
            >>> async for update in client.watch(ccq):
            ...     print(len(update.labels))
            ...     break
            2
        """
        ccq_id, stored_token = ccq_id_of(ccq), ""
        if spool is not None:
            instance_of(Spool, spool, "a galileo.Spool")
            stored_token = spool.token
            token = _first_token(spool, ccq_id, stored_token=stored_token, given=token)

        async def watched(token: str) -> AsyncGenerator[Update, None]:
            nonlocal stored_token
            reported: Cursor | None = None
            try:
                watched = self._fetcher.watch(ccq_id, token, labels_max=labels_max)
                async with aclosing(watched) as updates:
                    async for update in updates:
                        # After an update with labels, an advanced frontier is news.
                        has_advanced = reported is not None and not reported.covers(update.frontier)
                        if not (update.is_news or has_advanced):
                            continue
                        if spool is not None:
                            await asyncio.to_thread(spool.store, ccq_id, update, after=stored_token)
                            stored_token = update.token
                        reported = update.frontier
                        yield update
            except HistoryChanged as error:
                if spool is not None and stored_token:
                    following = error.details["token"]
                    await asyncio.to_thread(spool.go_on, ccq_id, following, after=stored_token)
                    stored_token = following
                raise

        return GoingOn(watched, token)

    async def sparql_view(
        self,
        ccq: CcqLike,
        *,
        token: str = "",
        spool: Spool | None = None,
        labels_max: int = LABELS_MAX,
    ) -> SparqlView:
        """The labels of a CCQ as an RDF graph for SPARQL, which grows with each update.

        It holds all present labels when it returns. Its calls block, and threads may share it;
        close it when done.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update that is not wanted; empty for everything.
            spool: stores each update before it is added, and is where the view begins, so that
                one that is opened again needs to fetch only what is new.
            labels_max: how many labels the graph holds; then following ends, with a reason.

        Raises:
            InputError: the spool is of another CCQ; or there are more than `labels_max` already.
            CcqExpired, CcqCancelled, UnknownCcq: there is nothing to follow.

        Example:
            >>> view = await client.sparql_view(ccq)
            >>> len(view)
            2
            >>> view.close()
        """
        return await open_view(
            self, ccq_id_of(ccq), token=token, spool=spool, labels_max=labels_max
        )

    async def list_ccqs(self, dataset: str = "") -> list[CcqInfo]:
        """The CCQs that the cluster answers, and that the caller may use.

        Args:
            dataset: only those of this one. A caller whose grants name datasets has to name one.

        Raises:
            Forbidden: the caller has no grant on the dataset, or not on every one if none is named.
            Unavailable: the system partition has no leader.

        Example:
            >>> ccq.id in {info.id for info in await client.list_ccqs()}
            True
        """
        key = (await self._schema(dataset)).key if dataset else ""
        request = continuous_pb2.ListRequest(dataset=key)
        reply = await self._caller.unary(CONTINUOUS, "List", request)
        return [decode.ccq_info(value) for value in reply.ccqs]

    async def cancel(self, ccq: CcqLike) -> None:
        """Ends a CCQ everywhere; its watchers get `CcqCancelled`.

        Raises:
            UnknownCcq: there is none.
            Unavailable: the system partition has no leader.

        Example:
            >>> ccq = await client.submit("weather")
            >>> await client.cancel(ccq)
        """
        request = continuous_pb2.CancelRequest(ccq_id=ccq_id_of(ccq))
        await self._caller.unary(CONTINUOUS, "Cancel", request)


def _first_token(spool: Spool, ccq_id: str, *, stored_token: str, given: str) -> str:
    """The token at which a watch with a spool begins."""
    spool.check(ccq_id)
    if given and stored_token not in ("", given):
        raise InputError(
            f"the spool {spool.path} has its own token; leave the token out", parameter="token"
        )
    return stored_token or given
