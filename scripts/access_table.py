"""The table of methods and roles of docs/security.md, from the policies of the methods."""

from __future__ import annotations

from generated_files import markdown_table, replace_part

from galileo.rpc.access import PUBLIC, RULES, Role
from galileo.rpc.policy import POLICIES
from galileo.wire.v1 import policy_pb2

PAGE = "docs/security.md"
OWNED = (PAGE,)
ROLES = (Role.SUBSCRIBER, Role.READER, Role.WRITER, Role.SAMPLER_AUTHOR, Role.ADMIN, Role.NODE)


def files() -> dict[str, str]:
    return {PAGE: replace_part(PAGE, "methods", table())}


def table() -> str:
    """A row for every method with a rule, a column for each role."""
    rows = [["method", "no proof", *(role.value for role in ROLES)]]
    for method in sorted({*RULES, *PUBLIC}):
        is_public, roles = method in PUBLIC, RULES.get(method, frozenset())
        marks = ["yes" if is_public or role in roles else "" for role in ROLES]
        if method in POLICIES and POLICIES[method].subscribers == policy_pb2.OWN:
            marks[ROLES.index(Role.SUBSCRIBER)] = "own"
        rows.append([f"`{method.rpartition('.')[2]}`", "yes" if is_public else "", *marks])
    return markdown_table(*rows)
