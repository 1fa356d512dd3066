"""What callers without grants on all datasets see of the status of a node."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from galileo.errors import Forbidden
from galileo.rpc.access import ANY_CLIENT, Principal, Role
from galileo.rpc.cluster import SHOWN_TO_ALL, _check_admin, visible
from galileo.wire.v1 import cluster_pb2

FOREIGN = "wind"
NUMBERS = {FieldDescriptor.CPPTYPE_DOUBLE: 1.5, FieldDescriptor.CPPTYPE_BOOL: True}


def fill(message: Message, *, depth: int = 0) -> Any:
    """Sets every field of a message; each text is the name of another tenant's dataset."""
    for field in message.DESCRIPTOR.fields:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            values = getattr(message, field.name)
            is_number = entry.fields_by_name["value"].cpp_type != FieldDescriptor.CPPTYPE_STRING
            values[FOREIGN] = 1 if is_number else FOREIGN
        elif entry is not None:
            inner = getattr(message, field.name)
            fill(inner.add() if field.is_repeated else inner, depth=depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).append(_value(field))
        else:
            setattr(message, field.name, _value(field))
    return message


def _value(field: FieldDescriptor) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return FOREIGN
    return NUMBERS.get(field.cpp_type, 1)


def reader(*datasets: str) -> Principal:
    return Principal("eve", frozenset({Role.READER}), datasets)


def full() -> cluster_pb2.NodeStatus:
    status = fill(cluster_pb2.NodeStatus())
    # Facts of the node itself, which are texts.
    status.name, status.group, status.address, status.state = "n", "g", "host:1", "up"
    del status.calls[FOREIGN]
    status.calls["Query/Run"] = 1
    return status


def test_every_field_is_filled() -> None:
    status = full()
    assert len(status.ListFields()) == len(status.DESCRIPTOR.fields)


def test_status_without_a_grant_names_no_dataset() -> None:
    shown = visible(full(), reader("rain"))
    assert FOREIGN not in str(shown)
    assert {field.name for field, _ in shown.ListFields()} == SHOWN_TO_ALL


def test_fields_that_the_status_does_not_know_are_hidden() -> None:
    newer = cluster_pb2.NodeStatus.FromString(full().SerializeToString() + b"\xfa\x3f\x04wind")
    assert b"wind" in newer.SerializeToString()
    assert b"wind" not in visible(newer, reader("rain")).SerializeToString()


def test_status_has_the_datasets_with_a_grant() -> None:
    status = full()
    status.datasets.add(dataset="rain", rows=7)
    shown = visible(status, reader("rain"))
    assert [(one.dataset, one.rows) for one in shown.datasets] == [("rain", 7)]


@pytest.mark.parametrize("caller", [ANY_CLIENT, reader("*")])
def test_callers_with_all_datasets_see_the_whole_status(caller: Principal) -> None:
    assert visible(full(), caller) == full()


def test_diagnostics_need_grants_on_all_datasets() -> None:
    _check_admin(Principal("root", frozenset({Role.ADMIN}), ("*",)))
    for caller in (reader("*"), Principal("bob", frozenset({Role.ADMIN}), ("rain",))):
        with pytest.raises(Forbidden):
            _check_admin(caller)
