"""The typed codec of messages between nodes."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from typed_values import values_of

from galileo.cursor import Cursor
from galileo.errors import ConfigError, GalileoError, InputError, InternalError, MessageTooLarge
from galileo.packing.arrow_streams import read_stream
from galileo.wire import messages
from galileo.wire.attachments import ATTACHED, AtMost, LongText
from galileo.wire.messages import (
    HEAD_BYTES_MAX,
    NUMBERS_MAX,
    SET_ITEMS_MAX,
    Forms,
    MessageCodec,
)
from galileo.wire.zero_copy import ALIGNMENT, stream_of


class Place(NamedTuple):
    node: str
    disk: int


@dataclass(frozen=True, slots=True)
class Run:
    first: int
    epochs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    pass


@dataclass(frozen=True, slots=True)
class Read:
    log: str
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    logs: Mapping[str, Run]
    places: frozenset[Place]
    frames: pa.Buffer
    is_last: bool


@dataclass(frozen=True, slots=True)
class Letter:
    to: Place
    step: Stop | Read | Write
    runs: tuple[Run, ...] = ()
    others: Mapping[str, Stop | Write | None] = field(default_factory=dict)
    parts: tuple[pa.Buffer | None, ...] = ()
    mark: bytes = b""


def codec_of(kind: Any) -> MessageCodec[Any]:
    forms = Forms()
    form = forms.of(kind)
    return MessageCodec(form, digest=forms.digest(""), name="post")


LETTERS = codec_of(Letter)
RUN = Run(1, ((1, 0.5), (7, 2.0)))
WRITE = Write(
    {"rain": RUN, "": Run(0)}, frozenset({Place("a", 1), Place("b", 2)}), pa.py_buffer(b"xyz"), True
)
LETTER = Letter(Place("n", 3), WRITE, (RUN,), {"s": Stop(), "w": WRITE, "-": None}, (), b"m")
BYTES = LETTERS.encode(LETTER)
PREFIX = struct.Struct("<8sI")


def headed(head: bytes, attached: bytes = b"", digest: bytes = BYTES[:8]) -> bytes:
    return PREFIX.pack(digest, len(head)) + head + attached


def changed(change: Any) -> bytes:
    """A message whose head a function has changed, which gets it as plain values."""
    _, size = PREFIX.unpack_from(BYTES)
    head = msgpack.decode(BYTES[PREFIX.size : PREFIX.size + size])
    change(head)
    made = msgpack.encode(head)
    attached = BYTES[PREFIX.size + size :].lstrip(b"\0")
    padding = -(PREFIX.size + len(made)) % ALIGNMENT
    return headed(made, bytes(padding) + attached)


@given(values_of(Letter))
def test_messages_round_trip(letter: Letter) -> None:
    assert LETTERS.decode(LETTERS.encode(letter)) == letter


@given(values_of(int | None), values_of(tuple[Run, ...]), values_of(Run | None))
def test_messages_of_other_types_than_dataclasses_round_trip(
    number: int | None, runs: tuple[Run, ...], run: Run | None
) -> None:
    for kind, value in (
        (int | None, number),
        (tuple[Run, ...], runs),
        (Run | None, run),
        (tuple[int, Run], (number or 0, Run(1))),
        (type(None), None),
    ):
        codec = codec_of(kind)
        assert codec.decode(codec.encode(value)) == value


def test_messages_unchanged_head_of_the_helper_decodes() -> None:
    assert LETTERS.decode(changed(lambda head: None)) == LETTER


def test_messages_attachments_share_memory_with_the_message() -> None:
    parts = (pa.py_buffer(b"1" * 1_000), None, pa.py_buffer(b""), pa.py_buffer(b"2" * 7))
    data = LETTERS.encode(Letter(Place("", 0), Stop(), parts=parts))
    start, decoded = pa.py_buffer(data).address, LETTERS.decode(data).parts
    assert decoded == parts
    for part in decoded:
        assert part is None or start < part.address <= start + len(data)
        assert part is None or part.address % ALIGNMENT == 0


def test_messages_take_attachments_of_every_kind_of_bytes() -> None:
    parts = (b"bytes", bytearray(b"array"), memoryview(b"view"), pa.py_buffer(b"buffer"))
    decoded = LETTERS.decode(LETTERS.encode(Letter(Place("", 0), Stop(), parts=parts))).parts
    assert [part.to_pybytes() for part in decoded] == [b"bytes", b"array", b"view", b"buffer"]


def test_messages_take_other_mappings_and_numbers_of_arrays() -> None:
    step = replace(WRITE, logs=MappingProxyType({"rain": RUN}), is_last=np.bool_(True))
    letter = replace(LETTER, to=Place("n", np.int64(3)), step=step)
    expected = replace(LETTER, step=replace(WRITE, logs={"rain": RUN}))
    assert LETTERS.decode(LETTERS.encode(letter)) == expected


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda head: head.update(to=["n", "3"]), "$.to[1]"),
        (lambda head: head["step"].update(is_last=1), "$.step.is_last"),
        (lambda head: head["step"]["logs"]["rain"].update(first="1"), "$.step.logs[...].first"),
        (lambda head: head["step"].pop("places"), "$.step"),
        (lambda head: head["step"].update(more=1), "$.step"),
        (lambda head: head["runs"][0].update(more=1), "$.runs[0]"),
        (lambda head: head["step"].update(type="Walk"), "$.step.type"),
        (lambda head: head["step"].pop("type"), "$.step"),
        (lambda head: head["step"].update(frames=-1), "$.step.frames"),
        (lambda head: head["step"].update(frames=b"xyz"), "$.step.frames"),
        (lambda head: head.update(mark="m"), "$.mark"),
        (lambda head: head.update(step=None), "$.step"),
        (lambda head: head["others"].update(s={"type": "Read", "log": "", "until": 1}), "$.others"),
    ],
)
def test_messages_wrong_field_is_named_by_its_path(change: Any, path: str) -> None:
    with pytest.raises(InputError) as caught:
        LETTERS.decode(changed(change))
    assert caught.value.details["path"].startswith(path)


def test_messages_unknown_field_is_named() -> None:
    with raises(InputError, method="post", path="$.step") as caught:
        LETTERS.decode(changed(lambda head: head["step"].update(more=1)))
    assert "unknown field `more` at $.step" in str(caught.value)


def test_messages_of_other_types_are_refused_before_they_are_decoded() -> None:
    @dataclass(frozen=True)
    class Letter:  # Equal in name; one field has another type.
        to: Place
        step: Stop | Read | Write
        runs: tuple[Run, ...] = ()
        others: Mapping[str, Stop | Write | None] = field(default_factory=dict)
        parts: tuple[pa.Buffer | None, ...] = ()
        mark: str = ""

    Letter.__annotations__ |= {"step": Stop | Read | Write, "mark": str}
    other = codec_of(Letter)
    sent = other.encode(Letter(Place("", 0), Stop()))
    with raises(ConfigError, expected=BYTES[:8].hex(), method="post") as caught:
        LETTERS.decode(sent)
    assert sent[:8].hex() in str(caught.value)
    assert "run equal versions of Galileo on all nodes" in str(caught.value)
    with raises(ConfigError, expected=BYTES[:8].hex()):
        LETTERS.decode(headed(b"\xff" * 99, digest=bytes(8)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        BYTES[:11],
        headed(b""),
        headed(b"\xc1"),
        headed(b"\xff" * 20),
        PREFIX.pack(BYTES[:8], 100) + bytes(99),
        BYTES + b"\0",
        BYTES[:-1],
        changed(lambda head: head["step"].update(frames=2**63 - 1)),
        changed(lambda head: head["others"]["w"].update(frames=2)),
        headed(b"\x81" + b"\xa2to" + b"\xa1\xff"),
    ],
)
def test_messages_that_are_not_whole_are_refused(data: bytes) -> None:
    with raises(InputError, method="post"):
        LETTERS.decode(data)


def test_messages_with_a_long_head_are_refused_on_both_sides() -> None:
    long = replace(LETTER, mark=bytes(HEAD_BYTES_MAX))
    with raises(MessageTooLarge, bound=HEAD_BYTES_MAX):
        LETTERS.encode(long)
    with raises(MessageTooLarge, bound=HEAD_BYTES_MAX):
        LETTERS.decode(PREFIX.pack(BYTES[:8], 2**32 - 1) + bytes(100))


def test_messages_with_a_long_set_are_refused_before_it_is_decoded() -> None:
    codec = codec_of(frozenset[str])
    most = frozenset(map(str, range(SET_ITEMS_MAX)))
    assert codec.decode(codec.encode(most)) == most
    with raises(InputError, method="post"):
        codec.decode(codec.encode(most | {"more"}))


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    numbers: npt.NDArray[np.uint32]
    bounded: Annotated[tuple[int, ...], AtMost(2)] = ()


def test_messages_with_columns_have_the_bytes_of_their_numbers() -> None:
    codec = codec_of(Column)
    for dtype in ("<u4", ">u4"):
        sent = codec.encode(Column(np.array([1, 2**32 - 1], dtype=dtype)))
        assert codec.decode(sent).numbers.tolist() == [1, 2**32 - 1]
    whole = msgpack.encode({"numbers": bytes(7), "bounded": []})
    with raises(InputError, method="post"):
        codec.decode(headed(whole, digest=sent[:8]))


@pytest.mark.parametrize(
    ("kind", "most", "more"),
    [
        (Cursor, Cursor(dict.fromkeys(range(NUMBERS_MAX), 1)), {NUMBERS_MAX: 1}),
        (frozenset[int], frozenset(range(NUMBERS_MAX)), [NUMBERS_MAX]),
    ],
)
def test_messages_with_many_numbers_are_refused_before_they_are_decoded(
    kind: Any, most: Any, more: Any
) -> None:
    codec = codec_of(kind)
    sent = codec.encode(most)
    assert codec.decode(sent) == most
    plain = {**most, **more} if kind is Cursor else [*most, *more]
    with raises(InputError, method="post"):
        codec.decode(headed(msgpack.encode(plain), digest=sent[:8]))


def test_messages_with_a_long_sequence_are_refused() -> None:
    codec, numbers = codec_of(Column), np.zeros(1, np.uint32)
    assert codec.decode(codec.encode(Column(numbers, (1, 2)))).bounded == (1, 2)
    with raises(InputError, method="post", path="$.bounded"):
        codec.decode(codec.encode(Column(numbers, (1, 2, 3))))


@pytest.mark.parametrize("plain", [{-1: 1}, {1: -1}, {1 << 31: 1}, {"1": 1}, {1: 0.5}])
def test_messages_with_a_cursor_of_other_numbers_are_refused(plain: Any) -> None:
    codec = codec_of(Cursor)
    with raises(InputError, method="post"):
        codec.decode(headed(msgpack.encode(plain), digest=codec.encode(Cursor())[:8]))


def test_messages_with_a_long_text_have_it_beside_the_head() -> None:
    codec = codec_of(LongText)
    text = "ü" * HEAD_BYTES_MAX
    sent = codec.encode(text)
    assert codec.decode(sent) == text
    assert PREFIX.unpack_from(sent)[1] < 10
    with raises(InputError, method="post"):
        codec.decode(sent[:-1] + b"\xff")


def test_messages_with_a_table_have_its_stream() -> None:
    codec, table = codec_of(pa.Table), pa.table({"a": [1, 2]})
    for sent in (table, stream_of(table)):
        assert read_stream(codec.decode(codec.encode(sent))).equals(table)


def test_messages_with_an_error_have_its_class_and_details() -> None:
    codec = codec_of(GalileoError)
    decoded = codec.decode(codec.encode(MessageTooLarge("too long", bound=7)))
    assert (type(decoded), decoded.message) == (MessageTooLarge, "too long")
    assert decoded.details["bound"] == 7
    with raises(InputError, method="post"):
        codec.decode(headed(msgpack.encode(b"\xff"), digest=codec.encode(decoded)[:8]))


@pytest.mark.parametrize("size", [b"\xdd", b"\xdf"])
def test_messages_claimed_sizes_take_no_memory(size: bytes) -> None:
    """A head of some bytes says that it has four billion values."""
    many = size + b"\xff\xff\xff\xff" + b"\x01" * 50
    for kind in (tuple[int, ...], Mapping[str, int], frozenset[Place], tuple[Run, ...]):
        codec = codec_of(kind)
        data = PREFIX.pack(codec.encode(())[:8], len(many)) + many
        tracemalloc.start()
        with pytest.raises(InputError):
            codec.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()


@pytest.mark.parametrize(
    "letter",
    [
        replace(LETTER, to=Place("n", 2**64)),
        replace(LETTER, to=Place("\ud800", 0)),
        replace(LETTER, step=object()),
        replace(LETTER, step=RUN),
        replace(LETTER, runs=[object()]),
        replace(LETTER, parts=(7,)),
        object(),
    ],
)
def test_messages_of_wrong_values_are_internal_errors(letter: Any) -> None:
    with raises(InternalError, method="post"):
        LETTERS.encode(letter)


def test_messages_changed_byte_gives_a_value_or_an_error() -> None:
    for place, before in enumerate(BYTES):
        for value in {0, 1, 0x7F, 0x80, 0xC0, 0xDD, 0xFF, before ^ 1}:
            data = BYTES[:place] + bytes([value]) + BYTES[place + 1 :]
            with contextlib.suppress(GalileoError):
                assert isinstance(LETTERS.decode(data), Letter)


@given(st.binary(max_size=300), st.integers(0, len(BYTES)))
def test_messages_random_bytes_give_an_error(data: bytes, place: int) -> None:
    for sent in (data, headed(data), BYTES[:place] + data, BYTES[:place]):
        with contextlib.suppress(GalileoError):
            assert isinstance(LETTERS.decode(sent), Letter)


@pytest.mark.parametrize(
    "kind",
    [
        object,
        list[int],
        Sequence[int],
        int | str,
        Run | int,
        frozenset[Run],
        Mapping[Stop, int],
        frozenset[pa.Buffer],
        tuple[pa.Buffer, int],
        Annotated[int, ATTACHED],
        Annotated[str, "another mark"],
    ],
)
def test_forms_of_types_that_do_not_travel_raise(kind: Any) -> None:
    with pytest.raises(TypeError, match="expected"):
        Forms().of(kind)


def test_digest_names_each_type() -> None:
    def digest(*kinds: Any) -> bytes:
        forms = Forms()
        for kind in kinds:
            forms.of(kind)
        return forms.digest("")

    assert digest(Letter) == digest(Letter) == digest(Run, Letter)
    assert len({digest(kind) for kind in (Letter, Run, Read, Stop, Place)}) == 5
    assert len(digest(Run)) == messages.DIGEST_BYTES
