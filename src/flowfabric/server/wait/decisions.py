"""Decisions and signals of callers that are trusted by their own access token, without the token
of a waitpoint: the inbox of the dashboard, a chat bot."""

from typing import Any, Protocol
from uuid import UUID

from litestar import Request, Response, get, post
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Struct, UnsetType, json

from flowfabric.core.base.errors import NotFound
from flowfabric.core.wait.signal import APPROVAL, Accepted, Delivery, SignalAnswer
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.engine.wait.signals import Signals
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document
from flowfabric.server.http.parameters import find_run
from flowfabric.server.http.shown import listing, shown
from flowfabric.server.http.wire import read_uuid_text, respond
from flowfabric.server.wait.waitpoints import open_waitpoints

DECIDE_BODY = 256 * 1024
APPROVER = "approver"


class GivenDecision(Protocol):
    """What every body says that decides; `about_digest` is that of what was shown."""

    decision: str
    comment: str
    about_digest: str | None


class DecisionAnswer(Struct):
    signal_id: str
    effect: str


class OwnDecision(Struct, kw_only=True, forbid_unknown_fields=True):
    """`decision` is `approved`, `rejected`, or another that the waitpoint accepts; `about_digest`
    is that of what was shown. The approver is the caller."""

    decision: str
    comment: str = ""
    about_digest: str | None = None


class SentSignal(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to what waits for `name` in the execution, now or later; the payload is any JSON
    value, or left out."""

    name: str
    payload: Any | UnsetType = UNSET
    idempotency_key: str | None = None


@get(
    "/v1/executions/{id:str}/waitpoints",
    opt=needs("read", shows=listing("waitpoints", shown(OpenWaitpoint))),
)
async def execution_waitpoints(
    request: Request[Any, Any, Any], id: FromPath[str]
) -> Response[dict[str, Any]]:
    """The open waitpoints of one execution, never with their tokens."""
    engine, key = engine_of(request), await find_run(request, id)
    found = await open_waitpoints(engine, key)
    return respond({"waitpoints": [document(each) for each in found]})


@post(
    "/v1/executions/{id:str}/waitpoints/{waitpoint:str}/decide",
    opt=needs("signal", body=DECIDE_BODY),
    status_code=200,
)
async def decide_as_caller(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    waitpoint: FromPath[str],
    data: JSONBody[OwnDecision],
) -> Response[DecisionAnswer]:
    """Decides an approval. Whom it names as approvers, it accepts no others."""
    key, target = await find_run(request, id), read_uuid_text(waitpoint, "waitpoint")
    signals = engine_of(request).signals
    delivery = delivery_of(data, signals, target, source=caller_of(request).name)
    return respond(answer_of(await signals.decide_at(key, delivery)))


@post("/v1/executions/{id:str}/send", opt=needs("signal", body=DECIDE_BODY), status_code=200)
async def send_signal(
    request: Request[Any, Any, Any], id: FromPath[str], data: JSONBody[SentSignal]
) -> Response[DecisionAnswer]:
    """Sends a signal by name. One that comes before anything waits for it is kept."""
    key, engine = await find_run(request, id), engine_of(request)
    if await engine.views.state(key) is None:
        raise NotFound("execution", id)
    delivery = engine.signals.delivery()(
        name=data.name,
        source_type="application",
        source=caller_of(request).name,
        payload=None if data.payload is UNSET else json.encode(data.payload),
        encoding=None if data.payload is UNSET else "json",
        idempotency_key=data.idempotency_key,
    )
    return respond(answer_of(await engine.signals.send(key, data.name, delivery)))


def delivery_of(
    data: GivenDecision, signals: Signals, waitpoint: UUID, *, source: str = ""
) -> Delivery:
    """The signal that carries a decision; `source` is who decides, if that is known."""
    return signals.delivery(waitpoint)(
        name=data.decision,
        category=APPROVAL,
        source_type=APPROVER,
        source=source,
        payload=json.encode(data.comment) if data.comment else None,
        encoding="json" if data.comment else None,
        about=data.about_digest,
    )


def answer_of(answer: SignalAnswer) -> DecisionAnswer:
    effect = str(answer.effect) if isinstance(answer, Accepted) else "duplicate"
    return DecisionAnswer(str(answer.signal), effect)


HANDLERS = [execution_waitpoints, decide_as_caller, send_signal]
