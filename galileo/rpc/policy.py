"""Policies of methods, as the protocol's options state them, and of the internal service.

`proto/galileo/wire/v1/policy.proto` defines the options. Access, admission, call log and audit
read a method's policy here and have no tables of their own. A method without a policy may not be
called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from galileo.wire.services import INTERNAL_SERVICE, NODE_SERVICES
from galileo.wire.v1.policy_pb2 import BULK, QUERY, READ_SLOT, Policy, policy

# The codec of the service bounds all but the attachments of a request, so fields need no count.
INTERNAL_POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "analyse": Policy(nodes=True, single_field=True, size=QUERY),
        "apply_retention": Policy(nodes=True, single_field=True),
        "change_row": Policy(nodes=True, single_field=True, size=QUERY),
        "change_rows": Policy(nodes=True, single_field=True, size=QUERY),
        "commit": Policy(nodes=True, single_field=True, size=BULK),
        "describe_channel": Policy(nodes=True, single_field=True),
        "digests": Policy(nodes=True, single_field=True),
        "drop_generations": Policy(nodes=True, single_field=True),
        "fetch": Policy(nodes=True, single_field=True, size=QUERY),
        "find_batches": Policy(nodes=True, single_field=True),
        "find_sampler_archive": Policy(nodes=True, single_field=True),
        "gossip": Policy(nodes=True, single_field=True, size=BULK, heartbeat=True),
        "handed_off_cache": Policy(nodes=True, single_field=True),
        "held_partitions": Policy(nodes=True, single_field=True),
        "known_row": Policy(nodes=True, single_field=True),
        "known_rows": Policy(nodes=True, single_field=True),
        "learn_row": Policy(nodes=True, single_field=True, size=QUERY),
        "match": Policy(nodes=True, single_field=True, size=BULK),
        "observations": Policy(nodes=True, single_field=True, size=BULK, slot=READ_SLOT),
        "own_sampler_archive": Policy(nodes=True, single_field=True),
        "read": Policy(nodes=True, single_field=True, size=BULK, slot=READ_SLOT),
        "read_executions": Policy(nodes=True, single_field=True),
        "read_table": Policy(nodes=True, single_field=True, size=BULK, slot=READ_SLOT),
        "register_queries": Policy(nodes=True, single_field=True, size=BULK),
        "remove_drained": Policy(nodes=True, single_field=True),
        "replicate": Policy(nodes=True, single_field=True, heartbeat=True),
        "replicate_frames": Policy(nodes=True, single_field=True, size=BULK),
        "rows_after": Policy(nodes=True, single_field=True),
        "scan": Policy(nodes=True, single_field=True, size=BULK),
        "scan_small": Policy(nodes=True, single_field=True, size=BULK),
        "usage": Policy(nodes=True, single_field=True),
    }
)
"""By the name of a call of the internal service."""


def _policies() -> Iterator[tuple[str, Policy]]:
    for service in NODE_SERVICES:
        for method in service.methods:
            options = method.GetOptions()
            if options.HasExtension(policy):
                yield f"/{service.full_name}/{method.name}", options.Extensions[policy]
    for name, internal in INTERNAL_POLICIES.items():
        yield f"/{INTERNAL_SERVICE}/{name}", internal


POLICIES: Mapping[str, Policy] = MappingProxyType(dict(_policies()))
"""By method, "/package.Service/Method"."""
HEARTBEATS = frozenset(method for method, p in POLICIES.items() if p.heartbeat)
INTERNAL = frozenset(method for method, p in POLICIES.items() if p.nodes and not p.clients)
"""Methods that only nodes call."""
