"""The cluster as its callers see it: nodes, coordinators, samplers, and who the caller is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from galileo.client.results import CallerIdentity, CcqInfo, ClusterStatus, NodeStatus
from galileo.dht.topology import Topology
from galileo.gateway.callers import Callers
from galileo.gateway.ccqs import visible_ccqs
from galileo.gateway.formats import Encoders
from galileo.gateway.json_answers import check_json, json_answer
from galileo.gateway.route_group import RouteGroup
from galileo.model.times import iso
from galileo.samplers import describe_installed

UNREACHABLE = "unreachable"


class ClusterRoutes(RouteGroup):
    """Answers requests about the cluster."""

    def __init__(self, callers: Callers, encoders: Encoders) -> None:
        super().__init__(callers, encoders)
        self._installed: list[dict[str, Any]] | None = None

    async def cluster(self, request: Request) -> Response:
        """Nodes, partitions, and the coordinators of the caller's continuous queries."""
        check_json(request)
        async with self._callers.client(request) as client:
            status = await client.status()
            topology = Topology.from_json(await client.topology_json())
            ccqs = await visible_ccqs(client)
        return json_answer(cluster_document(status, topology, ccqs))

    async def whoami(self, request: Request) -> Response:
        """The principal of the request, its rights and quotas."""
        check_json(request)
        async with self._callers.client(request) as client:
            return json_answer(identity_document(await client.whoami()))

    async def samplers(self, request: Request) -> Response:
        """Samplers that are installed with the gateway, and those that were uploaded."""
        check_json(request)
        async with self._callers.client(request) as client:
            uploaded = [dataclasses.asdict(sampler) for sampler in await client.sent_samplers()]
        if self._installed is None:  # Their modules are imported for their descriptions.
            self._installed = await self._encoders.run(describe_installed)
        for sampler in uploaded:
            sampler["sent_at"] = _time(sampler["sent_at"])
            sampler["revoked_at"] = _time(sampler["revoked_at"])
        return json_answer({"installed": self._installed, "uploaded": uploaded})


def cluster_document(
    status: ClusterStatus, topology: Topology, ccqs: Iterable[CcqInfo]
) -> dict[str, Any]:
    """The state of a cluster, as JSON values."""
    return {
        "complete": status.complete,
        "partitions": len(topology.partitions),
        "replicas": topology.replicas,
        "underReplicated": list(status.under_replicated),
        "nodes": [_node(node, topology) for node in status.nodes],
        "coordinators": [
            {
                "ccq": info.id,
                "dataset": info.dataset,
                "node": info.coordinator,
                "term": info.term,
                "state": info.state,
            }
            for info in sorted(ccqs, key=lambda info: info.id)
        ],
    }


def _node(node: NodeStatus, topology: Topology) -> dict[str, Any]:
    """A node; what one that does not answer would have reported is null."""
    info = topology.by_name.get(node.name)  # None: it was removed between the two calls.
    place = {
        "name": node.name,
        "state": node.state,
        "group": node.group,
        "rack": info.rack if info else "",
        "address": node.address,
    }
    reported = {
        "partitions": list(node.partitions),
        "lag": node.replica_lag,
        "memory": node.memory_bytes,
        "memoryFree": node.memory_free_bytes,
        "cpu": node.cpu_share,
        "load": node.load,
        "uptime": node.uptime_s,
        "calls": sum(node.calls.values()),
        "ccqs": node.ccqs_coordinated,
        "overloaded": node.ccqs_overloaded,
        "cache": node.cache_bytes,
        "datasets": [
            {"id": one["dataset"], "observations": one["rows"], "disk": one["bytes_on_disk"]}
            for one in node.datasets
        ],
        "problems": [*node.stopped, *node.lost, *node.damaged, *node.diverged]
        + ([node.evaluator_problem] if node.evaluator_problem else []),
    }
    if node.state == UNREACHABLE:
        return place | dict.fromkeys(reported)
    return place | reported


def identity_document(identity: CallerIdentity) -> dict[str, Any]:
    """A principal, as JSON values."""
    return {
        "name": identity.name,
        "roles": list(identity.roles),
        "datasets": list(identity.datasets),
        "brokers": list(identity.brokers),
        "expires": _time(identity.expires_at),
        "quotas": {name: dataclasses.asdict(use) for name, use in identity.quotas.items()},
    }


def _time(seconds: float | None) -> str | None:
    return iso(round(seconds * 1e6)) if seconds else None
