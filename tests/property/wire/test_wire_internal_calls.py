"""The calls of the internal service: every value of their types, and bytes that are no values."""

from __future__ import annotations

import contextlib
import tracemalloc
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typed_values import as_plain, values_of

from galileo.errors import GalileoError
from galileo.rpc.internal import SERVICE, Internal
from galileo.spark.owners import OWNER
from galileo.wire.typed_service import TypedCall

CALLS = pytest.mark.parametrize("call", SERVICE.calls.values(), ids=lambda call: call.name)
MEMORY_TIMES = 64
"""Bytes of memory that a message of one byte may take."""


def arguments_of(call: TypedCall[..., Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    hints = typing.get_type_hints(getattr(Internal, call.name))
    return st.tuples(*(values_of(hint) for name, hint in hints.items() if name != "return"))


def answers_of(call: TypedCall[..., Any]) -> st.SearchStrategy[Any]:
    kind = typing.get_type_hints(getattr(Internal, call.name))["return"]
    return values_of(typing.get_args(kind)[0] if call.is_stream else kind)


@CALLS
@given(st.data())
def test_internal_call_round_trips(call: TypedCall[..., Any], data: st.DataObject) -> None:
    arguments, answer = data.draw(arguments_of(call)), data.draw(answers_of(call))
    assert as_plain(call.decode(call.encode(*arguments))) == as_plain(arguments)
    assert as_plain(call.decode_answer(call.encode_answer(answer))) == as_plain(answer)


@CALLS
@given(st.data())
def test_internal_call_of_changed_bytes_gives_a_value_or_an_error(
    call: TypedCall[..., Any], data: st.DataObject
) -> None:
    sent = call.encode(*data.draw(arguments_of(call)))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(sent))] * 2)))
    changed = sent[:start] + data.draw(st.binary(max_size=20)) + sent[stop:]
    tracemalloc.start()
    with contextlib.suppress(GalileoError):
        call.decode(changed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 + MEMORY_TIMES * len(changed)


@CALLS
@given(st.data())
def test_internal_call_cut_off_is_an_error(call: TypedCall[..., Any], data: st.DataObject) -> None:
    sent = call.encode(*data.draw(arguments_of(call)))
    cut = sent[: data.draw(st.integers(0, len(sent) - 1))]
    with pytest.raises(GalileoError):
        call.decode(cut)


@CALLS
@given(data=st.data())
def test_internal_answer_begins_with_the_digest_of_all_types(
    call: TypedCall[..., Any], data: st.DataObject
) -> None:
    types = OWNER if call.name in OWNER.calls else SERVICE
    assert call.encode_answer(data.draw(answers_of(call)))[:8] == types.digest
