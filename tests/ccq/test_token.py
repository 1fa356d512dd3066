import base64

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.ccq import token
from galileo.cursor import Cursor
from galileo.errors import InvalidToken

cursors = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=20).map(
    Cursor
)
ids = st.text(max_size=40)


@given(ids, cursors)
def test_a_token_round_trips(ccq_id, cursor):
    assert token.decode(token.encode(ccq_id, cursor), ccq_id=ccq_id) == cursor


@given(ids, ids, cursors)
def test_the_token_of_another_ccq_is_refused(ccq_id, other, cursor):
    if ccq_id == other:
        return
    with pytest.raises(InvalidToken, match="one of"):
        token.decode(token.encode(ccq_id, cursor), ccq_id=other)


@given(cursors, st.data())
def test_any_damage_is_noticed(cursor, data):
    text = token.encode("q", cursor)
    at = data.draw(st.integers(0, len(text) - 1))
    char = data.draw(st.characters(codec="utf-8").filter(lambda c: c != text[at]))
    for damaged in (text[:at] + char + text[at + 1 :], text[:at], text + "A"):
        with pytest.raises(InvalidToken):
            token.decode(damaged, ccq_id="q")


@given(st.text(max_size=60))
def test_any_text_is_refused_with_invalid_token_alone(text):
    with pytest.raises(InvalidToken):
        token.decode(text, ccq_id="q")


@given(st.binary(max_size=40))
def test_a_right_checksum_over_nonsense_is_refused(body):
    body = bytes([token.VERSION]) + b"\x01q" + body
    raw = body + google_crc32c.value(body).to_bytes(4, "big")
    text = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    try:
        cursor = token.decode(text, ccq_id="q")
    except InvalidToken:
        return
    assert token.encode("q", cursor) == text


def test_a_newer_version_is_named():
    body = bytes([2]) + b"\x01q\x00"
    raw = body + google_crc32c.value(body).to_bytes(4, "big")
    with pytest.raises(InvalidToken, match="version 1, got 2"):
        token.decode(base64.urlsafe_b64encode(raw).rstrip(b"=").decode(), ccq_id="q")


def test_tokens_are_bounded():
    with pytest.raises(InvalidToken, match="at most"):
        token.decode("A" * (token.TOKEN_CHARS_MAX + 1), ccq_id="q")
