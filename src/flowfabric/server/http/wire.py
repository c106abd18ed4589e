"""How values look on the wire: bodies in, bodies out.

A body is decoded strictly by `Body`: a wrong type is 422, broken JSON is 400, another content type
is 415, and a key that stands twice is refused, because two parsers would disagree about it. A route
with `opt=needs(…, octets="member")` also takes `application/octet-stream`: the body is that member,
and the query has the others; bytes without a query are 415, as they are on every other route.

Fields that a route of the original does not know are ignored, as its clients expect, and named in
the header `FlowFabric-Ignored-Fields`, by their paths if they are inside of others
(`policy.required_capabilities`); with `Prefer: handling=strict` they are refused. All other
routes refuse them (`forbid_unknown_fields`), so that a misspelled one is not lost.

Answers use the tags of the original: `{"Created": {…}}` is a struct `CreateAnswer` whose only set
member is `Created`.
"""

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from litestar import Response
from litestar.dto import AbstractDTO
from litestar.openapi.spec import Reference, Schema
from litestar.typing import FieldDefinition
from msgspec import UNSET, Meta, Struct, UnsetType

from flowfabric.core.base.errors import Invalid, InvalidId
from flowfabric.core.base.ids import ANYWHERE, ExecutionId, RunId, derive_uuid, flow_partition
from flowfabric.core.base.time import MAX_MILLIS, Millis
from flowfabric.server.http.asgi import Receive, Scope, Send
from flowfabric.server.http.unknown_fields import Find, unknown_fields

T = TypeVar("T")

EMPTY = "empty_body"
"""Where a request says that its body is empty."""

IGNORED = "ignored_fields"
"""Where a request keeps the names of the fields that were ignored."""

Byte = Annotated[int, Meta(ge=0, le=255)]
Bytes = list[Byte] | str
"""Bytes in JSON: a list of numbers, as the original has it, or base64 text."""

OCTETS = "application/octet-stream"
NO_STORE = {"Cache-Control": "no-store"}
"""Headers of an answer that has a credential, or what one shows."""
Json = msgspec.Raw | UnsetType
"""Any JSON value, kept exactly as it was sent; null is one as well, UNSET is none."""

Lane = Annotated[str, Meta(description="1 to 64 printable ASCII characters")]
Moment = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1, description="Unix milliseconds")]
RunText = Annotated[str, Meta(description="`{fp:N}:<uuid>`, or the uuid alone")]
UuidText = Annotated[str, Meta(description="a uuid: hyphenated, simple, in braces or as a urn")]
Now = Annotated[Moment | None, Meta(description="Ignored: the store has the only clock")]
I32 = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
U16 = Annotated[int, Meta(ge=0, lt=1 << 16)]
U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
MAX_WHOLE = (1 << 63) - 1
"""The largest number that every store can hold."""
MAX_U64 = (1 << 64) - 1
Whole = Annotated[int, Meta(ge=0, le=MAX_WHOLE)]
U64 = Annotated[int, Meta(ge=0, description=f"up to {MAX_U64}")]
"""A number as the original has it: `fit` makes one of the engine's from it."""


class Tagged(Struct, omit_defaults=True, kw_only=True):
    """Base of answers in which exactly one member is set: its name says what happened."""


class BodyError(Exception):
    """A body that cannot be read; `status` is 400, 415 or 422."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Body(AbstractDTO[Any]):
    """Decodes the body of a handler into the type of its parameter `data`."""

    _decoders: ClassVar[dict[str, tuple[msgspec.json.Decoder[Any], Find | None]]] = {}

    @classmethod
    def create_for_field_definition(
        cls, field_definition: FieldDefinition, handler_id: str, backend_cls: Any = None
    ) -> None:
        if field_definition.name == "data":
            type = field_definition.annotation
            cls._decoders[handler_id] = (msgspec.json.Decoder(type), unknown_fields(type))

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any
    ) -> Reference | Schema:
        found: Reference | Schema = schema_creator.for_field_definition(field_definition)
        return found

    def decode_bytes(self, value: bytes) -> Any:
        connection = self.asgi_connection
        decoder, find = self._decoders[connection.route_handler.handler_id]
        kind = connection.headers.get("content-type")
        member = connection.route_handler.opt.get("octets")
        has_query = bool(connection.scope["query_string"])
        if member is not None and has_query and media_type(kind) == OCTETS:
            octets = b"" if connection.scope.get(EMPTY) else value
            return _from_query(decoder.type, connection, member, octets, find)
        if connection.scope.get(EMPTY) and kind is None and not _required(decoder.type):
            value = b"{}"  # a request that says nothing, where nothing needs to be said
        else:
            _check_content_type(kind)
        data = _decode(decoder, value)
        _ignore(connection, _check_keys(value), find)
        return data


def _required(type: Any) -> bool:
    """Whether a body of this type must say something."""
    try:
        return any(field.required for field in msgspec.structs.fields(type))
    except TypeError:
        return True


def media_type(header: str | None) -> str:
    """The type that a `Content-Type` names, without its parameters."""
    return (header or "").partition(";")[0].strip().lower()


def _from_query(type: Any, connection: Any, member: str, body: bytes, find: Find | None) -> Any:
    """The struct of a body of bytes: `member` is the body, the others are in the query. Members
    that are objects are JSON there."""
    pairs = parse_qsl(connection.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    values: dict[str, Any] = _unique(pairs)
    try:
        for name, text in values.items():
            if text.startswith("{") and name in ("tags", "policy"):
                values[name] = json.loads(text, object_pairs_hook=_unique)
                json.dumps(values[name], ensure_ascii=False).encode()  # no lone surrogates
        found = msgspec.convert({**values, member: ""}, type, strict=False)
        _check_whole(found, values)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise BodyError(422, str(error)) from None
    setattr(found, member, body)
    _ignore(connection, values, find)
    return found


def _check_whole(found: Struct, texts: dict[str, object]) -> None:
    """Refuses `5.0` and `1e3` for a whole number, which are read like the text of one."""
    for name, text in texts.items():
        if type(getattr(found, name, None)) is int and not is_whole_number(str(text)):
            raise BodyError(422, f"Expected `int` - at `$.{name}`")


def _check_content_type(header: str | None) -> None:
    kind = media_type(header)
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise BodyError(415, "the content type must be application/json")


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BodyError(422, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(400, str(error)) from None
    except RecursionError:
        raise BodyError(400, "the document is nested too deeply") from None


def _check_keys(body: bytes) -> dict[str, object]:
    """The members of a document that was decoded already; refuses a key that stands twice."""
    try:
        found: dict[str, object] = _strict.decode(body.decode())
    except (ValueError, RecursionError) as error:  # in what the decoder passed over unread
        raise BodyError(400, str(error)) from None
    return found


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BodyError(422, f"duplicate field `{twice[:80]}`")
    return unique


_strict = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str)
"""Made once: `json.loads` with a hook makes one for every document. Only the names of members
count, and Python refuses to convert a number of more than 4,300 digits."""


def _ignore(connection: Any, members: dict[str, object], find: Find | None) -> None:
    """Remembers, or refuses, the members that the body of this route does not have."""
    if find is None or not (unknown := sorted(find(members, ""))):
        return
    if "handling=strict" in connection.headers.get("prefer", ""):
        shown = ", ".join(name[:80] for name in unknown[:10])
        raise BodyError(422, f"unknown fields: {shown}")
    connection.scope[IGNORED] = unknown


# -- values


def json_text(value: Json) -> bytes | None:
    """The text of a JSON value, None if there is none."""
    return None if value is UNSET else bytes(value)


def read_bytes(value: Bytes | bytes, name: str) -> bytes:
    """The bytes of a list of numbers, or of base64 text (the url-safe alphabet too)."""
    if not isinstance(value, str):
        return bytes(value)
    try:
        return b64decode(value.replace("-", "+").replace("_", "/"), validate=True)
    except (Base64Error, ValueError):
        raise Invalid(f"{name} is neither a list of bytes nor base64 text") from None


def fit(value: int, name: str, most: int = MAX_WHOLE) -> int:
    """A number of 64 bits without a sign as the engine can hold it: more than `most` is `most`,
    because clients write the largest number where they mean no limit. One with more bits is of
    another type."""
    if value > MAX_U64:
        refuse(422, f"Expected `int` <= {MAX_U64} - at `$.{name}`")
    return min(value, most)


_WHOLE = re.compile("-?[0-9]{1,20}")


def is_whole_number(text: str) -> bool:
    """Whether the text of a parameter is a number as JSON has it, of at most 64 bits."""
    return _WHOLE.fullmatch(text) is not None and -MAX_WHOLE - 1 <= int(text) <= MAX_U64


def read_moment(value: int | None) -> Millis | None:
    """A moment; one before 1970 is the beginning of 1970, which has passed as well, and one that is
    later than the engine can hold is the last that it can."""
    return None if value is None else Millis(min(max(0, value), MAX_MILLIS))


_UUID_FORMS = re.compile(
    r"[0-9a-f]{32}|(?:urn:uuid:)?(?P<text>[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"
    r"|\{[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\}",
    re.IGNORECASE,
)
_TAGGED_FORM = re.compile(r"\{fp:([^}]*)\}:(.*)", re.DOTALL)


def read_id(text: str) -> ExecutionId:
    """The id of an execution: `{fp:N}:<uuid>`, or the uuid alone, whatever its partition."""
    if _UUID_FORMS.fullmatch(text):
        return ExecutionId.anywhere(UUID(text))
    tagged = _TAGGED_FORM.fullmatch(text)
    if tagged is not None and _UUID_FORMS.fullmatch(tagged[2]):
        return ExecutionId(f"{{fp:{tagged[1]}}}:{UUID(tagged[2])}")
    return ExecutionId(text)  # which says what is wrong with it


def read_member(text: str, flow: UUID) -> UUID:
    """The uuid of a member of a flow. An id with another partition is another execution, which is
    no member: it gets a uuid that nothing has."""
    id = read_id(text)
    here = id.partition_index in (ANYWHERE, flow_partition(flow))
    return id.uuid if here else derive_uuid(id.uuid, id)


def read_uuid_text(text: str, what: str) -> UUID:
    """A uuid in any common form: hyphenated, simple, braced, urn."""
    if _UUID_FORMS.fullmatch(text) is None:
        raise InvalidId("invalid_uuid", text, what)
    return UUID(text)


def canonical_uuid(value: Any) -> Any:
    """The text that names a budget or a quota of these routes, if this is a uuid in any form; any
    other name, or value, as it is."""
    if isinstance(value, str) and _UUID_FORMS.fullmatch(value):
        return str(UUID(value))
    return value


def optional_uuid(text: str | None, what: str) -> UUID | None:
    return None if text is None else read_uuid_text(text, what)


def same_id(path: ExecutionId, body: str | None) -> None:
    """A body may repeat the id of the path, but not contradict it."""
    if body is None:
        return
    given = read_id(body)
    known = ANYWHERE in (path.partition_index, given.partition_index)
    if given.uuid != path.uuid or (not known and given != path):
        raise Invalid("the execution_id of the body is not the one of the path")


def same_uuid(path: UUID, body: str | None, name: str) -> None:
    if body is not None and read_uuid_text(body, name) != path:
        raise Invalid(f"the {name} of the body is not the one of the path")


# -- answers


def _encode_hook(value: object) -> object:
    if isinstance(value, RunId):
        return value.tagged
    if isinstance(value, ExecutionId):
        return str(value)
    raise NotImplementedError(f"no wire form of {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_encode_hook)
encode: Callable[[object], bytes] = _encoder.encode


class JsonAnswer(Response[Any]):
    """An answer whose body is ready: it is sent as it is, without what Litestar does for answers
    that may have cookies, tasks behind them, or values to encode."""

    def to_asgi_response(self, *args: Any, **more: Any) -> Any:
        return self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: bytes = self.content
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        head += [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        start = {"type": "http.response.start", "status": self.status_code, "headers": head}
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})


def respond(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response[Any]:
    """A JSON answer."""
    return JsonAnswer(encode(value), status_code=status, headers=headers)


def empty() -> Response[Any]:
    return Response(content=None, status_code=204)


def refuse(status: int, detail: str) -> NoReturn:
    raise BodyError(status, detail)
