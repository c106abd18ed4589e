"""Identifiers: execution ids, partitions, and the uuids that the engine creates.

An execution id is `{fp:7}:<uuid>`. The number is the partition, chosen from the flow or the lane
when the id was created; afterwards it is read from the text and never computed again. People see
the uuid alone: `RunId`.
"""

import re
from binascii import crc_hqx
from functools import lru_cache
from hashlib import sha1
from typing import Self
from uuid import UUID

from msgspec import convert, msgpack, to_builtins

from flowfabric.core.base.errors import Invalid, InvalidId

PARTITIONS = 256
ANYWHERE = -1
"""The partition of an id whose partition its owner does not know."""

#: How many partitions each family of records is spread over.
PARTITION_COUNTS = {"fp": PARTITIONS, "b": 32, "q": 32}

_MAX_INDEX = 65_535
_UUID_TEXT = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_UUID = re.compile(_UUID_TEXT)
_INDEX = re.compile(r"0|[1-9][0-9]{0,4}")
_TAGGED = re.compile(r"\{fp:([^}]*)\}:(.*)", re.DOTALL)
_TAG = re.compile(rf"\{{fp:[0-9]{{1,5}}\}}:(?={_UUID_TEXT})")

# msgspec makes and writes uuids in C, in a quarter of the time that their class takes.
_decode_uuid = msgpack.Decoder(UUID).decode
_BIN_16 = b"\xc4\x10"
_VERSION_BITS = 0xF000 << 64 | 0xC000 << 48
_VERSION_5 = 0x5000 << 64 | 0x8000 << 48


def read_uuid(data: bytes) -> UUID:
    """The uuid in sixteen bytes; a msgspec.ValidationError if there are not sixteen."""
    return _decode_uuid(_BIN_16 + data)


def crc16(data: bytes) -> int:
    """CRC16/XMODEM, the hash that chooses partitions."""
    return crc_hqx(data, 0)


@lru_cache(maxsize=4096)
def lane_partition(lane: str) -> int:
    """The partition of executions without a flow."""
    return crc16(lane.encode()) % PARTITIONS


@lru_cache(maxsize=4096)
def flow_partition(flow: UUID) -> int:
    """The partition of a flow and of all its members."""
    return crc16(flow.bytes) % PARTITIONS


_HOMES = 0x666C_6F77_6661_8000_8000_0000_0000_0000
"""No flow has an id that begins like this: `home_of` numbers them."""


@lru_cache(maxsize=PARTITIONS)
def home_of(partition: int) -> UUID:
    """What stands for the flow of an execution that a client has put into a partition, as long as
    it has not joined the flow that it was put there for."""
    homes = (UUID(int=_HOMES + number) for number in range(1 << 16))
    return next(home for home in homes if flow_partition(home) == partition)


def is_home(flow: UUID) -> bool:
    """Whether this is not a flow but the home of executions that may join one."""
    return _HOMES <= flow.int < _HOMES + (1 << 16)


class ExecutionId(str):
    """The text `{fp:N}:<uuid>`, validated on construction.

    Raises `InvalidId` with the reason missing_tag, invalid_partition_index, invalid_uuid or
    partition_out_of_range. Upper-case digits of the uuid become lower-case, so that one execution
    has one text; equality is equality of the text.

    >>> ExecutionId("{fp:7}:00000000-0000-0000-0000-000000000000").partition_index
    7
    """

    __slots__ = ("_partition", "_uuid")
    _partition: int
    _uuid: UUID

    def __new__(cls, text: str) -> Self:
        if type(text) is cls:
            return text
        return cls.of(*_split(text))

    @classmethod
    def of(cls, partition: int, uuid: UUID) -> Self:
        """The id with these parts, which are not checked."""
        made = str.__new__(cls, f"{{fp:{partition}}}:{to_builtins(uuid)}")
        made._partition = partition
        made._uuid = uuid
        return made

    @classmethod
    def solo(cls, lane: str, uuid: UUID) -> Self:
        """The id of an execution without a flow."""
        return cls.of(lane_partition(lane), uuid)

    @classmethod
    def member(cls, flow: UUID, uuid: UUID) -> Self:
        """The id of a member of `flow`, in the partition of the flow."""
        return cls.of(flow_partition(flow), uuid)

    @classmethod
    def anywhere(cls, uuid: UUID) -> Self:
        """The id of the execution with this uuid, whatever its partition."""
        return cls.of(ANYWHERE, uuid)

    def names(self, other: "ExecutionId") -> bool:
        """Whether this is the id of the same execution; its own partition may be unknown."""
        return self._uuid == other._uuid and self._partition in (ANYWHERE, other._partition)

    @property
    def partition_index(self) -> int:
        # Not called `partition`, which is a method of `str`.
        return self._partition

    @property
    def uuid(self) -> UUID:
        return self._uuid


class RunId(ExecutionId):
    """The id of a run as people see it: the text is the uuid alone, `uuid` the same as a `UUID`.

    The engine takes it wherever it takes an execution id. It is equal to the same id in any form:
    the text of the uuid, the `UUID`, and the text `{fp:N}:<uuid>`, which is `tagged`. It has the
    hash of its own text, so a set or a dict finds it by the uuid, not by the tagged text.

    >>> id = RunId("{fp:7}:00000000-0000-0000-0000-000000000000")
    >>> str(id), id == "{fp:7}:00000000-0000-0000-0000-000000000000"
    ('00000000-0000-0000-0000-000000000000', True)
    """

    __slots__ = ()

    @classmethod
    def of(cls, partition: int, uuid: UUID) -> Self:
        made = str.__new__(cls, to_builtins(uuid))
        made._partition = partition
        made._uuid = uuid
        return made

    @property
    def tagged(self) -> str:
        """The engine's own form: `{fp:N}:<uuid>`."""
        return str(ExecutionId(self))

    def __eq__(self, other: object) -> bool:
        match other:
            case ExecutionId():
                return (self._partition, self._uuid) == (other._partition, other._uuid)
            case UUID():
                return self._uuid == other
            case str():
                return other in (str(self), self.tagged)
            case _:
                return NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __getnewargs__(self) -> tuple[str]:  # a copy needs the partition as well
        return (self.tagged,)


def parse_run_id(given: object) -> ExecutionId | UUID:
    """The id of a run, however it is written; a `UUID` if its partition is still to be found."""
    if isinstance(given, UUID):
        return given
    if isinstance(given, str) and _UUID.fullmatch(given) and not isinstance(given, ExecutionId):
        return _read_text(given)
    return ExecutionId.of(*_split(given))


def without_tags(text: str) -> str:
    """A text for people: the ids in it are uuids alone."""
    return _TAG.sub("", text)


def new_uuid7(now: int, entropy: int) -> UUID:
    """A version 7 uuid of the moment `now` in milliseconds and the low 74 bits of `entropy`."""
    if not 0 <= now < 1 << 48:
        raise Invalid("the moment does not fit into the 48 bits of a version 7 uuid")
    high, low = (entropy >> 62) & 0xFFF, entropy & ((1 << 62) - 1)
    number: int = now << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low
    return read_uuid(number.to_bytes(16, "big"))


@lru_cache(maxsize=4096)
def derive_attempt_id(execution: UUID, index: int) -> UUID:
    """The id of attempt `index` of an execution; the same arguments always give the same id."""
    return derive_uuid(execution, str(index))


def derive_uuid(namespace: UUID, name: str) -> UUID:
    """`uuid.uuid5`, at half the price."""
    digest = sha1(namespace.bytes + name.encode(), usedforsecurity=False).digest()
    number = int.from_bytes(digest[:16], "big") & ~_VERSION_BITS | _VERSION_5
    return read_uuid(number.to_bytes(16, "big"))


def parse_uuid(text: object, what: str) -> UUID:
    """The uuid written in the canonical form of 36 characters, else `InvalidId` naming `what`."""
    if isinstance(text, UUID):
        return text
    if not isinstance(text, str):
        raise InvalidId("invalid_uuid", type(text).__name__, what)
    if _UUID.fullmatch(text) is None:
        raise InvalidId("invalid_uuid", text, what)
    return _read_text(text)


def _read_text(canonical: str) -> UUID:
    """A third of the price of `UUID(text)`, which takes other forms as well."""
    return convert(str.__str__(canonical), UUID)


def partition_key(family: str, index: int) -> str:
    """The text of a partition, such as `{fp:7}`.

    Families are fp (flows, and executions with them), b (budgets) and q (quotas).
    """
    key = f"{{{family}:{index}}}"
    _check_partition(family, index, key)
    return key


def parse_partition_key(text: object) -> tuple[str, int]:
    """Family and index of a partition's text.

    Raises `InvalidId` with the reason missing_braces, malformed_body, unknown_family,
    invalid_partition_index or partition_out_of_range.
    """
    if not isinstance(text, str):
        raise InvalidId("missing_braces", type(text).__name__)
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        raise InvalidId("missing_braces", text)
    family, colon, digits = text[1:-1].partition(":")
    if not (family and colon and digits):
        raise InvalidId("malformed_body", text)
    if family not in PARTITION_COUNTS:
        raise InvalidId("unknown_family", text)
    index = _index(digits, text)
    _check_partition(family, index, text)
    return family, index


def _split(text: object) -> tuple[int, UUID]:
    if isinstance(text, ExecutionId):
        return text._partition, text._uuid
    if not isinstance(text, str):
        raise InvalidId("missing_tag", type(text).__name__)
    match = _TAGGED.fullmatch(text)
    if match is None:
        raise InvalidId("missing_tag", text)
    index = _index(match[1], text)
    if _UUID.fullmatch(match[2]) is None:
        raise InvalidId("invalid_uuid", text)
    _check_partition("fp", index, text)
    return index, _read_text(match[2])


def _index(digits: str, text: str) -> int:
    """Accepts only the canonical form of a number, so that equal ids are equal texts."""
    if _INDEX.fullmatch(digits) is None or int(digits) > _MAX_INDEX:
        raise InvalidId("invalid_partition_index", text)
    return int(digits)


def _check_partition(family: str, index: int, text: str) -> None:
    if family not in PARTITION_COUNTS:
        raise InvalidId("unknown_family", text)
    if not 0 <= index < PARTITION_COUNTS[family]:
        raise InvalidId("partition_out_of_range", text)
