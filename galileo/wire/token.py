"""Resume tokens: a cursor as opaque text, for clients to store.

Layout before base64 (url-safe, unpadded): version byte; length and UTF-8 bytes of the CCQ's id;
number of pairs, then for each pair, by ascending partition, the difference to the partition
before and the sequence; the reader's progress in windows; the deletions, as pairs; within a reset
the place, as pairs; CRC-32C of all that, big-endian. Numbers are LEB128.

The progress is whether there is a clock, and which; number of runs, then for each run the distance
of its first window from the end of the run before and its length. Clock and first window may be
negative (zigzag). A reader without windows has neither a clock nor runs.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import google_crc32c

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import InvalidToken
from galileo.model.windows import OPEN_WINDOWS_MAX, WindowProgress

VERSION = 1
TOKEN_CHARS_MAX = 1 << 20
SHOWN_CHARS = 40
NO_PROGRESS = WindowProgress()
_CHECKSUM_BYTES = 4
_NUMBER_BITS_MAX = 63
_ADVICE = (
    "fetch with the token of the last answer, or with none to begin with the first one that is kept"
)


@dataclass(frozen=True, slots=True)
class Position:
    """What a reader has.

    Attributes:
        cursor: the commits that it has processed.
        progress: in windows.
        deletions: of a dataset without a key, up to where each partition may have deletions among
            these commits.
        place: within a reset, what the reader has of the versions that count at `cursor`: those
            since commits up to `place`. None: all.
    """

    cursor: Cursor = EMPTY_CURSOR
    progress: WindowProgress = NO_PROGRESS
    deletions: Cursor = EMPTY_CURSOR
    place: Cursor | None = None

    def encode(self, ccq_id: str) -> str:
        """The token of the position for the CCQ `ccq_id`."""
        name = ccq_id.encode()
        body = bytes([VERSION]) + _number(len(name)) + name
        body += _pairs(self.cursor) + _windows(self.progress) + _pairs(self.deletions)
        return _sealed(body if self.place is None else body + _pairs(self.place))


def encode(ccq_id: str, cursor: Cursor) -> str:
    """The token of `cursor` for the CCQ `ccq_id`."""
    return Position(cursor).encode(ccq_id)


def begin_anew(ccq_id: str) -> str:
    """The token of a reader that has nothing, and gets what matches at one cursor, in parts."""
    return Position(place=EMPTY_CURSOR).encode(ccq_id)


def _pairs(cursor: Cursor) -> bytes:
    body, before = bytearray(_number(len(cursor))), 0
    for partition, sequence in cursor.items():
        body += _number(partition - before) + _number(sequence)
        before = partition
    return bytes(body)


def _sealed(body: bytes) -> str:
    body += google_crc32c.value(body).to_bytes(_CHECKSUM_BYTES, "big")
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def decode(text: str, *, ccq_id: str) -> Cursor:
    """The cursor of a token.

    Raises:
        InvalidToken: the text is no token, is damaged, or belongs to another CCQ.
    """
    return read(text, ccq_id=ccq_id).cursor


def read(text: str, *, ccq_id: str) -> Position:
    """The position of a token; errors as `decode`."""
    try:
        return _decoded(text, ccq_id=ccq_id)
    except InvalidToken as error:
        raise InvalidToken(f"{error.message}; {_ADVICE}", **error.details) from error


def _decoded(text: str, *, ccq_id: str) -> Position:
    body = _checked(text)
    name, at = _text(body, 1)
    if name != ccq_id:
        raise InvalidToken(
            f"expected a resume token of {ccq_id!r}, got one of {name!r}",
            expected="token_of_ccq",
        )
    cursor, at = _read_pairs(body, at)
    progress, at = _read_progress(body, at)
    deletions, at = _read_pairs(body, at)
    place = _read_pairs(body, at)[0] if at < len(body) else None
    position = Position(cursor, progress, deletions, place)
    if position.encode(ccq_id) != text:
        raise InvalidToken("the resume token was changed", expected="unchanged")
    return position


def _read_pairs(body: bytes, at: int) -> tuple[Cursor, int]:
    count, at = _read(body, at)
    positions, partition = {}, 0
    for _ in range(count):
        step, at = _read(body, at)
        sequence, at = _read(body, at)
        partition += step
        positions[partition] = sequence
    return Cursor(positions), at


def _windows(progress: WindowProgress) -> bytes:
    clock = b"\0" if progress.clock_us is None else b"\1" + _number(_zigzag(progress.clock_us))
    body, end = clock + _number(len(progress.open)), 0
    for number, (first, count) in enumerate(progress.open):
        body += _number(_zigzag(first) if number == 0 else first - end) + _number(count)
        end = first + count
    return body


def _read_progress(body: bytes, at: int) -> tuple[WindowProgress, int]:
    has_clock, at = _read(body, at)
    clock_us, at = _read(body, at) if has_clock else (0, at)
    count, at = _read(body, at)
    open_runs: list[tuple[int, int]] = []
    held = end = 0
    for _ in range(count):
        step, at = _read(body, at)
        length, at = _read(body, at)
        held += length
        first = end + step if open_runs else _unzigzag(step)
        if not length or held > OPEN_WINDOWS_MAX:
            raise InvalidToken("the resume token has impossible windows", expected="windows")
        open_runs.append((first, length))
        end = first + length
    return WindowProgress(_unzigzag(clock_us) if has_clock else None, tuple(open_runs)), at


def _zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def _unzigzag(value: int) -> int:
    return value // 2 if value % 2 == 0 else -(value // 2) - 1


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…")


def _checked(text: str) -> bytes:
    """The body of the token, once its checksum and version are right."""
    if len(text) > TOKEN_CHARS_MAX:
        raise InvalidToken(
            f"expected a token of at most {TOKEN_CHARS_MAX} characters",
            expected="characters",
            bound=TOKEN_CHARS_MAX,
        )
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidToken(f"{_shown(text)} is no resume token", expected="token") from error
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if not body or google_crc32c.value(body) != int.from_bytes(checksum, "big"):
        raise InvalidToken("the resume token is corrupt", expected="checksum")
    if body[0] != VERSION:
        raise InvalidToken(
            f"expected a resume token of version {VERSION}, got {body[0]}", expected="version"
        )
    return body


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body) and shift <= _NUMBER_BITS_MAX:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise InvalidToken("the resume token is truncated")


def _text(body: bytes, at: int) -> tuple[str, int]:
    length, at = _read(body, at)
    try:
        return body[at : at + length].decode(), at + length
    except UnicodeDecodeError as error:
        raise InvalidToken("the id in the resume token is not UTF-8") from error
