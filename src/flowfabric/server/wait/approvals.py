"""Decisions by link: `/approve/{run}/{waitpoint}#{token}` shows what is to be approved and takes
the decision. The token is the only credential, and browsers do not send what follows the `#`."""

from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from litestar import Request, Response, get, post
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.wait.waitpoint import AskedDecision
from flowfabric.server.caller.access import needs
from flowfabric.server.context import context_of, engine_of
from flowfabric.server.http.documents import document
from flowfabric.server.http.parameters import find_run
from flowfabric.server.http.shown import shown
from flowfabric.server.http.wire import NO_STORE, read_id, read_uuid_text, respond
from flowfabric.server.wait.decisions import DECIDE_BODY, DecisionAnswer, answer_of, delivery_of

PAGES = files("flowfabric.server.wait") / "pages"
MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


class WaitpointLink(Struct, kw_only=True, forbid_unknown_fields=True):
    """The three parts of a link."""

    execution_id: str
    waitpoint_id: str
    token: str = ""


class LinkDecision(WaitpointLink, kw_only=True):
    """A decision: `approved`, `rejected`, or another that the waitpoint accepts. `about_digest` is
    that of what was shown, so that nothing else is approved by mistake."""

    decision: str
    comment: str = ""
    about_digest: str | None = None


class LinkOptions(Struct, forbid_unknown_fields=True):
    """Whom the link is for, what it may decide, and until when."""

    approver: str | None = None
    decisions: list[str] = []
    expires_in_ms: int | None = None
    single_use: bool = False


class ApprovalLink(Struct):
    url: str


@get("/approve/{run:str}/{waitpoint:str}", include_in_schema=False)
async def approval_page(run: FromPath[str], waitpoint: FromPath[str]) -> Response[bytes]:
    """The same page for every link: what it shows comes with the token."""
    return _page("approve.html")


@get("/pages/{name:str}", include_in_schema=False)
async def page_file(name: FromPath[str]) -> Response[bytes]:
    if name not in ("approve.css", "approve.js"):
        raise NotFoundException
    return _page(name)


def _page(name: str) -> Response[bytes]:
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
    return Response(_read(name), media_type=MEDIA[name.rpartition(".")[2]], headers=headers)


@cache
def _read(name: str) -> bytes:
    return (PAGES / name).read_bytes()


@post("/v1/waitpoints/look", status_code=200, opt={"shows": shown(AskedDecision)})
async def look(
    request: Request[Any, Any, Any], data: JSONBody[WaitpointLink]
) -> Response[dict[str, Any]]:
    """What the holder of a waitpoint's token is asked to decide. Public: the token is the key."""
    waitpoint = read_uuid_text(data.waitpoint_id, "waitpoint")
    signals = engine_of(request).signals
    asked = await signals.look(read_id(data.execution_id), waitpoint, data.token)
    return respond(document(asked), headers=NO_STORE)


@post("/v1/waitpoints/decide", opt={"body": DECIDE_BODY}, status_code=200)
async def decide(
    request: Request[Any, Any, Any], data: JSONBody[LinkDecision]
) -> Response[DecisionAnswer]:
    """Decides with a waitpoint's token alone. The same decision again is a duplicate."""
    signals, id = engine_of(request).signals, read_id(data.execution_id)
    waitpoint = read_uuid_text(data.waitpoint_id, "waitpoint")
    delivery = delivery_of(data, signals, waitpoint)
    answer = await signals.deliver(id, delivery, data.token, hidden=True)
    return respond(answer_of(answer), headers=NO_STORE)


@post(
    "/v1/executions/{id:str}/waitpoints/{waitpoint:str}/link",
    opt=needs("signal"),
    status_code=200,
)
async def approval_link(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    waitpoint: FromPath[str],
    data: JSONBody[LinkOptions],
) -> Response[ApprovalLink]:
    """A link to hand to the person who decides. Its token is bound as the options say."""
    key, target = await find_run(request, id), read_uuid_text(waitpoint, "waitpoint")
    suspensions = engine_of(request).suspensions
    named = data.approver is not None or data.decisions
    if named or data.expires_in_ms is not None or data.single_use:
        token = await suspensions.issue_token(
            key,
            target,
            approver=data.approver,
            decisions=tuple(data.decisions),
            expires_in=data.expires_in_ms,
            single_use=data.single_use,
        )
    else:
        found = await suspensions.token(key, target)
        if found is None:
            raise NotFound("waitpoint", waitpoint)
        token = found
    address = f"{_base(request)}/approve/{key.uuid}/{target}#{quote(token.reveal(), safe=':.')}"
    return respond(ApprovalLink(address), headers=NO_STORE)


def _base(request: Request[Any, Any, Any]) -> str:
    public = context_of(request).options.public_url
    if public is not None:
        return public
    host = request.headers.get("host")
    if not host:
        raise Invalid("start the server with --public-url to make links")
    return f"{request.url.scheme}://{host}"


HANDLERS = [approval_page, page_file, look, decide, approval_link]
