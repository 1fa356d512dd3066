"""Fields of equal names between messages and dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from galileo.wire.alike import alike
from galileo.wire.v1 import cluster_pb2


@dataclass(frozen=True, slots=True)
class Report:
    node: str
    files: int
    failures: tuple[str, ...]
    held: int


@dataclass(frozen=True, slots=True)
class Progress:
    bytes_done: int
    bytes_total: int
    is_over: bool
    damages: tuple[str, ...]


def test_dataclass_has_the_fields_of_a_message_and_tuples_of_its_sequences() -> None:
    message = cluster_pb2.RetentionReport(node="a", files=3, failures=["x", "y"], bytes=7)
    assert alike(Report, message, held=2) == Report("a", 3, ("x", "y"), 2)


def test_message_has_the_fields_of_a_value() -> None:
    progress = Progress(3, 5, True, ("x",))
    expected = cluster_pb2.ScrubReply(bytes_done=3, bytes_total=5, is_over=True, damages=["x"])
    assert alike(cluster_pb2.ScrubReply, progress) == expected


def test_field_that_the_source_lacks_has_to_be_given() -> None:
    with pytest.raises(AttributeError, match=r"node|files|failures|held"):
        alike(Report, cluster_pb2.DrainReply())
