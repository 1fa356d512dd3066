"""Answers to requests that fail: problem details (RFC 9457), with the kind of the error."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from galileo import errors, request_id
from galileo.cursor import Cursor
from galileo.errors import GalileoError
from galileo.redaction import redacted

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

# Looked up along the ancestors of a class, so that a new class has the status of its branch.
STATUSES: dict[str, HTTPStatus] = {
    errors.GalileoError.kind: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.InputError.kind: HTTPStatus.BAD_REQUEST,
    errors.UnknownDataset.kind: HTTPStatus.NOT_FOUND,
    errors.UnknownCcq.kind: HTTPStatus.NOT_FOUND,
    errors.UnknownSampler.kind: HTTPStatus.NOT_FOUND,
    errors.UnknownBroker.kind: HTTPStatus.NOT_FOUND,
    errors.DatasetExists.kind: HTTPStatus.CONFLICT,
    errors.BatchConflict.kind: HTTPStatus.CONFLICT,
    errors.Conflict.kind: HTTPStatus.PRECONDITION_FAILED,
    errors.SpoolConflict.kind: HTTPStatus.CONFLICT,
    errors.MessageTooLarge.kind: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.ConfigError.kind: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.NotPermitted.kind: HTTPStatus.FORBIDDEN,
    errors.Unauthenticated.kind: HTTPStatus.UNAUTHORIZED,
    errors.QuotaExceeded.kind: HTTPStatus.TOO_MANY_REQUESTS,
    errors.NotOwner.kind: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.TransientError.kind: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Throttled.kind: HTTPStatus.TOO_MANY_REQUESTS,
    errors.DeadlineExceeded.kind: HTTPStatus.GATEWAY_TIMEOUT,
    errors.TerminalError.kind: HTTPStatus.GONE,
    errors.Cancelled.kind: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.InternalError.kind: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class RequestRefused(Exception):
    """A refused request: the HTTP status, and the reason as plain text."""

    def __init__(self, status: HTTPStatus, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def status_of(error: GalileoError) -> HTTPStatus:
    """The status of an error: that of its own kind or of its nearest ancestor's."""
    for cls in type(error).__mro__:
        if issubclass(cls, GalileoError) and cls.kind in STATUSES:
            return STATUSES[cls.kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem_of(error: GalileoError) -> Response:
    """The answer to a request that failed with an error."""
    status, headers = status_of(error), dict[str, str]()
    after_s = error.details.get("after_s", RETRY_AFTER_S)
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers["Retry-After"] = str(max(1, math.ceil(float(after_s))))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"  # Not Basic, which browsers would keep.
    return _answer(problem_document(error), headers)


def problem_document(error: GalileoError) -> dict[str, Any]:
    """The problem details of an error."""
    details = {
        key: value
        for key, value in error.details.items()
        if key not in ("remedy", request_id.DETAIL)
    }
    members: dict[str, Any] = {"kind": error.kind, "details": details}
    return _document(status_of(error), error.http_message, members)


def problem(
    status: HTTPStatus, detail: str, *, headers: dict[str, str] | None = None, **members: Any
) -> Response:
    """Problem details.

    Args:
        status: of the answer.
        detail: what is wrong with this request.
        headers: of the answer.
        **members: further members of the document.
    """
    return _answer(_document(status, detail, members), headers)


def _document(status: HTTPStatus, detail: str, members: dict[str, Any]) -> dict[str, Any]:
    document = {"title": status.phrase, "status": status.value, "detail": detail, **members}
    if request := request_id.current():
        document["request"] = request
    return document


def _plain(value: Any) -> Any:
    """JSON values of a detail."""
    return {str(p): last for p, last in value.items()} if isinstance(value, Cursor) else str(value)


def _answer(document: dict[str, Any], headers: dict[str, str] | None) -> Response:
    body = redacted(json.dumps(document, default=_plain))  # A user may have put a token anywhere.
    return Response(body, document["status"], headers=headers, media_type=MEDIA_TYPE)
