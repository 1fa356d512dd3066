"""Codec of errors: their gRPC status codes and trailing metadata, both ways.

The trailing metadata `galileo-error-bin` has the kind, so that the caller raises the same class.
Errors of gRPC itself (a refused connection, a deadline) are mapped by their status code.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from galileo import errors, request_id
from galileo.redaction import redacted, redacted_start
from galileo.wire.v1 import common_pb2

METADATA_KEY = "galileo-error-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Controls the retries of gRPC itself, which clients in other languages may use."""
# Clients may reject trailing metadata above 8 KiB; base64 adds a third.
ERROR_BYTES_MAX = 4_200
_MESSAGE_BYTES_MAX = 2_000
_DETAILS_BYTES_MAX = 2_000
_DETAILS_CHARS_MAX = 1 << 16
"""Characters of details that are sent deflated, and that are inflated."""
_STATUS_BYTES_MAX = 500

Code: TypeAlias = grpc.StatusCode

# Looked up along the ancestors of a class, so that a new class has the code of its branch.
CODES: dict[str, Code] = {
    errors.GalileoError.kind: Code.UNKNOWN,
    errors.InputError.kind: Code.INVALID_ARGUMENT,
    errors.UnknownDataset.kind: Code.NOT_FOUND,
    errors.UnknownCcq.kind: Code.NOT_FOUND,
    errors.DatasetExists.kind: Code.ALREADY_EXISTS,
    errors.BatchConflict.kind: Code.ALREADY_EXISTS,
    errors.Conflict.kind: Code.ABORTED,
    errors.NotPermitted.kind: Code.PERMISSION_DENIED,
    errors.Unauthenticated.kind: Code.UNAUTHENTICATED,
    errors.QuotaExceeded.kind: Code.RESOURCE_EXHAUSTED,
    errors.NotOwner.kind: Code.FAILED_PRECONDITION,
    errors.TransientError.kind: Code.UNAVAILABLE,
    errors.Overloaded.kind: Code.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded.kind: Code.DEADLINE_EXCEEDED,
    errors.TerminalError.kind: Code.FAILED_PRECONDITION,
    errors.Cancelled.kind: Code.CANCELLED,
    errors.InternalError.kind: Code.INTERNAL,
    errors.CorruptData.kind: Code.DATA_LOSS,
}

# Errors for a bare status, which gRPC itself raises.
_BARE: dict[Code, type[errors.GalileoError]] = {
    Code.UNAVAILABLE: errors.Unavailable,
    Code.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    # A local cancel raises no status: the server was stopped.
    Code.CANCELLED: errors.Unavailable,
    Code.RESOURCE_EXHAUSTED: errors.Overloaded,
    Code.INVALID_ARGUMENT: errors.InputError,
    Code.PERMISSION_DENIED: errors.NotPermitted,
    Code.UNAUTHENTICATED: errors.NotPermitted,
}


def code_of(error: errors.GalileoError) -> Code:
    """The gRPC status code of an error: its own kind's or its nearest ancestor's."""
    for cls in type(error).__mro__:
        if issubclass(cls, errors.GalileoError) and cls.kind in CODES:
            return CODES[cls.kind]
    return Code.UNKNOWN


def error_to_pb(error: errors.GalileoError) -> common_pb2.Error:
    """Encodes an error with the current request id, without secrets that a user has misplaced.

    Long messages are cut, long details deflated, and omitted if they are still long.
    """
    request = request_id.current()
    known = {request_id.DETAIL: request, **error.details} if request else error.details
    details, deflated = json.dumps(known, default=str), b""
    if len(details) <= _DETAILS_CHARS_MAX:
        details = redacted(details)
    if len(details) > _DETAILS_BYTES_MAX:
        if len(details) <= _DETAILS_CHARS_MAX:
            deflated = zlib.compress(details.encode())
        details = "{}"
    return common_pb2.Error(
        kind=error.kind,
        message=_cut(error.message, _MESSAGE_BYTES_MAX),
        details_json=details,
        details_deflated=deflated if len(deflated) <= _DETAILS_BYTES_MAX else b"",
    )


def pushback_of(error: errors.GalileoError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata for retries of gRPC itself: the delay, or that retries cannot help."""
    if isinstance(error, errors.QuotaExceeded):
        return ((PUSHBACK_KEY, "-1"),)
    after_s = error.details.get("after_s")
    if not isinstance(error, errors.TransientError) or after_s is None:
        return ()
    return ((PUSHBACK_KEY, str(round(1e3 * float(after_s)))),)


def status_text(error: errors.GalileoError) -> str:
    """The start of the message, for callers that ignore our metadata."""
    return _cut(error.message, _STATUS_BYTES_MAX)


def _cut(text: str, size: int) -> str:
    """The start of a text without secrets, of at most that many bytes."""
    return redacted_start(text, size).encode(errors="replace")[:size].decode(errors="ignore")


def error_from_pb(value: common_pb2.Error) -> errors.GalileoError:
    """Decodes an error; an unknown kind (of a newer node) becomes the root class."""
    cls = errors.by_kind().get(value.kind, errors.GalileoError)
    error = cls(value.message)
    error.details = _details(value)
    return error


SENDING_FAILED = "Internal error from Core"
"""Message of grpc for a send on a stream that the server has just ended, before the reason was
received; a repeated call gets the reason."""


def _details(value: common_pb2.Error) -> dict[str, Any]:
    """The details that can be decoded; invalid details must not hide the error."""
    try:
        text: str | bytes = value.details_json or "{}"
        if value.details_deflated:
            text = zlib.decompressobj().decompress(value.details_deflated, _DETAILS_CHARS_MAX)
        raw = json.loads(text)
    except (ValueError, RecursionError, zlib.error):
        return {}
    return raw if isinstance(raw, dict) else {}


def error_of_rpc(error: grpc.RpcError, *, asked: str) -> errors.GalileoError:
    """Converts an error of grpc.

    Args:
        error: of grpc.
        asked: the callee, for the message.
    """
    carried = _carried(error)
    if carried is not None:
        return carried
    code = error.code()
    details = error.details() or code.name
    cls = _BARE.get(code, errors.InternalError)
    if code is Code.RESOURCE_EXHAUSTED and "larger than max" in details:
        cls = errors.MessageTooLarge
    if code is Code.INTERNAL and details == SENDING_FAILED:
        cls = errors.Unavailable
    reason = plain_reason(details)
    meaning = _MEANINGS.get(cls, "the call failed")
    return cls(f"{meaning} ({asked}: {reason})", address=asked, reason=reason)


def plain_reason(details: str) -> str:
    """Why a connection failed, in plain words for known reasons."""
    return next((plain for raw, plain in _REASONS if raw in details), details)


REFUSED = "connection refused"
CLOSED = "the connection was closed"
HANDSHAKE_FAILED = "the TLS handshake failed"
_REASONS = (
    ("Connection refused", REFUSED),
    ("No route to host", "no route to the host"),
    ("Network is unreachable", "the network is unreachable"),
    ("DNS resolution failed", "the name of the host is unknown"),
    ("address lookup failed", "the name of the host is unknown"),
    ("Connection reset", "the connection was reset"),
    ("Socket closed", CLOSED),
    ("Tls handshake failed", HANDSHAKE_FAILED),
)


_MEANINGS: dict[type[errors.GalileoError], str] = {
    errors.Unavailable: "the node could not be reached; check that it runs, or try again",
    errors.DeadlineExceeded: "the node did not answer in time; try again or allow more time",
    errors.MessageTooLarge: "the message is larger than the node's limit; send smaller batches",
}


def _carried(error: grpc.RpcError) -> errors.GalileoError | None:
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == METADATA_KEY:
            try:
                error_pb = common_pb2.Error.FromString(value)
            except DecodeError:
                return None
            return error_from_pb(error_pb) if error_pb.kind else None
    return None
