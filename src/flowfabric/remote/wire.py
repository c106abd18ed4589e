"""What a client and a server say to each other: a request of several calls, and its answers.

A worker never sends what it holds: a claim travels as the id and the fence it stands for, and the
server uses its own copy or loads the run. So nothing that a client says is taken for a stored row.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, get_args
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    InvalidCapabilities,
    InvalidHandle,
    InvalidId,
    InvalidKid,
    InvalidSecretHex,
    InvalidTag,
)
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Snapshot
from flowfabric.engine.execution.claims import Claim
from flowfabric.remote.codec import Codec, Shape
from flowfabric.remote.errors import decode_error, encode_error
from flowfabric.remote.operations import OPERATIONS, Operation, Parameters, Touches, parameters_of
from flowfabric.remote.scalars import Misfit, decode_plain, encode_plain, to_scalar

CALLS_PATH = "/v1/engine"
HINTS_PATH = "/v1/engine/hints"
MEDIA_TYPE = "application/msgpack"
MAX_CALLS = 500
LONGEST_WAIT = 20.0
"""Seconds after which a server answers what still waits: the client asks again."""
QUIET = 10.0
"""Seconds after which a server says that there was no hint."""


class HeldClaim(Struct, frozen=True):
    """A claim as its worker names it."""

    id: ExecutionId
    lease_id: UUID
    epoch: int
    attempt_id: UUID
    ttl: Millis

    @property
    def owner(self) -> Owner:
        return Owner(self.lease_id, self.epoch, self.attempt_id)


def _claim_shape(codec: Codec) -> Shape:
    held = codec.shape(HeldClaim)

    def encode(claim: Claim) -> Any:
        if not isinstance(claim, Claim):
            raise Misfit(f"expected a Claim, not {type(claim).__name__}")
        return held.encode(
            HeldClaim(claim.id, claim.lease.id, claim.epoch, claim.attempt_id, claim.ttl)
        )

    return Shape("a claim", lambda value: isinstance(value, Claim), encode, held.reads, held.decode)


def _snapshot_shape(codec: Codec) -> Shape:
    id = codec.shape(ExecutionId)

    def encode(snapshot: Snapshot) -> Any:
        return to_scalar(snapshot.execution.id)

    return Shape("a run", lambda value: isinstance(value, Snapshot), encode, id.reads, id.decode)


ANSWERS = Codec()
ARGUMENTS = Codec({Claim: _claim_shape(ANSWERS), Snapshot: _snapshot_shape(ANSWERS)})


class Travel(Struct, frozen=True):
    """How the arguments and the answer of one operation travel."""

    operation: Operation
    parameters: Parameters
    arguments: Mapping[str, Shape]
    answer: Shape

    def encode_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, without those it leaves out."""
        try:
            bound = self.parameters.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Invalid(f"{self.operation.name}: {error}") from None
        return {
            name: self._encode(name, value)
            for name, value in bound.arguments.items()
            if name in self.arguments
        }

    def _encode(self, name: str, value: Any) -> Any:
        try:
            return self.arguments[name].encode(value)
        except Misfit as error:
            kind = self.parameters.types[name]
            if UUID in (kind, *get_args(kind)):  # the engine takes its text as well
                return self.arguments[name].encode(parse_uuid(value, name))
            raise self._refusal(name, value, f"{name}: {error.detail}") from None

    def _refusal(self, name: str, value: Any, why: str) -> Invalid:
        """The error that the engine has for an argument of the wrong type."""
        touches = dict(self.operation.touches).get(name)
        if touches is Touches.RUN and self.parameters.types[name] is str:
            return InvalidId("missing_tag", type(value).__name__)
        if touches is Touches.OWNED and self.parameters.types[name] is not Claim:
            return InvalidHandle("not_a_handle")
        return _REFUSALS.get(f"{self.operation.service}.{name}", Invalid)(why)

    def decode_arguments(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that a caller has sent, with the defaults of those it left out."""
        given = {}
        for name, value in plain.items():
            if name not in self.arguments:
                raise Misfit(f"{self.operation.name} has no argument {name!r:.80}")
            try:
                given[name] = self.arguments[name].decode(value)
            except Misfit as error:
                raise Misfit(f"{name}: {error.detail}") from None
        try:
            bound = self.parameters.signature.bind(**given)
        except TypeError as error:
            raise Misfit(f"{self.operation.name}: {error}") from None
        bound.apply_defaults()
        return bound.arguments


_REFUSALS = {
    "claims.capabilities": InvalidCapabilities,
    "executions.tags": InvalidTag,
    "flows.tags": InvalidTag,
    "grants.capabilities": InvalidCapabilities,
    "keys.kid": InvalidKid,
    "keys.secret": InvalidSecretHex,
}
"""By the names of a service and of an argument."""


@cache
def travel_of(name: str) -> Travel:
    """How an operation travels; Invalid if there is none of this name."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise Invalid(f"there is no operation {name!r:.80}")
    parameters = parameters_of(operation)
    shapes = {each: ARGUMENTS.shape(hint) for each, hint in parameters.types.items()}
    return Travel(operation, parameters, shapes, ANSWERS.shape(parameters.answer))


class RemoteCall(Struct, frozen=True):
    """One call. Its id is the same in every try."""

    id: UUID
    name: str
    arguments: Mapping[str, Any]


class CallRequest(Struct, frozen=True):
    """`tried`: an earlier try may have been executed. With `patience`, what is not answered within
    so many seconds, or when something else is, stays open."""

    calls: Sequence[RemoteCall]
    tried: bool = False
    patience: float | None = None


class Done(Struct, frozen=True):
    """A call that was answered, in plain data."""

    plain: Any


class Failed(Struct, frozen=True):
    error: FlowFabricError | TimeoutError


class StillOpen(Struct, frozen=True):
    """A call that waits for something that has not happened."""


CallAnswer = Done | Failed | StillOpen


class CallReply(Struct, frozen=True):
    """`now` is the clock of the store, `suspects` and `lanes` what workers ask for with every claim
    (`Engine.hinted_by`)."""

    answers: Sequence[CallAnswer]
    now: Millis
    suspects: bool = False
    lanes: bool = False


def write_request(request: CallRequest) -> bytes:
    calls = [[to_scalar(call.id), call.name, call.arguments] for call in request.calls]
    return encode_plain([calls, request.tried, request.patience])


def read_request(data: bytes) -> CallRequest:
    match decode_plain(data):
        case [[*calls], bool(tried), None | float() | int() as patience] if len(calls) <= MAX_CALLS:
            return CallRequest([_read_call(each) for each in calls], tried, patience)
        case _:
            raise Misfit("this is not a request for operations of the engine")


def _read_call(plain: Any) -> RemoteCall:
    match plain:
        case [UUID() as id, str(name), dict(arguments)]:
            return RemoteCall(id, name, arguments)
        case _:
            raise Misfit("this is not a call")


def write_reply(reply: CallReply) -> bytes:
    answers = [_plain_answer(each) for each in reply.answers]
    return encode_plain([answers, reply.now, reply.suspects, reply.lanes])


def _plain_answer(answer: CallAnswer) -> Any:
    match answer:
        case Done(plain):
            return [0, plain]
        case Failed(error):
            return [1, encode_error(error)]
        case StillOpen():
            return [2, None]


def read_reply(data: bytes) -> CallReply:
    match decode_plain(data):
        case [[*answers], int(now), bool(suspects), bool(lanes), *_]:
            read = [_read_answer(each) for each in answers]
            return CallReply(read, Millis(now), suspects, lanes)
        case _:
            raise Misfit("this is not an answer of a FlowFabric server")


def _read_answer(plain: Any) -> CallAnswer:
    match plain:
        case [0, value]:
            return Done(value)
        case [1, error]:
            return Failed(decode_error(error))
        case [2, _]:
            return StillOpen()
        case _:
            raise Misfit("an answer cannot be read")
