"""Handles: what a worker holds while it owns a lease, as opaque signed text.

`ffh1.` and, in URL-safe base64: the length of the body, the body, and a signature over prefix,
length and body. Without the key, a handle can be neither made nor changed. A handle is a value: it
may be copied, stored and presented again.
"""

import hmac
from base64 import urlsafe_b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from enum import StrEnum
from uuid import UUID

import msgspec

from flowfabric.core.base.errors import ForeignHandle, Invalid, InvalidHandle
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis

PREFIX = "ffh1."

_LENGTH = 4
_SIGNATURE = 16


class HandleKind(StrEnum):
    """How the lease began. A suspended handle has given up its lease."""

    FRESH = "fresh"
    RESUMED = "resumed"
    RECLAIMED = "reclaimed"
    SUSPENDED = "suspended"


class HandleBody(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a handle says. `store` names the store that issued it."""

    execution: UUID
    partition: int
    attempt_index: int
    attempt_id: UUID
    lease_id: UUID
    epoch: int
    lease_ttl: Millis
    lane: str
    worker: str
    instance: str
    kind: HandleKind
    store: str

    @property
    def execution_id(self) -> ExecutionId:
        return ExecutionId.of(self.partition, self.execution)


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(HandleBody)


def seal(body: HandleBody, key: bytes) -> str:
    """The handle that says `body`, signed with `key`."""
    packed = _encoder.encode(body)
    signed = len(packed).to_bytes(_LENGTH, "big") + packed
    return PREFIX + _to_text(signed + _sign(signed, key))


def open_handle(text: object, key: bytes, store: str) -> HandleBody:
    """What the handle `text` says, if `key` signed it for `store`.

    Raises `InvalidHandle` with the detail not_a_handle, truncated, malformed or bad_signature, and
    `ForeignHandle` for one of another kind of store. The text itself never appears in an error.
    """
    if not isinstance(text, str) or not text.startswith(PREFIX):
        raise InvalidHandle("not_a_handle")
    signed, signature = _parts(text[len(PREFIX) :])
    if not hmac.compare_digest(signature, _sign(signed, key)):
        if _is_foreign(signed, store):
            raise ForeignHandle("foreign_store")
        raise InvalidHandle("bad_signature")
    body = _unpack(signed)
    if body.store != store:
        raise ForeignHandle("foreign_store")
    return body


def _sign(signed: bytes, key: bytes) -> bytes:
    if not key:
        raise Invalid("handles cannot be signed with an empty key")
    return hmac.digest(key, PREFIX.encode() + signed, "sha256")[:_SIGNATURE]


def _parts(text: str) -> tuple[bytes, bytes]:
    """The signed part and its signature, separated by the length at the front."""
    raw = _from_text(text)
    if len(raw) < _LENGTH + _SIGNATURE:
        raise InvalidHandle("truncated")
    end = _LENGTH + int.from_bytes(raw[:_LENGTH], "big")
    if len(raw) < end + _SIGNATURE:
        raise InvalidHandle("truncated")
    # One handle, one text: nothing may follow, not even unused bits of the last character.
    if len(raw) > end + _SIGNATURE or _to_text(raw) != text:
        raise InvalidHandle("malformed")
    return raw[:end], raw[end:]


def _unpack(signed: bytes) -> HandleBody:
    try:
        return _decoder.decode(signed[_LENGTH:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidHandle("malformed") from None


def _is_foreign(signed: bytes, store: str) -> bool:
    """Whether a handle with a wrong signature at least claims to come from another store."""
    try:
        return _unpack(signed).store != store
    except InvalidHandle:
        return False


def _to_text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    if len(text) % 4 == 1:
        raise InvalidHandle("truncated")
    try:
        standard = text.encode("ascii").translate(_STANDARD) + b"=" * (-len(text) % 4)
        return a2b_base64(standard, strict_mode=True)
    except (UnicodeEncodeError, Base64Error):
        raise InvalidHandle("malformed") from None


# "+" and "/" do not occur in a handle; they become "!", which is not base64.
_STANDARD = bytes.maketrans(b"-_+/", b"+/!!")
