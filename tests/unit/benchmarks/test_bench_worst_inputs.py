"""Each method and each route has its largest inputs in the benchmark of event loops."""

from __future__ import annotations

import pytest

from benchmarks.worst_inputs import HEAD_BYTES, ROUTES, RPCS
from galileo.gateway import routes
from galileo.http_serving.protocol import HEAD_BYTES_MAX
from galileo.rpc.admission import QUERY_REQUEST_BYTES_MAX, SMALL_REQUEST_BYTES_MAX
from galileo.rpc.internal import SERVICE
from galileo.rpc.policy import POLICIES
from galileo.wire.channel import MESSAGE_BYTES_MAX, short_name
from galileo.wire.services import NODE_SERVICES
from galileo.wire.v1 import policy_pb2

METHODS = {
    f"{service.name}/{method.name}": f"/{service.full_name}/{method.name}"
    for service in NODE_SERVICES
    for method in service.methods
} | {short_name(call.path): call.path for call in SERVICE.calls.values()}
BYTES_MAX = {
    policy_pb2.SMALL: SMALL_REQUEST_BYTES_MAX,
    policy_pb2.QUERY: QUERY_REQUEST_BYTES_MAX,
    policy_pb2.BULK: MESSAGE_BYTES_MAX,
}


def test_worst_inputs_has_each_method_of_a_node() -> None:
    assert set(RPCS) == set(METHODS)


def test_worst_inputs_has_each_route_of_a_gateway() -> None:
    assert set(ROUTES) == {(route.name, verb) for route in routes.ROUTES for verb in route.methods}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_worst_inputs_of_a_method_reach_its_handler(method: str) -> None:
    requests = list(RPCS[method].requests())
    assert requests
    for request in requests:
        size = len(request) if isinstance(request, bytes) else request.ByteSize()
        assert size <= BYTES_MAX[POLICIES[METHODS[method]].size]


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_worst_inputs_of_a_route_reach_its_handler(route: tuple[str, str]) -> None:
    requests = list(ROUTES[route].requests())
    assert requests
    for request in requests:
        assert request.method == route[1]
        assert len(request.path) + (HEAD_BYTES_MAX - HEAD_BYTES) // 2 < HEAD_BYTES_MAX
