"""The documents about the cluster and the caller."""

from __future__ import annotations

import json

from galileo.client.results import CallerIdentity, CcqInfo, ClusterStatus, NodeStatus, QuotaUse
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.gateway.cluster import cluster_document, identity_document

TOPOLOGY = Topology(
    "c",
    (Group("g", (NodeInfo("a", "h:1", rack="r1"), NodeInfo("b", "h:2"))),),
    even_ranges(1),
    partitions_per_group=8,
)


def test_cluster_document_has_nodes_with_what_they_reported() -> None:
    dataset = {"dataset": "rain", "rows": 5, "bytes_on_disk": 10}
    up = NodeStatus("a", "g", "h:1", "up", partitions=(0, 3), replica_lag=2, datasets=(dataset,))
    gone = NodeStatus("b", "g", "h:2", "unreachable")
    info = CcqInfo("ccq-1", "rain", "", 1.0, 2.0, "a", "h:1", 7, "running")
    document = cluster_document(ClusterStatus((up, gone)), TOPOLOGY, [info])
    assert json.loads(json.dumps(document)) == document
    first, second = document["nodes"]
    assert (first["rack"], first["partitions"], first["lag"]) == ("r1", [0, 3], 2)
    assert first["datasets"] == [{"id": "rain", "observations": 5, "disk": 10}]
    assert second.keys() == first.keys()
    assert (second["state"], second["partitions"], second["memory"]) == ("unreachable", None, None)
    assert (document["complete"], document["partitions"]) == (False, 8)
    assert document["coordinators"] == [
        {"ccq": "ccq-1", "dataset": "rain", "node": "a", "term": 7, "state": "running"}
    ]


def test_cluster_document_has_problems_in_words() -> None:
    node = NodeStatus("a", "g", "h:1", "up", stopped=("p1: full",), evaluator_problem="no Java")
    (document,) = cluster_document(ClusterStatus((node,)), TOPOLOGY, [])["nodes"]
    assert document["problems"] == ["p1: full", "no Java"]


def test_cluster_document_of_a_node_that_was_removed_meanwhile() -> None:
    status = ClusterStatus((NodeStatus("c", "g", "h:3", "up"),))
    assert cluster_document(status, TOPOLOGY, [])["nodes"][0]["rack"] == ""


def test_identity_document_has_times_as_text() -> None:
    quotas = {"queries": QuotaUse(10.0, None, "query")}
    identity = CallerIdentity("ann", ("reader",), ("rain",), 1_400_000_000.0, quotas)
    document = identity_document(identity)
    assert document["expires"] == "2014-05-13T16:53:20Z"
    assert document["quotas"]["queries"] == {"bound": 10.0, "used": None, "counted": "query"}
    assert identity_document(CallerIdentity("", (), (), None, {}))["expires"] is None
