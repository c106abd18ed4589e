"""Scalars as plain data: what MessagePack has, and an extension for each class that it lacks."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.msgpack import Ext

from flowfabric.core.access.token import SecretText
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId, RunId, read_uuid
from flowfabric.core.wait.token import Token

_UUID, _EXECUTION, _RUN, _SPAN, _MOMENT, _LARGE, _TUPLE, _TOKEN, _UNREADABLE = range(1, 10)
_SECRET, _JSON = 10, 11
_MICROSECOND = timedelta(microseconds=1)
_WORD = 1 << 63
_NATIVE = frozenset({NoneType, bool, float, str, bytes})
_MOST_DIGITS = 400
"""Converting more takes quadratic time."""


class Misfit(Invalid):
    """A value that does not have the shape it should have."""


# -- writing


def to_scalar(value: Any) -> Any:
    """A scalar as plain data."""
    kind = type(value)
    if kind in _NATIVE:
        return value
    if kind is int:
        return value if -_WORD <= value < _WORD else _to_large(value)
    writer = _WRITERS.get(kind)
    if writer is None:
        writer = _WRITERS[kind] = _writer_of(kind)
    return writer(value)


def _to_large(value: int) -> Ext:
    if value.bit_length() > 3 * _MOST_DIGITS:
        raise Misfit("a number has too many digits")
    return Ext(_LARGE, str(value).encode())


def _writer_of(kind: type) -> Callable[[Any], Any]:
    for base, writer in _BASES.items():
        if issubclass(kind, base):
            return writer
    raise Misfit(f"{kind.__name__} cannot be sent to a server")


def _write_id(code: int) -> Callable[[ExecutionId], Ext]:
    def write(id: ExecutionId) -> Ext:
        return Ext(code, id.partition_index.to_bytes(4, "big", signed=True) + id.uuid.bytes)

    return write


_BASES: Mapping[type, Callable[[Any], Any]] = {
    UUID: lambda value: Ext(_UUID, value.bytes),
    RunId: _write_id(_RUN),
    ExecutionId: _write_id(_EXECUTION),
    timedelta: lambda value: Ext(_SPAN, str(value // _MICROSECOND).encode()),
    datetime: lambda value: Ext(_MOMENT, value.isoformat().encode()),
    Token: lambda value: Ext(_TOKEN, value.reveal().encode("utf-8", "surrogatepass")),
    msgspec.Raw: lambda value: Ext(_JSON, bytes(value)),
    SecretText: lambda value: Ext(_SECRET, value.reveal().encode()),
    Enum: lambda value: to_scalar(value.value),
    str: str.__str__,
    int: lambda value: to_scalar(int(value)),
    bytearray: bytes,
    memoryview: bytes,
}
_WRITERS: dict[type, Callable[[Any], Any]] = {}


# -- reading


def _number(data: bytes) -> int:
    if len(data) > _MOST_DIGITS:
        raise ValueError("too many digits")
    return int(data)


def _read_id(cls: type[ExecutionId]) -> Callable[[bytes], ExecutionId]:
    def read(data: bytes) -> ExecutionId:
        return cls.of(int.from_bytes(data[:4], "big", signed=True), read_uuid(data[4:]))

    return read


_READERS: Mapping[int, Callable[[bytes], Any]] = {
    _UUID: read_uuid,
    _EXECUTION: _read_id(ExecutionId),
    _RUN: _read_id(RunId),
    _SPAN: lambda data: timedelta(microseconds=_number(data)),
    _MOMENT: lambda data: datetime.fromisoformat(data.decode()),
    _LARGE: _number,
    _TUPLE: lambda data: tuple(decode_plain(data)),
    _TOKEN: lambda data: Token(data.decode("utf-8", "surrogatepass")),
    _JSON: lambda data: msgspec.Raw(data),
    _SECRET: lambda data: SecretText(data.decode()),
}


def _read(code: int, data: memoryview) -> Any:
    """The scalar of an extension. One that cannot be read fits nothing."""
    reader = _READERS.get(code)
    try:
        return Ext(_UNREADABLE, b"") if reader is None else reader(bytes(data))
    except (ValueError, OverflowError, TypeError, Invalid, msgspec.MsgspecError):
        return Ext(_UNREADABLE, b"")


# -- messages

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ext_hook=_read)


def encode_plain(value: Any) -> bytes:
    """Plain data as a message; `Misfit` if it contains something else."""
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError, TypeError) as error:
        raise Misfit(f"this cannot be sent to a server: {error}") from None


def decode_plain(data: bytes) -> Any:
    """The plain data in a message; `Misfit` if it cannot be read."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Misfit(f"the message cannot be read: {error}") from None


# -- values without a declared type


def to_any(value: Any) -> Any:
    """A value as plain data by its own class."""
    match value:
        case list():
            return [to_any(item) for item in value]
        case tuple():
            return Ext(_TUPLE, encode_plain([to_any(item) for item in value]))
        case Mapping():
            return {_key(key): to_any(item) for key, item in value.items()}
        case Struct():
            return to_any(msgspec.to_builtins(value))
        case _:
            return to_scalar(value)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise Misfit("a map without a declared type has text as keys")
    return str.__str__(key)
