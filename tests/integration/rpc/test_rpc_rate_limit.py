"""What callers use over time, by a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st
from stopped_clock import StoppedClock

from galileo.errors import Throttled
from galileo.model.quotas import NO_RATE, Quotas
from galileo.rpc.access import ANONYMOUS, ANY_CLIENT, Principal, Role
from galileo.rpc.internal import SERVICE
from galileo.rpc.quotas import QuotaResolver
from galileo.rpc.rate_limit import (
    WAIT_MAX_S,
    CallerDescriptions,
    Metering,
    TokenBucket,
    metered,
    size_of,
)
from galileo.wire.v1 import continuous_pb2, query_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

ANN = Principal("ann", frozenset({Role.READER}), ("*",))
NODE = Principal("node-1", frozenset({Role.NODE}), ("*",))


def metering_of(quotas: Quotas, **limits: int) -> tuple[Metering, StoppedClock]:
    clock = StoppedClock()
    return Metering(QuotaResolver(quotas), monotonic=clock, **limits), clock


@given(
    st.floats(0.5, 1e6),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e6)), min_size=1, max_size=40),
)
def test_token_bucket_never_exceeds_its_rate(rate: float, taken: list[tuple[float, float]]) -> None:
    clock = StoppedClock()
    bucket = TokenBucket(rate, clock)
    begun, amount = [], 0.0
    for pause_s, size in taken:
        clock.now += pause_s
        clock.now += bucket.wait_s()
        begun.append((clock.now, amount))
        bucket.take(size)
        amount += size
    for now, before in begun:
        # A second's worth beforehand; then by the rate. The last one may overdraw.
        assert before <= rate * (now + 1) * (1 + 1e-9) + 1e-6


async def test_caller_without_quotas_is_described_without_other_nodes() -> None:
    asked: list[str] = []

    async def owned_by(owner: str) -> Mapping[str, int]:
        asked.append(owner)
        return {"ccqs_max": 3}

    metering, _ = metering_of(Quotas(calls_max=2))
    callers = CallerDescriptions(metering, owned_by=owned_by)
    described = await callers.describe(ANN, False)
    assert (described.name, [*described.roles], [*described.quotas]) == ("ann", ["reader"], [])
    assert not asked
    assert (await callers.describe(ANN, True)).quotas
    assert asked == ["ann"]


def test_meter_above_calls_max_is_throttled() -> None:
    found, _ = metering_of(Quotas(calls_max=2))
    meter = found.meter(ANN)
    assert [meter.begin(None), meter.begin(None)] == [0.0, 0.0]
    with raises(Throttled, after_s=0.5, quota="calls_max", bound=2):
        meter.begin(None)
    meter.end()
    assert meter.begin(None) == 0.0
    assert found.meter(replace(ANN, name="bob")).begin(None) == 0.0


def test_meter_above_calls_per_s_delays_then_throttles() -> None:
    found, clock = metering_of(Quotas(calls_per_s=10))
    meter = found.meter(ANN)
    waits = [meter.begin(None) for _ in range(20)]
    assert waits[:11] == [0.0] * 11
    assert waits[-1] == pytest.approx(0.9)
    while True:
        try:
            waits.append(meter.begin(None))
        except Throttled as error:
            refused = error
            break
    assert max(waits) <= WAIT_MAX_S < refused.details["after_s"]
    assert refused.details["quota"] == "calls_per_s"
    before = meter.calls
    assert before == len(waits), "a refused call is not counted"
    clock.now += refused.details["after_s"]
    assert meter.begin(None) == 0.0, "a call after the named delay is admitted"
    assert meter.calls == before + 1


def test_meter_counts_bytes_of_requests_and_answers() -> None:
    found, clock = metering_of(Quotas(bytes_in_per_s=1000, bytes_out_per_s=500))
    meter = found.meter(ANN)
    big = query_pb2.QueryRequest(query="x" * 3000)
    assert meter.begin(big) == 0.0, "its size is known only when it is there"
    with raises(Throttled, quota="bytes_in_per_s", bound=1000) as caught:
        meter.begin(big)
    clock.now += caught.value.details["after_s"]
    assert meter.answer(query_pb2.QueryPart(labels=b"y" * 400)) == 0.0
    assert meter.answer(query_pb2.QueryPart(labels=b"y" * 400)) > 0.5
    clock.now += 0.7
    assert meter.begin(query_pb2.QueryRequest()) == 0.0


def test_size_of_is_the_size_of_the_encoded_message() -> None:
    request = storage_pb2.IngestRequest(dataset="nam", producer="p")
    bulk = Bulk(request, pa.py_buffer(b"z" * 1000))
    assert size_of(bulk) == len(request.SerializeToString()) + 1000
    assert size_of(request) == len(request.SerializeToString())
    assert size_of(None) == 0


def test_meter_without_a_rate_has_no_bucket() -> None:
    found, _ = metering_of(Quotas(calls_per_s=NO_RATE))
    assert found.meter(ANN).buckets == {}


def test_meter_of_node_calls_is_none() -> None:
    found, _ = metering_of(Quotas())

    def is_counted(caller: Principal, method: str) -> bool:
        return found.meter_of(caller, method) is not None

    fetch, commit = "/galileo.v1.Continuous/Fetch", SERVICE.calls["commit"].path
    assert is_counted(ANONYMOUS, fetch)
    assert not is_counted(ANONYMOUS, commit)
    assert is_counted(ANY_CLIENT, commit)
    assert not is_counted(NODE, commit)


def test_meter_applies_changed_quotas_to_the_next_call() -> None:
    found, _ = metering_of(Quotas())
    meter = found.meter(ANN)
    meter.begin(None)
    narrower = replace(ANN, quotas=(("calls_max", 1), ("calls_per_s", 5.0)))
    assert found.meter(narrower) is meter
    assert list(meter.buckets) == ["calls_per_s"]
    with raises(Throttled, quota="calls_max", bound=1):
        meter.begin(None)


def test_metering_above_meters_max_forgets_idle_principals() -> None:
    found, _ = metering_of(Quotas(calls_max=1), meters_max=4)
    busy = found.meter(ANN)
    busy.begin(None)
    for number in range(20):
        found.meter(replace(ANN, name=f"user-{number}"))
    assert found.meter(ANN) is busy
    assert len(found._meters) <= 4


def test_metering_forgets_the_least_recently_used() -> None:
    """Else one who calls all the time would get a full bucket whenever there are many others."""
    found, _ = metering_of(Quotas(calls_max=1), meters_max=4)
    known = [found.meter(replace(ANN, name=name)) for name in ("a", "b", "c", "d")]
    assert found.meter(replace(ANN, name="a")) is known[0]
    found.meter(replace(ANN, name="e"))
    assert found.meter(replace(ANN, name="a")) is known[0]
    assert found.meter(replace(ANN, name="b")) is not known[1]


async def test_each_request_of_a_stream_is_charged() -> None:
    found, _ = metering_of(Quotas(calls_per_s=10.0))
    meter = found.meter(ANN)

    async def requests() -> AsyncIterator[Any]:
        for _ in range(9):
            yield continuous_pb2.FetchRequest()

    context: Any = None
    async with metered(meter, requests(), context) as paced:
        assert len([request async for request in paced]) == 9
    meter.buckets["calls_per_s"].take(1.0)  # The call and its requests have taken ten.
    assert meter.buckets["calls_per_s"].wait_s() == pytest.approx(0.1)
