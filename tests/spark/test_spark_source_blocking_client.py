from __future__ import annotations

import grpc
import pytest

from galileo.errors import IncompleteAnswer
from galileo.spark.source.blocking_client import BlockingClient
from galileo.wire.status import METADATA_KEY, error_to_pb


def test_call_reports_incomplete_answer_before_unreachable_node() -> None:
    partial = error_to_pb(IncompleteAnswer("partitions 4, 5 are missing", missing=[4, 5]))
    carried = grpc.aio.Metadata((METADATA_KEY, partial.SerializeToString()))
    nothing, unavailable = grpc.aio.Metadata(), grpc.StatusCode.UNAVAILABLE
    answers = [
        grpc.aio.AioRpcError(unavailable, nothing, nothing, details="Connection refused"),
        grpc.aio.AioRpcError(unavailable, nothing, carried, details="partial"),
    ]

    def attempt(channel: grpc.Channel) -> None:
        raise answers.pop(0)

    nodes = BlockingClient(["127.0.0.1:1", "127.0.0.1:2"], timeout_s=-1.0)
    with pytest.raises(IncompleteAnswer, match="partitions 4, 5 are missing"):
        nodes.call(attempt)
