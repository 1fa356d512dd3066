from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.ccq.model import CcqDefinition, Holder, Record
from galileo.cursor import Cursor
from galileo.dht.register import Ballot, Entry, RegisterMessage
from galileo.errors import InputError
from galileo.model.windows import Window
from galileo.packing import Compression
from galileo.samplers import SamplerSpec
from galileo.wire.tagged_json import TaggedJson

MESSAGES: tuple[type, ...] = get_args(RegisterMessage)
TAGGED = TaggedJson([*MESSAGES, Ballot, Entry, CcqDefinition, Record, Holder, Window])

numbers = st.integers(0, 2**63 - 1)
texts = st.text(max_size=20)
cursors = st.dictionaries(st.integers(0, 2**31 - 1), numbers, max_size=4).map(Cursor)
plain = st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | texts
options = st.dictionaries(
    texts, plain | st.lists(plain, max_size=3) | st.dictionaries(texts, plain, max_size=2)
)
# A strategy is looked at once it is registered, which takes a second; a function is not.
st.register_type_strategy(Cursor, lambda _: cursors)
st.register_type_strategy(SamplerSpec, lambda _: st.builds(SamplerSpec, texts, options, numbers))
st.register_type_strategy(
    Window,
    st.tuples(st.integers(1, 10**9), st.integers(1, 500), st.integers(0, 10**9)).map(
        lambda made: Window("sliding", made[0] * made[1], made[0], min(made[2], made[0]))
    ),
)


@pytest.mark.parametrize("cls", [*MESSAGES, CcqDefinition, Record])
@examples(20)
@given(data=st.data())
def test_tagged_json_any_message_round_trips(cls: type, data: st.DataObject) -> None:
    value = data.draw(st.from_type(cls).filter(lambda made: "nan" not in repr(made)))
    assert TAGGED.decode(TAGGED.encode(value)) == value


@given(cursors, st.from_type(SamplerSpec))
def test_tagged_json_cursor_and_sampler_round_trip(cursor: Cursor, spec: SamplerSpec) -> None:
    assert TAGGED.decode(TAGGED.encode(cursor)) == cursor
    assert TAGGED.decode(TAGGED.encode(spec)) == spec
    assert TAGGED.decode(TAGGED.encode((cursor, (spec, 1)))) == (cursor, (spec, 1))


def test_tagged_json_record_has_pinned_text() -> None:
    """Pinned: a change of the text is a change of the format of records."""
    spec = SamplerSpec("uniform", {"fraction": 0.5}, 7)
    made = CcqDefinition("c", "nam", "true", 1.0, 9.0, spec, Compression.LZ4)
    holder = Holder("node-3", 5, Cursor(), Cursor({2: 9}))
    record = Record(
        made, 3, ("node-1", "node-2"), Cursor({2: 5}), holders=(holder,), fetched_at=5.0
    )
    stored = TAGGED.encode(record).decode()
    assert stored == (
        '{"$":"Record","ccq":{"$":"CcqDefinition","id":"c","dataset":"nam","query":"true","interval_s":1.0,'
        '"expires_at":9.0,"sampler":{"$":"SamplerSpec","json":"{\\"name\\":\\"uniform\\",'
        '\\"options\\":{\\"fraction\\":0.5},\\"seed\\":7}"},"compression":"lz4","window":null,'
        '"owner":"","added":0,"hold_s":604800.0},"revision":3,"nodes":["node-1","node-2"],'
        '"retrieved":{"$":"Cursor","at":[[2,5]]},"ended":null,"ended_at":0.0,'
        '"holders":[{"$":"Holder","node":"node-3","term":5,"after":{"$":"Cursor","at":[]},'
        '"until":{"$":"Cursor","at":[[2,9]]}}],"fetched_at":5.0}'
    )
    assert TAGGED.decode(stored.encode()) == record


def test_tagged_json_unknown_class_raises_type_error() -> None:
    @dataclasses.dataclass(frozen=True)
    class Stranger:
        number: int

    with pytest.raises(TypeError, match="got Stranger"):
        TAGGED.encode(Stranger(1))
    with pytest.raises(TypeError, match="got Stranger"):
        TAGGED.encode((Stranger(1),))


DAMAGED = {
    "no JSON": b"{",
    "no text": b"\xff",
    "empty": b"",
    "no tag": b'{"ballot":1}',
    "an unknown class": b'{"$":"Popen","args":["true"]}',
    "a tag that is no name": b'{"$":["Prepare"]}',
    "an unknown field": b'{"$":"Prepare","ballot":1,"more":1}',
    "a missing field": b'{"$":"Prepare"}',
    "a missing field with a default": b'{"$":"Record","ccq":null,"revision":3,"nodes":[]}',
    "a cursor without places": b'{"$":"Cursor"}',
    "a cursor of texts": b'{"$":"Cursor","at":[["a","b"]]}',
    "a cursor of triples": b'{"$":"Cursor","at":[[1,2,3]]}',
    "a cursor of one number": b'{"$":"Cursor","at":3}',
    "a negative sequence": b'{"$":"Cursor","at":[[1,-2]]}',
    "an endless number": b'{"$":"Cursor","at":[[1,1e999]]}',
    "a sampler of nothing": b'{"$":"SamplerSpec","json":"{}"}',
    "a deep nest": b"[" * 100_000 + b"]" * 100_000,
}


@pytest.mark.parametrize("case", DAMAGED)
def test_tagged_json_decode_damaged_raises(case: str) -> None:
    inner = case == "a sampler of nothing"
    with raises(InputError, expected="sampler_spec" if inner else "tagged_json"):
        TAGGED.decode(DAMAGED[case])


@given(st.binary(max_size=60))
def test_tagged_json_decode_random_bytes_gives_value_or_input_error(data: bytes) -> None:
    try:
        TAGGED.decode(data)
    except InputError:
        with pytest.raises((ValueError, KeyError)):
            untagged(json.loads(data))


def untagged(value: Any) -> None:
    """Raises where an object stands that has no tag."""
    if isinstance(value, dict):
        raise KeyError("an object")
    for item in value if isinstance(value, list) else []:
        untagged(item)
