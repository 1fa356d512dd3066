"""Continuous queries: submit, list, cancel, and read by fetches or events."""

from __future__ import annotations

import contextlib
import functools
import json
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from galileo.client.async_ccqs import EXPIRATION, HOLD, INTERVAL
from galileo.client.async_client import AsyncClient
from galileo.client.results import Ccq, CcqInfo, Update
from galileo.errors import Forbidden, InputError, UnknownCcq
from galileo.gateway import documents, parameters
from galileo.gateway.callers import Callers
from galileo.gateway.events import HEARTBEAT_S, EventStream, MergedEvents
from galileo.gateway.formats import Encoders, preferred
from galileo.gateway.hub import Hubs, QueryReader
from galileo.gateway.json_answers import check_json, json_answer, url_of
from galileo.gateway.request_bodies import JSON_STEP_BYTES, json_body, start_of_json
from galileo.gateway.route_group import RouteGroup
from galileo.gateway.updates import (
    LABEL_FORMATS,
    TOKEN_HEADER,
    cut,
    encode_labels,
    encode_update,
    link_members,
    windows_of,
)
from galileo.model.times import iso
from galileo.model.windows import Window
from galileo.offload import offload
from galileo.query.builder import Condition
from galileo.samplers import SamplerSpec, sampler

LABELS_MAX = 10_000
"""Soft bound of the labels of an answer; the next one has the rest."""
MERGED_MAX = 64
"""Queries of a stream of several."""
SUBMISSION = ("dataset", "query", "interval", "expiration", "sampler", "window", "hold")
"""Members of a submission."""


class CcqRoutes(RouteGroup):
    """Answers requests about continuous queries."""

    def __init__(self, callers: Callers, encoders: Encoders) -> None:
        super().__init__(callers, encoders)
        self.hubs = Hubs()

    async def ccqs(self, request: Request) -> Response:
        """Lists the queries of the caller, or submits one."""
        check_json(request)
        if request.method == "POST":
            return await self._submit(request)
        async with self._callers.client(request) as client:
            infos = await visible_ccqs(client)

        def answer() -> Response:
            described = [_described(url_of(request), info) for info in infos]
            at = f"{url_of(request)}/ccqs"
            links = [documents.link("self", at, documents.JSON), documents.page_link(at)]
            return json_answer({"links": links, "ccqs": described})

        return await self._encoders.run(answer)

    async def ccq(self, request: Request) -> Response:
        """Describes a query, or cancels it."""
        check_json(request)
        ccq_id = request.path_params["ccqId"]
        async with self._callers.client(request) as client:
            if request.method == "DELETE":
                await client.cancel(ccq_id)
                return Response(status_code=HTTPStatus.NO_CONTENT)
            info = await info_of(client, ccq_id)
            steps = len(info.query) // JSON_STEP_BYTES
            return await offload(steps, lambda: json_answer(_described(url_of(request), info)))

    async def ccq_labels(self, request: Request) -> Response:
        """What is new after a token."""
        given = parameters.single_values(request.query_params, parameters.CCQ_LABELS)
        format = preferred(given.get("f"), request.headers.get("accept", ""), LABEL_FORMATS)
        wait_s = parameters.wait_s(given.get("wait", ""))
        ccq_id, until = request.path_params["ccqId"], given.get("until", "")
        async with self._callers.client(request) as client:
            update = await client.fetch(
                ccq_id, token=given.get("after", ""), wait=wait_s or None, labels_max=LABELS_MAX
            )
            if until:
                if update.labels.schema.is_keyed:
                    raise InputError(
                        "expected until with a query over a dataset without a key, because "
                        "what counted at a token may be replaced by now; leave until out",
                        parameter="until",
                        expected="no_key",
                    )
                update = cut(update, until, ccq_id=ccq_id)
            return await self._labels_answer(update, format)

    async def ccq_events(self, request: Request) -> EventStream:
        """The same as server-sent events, until the client leaves or the query ends."""
        given = parameters.single_values(request.query_params, ("after",))
        token = request.headers.get("last-event-id", given.get("after", ""))
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._callers.reader(request))
            reader = QueryReader(self.hubs, client, request.path_params["ccqId"], token=token)
            events = reader.events(await reader.fetch(), heartbeat_s=HEARTBEAT_S)
            return EventStream(events, held=stack.pop_all())

    async def events(self, request: Request) -> Response:
        """The events of several queries in one stream, until all of them end."""
        parameters.single_values(request.query_params, ())
        tokens = await _tokens(request)
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._callers.reader(request))
            await client.whoami()  # Each query has its own error, but not one of the caller.
            readers = [
                QueryReader(self.hubs, client, ccq_id, token=token)
                for ccq_id, token in tokens.items()
            ]
            return MergedEvents(readers, self.hubs, held=stack.pop_all())

    async def _submit(self, request: Request) -> Response:
        submission = await _submission(request)
        async with self._callers.client(request) as client:
            ccq = await client.submit(submission.pop("dataset"), **submission)
        url = url_of(request)
        body = await self._encoders.run(functools.partial(_submitted, url, ccq))
        headers = {"Location": f"{url}/ccqs/{ccq.id}", TOKEN_HEADER: ccq.token}
        return Response(body, HTTPStatus.CREATED, headers=headers, media_type=documents.JSON)

    async def _labels_answer(self, update: Update, format: str) -> Response:
        body = await self._encoders.run(functools.partial(encode_update, update, format))
        headers = {TOKEN_HEADER: update.token, "Vary": "Accept"}
        return Response(body, headers=headers, media_type=LABEL_FORMATS[format])


async def visible_ccqs(client: AsyncClient) -> list[CcqInfo]:
    """The queries that the caller may use."""
    try:
        return await client.list_ccqs()
    except Forbidden:  # Its grants name datasets.
        schemas = await client.datasets()
        return [info for schema in schemas for info in await client.list_ccqs(schema.name)]


async def info_of(client: AsyncClient, ccq_id: str) -> CcqInfo:
    """A query of the caller. Raises UnknownCcq if there is none of that id."""
    for info in await visible_ccqs(client):
        if info.id == ccq_id:
            return info
    raise UnknownCcq(f"there is no continuous query {ccq_id!r}", ccq_id=ccq_id)


def _initial_members(ccq: Ccq) -> dict[str, Any]:
    return {
        "token": ccq.token,
        "missing": list(ccq.initial.missing),
        **windows_of(ccq.windows, ccq.clock_us),
    }


def _submitted(url: str, ccq: Ccq) -> bytes:
    """The answer to a submission: the query, with its first labels if they are few."""
    members = {**_described(url, ccq.info), **_initial_members(ccq)}
    if len(ccq.initial) <= LABELS_MAX:
        return encode_labels(ccq.initial, "json", members)
    is_keyed = ccq.initial.schema.is_keyed  # What counts at the token cannot be asked for later.
    link = link_members(len(ccq.initial), "", "" if is_keyed else ccq.token)
    location = f"{url}/ccqs/{ccq.id}"
    others = [{**one, "href": f"{location}/{one['href']}"} for one in link["links"]]
    return json.dumps({**members, **link, "links": [*members["links"], *others]}).encode()


def _described(root: str, info: CcqInfo) -> dict[str, Any]:
    """A continuous query, as JSON values; `root` is the URL of the gateway."""
    url = f"{root}/ccqs/{info.id}"
    return {
        "id": info.id,
        "dataset": info.dataset,
        "query": json.loads(info.query) if info.query.startswith("{") else info.query,
        "interval": info.interval_s,
        "expires": iso(round(info.expires_at * 1e6)),
        "hold": info.hold_s,
        "state": info.state,
        "coordinator": info.coordinator,
        "sampler": json.loads(info.sampler.to_json()) if info.sampler else None,
        "window": str(info.window) if info.window else None,
        "owner": info.owner,
        "links": [
            documents.link("self", url, documents.JSON, "this query"),
            documents.page_link(url),
            documents.link("items", f"{url}/labels", LABEL_FORMATS["geojson"], "its labels"),
            documents.link("monitor", f"{url}/events", documents.EVENT_STREAM, "its events"),
        ],
    }


async def _tokens(request: Request) -> dict[str, str]:
    """The queries of a stream of several, with the token of the last event of each.

    Raises:
        InputError: the body is something else.
        Refused: it is not JSON, or too large.
    """
    given = await json_body(request)
    ccqs = given.get("ccqs") if isinstance(given, dict) and len(given) == 1 else None
    if not isinstance(ccqs, dict) or not all(isinstance(one, str) for one in ccqs.values()):
        raise InputError(
            'expected ids and tokens of continuous queries, such as {"ccqs": {"ccq-8c1f": ""}}, '
            f"got {start_of_json(given)}",
            parameter="ccqs",
        )
    if not 1 <= len(ccqs) <= MERGED_MAX:
        raise InputError(
            f"expected 1 to {MERGED_MAX} continuous queries in a stream, got {len(ccqs)}; open "
            "several streams",
            parameter="ccqs",
            bound=MERGED_MAX,
        )
    return ccqs


async def _submission(request: Request) -> dict[str, Any]:
    """The arguments of `AsyncClient.submit`.

    Raises:
        InputError: the body is something else.
        Refused: it is not JSON, or too large.
    """
    given = await json_body(request)
    if not isinstance(given, dict) or not isinstance(given.get("dataset"), str):
        raise InputError("expected a JSON object with the name of a dataset", expected="dataset")
    if unknown := sorted(set(given) - set(SUBMISSION)):
        raise InputError(
            f"there is no member {unknown[0]!r}; expected {', '.join(SUBMISSION)}",
            parameter=unknown[0],
        )
    return {
        "dataset": given["dataset"],
        "query": _query_of(given.get("query") or ""),
        "interval": given.get("interval", INTERVAL),
        "expiration": given.get("expiration", EXPIRATION),
        "sampler": _sampler_of(given.get("sampler")),
        "window": _window_of(given.get("window")),
        "hold": given.get("hold", HOLD),
    }


def _query_of(given: Any) -> str | Condition:
    if not isinstance(given, str | dict):
        raise InputError(f"expected query as CQL2 text or JSON, got {given!r}", parameter="query")
    return Condition(given) if isinstance(given, dict) else given


def _sampler_of(given: Any) -> SamplerSpec | None:
    """The sampler of `{"name": "uniform", "fraction": 0.1}`, with "seed" if it is given."""
    if given is None:
        return None
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise InputError(
            'expected a sampler such as {"name": "uniform", "fraction": 0.1}, got '
            f"{start_of_json(given)}",
            parameter="sampler",
        )
    return sampler(**given)


def _window_of(given: Any) -> Window | None:
    """The windows of "tumbling:1h", or of `{"windows": "sliding:6h/1h", "lateness": "10m"}`."""
    members = given if isinstance(given, dict) else {"windows": given}
    if given is None:
        return None
    if set(members) - {"windows", "lateness"} or not isinstance(members.get("windows"), str):
        raise InputError(
            'expected windows such as "tumbling:1h", or {"windows": "sliding:6h/1h", "lateness": '
            f'"10m"}}, got {start_of_json(given)}',
            parameter="window",
        )
    return Window.parse(members["windows"], lateness=members.get("lateness"))
