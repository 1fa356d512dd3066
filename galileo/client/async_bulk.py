"""The calls of `AsyncClient` about many continuous queries at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from galileo.client import bulk_submit
from galileo.client.arguments import check_progress, check_tokens, shown
from galileo.client.async_samplers import AsyncSamplers, spec_of
from galileo.client.bulk_fetch import BulkFetcher, ReadPosition, UpdateBatch
from galileo.client.bulk_submit import Submission, Submitted
from galileo.client.ingestion import Progress
from galileo.cursor import Cursor
from galileo.errors import GalileoError, InputError, TransientError
from galileo.model.times import Duration, seconds


class AsyncBulk(AsyncSamplers):
    """Submits, fetches and watches thousands of queries of one reader together."""

    _bulk_fetcher: BulkFetcher

    async def submit_many(
        self, submissions: Sequence[Submission], *, progress: Progress | None = None
    ) -> list[Submitted]:
        """Submits many continuous queries; some hundreds share one election and one sync.

        Nothing is evaluated at once: the first updates have the labels that match already. A wrong
        submission does not stop the others. The same submissions have the same ids, so a repeated
        call submits nothing twice.

        Args:
            submissions: what to submit.
            progress: called with the number of submissions that were answered.

        Returns:
            The outcome of each submission, in their order.

        Example:
            >>> conditions = ["temperature > 290", "station = 'KDEN'"]
            >>> alarms = [galileo.Submission("weather", one) for one in conditions]
            >>> [submitted.error for submitted in await client.submit_many(alarms)]
            [None, None]
        """
        check_progress(progress)
        if not isinstance(submissions, Sequence) or not all(
            isinstance(submission, Submission) for submission in submissions
        ):
            raise InputError(
                "expected a list of submissions, such as [galileo.Submission('weather')], got "
                f"{shown(submissions)}"
            )
        refused = dict[str, GalileoError]()
        sent = [await self._ready(submission, refused) for submission in submissions]
        done = await bulk_submit.submit_many(self._caller, sent, progress=progress)
        for outcome in done:
            if outcome.info is not None:
                self._bulk_fetcher.cache_coordinator(outcome.id, outcome.info.coordinator_address)
        return done

    async def _ready(
        self, submission: Submission, refused: dict[str, GalileoError]
    ) -> Submission | Submitted:
        """The submission with its sampler uploaded, or the error; each sampler is uploaded once."""
        if submission.sampler is None:
            return submission
        spec = spec_of(submission.sampler)
        if spec.archive not in refused:
            try:
                return replace(submission, sampler=await self._upload_if_needed(spec))
            except TransientError:
                raise
            except GalileoError as error:
                refused[spec.archive] = error
        return Submitted(submission.id, error=refused[spec.archive])

    async def fetch_many(
        self, tokens: Mapping[str, str], *, wait: Duration | None = None, labels_max: int = 0
    ) -> UpdateBatch:
        """The news of many queries; as `fetch` for one.

        Args:
            tokens: of the last updates, by the ids of the queries.
            wait: for how long to wait until there is something new for any; at most a minute.
            labels_max: soft bound of each node's answer; 0 for the node's own.

        Example:
            >>> updates = await client.fetch_many({ccq.id: ""})
            >>> len(updates[ccq.id].labels)
            2
        """
        check_tokens(tokens)
        wait_s = 0.0 if wait is None else seconds(wait)
        return await self._bulk_fetcher.fetch(tokens, wait_s=wait_s, labels_max=labels_max)

    async def watch_many(
        self, tokens: Mapping[str, str], *, labels_max: int = 0
    ) -> AsyncIterator[UpdateBatch]:
        """Updates of many queries as they come; the request for the next acknowledges the last.

        After ten seconds without news, an update without labels reports the new `frontiers` of
        queries that had news before.

        A query that has ended is among the errors once. The iterator ends when all have ended.

        Args:
            tokens: of the last updates, by the ids of the queries.
            labels_max: soft bound of each node's answer; 0 for the node's own.

        Example:
            >>> async for updates in client.watch_many({ccq.id: ""}):
            ...     print(len(updates[ccq.id].labels))
            ...     break
            2
        """
        check_tokens(tokens)
        left, rest = dict[str, ReadPosition](tokens), dict[str, ReadPosition]()
        reported = dict[str, Cursor]()
        while left:
            wait_s = 0.0 if rest else self._caller.options.watch_wait_s
            updates = await self._bulk_fetcher.fetch(
                rest or left, wait_s=wait_s, labels_max=labels_max
            )
            over = {
                i for i, error in updates.errors.items() if not isinstance(error, TransientError)
            }
            left = {i: t for i, t in {**left, **updates.positions}.items() if i not in over}
            # If an answer had no room for all queries, the rest is fetched before new labels.
            rest = {i: left[i] for i in updates.rest if i in left}
            is_quiet = not updates and not over
            # As `watch` of one query: after its labels, its frontier is news.
            advanced = _advanced(reported, updates.frontiers) if is_quiet else {}
            if advanced or not is_quiet:
                yield updates
            elif updates.errors:
                await asyncio.sleep(self._caller.options.pause_s)
            reported |= advanced or {i: updates.frontiers[i] for i in updates}


def _advanced(reported: Mapping[str, Cursor], frontiers: Mapping[str, Cursor]) -> dict[str, Cursor]:
    """The frontiers of those queries that are beyond the ones reported last."""
    return {
        ccq_id: frontier
        for ccq_id, frontier in frontiers.items()
        if ccq_id in reported and not reported[ccq_id].covers(frontier)
    }
