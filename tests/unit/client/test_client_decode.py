"""From messages of the wire to results."""

from __future__ import annotations

from galileo.client.decode import caller_identity
from galileo.wire.v1 import cluster_pb2


def test_quota_of_which_nothing_is_used_is_not_unknown() -> None:
    used = {"ccqs_max": 0.0, "calls_max": 2.0, "vertices_max": -1.0}
    quotas = [cluster_pb2.Quota(name=name, bound=5.0, used=n) for name, n in used.items()]
    identity = caller_identity(cluster_pb2.Caller(name="ann", quotas=quotas))
    assert {name: one.used for name, one in identity.quotas.items()} == {
        "ccqs_max": 0.0,
        "calls_max": 2.0,
        "vertices_max": None,
    }
