"""The calls of `AsyncClient` about many continuous queries at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from galileo.client import bulk_submit, watch
from galileo.client.arguments import check_progress, check_tokens, shown
from galileo.client.async_samplers import AsyncSamplers, spec_of
from galileo.client.bulk_fetch import BulkFetcher, UpdateBatch
from galileo.client.bulk_submit import Submission, Submitted
from galileo.client.ingestion import Progress
from galileo.client.read_positions import Stand
from galileo.cursor import Cursor
from galileo.errors import GalileoError, InputError, TransientError
from galileo.model.times import Duration, seconds


class AsyncBulk(AsyncSamplers):
    """Thousands of queries of one reader: submitted, fetched and watched together."""

    _many: BulkFetcher

    async def submit_many(
        self, submissions: Sequence[Submission], *, progress: Progress | None = None
    ) -> list[Submitted]:
        """Submits many continuous queries; some hundreds share one election and one sync.

        Nothing is evaluated at once: the first updates have what matches already. One that is wrong
        does not keep the others from being submitted. A caller that repeats it with the same
        submissions, which have their ids, submits nothing twice.

        Args:
            submissions: what to submit.
            progress: called with the number of those that were answered.

        Returns:
            What became of each, in their order.

        Example:
            >>> conditions = ["temperature > 290", "station = 'KDEN'"]
            >>> alarms = [galileo.Submission("weather", one) for one in conditions]
            >>> [submitted.error for submitted in await client.submit_many(alarms)]
            [None, None]
        """
        check_progress(progress)
        if not isinstance(submissions, Sequence) or not all(
            isinstance(one, Submission) for one in submissions
        ):
            raise InputError(
                "expected a list of submissions, such as [galileo.Submission('weather')], got "
                f"{shown(submissions)}"
            )
        refused = dict[str, GalileoError]()
        sent = [await self._ready(one, refused) for one in submissions]
        done = await bulk_submit.submit_many(self._transport, sent, progress=progress)
        for one in done:
            if one.info is not None:
                self._many.learn(one.id, one.info.coordinator_address)
        return done

    async def _ready(
        self, submission: Submission, refused: dict[str, GalileoError]
    ) -> Submission | Submitted:
        """With a sampler that the nodes have; or why they do not take it, asked once for each."""
        if submission.sampler is None:
            return submission
        spec = spec_of(submission.sampler)
        if spec.archive not in refused:
            try:
                return replace(submission, sampler=await self._at_hand(spec))
            except TransientError:
                raise
            except GalileoError as error:
                refused[spec.archive] = error
        return Submitted(submission.id, error=refused[spec.archive])

    async def fetch_many(
        self, tokens: Mapping[str, str], *, wait: Duration | None = None, labels_max: int = 0
    ) -> UpdateBatch:
        """What is new for many queries, as `fetch` says it for one.

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
        return await self._many.fetch(tokens, wait_s=wait_s, labels_max=labels_max)

    async def watch_many(
        self, tokens: Mapping[str, str], *, labels_max: int = 0
    ) -> AsyncIterator[UpdateBatch]:
        """Updates of many queries as they come; asking for the next ones acknowledges the last.

        Updates without news of any query come where nothing has for ten seconds, and more is known
        to have been looked at for some that had news before: `frontiers` says how far.

        Queries that are over are named among the errors once. Ends when all are.

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
        left, rest = dict[str, Stand](tokens), dict[str, Stand]()
        reported = dict[str, Cursor]()
        while left:
            wait_s = 0.0 if rest else watch.WAIT_S
            updates = await self._many.fetch(rest or left, wait_s=wait_s, labels_max=labels_max)
            over = {
                i for i, error in updates.errors.items() if not isinstance(error, TransientError)
            }
            left = {i: t for i, t in {**left, **updates.stands}.items() if i not in over}
            # An answer without room for all of them: the others come before new ones do.
            rest = {i: left[i] for i in updates.rest if i in left}
            is_quiet = not updates and not over
            # As in a watch of one: after its news it is news how far a query is.
            further = watch.advanced_frontiers(reported, updates.frontiers) if is_quiet else {}
            if further or not is_quiet:
                yield updates
            elif updates.errors:
                await asyncio.sleep(watch.PAUSE_S)
            reported |= further or {i: updates.frontiers[i] for i in updates}
