"""`/v1/work/claim` and `/v1/work/claim-grant`: how a worker gets leases."""

import logging
from collections.abc import Coroutine
from contextlib import suppress
from hashlib import blake2b
from typing import Any
from uuid import UUID

from litestar import Request, Response, post
from litestar.params import JSONBody

from flowfabric.core.base.errors import (
    Corruption,
    FlowFabricError,
    InvalidGrant,
    NotLeaseable,
    Unavailable,
    UseClaimResumed,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.grant import GrantNotFound, NotReclaimable
from flowfabric.core.execution.grant_record import GrantKind
from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.retry import Category
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.server.caller.access import (
    caller_of,
    check_again,
    check_run,
    needs,
)
from flowfabric.server.context import ServerContext, context_of
from flowfabric.server.http.long_polls import while_wanted
from flowfabric.server.http.parameters import visible_namespace
from flowfabric.server.http.wire import read_id, respond
from flowfabric.server.worker.bounded_claims import MAX_ANSWER, fitting, hand_back
from flowfabric.server.worker.work.answers import ClaimedRun, ClaimedWork
from flowfabric.server.worker.work.bodies import ClaimWork, RedeemGrant
from flowfabric.server.worker.work.described import describe_claims, size_of

log = logging.getLogger("flowfabric.server")

POLL_MS = 1_000
"""How long a worker without a long poll should wait before it asks again."""


@post("/v1/work/claim", status_code=200, opt=needs("work", long=True))
async def claim_work(
    request: Request[Any, Any, Any], data: JSONBody[ClaimWork]
) -> Response[ClaimedWork]:
    """Takes runs for a worker, best first, and waits up to `wait_ms` for the first one. An empty
    list is not an error. What was taken for a client that is gone is handed back at once. A server
    that stops answers with an empty list, or with 503 if the request may be a repeat."""
    context = context_of(request)
    namespace = visible_namespace(caller_of(request), data.namespace)
    if context.draining.is_set():
        if data.claim_id is not None:  # it may be a repeat: an empty list would deny what it holds
            raise Unavailable("this server is stopping; send the same request again")
        return respond(ClaimedWork([], POLL_MS))
    claims = await _unless_gone(request, _claim(context, data, namespace))
    answer = [each for each in await _answer(context, claims) if isinstance(each, ClaimedRun)]
    waited = data.wait_ms > 0 and not context.draining.is_set()
    return respond(ClaimedWork(answer, 0 if answer or waited else POLL_MS))


def _claim(
    context: ServerContext, data: ClaimWork, namespace: str | None
) -> Coroutine[Any, Any, list[Claim]]:
    return context.claims.claim(
        context.engine,
        WorkerIdentity(data.worker_id, data.worker_instance_id),
        lanes=data.lanes,
        capabilities=data.capabilities,
        kinds=data.kinds,
        limit=data.limit,
        ttl=Millis(data.lease_ms),
        namespace=namespace,
        max_wait=data.wait_ms / 1000,
        key=data.claim_id,
    )


async def _unless_gone(
    request: Request[Any, Any, Any], claim: Coroutine[Any, Any, list[Claim]]
) -> list[Claim]:
    """What the claim takes, nothing if the server begins to stop before. If the client goes away
    meanwhile, what was taken is handed back: the engine does that for a claim that is cancelled,
    and this function for one that was just done. So it is if the token was revoked meanwhile."""
    claiming, gone = await while_wanted(request, claim)
    taken = [] if claiming.cancelled() else claiming.result()
    context = context_of(request)
    if gone:
        await hand_back(context.engine, taken)
        return []
    try:
        await check_again(request)
    except FlowFabricError:
        await hand_back(context.engine, taken)
        raise
    return taken


async def _answer(context: ServerContext, claims: list[Claim]) -> list[ClaimedRun | Corruption]:
    """The claims with what workers need; if the store does not give it, they are handed back. One
    that is damaged fails, because it would be claimed again and again."""
    try:
        answer = await describe_claims(context.engine, claims)
    except BaseException:
        await hand_back(context.engine, claims)
        raise
    if beyond := claims[fitting(map(size_of, answer), MAX_ANSWER) :]:
        await hand_back(context.engine, beyond)
        claims, answer = claims[: -len(beyond)], answer[: -len(beyond)]
    for claim, described in zip(claims, answer, strict=True):
        if isinstance(described, Corruption):
            fields = {"run": str(claim.uuid), "task": claim.kind}
            log.error(
                "run %s fails, because it cannot be read: %s", claim.uuid, described, extra=fields
            )
            with suppress(FlowFabricError):
                failure = Failure(str(described), Category.INFRA_CRASH)
                await context.engine.attempts.fail(claim, failure)
    context.held_claims.keep(claims)
    return answer


# -- grants


@post("/v1/work/claim-grant", status_code=200, opt=needs("work"))
async def claim_grant(
    request: Request[Any, Any, Any], data: JSONBody[RedeemGrant]
) -> Response[ClaimedRun]:
    """Redeems a grant of `POST /v1/workers/{worker_id}/claim` or `POST
    /v1/executions/{id}/reclaim`: a new attempt, or the interrupted one again."""
    context, id = context_of(request), read_id(data.execution_id)
    await check_run(caller_of(request), context.engine, id)
    if context.draining.is_set():
        raise Unavailable("this server is stopping; redeem the grant at another one")
    claim = await _redeem(context.engine, id, data)
    (answer,) = await _answer(context, [claim])
    if isinstance(answer, Corruption):
        raise answer
    return respond(answer)


async def _redeem(engine: Engine, id: ExecutionId, data: RedeemGrant) -> Claim:
    worker = WorkerIdentity(data.worker_id, data.worker_instance_id)
    lease, ttl, key = _lease_id(data), Millis(data.lease_ms), data.grant_key
    grant = await engine.grants.identity(id)
    if grant is not None and grant.kind is GrantKind.RECLAIM:
        taken = await engine.grants.reclaim(id, worker, ttl=ttl, lease_id=lease, key=key)
        if isinstance(taken, Claim):
            return taken
        if isinstance(taken, GrantNotFound):
            raise InvalidGrant("the run has no live reclaim grant with this key")
        why = taken.detail if isinstance(taken, NotReclaimable) else "reclaimed too often"
        raise NotLeaseable(f"the run cannot be taken over: {why}")
    try:
        return await engine.grants.claim(
            id,
            worker,
            ttl=ttl,
            lease_id=lease,
            expected_attempt=data.expected_attempt_index,
            key=key,
        )
    except UseClaimResumed:
        return await engine.grants.claim_resumed(id, worker, ttl=ttl, lease_id=lease, key=key)


def _lease_id(data: RedeemGrant) -> UUID:
    """The same for every repeat, so that a lost answer can be asked for again."""
    digest = blake2b(digest_size=16, person=b"grant lease")
    for part in (data.grant_key, data.worker_id, data.worker_instance_id):
        data_part = part.encode("utf-8", "surrogatepass")
        digest.update(len(data_part).to_bytes(4) + data_part)
    return UUID(bytes=digest.digest(), version=5)


HANDLERS = [claim_work, claim_grant]
