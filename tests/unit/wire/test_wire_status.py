from __future__ import annotations

import zlib
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo import errors
from galileo.wire import status
from galileo.wire.v1 import common_pb2

KINDS = errors.by_kind()

details = st.dictionaries(
    st.from_regex(r"[a-z_]{1,12}", fullmatch=True).filter(lambda name: name != "message"),
    st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.booleans()
    | st.none()
    | st.lists(st.integers(), max_size=4),
    max_size=4,
)
messages = st.text(st.characters(codec="utf-8"), max_size=500)


def rpc_error(code: grpc.StatusCode, given: str = "", *trailing: Any) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, grpc.aio.Metadata(*trailing), details=given)


def test_errors_every_class_has_unique_kind() -> None:
    classes: list[type[errors.GalileoError]] = [errors.GalileoError]
    for cls in classes:
        classes += cls.__subclasses__()
    assert len(classes) > 25
    assert {cls.kind: cls for cls in classes} == KINDS
    assert len(KINDS) == len(classes), "two classes share a kind"


@pytest.mark.parametrize("kind", KINDS)
@examples(15)
@given(message=messages, given=details)
def test_error_to_pb_any_error_round_trips(kind: str, message: str, given: dict[str, Any]) -> None:
    sent = KINDS[kind](message, **given)
    packed = status.error_to_pb(sent).SerializeToString()
    got = status.error_from_pb(common_pb2.Error.FromString(packed))
    assert type(got) is KINDS[kind]
    assert (got.message, got.details, str(got)) == (message, given, message)


def test_error_to_pb_keeps_long_details_within_trailing_metadata() -> None:
    numbers = list(range(10**17, 10**17 + 128))
    sent = errors.DataExpired("x" * 500, partitions=list(range(128)), sequences=numbers)
    packed = status.error_to_pb(sent).SerializeToString()
    assert len(packed) <= status.ERROR_BYTES_MAX
    assert status.error_from_pb(common_pb2.Error.FromString(packed)).details == sent.details


def test_error_to_pb_omits_details_that_stay_long() -> None:
    noise = "".join(map(chr, np.random.default_rng(1).integers(33, 126, 60_000)))
    for text in (noise, "x" * 70_000):
        packed = status.error_to_pb(errors.InputError("long", text=text)).SerializeToString()
        assert len(packed) <= status.ERROR_BYTES_MAX
        assert status.error_from_pb(common_pb2.Error.FromString(packed)).details == {}


@pytest.mark.parametrize("data", [b"no zlib", zlib.compress(b"{" * 80), zlib.compress(b"[]")])
def test_error_from_pb_ignores_damaged_details(data: bytes) -> None:
    value = common_pb2.Error(kind="transient", message="x", details_deflated=data)
    assert status.error_from_pb(value).details == {}


def test_error_from_pb_bounds_inflated_details() -> None:
    bomb = zlib.compress(b'{"a": "' + b"x" * 10_000_000 + b'"}')
    value = common_pb2.Error(kind="transient", message="x", details_deflated=bomb)
    assert status.error_from_pb(value).details == {}


@pytest.mark.parametrize("kind", KINDS)
def test_code_of_any_kind_is_no_success(kind: str) -> None:
    code = status.code_of(KINDS[kind]("x"))
    assert isinstance(code, grpc.StatusCode)
    assert code is not grpc.StatusCode.OK
    if kind != errors.GalileoError.kind:
        assert code is not grpc.StatusCode.UNKNOWN, "no branch of the table has it"


@pytest.mark.parametrize("kind", status.CODES)
def test_status_codes_name_existing_kinds(kind: str) -> None:
    assert kind in KINDS


def test_code_of_unlisted_kind_is_that_of_branch() -> None:
    class Late(errors.Unavailable):
        kind = "late-for-the-test"

    try:
        assert status.code_of(Late("x")) is grpc.StatusCode.UNAVAILABLE
    finally:
        del Late


@pytest.mark.parametrize("kind", KINDS)
def test_error_of_rpc_carried_error_replaces_code(kind: str) -> None:
    sent = KINDS[kind]("expected this, got that", position=7)
    packed = status.error_to_pb(sent).SerializeToString()
    failed = rpc_error(status.code_of(sent), "other words", (status.METADATA_KEY, packed))
    got = status.error_of_rpc(failed, asked="node-1")
    assert type(got) is KINDS[kind]
    assert (got.message, got.details) == ("expected this, got that", {"position": 7})


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.name != "OK"])
def test_error_of_rpc_bare_code_has_address(code: grpc.StatusCode) -> None:
    got = status.error_of_rpc(rpc_error(code, "the reason"), asked="127.0.0.1:7701")
    assert "127.0.0.1:7701" in got.message
    assert "the reason" in got.message
    assert got.details["address"] == "127.0.0.1:7701"


@pytest.mark.parametrize(
    ("code", "given", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlineExceeded),
        (grpc.StatusCode.CANCELLED, "", errors.Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams", errors.Overloaded),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "CLIENT: Sent message larger than max (9 vs. 4)",
            errors.MessageTooLarge,
        ),
        (grpc.StatusCode.UNAUTHENTICATED, "", errors.NotPermitted),
        (grpc.StatusCode.INTERNAL, "", errors.InternalError),
        (grpc.StatusCode.UNIMPLEMENTED, "", errors.InternalError),
    ],
)
def test_error_of_rpc_bare_code_has_class(
    code: grpc.StatusCode, given: str, cls: type[errors.GalileoError]
) -> None:
    assert type(status.error_of_rpc(rpc_error(code, given), asked="x")) is cls


@pytest.mark.parametrize("value", [b"\xff\xff", b"\x1a\x01{"])
def test_error_of_rpc_damaged_metadata_uses_code(value: bytes) -> None:
    failed = rpc_error(grpc.StatusCode.UNAVAILABLE, "gone", (status.METADATA_KEY, value))
    assert type(status.error_of_rpc(failed, asked="x")) is errors.Unavailable


def test_error_from_pb_unknown_kind_is_root_class() -> None:
    got = status.error_from_pb(common_pb2.Error(kind="from-the-future", message="new"))
    assert type(got) is errors.GalileoError
    assert got.message == "new"


@pytest.mark.parametrize("details", ['y"node"', "[1]", "[" * 100_000])
def test_error_from_pb_invalid_details_keeps_message(details: str) -> None:
    sent = common_pb2.Error(kind="invalid_input", message="no", details_json=details)
    got = status.error_from_pb(sent)
    assert (type(got), got.message, got.details) == (errors.InputError, "no", {})


def test_error_to_pb_other_details_become_text() -> None:
    sent = errors.InputError("x", path=pytest)
    assert status.error_from_pb(status.error_to_pb(sent)).details == {"path": str(pytest)}


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001d54f"])
def test_error_to_pb_long_error_is_bounded(letter: str) -> None:
    """Trailing metadata beyond 8 KiB may be refused, and the error with it."""
    sent = errors.InputError(letter * 100_000, text=letter * 4_000)
    value = status.error_to_pb(sent)
    assert value.ByteSize() <= status.ERROR_BYTES_MAX
    assert value.message.startswith(letter * 100)


async def test_error_of_rpc_failed_send_is_unavailable() -> None:
    """As grpc has it, which at that moment does not know yet why the other side has ended it."""
    async with grpc.aio.insecure_channel("127.0.0.1:9") as channel:
        call = channel.stream_stream("/galileo.v1.Continuous/Watch")()
        call._cython_call.set_internal_error("a message could not be sent")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == status.SENDING_FAILED
    assert type(status.error_of_rpc(failed.value, asked="x")) is errors.Unavailable
    other = rpc_error(grpc.StatusCode.INTERNAL, "something else")
    assert type(status.error_of_rpc(other, asked="x")) is errors.InternalError


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (errors.Throttled("x", after_s=1.25), "1250"),
        (errors.Overloaded("x", after_s=5), "5000"),
        (errors.QuotaExceeded("x", quota="ccqs_max"), "-1"),
        (errors.Overloaded("x"), None),
        (errors.InputError("x", after_s=1), None),
    ],
)
def test_pushback_of_transient_error_is_after_s(
    error: errors.GalileoError, given: str | None
) -> None:
    assert dict(status.pushback_of(error)).get(status.PUSHBACK_KEY) == given


@pytest.mark.parametrize("details", ["DNS resolution failed for x", "x: address lookup failed"])
def test_plain_reason_unknown_host_is_plain(details: str) -> None:
    assert status.plain_reason(details) == "the name of the host is unknown"
