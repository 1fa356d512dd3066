import base64

import google_crc32c
import numpy as np
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.errors import InvalidToken
from galileo.model.windows import OPEN_WINDOWS_MAX, WindowProgress, array_to_runs
from galileo.wire import token

cursors = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=20).map(
    Cursor
)
ids = st.text(max_size=40)


@given(ids, cursors)
def test_token_random_cursor_round_trips(ccq_id, cursor):
    assert token.decode(token.encode(ccq_id, cursor), ccq_id=ccq_id) == cursor


@given(ids, ids, cursors)
def test_token_decode_other_ccq_raises(ccq_id, other, cursor):
    if ccq_id == other:
        return
    with raises(InvalidToken, expected="token_of_ccq"):
        token.decode(token.encode(ccq_id, cursor), ccq_id=other)


@given(cursors, st.data())
def test_token_decode_any_damage_raises(cursor, data):
    text = token.encode("q", cursor)
    at = data.draw(st.integers(0, len(text) - 1))
    char = data.draw(st.characters(codec="utf-8").filter(lambda c: c != text[at]))
    for damaged in (text[:at] + char + text[at + 1 :], text[:at], text + "A"):
        with pytest.raises(InvalidToken):
            token.decode(damaged, ccq_id="q")


@given(st.text(max_size=60))
def test_token_decode_random_text_raises_invalid_token(text):
    with pytest.raises(InvalidToken):
        token.decode(text, ccq_id="q")


@given(st.binary(max_size=40))
def test_token_decode_random_body_with_checksum_raises(body):
    body = bytes([token.VERSION]) + b"\x01q" + body
    raw = body + google_crc32c.value(body).to_bytes(4, "big")
    text = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    try:
        cursor = token.decode(text, ccq_id="q")
    except InvalidToken:
        return
    assert token.encode("q", cursor) == text


def sealed(body: bytes) -> str:
    raw = body + google_crc32c.value(body).to_bytes(4, "big")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_token_decode_other_text_raises():
    with raises(InvalidToken, expected="token"):
        token.decode("bogus", ccq_id="q")


def test_token_decode_another_version_raises():
    with raises(InvalidToken, expected="version"):
        token.decode(sealed(bytes([token.VERSION + 1]) + b"\x01q\x00\x00\x00"), ccq_id="q")


numbers = st.integers(-(2**58), 2**58)
open_windows = st.sets(st.integers(-(2**40), 2**40), max_size=40).map(
    lambda some: array_to_runs(np.array(sorted(some), dtype=np.int64))
)


progresses = st.builds(WindowProgress, st.none() | numbers, open_windows)


@given(ids, st.builds(token.Position, cursors, progresses, cursors, st.none() | cursors))
def test_token_random_position_round_trip(ccq_id, position):
    text = position.encode(ccq_id)
    assert token.read(text, ccq_id=ccq_id) == position
    assert token.decode(text, ccq_id=ccq_id) == position.cursor
    plain = token.Position(position.cursor)
    assert token.encode(ccq_id, position.cursor) == plain.encode(ccq_id)


def test_token_read_too_many_windows_raises():
    """It is refused before anything is made of so many."""
    many = WindowProgress(0, ((3, OPEN_WINDOWS_MAX + 1),))
    with raises(InvalidToken, expected="windows"):
        token.read(token.Position(progress=many).encode("q"), ccq_id="q")
    with raises(InvalidToken, expected="windows"):
        none = WindowProgress(0, ((3, 0),))
        token.read(token.Position(progress=none).encode("q"), ccq_id="q")


@given(st.binary(max_size=40))
def test_token_read_random_windows_with_checksum_raises(body):
    text = sealed(bytes([token.VERSION]) + b"\x01q\x00" + body)
    try:
        position = token.read(text, ccq_id="q")
    except InvalidToken:
        return
    assert position.encode("q") == text


def test_token_decode_long_text_raises():
    with raises(InvalidToken, expected="characters", bound=1048576):
        token.decode("A" * (token.TOKEN_CHARS_MAX + 1), ccq_id="q")
