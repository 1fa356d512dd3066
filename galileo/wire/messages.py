"""Encodes what nodes ask each other: the typed codec of the internal service.

A message is a head and its attachments:

    digest of the types | bytes of the head | head | attachment | attachment ...

The head is MessagePack. A dataclass is a map of its fields; a dataclass that is one of a union also
names its class. A field of type `pyarrow.Buffer` (frames, Arrow streams, packs) is an attachment:
the head has its length only. An attachment is copied once into the message that is sent, and shares
memory with the message that was received, where it begins at a multiple of `ALIGNMENT`. So is a
`LongText`, because heads are bounded by what is decoded in time, and so is an array of numbers. A
field of type `pyarrow.Table` is sent as an attachment, too, an Arrow stream. It arrives as
`pyarrow.Buffer`: decoding takes long and needs the schema that is expected, so it is left to the
receiver.

The types are the annotations of the dataclasses. They are checked while a message is decoded, so
each node must have the same ones: the digest says so before anything is decoded.

Theory of operation. msgspec reads and writes dataclasses, but of several dataclasses in a union it
cannot tell which one is meant, and it ignores fields that a dataclass does not have. Each dataclass
therefore has a mirror, a `msgspec.Struct` of the same fields, which is what is decoded. msgspec
makes the dataclass of it, and encodes the dataclass itself; only values that have a union or an
attachment inside are converted here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, TypeVar, Union

import msgspec
import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from msgspec import msgpack

from galileo.cursor import Cursor
from galileo.errors import ConfigError, GalileoError, InputError, InternalError, MessageTooLarge
from galileo.wire.attachments import ATTACHED, AtMost
from galileo.wire.status import error_from_pb, error_to_pb
from galileo.wire.v1 import common_pb2
from galileo.wire.zero_copy import ALIGNMENT, aligned, stream_of

HEAD_BYTES_MAX = 4 << 20
"""Bytes of a head. Its values may take forty times as much memory."""
SET_ITEMS_MAX = 4_096
"""Items of a set, which is decoded slowly; a longer one is refused before that."""
NUMBERS_MAX = 1 << 15
"""Items of a set of numbers, and partitions of a cursor."""
DIGEST_BYTES = 8

_PREFIX = Struct(f"<{DIGEST_BYTES}sI")
_SCALARS = (bool, int, float, str, bytes, type(None))
_FOREIGN = (msgspec.MsgspecError, UnicodeDecodeError)

Value = TypeVar("Value")
Buffers = list[pa.Buffer]
Write = Callable[[Any, Buffers], Any]
Read = Callable[[Any, "_Attachments"], Any]


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a type travel.

    Attributes:
        text: names the type.
        kind: the type itself, with the containers that are made when it is decoded.
        wire: the type that msgspec decodes.
        write: makes what msgspec encodes, and collects attachments; None: the value itself.
        read: makes the value of what was decoded; None: that is the value.
    """

    text: str
    kind: Any
    wire: Any
    write: Write | None = None
    read: Read | None = None

    @property
    def is_plain(self) -> bool:
        """Whether msgspec encodes the value itself: it has no union and no attachment inside."""
        return self.write is None


class Forms:
    """The forms of types, made of their annotations.

    Attributes:
        definitions: a line for each dataclass.
    """

    def __init__(self) -> None:
        self.definitions: dict[type, str] = {}
        self._mirrors: dict[tuple[type, bool], _Mirror] = {}

    def digest(self, calls: str) -> bytes:
        """Names all types that were given a form, and what else has to be equal."""
        text = "\n".join((calls, *sorted(self.definitions.values())))
        return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()

    def of(self, kind: Any) -> Form:
        """The form of a type.

        Raises:
            TypeError: values of the type do not travel.
        """
        if kind in (pa.Buffer, pa.Table):
            write = _attach if kind is pa.Buffer else _attach_table
            return Form("buffer", kind, _SIZE, write, lambda size, attached: attached.take(size))
        if kind in _SCALARS:
            return Form(kind.__name__, kind, kind)
        if kind is GalileoError:
            return Form("error", kind, bytes, _write_error, _read_error)
        if kind is Cursor:
            return Form("cursor", kind, _CURSOR, None, lambda plain, _: Cursor(plain))
        if dataclasses.is_dataclass(kind):
            return self._mirror(typing.cast(type, kind), is_tagged=False).form
        if isinstance(kind, type) and issubclass(kind, tuple):
            return self._of_named_tuple(kind)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is np.ndarray:
            return _of_column(kind)
        if origin is typing.Annotated:
            return self._of_annotated(*arguments)
        if origin in (Union, types.UnionType):
            return self._of_union(kind, arguments)
        if origin is tuple and arguments[-1] is Ellipsis:
            return _of_array(self.of(arguments[0]))
        inner = [self.of(argument) for argument in arguments]
        if all(form.is_plain for form in inner):
            if origin is tuple:
                return _container("tuple", tuple, inner)
            if origin is frozenset and inner[0].read is None:
                form = _container("set", frozenset, inner)
                most = NUMBERS_MAX if inner[0].kind is int else SET_ITEMS_MAX
                return dataclasses.replace(form, wire=_bounded(form.wire, most))
        if origin in (Mapping, dict) and inner[0].read is None:
            return _of_map(*inner)
        raise TypeError(f"expected a type that nodes send, got {kind}")

    def _of_annotated(self, kind: Any, mark: object) -> Form:
        form = self.of(kind)
        if isinstance(mark, AtMost):
            return dataclasses.replace(form, wire=_bounded(form.wire, mark.items))
        if (kind, mark) != (str, ATTACHED):
            raise TypeError(f"expected a mark of a type that nodes send, got {mark}")
        return Form("text", kind, _SIZE, _attach_text, _take_text)

    def _of_named_tuple(self, kind: Any) -> Form:
        """The form of a named tuple of scalars, which msgspec knows."""
        fields = {name: self.of(hint) for name, hint in typing.get_type_hints(kind).items()}
        if not fields or any(form.read or form.write for form in fields.values()):
            raise TypeError(f"expected a named tuple of scalars, got {kind}")
        self.definitions[kind] = _definition(kind, fields)
        return Form(kind.__name__, kind, kind)

    def _of_union(self, kind: Any, parts: Sequence[Any]) -> Form:
        others = [part for part in parts if part is not type(None)]
        if len(others) == 1:
            return _optional(self.of(others[0]))
        if not all(map(dataclasses.is_dataclass, others)):
            raise TypeError(f"expected a union of dataclasses, got {kind}")
        mirrors = [self._mirror(part, is_tagged=True) for part in others]
        form = _of_mirrors(mirrors)
        return form if len(others) == len(parts) else _optional(form)

    def _mirror(self, kind: type, *, is_tagged: bool) -> _Mirror:
        if (kind, is_tagged) not in self._mirrors:
            hints = typing.get_type_hints(kind, include_extras=True)
            fields = {field.name: self.of(hints[field.name]) for field in _fields(kind)}
            self.definitions[kind] = _definition(kind, fields)
            self._mirrors[kind, is_tagged] = _Mirror(kind, fields, is_tagged=is_tagged)
        return self._mirrors[kind, is_tagged]


class MessageCodec(Generic[Value]):
    """Encodes and decodes the messages of one type.

    Args:
        form: of the type.
        digest: of all types that have to be equal on both sides.
        name: of the message, for errors.
        head_bytes_max: of a message.
    """

    def __init__(
        self, form: Form, *, digest: bytes, name: str, head_bytes_max: int = HEAD_BYTES_MAX
    ) -> None:
        self._write, self._read = form.write, form.read
        self._digest = digest
        self._name = name
        self._head_bytes_max = head_bytes_max
        self._encoder = msgpack.Encoder(enc_hook=_builtin)
        self._decoder: msgpack.Decoder[Any] = msgpack.Decoder(form.wire)

    def encode(self, value: Value) -> bytes:
        """A message; copies attachments once.

        Raises:
            MessageTooLarge: the head has more than `head_bytes_max` bytes.
            InternalError: the value is not of its type.
        """
        attached = Buffers()
        try:
            plain = value if self._write is None else self._write(value, attached)
            head = self._encoder.encode(plain)
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            message = f"cannot encode a message of {self._name}: {error}"
            raise InternalError(message, method=self._name) from error
        self._check_head(len(head))
        parts = [_PREFIX.pack(self._digest, len(head)), head]
        place = _PREFIX.size + len(head)
        for buffer in attached:
            padding = -place % ALIGNMENT
            parts += (bytes(padding), buffer)
            place += padding + buffer.size
        return b"".join(parts)

    def decode(self, data: bytes) -> Value:
        """The value of a message; its attachments share memory with the message.

        Raises:
            ConfigError: the sender has other types.
            InputError: the message is not of its type, or not whole.
            MessageTooLarge: the head has more than `head_bytes_max` bytes.
        """
        end = self._head_end(data)
        attached = _Attachments(data, end)
        try:
            plain = self._decoder.decode(memoryview(data)[_PREFIX.size : end])
            value = plain if self._read is None else self._read(plain, attached)
            attached.check_end()
        except _FOREIGN as error:
            what, _, path = str(error).partition(" - at ")
            path = path.strip("`")
            raise self._wrong(f"{what}{path and f' at {path}'}", path=path) from error
        except _Incomplete as error:
            raise self._wrong(str(error)) from error
        return typing.cast(Value, value)

    def _head_end(self, data: bytes) -> int:
        """Where the head ends, whose digest and length are right."""
        if len(data) < _PREFIX.size:
            raise self._wrong(f"it has {len(data)} bytes, fewer than {_PREFIX.size}")
        digest, size = _PREFIX.unpack_from(data)
        if digest != self._digest:
            raise ConfigError(
                f"expected a message of {self._name} with the types {self._digest.hex()}, got one "
                f"with the types {digest.hex()}; run equal versions of Galileo on all nodes",
                expected=self._digest.hex(),
                method=self._name,
            )
        self._check_head(size)
        if size > len(data) - _PREFIX.size:
            raise self._wrong("its head is cut off")
        return int(_PREFIX.size + size)

    def _check_head(self, size: int) -> None:
        if size > self._head_bytes_max:
            raise MessageTooLarge(
                f"expected at most {self._head_bytes_max:,} bytes beside the attachments of a "
                f"message of {self._name}, got {size:,}",
                bound=self._head_bytes_max,
                method=self._name,
            )

    def _wrong(self, what: str, *, path: str = "") -> InputError:
        return InputError(
            f"expected a message of {self._name}, got another one: {what}",
            method=self._name,
            path=path,
        )


class _Incomplete(Exception):
    """The attachments are not those that the head names."""


class _Attachments:
    """Hands out the attachments of a message, in their order."""

    def __init__(self, data: bytes, start: int) -> None:
        self._view = memoryview(data)
        self._place = start

    def take(self, size: int) -> pa.Buffer:
        start = self._place + -self._place % ALIGNMENT
        if size > len(self._view) - start:
            raise _Incomplete(f"its attachment of {size:,} bytes is cut off")
        self._place = start + size
        return aligned(self._view[start : self._place])

    def check_end(self) -> None:
        if self._place != len(self._view):
            raise _Incomplete(f"{len(self._view) - self._place:,} bytes follow its end")


class _Mirror:
    """A dataclass and its struct.

    Attributes:
        kind: the dataclass.
        struct: has the same fields, and the name of the class where one of several is meant.
        form: of the dataclass.
    """

    def __init__(self, kind: type, fields: Mapping[str, Form], *, is_tagged: bool) -> None:
        self.kind = kind
        self.struct = msgspec.defstruct(
            kind.__name__,
            [(name, form.wire) for name, form in fields.items()],
            tag=kind.__name__ if is_tagged else None,
            forbid_unknown_fields=True,
            gc=False,
        )
        self._values = _values_of(fields)
        self._writes = [(i, f.write) for i, f in enumerate(fields.values()) if f.write]
        self._reads = [(i, f.read) for i, f in enumerate(fields.values()) if f.read]
        write = self.write if self._writes else None
        self.form = Form(kind.__name__, kind, self.struct, write, self.read)

    def write(self, value: Any, attached: Buffers) -> Any:
        values = list(self._values(value))
        for place, write in self._writes:
            values[place] = write(values[place], attached)
        return self.struct(*values)

    def read(self, mirrored: Any, attached: _Attachments) -> Any:
        if not self._reads:
            return self.kind(*self._values(mirrored))
        if not self._writes:
            return _converted(mirrored, self.kind)
        values = list(self._values(mirrored))
        for place, read in self._reads:
            values[place] = read(values[place], attached)
        return self.kind(*values)


def _fields(kind: Any) -> Iterator[dataclasses.Field[Any]]:
    """The fields of a dataclass, all of which its constructor takes by position."""
    for field in dataclasses.fields(kind):
        if not field.init or field.kw_only:
            raise TypeError(f"expected {kind.__name__}.{field.name} to be a positional argument")
        yield field


def _definition(kind: type, fields: Mapping[str, Form]) -> str:
    inside = ", ".join(f"{name}: {form.text}" for name, form in fields.items())
    return f"{kind.__name__}({inside})"


def _values_of(names: Sequence[str] | Mapping[str, Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns the values of fields."""
    match [*names]:
        case []:
            return lambda value: ()
        case [name]:
            return lambda value: (getattr(value, name),)
        case several:
            return attrgetter(*several)


def _of_mirrors(mirrors: Sequence[_Mirror]) -> Form:
    """The form of a union of dataclasses."""
    of_kind = {mirror.kind: mirror for mirror in mirrors}
    of_struct: dict[type, _Mirror] = {mirror.struct: mirror for mirror in mirrors}
    return Form(
        " | ".join(mirror.form.text for mirror in mirrors),
        _generic(Union, *of_kind),
        _generic(Union, *of_struct),
        lambda value, attached: of_kind[type(value)].write(value, attached),
        lambda value, attached: of_struct[type(value)].read(value, attached),
    )


def _optional(form: Form) -> Form:
    write, read = form.write, form.read
    return Form(
        f"{form.text} | None",
        form.kind | None,
        form.wire | None,
        write and (lambda value, attached: None if value is None else write(value, attached)),
        read and (lambda value, attached: None if value is None else read(value, attached)),
    )


def _of_array(item: Form) -> Form:
    """The form of a tuple of any length."""
    write, read = item.write, item.read
    if write is None:
        return _container("array", tuple, [item, _ANY_NUMBER])
    return Form(
        f"array[{item.text}]",
        _generic(tuple, item.kind, ...),
        _generic(tuple, item.wire, ...),
        lambda values, attached: [write(value, attached) for value in values],
        read and (lambda values, attached: tuple([read(value, attached) for value in values])),
    )


def _of_map(key: Form, item: Form) -> Form:
    write, read = item.write, item.read
    if write is None:
        return _container("map", dict, [key, item])
    return Form(
        f"map[{key.text}, {item.text}]",
        _generic(dict, key.kind, item.kind),
        _generic(dict, key.wire, item.wire),
        lambda values, attached: {name: write(value, attached) for name, value in values.items()},
        read
        and (
            lambda values, attached: {name: read(value, attached) for name, value in values.items()}
        ),
    )


_ANY_NUMBER = Form("...", Ellipsis, Ellipsis)


def _generic(container: Any, *inner: Any) -> Any:
    return container[inner]


def _container(name: str, container: Any, inner: Sequence[Form]) -> Form:
    """The form of a container of plain values, which msgspec makes as a whole."""
    kind = _generic(container, *(form.kind for form in inner))
    has_mirrors = any(form.read for form in inner)

    def read(mirrored: Any, attached: _Attachments) -> Any:
        return _converted(mirrored, kind)

    return Form(
        f"{name}[{', '.join(form.text for form in inner)}]",
        kind,
        _generic(container, *(form.wire for form in inner)),
        None,
        read if has_mirrors else None,
    )


_SIZE = typing.Annotated[int, msgspec.Meta(ge=0)]
_PARTITION = typing.Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_CURSOR: Any = typing.Annotated[dict[_PARTITION, _SIZE], msgspec.Meta(max_length=NUMBERS_MAX)]


def _write_error(error: GalileoError, _: Buffers) -> bytes:
    return error_to_pb(error).SerializeToString()


def _read_error(data: bytes, _: Any) -> GalileoError:
    try:
        return error_from_pb(common_pb2.Error.FromString(data))
    except DecodeError as error:
        raise msgspec.ValidationError(f"Expected an error, got other bytes: {error}") from error


def _of_column(kind: Any) -> Form:
    """The form of an array of numbers in one dimension: an attachment, the lowest byte first."""
    dtype = np.dtype(typing.get_args(typing.get_args(kind)[1])[0]).newbyteorder("<")

    def read(size: int, attached: _Attachments) -> Any:
        if size % dtype.itemsize:
            message = f"Expected whole numbers of type {dtype.name}, got {size} bytes"
            raise msgspec.ValidationError(message)
        return np.frombuffer(attached.take(size), dtype)

    def write(column: Any, attached: Buffers) -> int:
        return _attach(np.ascontiguousarray(column, dtype), attached)

    return Form(f"column[{dtype.name}]", kind, _SIZE, write, read)


def _converted(mirrored: Any, kind: Any) -> Any:
    return msgspec.convert(mirrored, kind, from_attributes=True, dec_hook=_foreign)


def _foreign(kind: Any, plain: Any) -> Any:
    """Makes the values of types that msgspec does not know."""
    assert kind is Cursor, f"{kind} is not among them"
    return Cursor(plain)


def _attach(value: Any, attached: Buffers) -> int:
    buffer = pa.py_buffer(value)
    attached.append(buffer)
    return int(buffer.size)


def _bounded(wire: Any, items: int) -> Any:
    return typing.Annotated[wire, msgspec.Meta(max_length=items)]


def _attach_text(value: str, attached: Buffers) -> int:
    return _attach(value.encode(), attached)


def _take_text(size: int, attached: _Attachments) -> str:
    return str(attached.take(size), "utf-8")


def _attach_table(value: Any, attached: Buffers) -> int:
    """Attaches a table, or what it was encoded to."""
    return _attach(stream_of(value) if isinstance(value, pa.Table) else value, attached)


def _builtin(value: object) -> Any:
    """What msgspec encodes for a value of a type that it does not know."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"expected a value that nodes send, got {type(value).__name__}")
