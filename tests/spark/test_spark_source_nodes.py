from __future__ import annotations

import grpc
import pytest

from galileo.errors import IncompleteAnswer
from galileo.spark.source.nodes import Nodes
from galileo.wire.status import METADATA_KEY, error_to_pb


def test_a_partial_answer_is_the_error_where_another_node_cannot_be_reached() -> None:
    partial = error_to_pb(IncompleteAnswer("partitions 4, 5 are missing", missing=[4, 5]))
    carried = grpc.aio.Metadata((METADATA_KEY, partial.SerializeToString()))
    nothing, unavailable = grpc.aio.Metadata(), grpc.StatusCode.UNAVAILABLE
    answers = [
        grpc.aio.AioRpcError(unavailable, nothing, nothing, details="Connection refused"),
        grpc.aio.AioRpcError(unavailable, nothing, carried, details="partial"),
    ]

    def attempt(channel: grpc.Channel) -> None:
        raise answers.pop(0)

    nodes = Nodes(["127.0.0.1:1", "127.0.0.1:2"], patience_s=-1.0)
    with pytest.raises(IncompleteAnswer, match="partitions 4, 5 are missing"):
        nodes.call(attempt)
