"""What nodes ask each other about rows of system tables, as it is encoded."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import Overloaded, QuotaExceeded, UnknownCcq
from galileo.model.system_rows import Outcome, Row
from galileo.node.sampler_rows import KeepSampler
from galileo.rpc.internal import SERVICE, AnyChange
from galileo.rpc.internal_calls import CHANGE_ROW, CHANGE_ROWS
from galileo.rpc.peers import DEADLINES_S

CHANGES = [cls for cls in get_args(AnyChange) if cls is not KeepSampler]  # It has bytes.


@pytest.mark.parametrize("cls", CHANGES)
@examples(10)
@given(data=st.data())
def test_any_change_is_received_as_it_was_sent(cls: Any, data: st.DataObject) -> None:
    whole = {one.name: st.integers(0, 2**62) for one in fields(cls) if one.type == "int"}
    change = data.draw(st.builds(cls, **whole).filter(lambda made: "nan" not in repr(made)))
    assert CHANGE_ROW.decode(CHANGE_ROW.encode("table", change)) == ["table", change]
    table, changes = CHANGE_ROWS.decode(CHANGE_ROWS.encode("table", [change, change]))
    assert (table, [*changes]) == ("table", [change, change])


def test_outcomes_say_why_a_change_was_not_made() -> None:
    made = Outcome.of(Row("q", "data"))
    assert (made.data, made.error) == ("data", None)
    for error in (
        QuotaExceeded("too many", quota="ccqs_max", bound=7),
        Overloaded("full", after_s=60.0),
        UnknownCcq("none", remedy="list_ccqs"),
    ):
        received = Outcome.of(error).error
        assert (type(received), str(received)) == (type(error), str(error))
        assert received is not None
        assert received.details == error.details


def test_deadlines_are_of_calls_that_there_are() -> None:
    assert DEADLINES_S.keys() <= {*SERVICE.calls}
