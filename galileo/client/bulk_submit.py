"""Submits many continuous queries in SubmitMany calls of some hundreds, a few at a time.

The client draws the id of each query, so a call whose answer was lost is repeated without
submitting a query twice.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from galileo.client import decode
from galileo.client.ingestion import Progress
from galileo.client.results import CcqInfo
from galileo.errors import GalileoError, TransientError
from galileo.model.times import Duration, seconds
from galileo.model.windows import Window
from galileo.query.builder import QueryLike, query_text
from galileo.sampler_package import SamplerArchive
from galileo.samplers import SamplerSpec
from galileo.wire.caller import Caller, Connection
from galileo.wire.status import error_from_pb
from galileo.wire.v1 import continuous_pb2
from galileo.wire.v1.continuous_pb2_grpc import ContinuousStub

SUBMISSIONS_PER_CALL = 500
CALL_BYTES_MAX = 4 << 20
CALLS_IN_FLIGHT_MAX = 4

INTERVAL = "1s"
EXPIRATION = "30d"
"""The default: long enough for an alarm, and an end for queries without readers, whose evaluation
and labels take resources."""


def _new_id() -> str:
    return f"ccq-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Submission:
    """A continuous query to be submitted with others; see `AsyncClient.submit`.

    Attributes:
        id: by default drawn at random. A second submission of an id changes nothing, and returns
            the state of the query.

    Example:
        >>> [submitted] = client.submit_many([galileo.Submission("weather", "temperature > 290")])
        >>> submitted.error is None
        True
    """

    dataset: str
    query: QueryLike = ""
    interval: Duration = INTERVAL
    expiration: Duration = EXPIRATION
    sampler: SamplerSpec | SamplerArchive | None = None
    compression: str = "none"
    window: Window | None = None
    id: str = field(default_factory=_new_id)


@dataclass(frozen=True, slots=True)
class Submitted:
    """The outcome of one submission of many.

    Attributes:
        id: of the query.
        token: of the beginning: the first updates have the labels that match already. Empty after
            an error.
        info: of the query; None after an error.
        error: why it was not submitted. After a `TransientError` it may have been submitted; submit
            it again under its id.
    """

    id: str
    token: str = ""
    info: CcqInfo | None = None
    error: GalileoError | None = None

    @property
    def coordinator(self) -> str:
        """The node that coordinates it; empty after an error."""
        return self.info.coordinator if self.info else ""


def _request(submission: Submission) -> continuous_pb2.SubmitRequest:
    spec = submission.sampler
    return continuous_pb2.SubmitRequest(
        ccq_id=submission.id,
        dataset=submission.dataset,
        query=query_text(submission.query),
        interval_s=seconds(submission.interval),
        expiration_s=seconds(submission.expiration),
        sampler_json=spec.to_json() if isinstance(spec, SamplerSpec) else "",
        compression=submission.compression,
        window_json=submission.window.to_json() if submission.window else "",
    )


async def submit_many(
    caller: Caller,
    submissions: Sequence[Submission | Submitted],
    *,
    progress: Progress | None,
) -> list[Submitted]:
    """See `AsyncClient.submit_many`; outcomes among the submissions are returned as they are."""
    gate = asyncio.Semaphore(CALLS_IN_FLIGHT_MAX)
    done: list[Submitted | None] = [None] * len(submissions)
    requests: dict[int, continuous_pb2.SubmitRequest] = {}
    for index, submission in enumerate(submissions):
        if isinstance(submission, Submitted):
            done[index] = submission
            continue
        try:
            requests[index] = _request(submission)
        except GalileoError as error:
            done[index] = Submitted(submission.id, error=error)
    if progress is not None and len(requests) < len(submissions):
        progress(len(submissions) - len(requests))

    async def submit(number: int, part: dict[int, continuous_pb2.SubmitRequest]) -> None:
        async with gate:
            for index, outcome in (await _call(caller, part, number=number)).items():
                done[index] = outcome
            if progress is not None:
                progress(len(part))

    async with asyncio.TaskGroup() as group:
        for number, part in enumerate(_calls(requests)):
            group.create_task(submit(number, part))
    return [outcome for outcome in done if outcome is not None]


def _calls(
    requests: dict[int, continuous_pb2.SubmitRequest],
) -> Iterator[dict[int, continuous_pb2.SubmitRequest]]:
    part: dict[int, continuous_pb2.SubmitRequest] = {}
    size = 0
    for index, request in requests.items():
        part[index] = request
        size += request.ByteSize()
        if len(part) >= SUBMISSIONS_PER_CALL or size >= CALL_BYTES_MAX:
            yield part
            part, size = {}, 0
    if part:
        yield part


async def _call(
    caller: Caller, part: dict[int, continuous_pb2.SubmitRequest], *, number: int
) -> dict[int, Submitted]:
    """Submits until each has a final outcome, or the patience of the caller has ended."""
    done: dict[int, Submitted] = {}
    left = dict(part)

    async def attempt(node: Connection) -> None:
        """Submits what is left; raises the most patient error of those to be repeated."""
        request = continuous_pb2.SubmitManyRequest(submissions=left.values())
        reply = await node.unary(ContinuousStub, "SubmitMany", request)
        for index, outcome in zip(list(left), reply.outcomes, strict=True):
            done[index] = _submitted(left[index].ccq_id, outcome)
            if not isinstance(done[index].error, TransientError):
                del left[index]
        errors = [error for index in left if (error := done[index].error) is not None]
        if errors:
            raise max(errors, key=_advised_s)

    # Spreads the parsing of queries over the nodes.
    first = caller.addresses[number % len(caller.addresses)]
    try:
        await caller.call(attempt, first=first)
    except GalileoError as error:
        if all(outcome.error is not error for outcome in done.values()):
            done |= {
                index: Submitted(request.ccq_id, error=error) for index, request in left.items()
            }
    return done


def _advised_s(error: GalileoError) -> float:
    return float(error.details.get("after_s") or 0.0)


def _submitted(ccq_id: str, outcome: continuous_pb2.SubmitOutcome) -> Submitted:
    if outcome.HasField("error"):
        return Submitted(ccq_id, error=error_from_pb(outcome.error))
    return Submitted(ccq_id, outcome.token, decode.ccq_info(outcome.ccq))
