"""Claims, steps and signals as workers see them."""

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import UNSET

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.model import Attempt, Start
from flowfabric.core.execution.retry import RetryPolicy
from flowfabric.core.execution.step import Recorded, Step
from flowfabric.core.execution.step_order import NO_CALL, SKIPPED
from flowfabric.core.flow.arguments import fill_in
from flowfabric.core.flow.join import AllOf
from flowfabric.core.wait.model import Signal
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.described import CleanupRequest
from flowfabric.engine.flow.passing import counting_edges, passed_results
from flowfabric.server.http.wire import Json, media_type
from flowfabric.server.worker.work.answers import (
    CancelRequest,
    ClaimedRun,
    ResumeSignal,
    StepOnRecord,
)
from flowfabric.store.readable import named

StartedAs = Literal["initial", "retry", "replay", "reclaim", "resume"]

_STARTED_AS: dict[Start, StartedAs] = {
    Start.INITIAL: "initial",
    Start.RETRY: "retry",
    Start.REPLAY: "replay",
    Start.RECLAIM: "reclaim",
    Start.CONTINUE: "resume",
}
_recorded = msgspec.json.Decoder(Recorded)
_any_json = msgspec.json.Decoder(msgspec.Raw)


async def describe_claims(engine: Engine, claims: Sequence[Claim]) -> list[ClaimedRun | Corruption]:
    """Claims with all that a worker needs to begin, or to go on where another has stopped. One
    with stored steps or signals that cannot be read does not hide the others."""
    if not claims:
        return []
    tags, histories = await asyncio.gather(
        engine.views.tags([claim.uuid for claim in claims]),
        asyncio.gather(*(_history(engine, claim) for claim in claims)),
    )
    return [
        history if isinstance(history, Corruption) else _claimed(engine, claim, own, *history)
        for claim, own, history in zip(claims, tags, histories, strict=True)
    ]


async def _history(
    engine: Engine, claim: Claim
) -> tuple[bytes, list[StepOnRecord], list[ResumeSignal]] | Corruption:
    try:
        return (
            await _input(engine, claim),
            await _steps(engine, claim),
            await _signals(engine, claim),
        )
    except Corruption as error:
        return error


def _claimed(
    engine: Engine,
    claim: Claim,
    tags: dict[str, str],
    input: bytes,
    steps: list[StepOnRecord],
    signals: list[ResumeSignal],
) -> ClaimedRun:
    snapshot, lease = claim.snapshot, claim.lease
    execution, life = snapshot.execution, snapshot.life
    encoding = execution.facts.encoding
    payload_json, payload = as_wire(input, encoding)
    return ClaimedRun(
        execution_id=claim.id,
        kind=claim.kind,
        namespace=execution.route.namespace,
        lane=execution.route.lane,
        attempt_index=claim.attempt,
        attempt_id=str(claim.attempt_id),
        lease_id=str(lease.id),
        lease_epoch=claim.epoch,
        lease_ms=claim.ttl,
        expires_at=claim.expires_at,
        handle=engine.attempts.seal(claim),
        started_as=_STARTED_AS[lease.start],
        created_at=execution.created_at,
        priority=snapshot.priority,
        tags=tags,
        steps=steps,
        signals=signals,
        payload_json=payload_json,
        payload=payload,
        payload_encoding=encoding,
        flow_id=None if execution.flow_joined is None else str(execution.flow_joined),
        attempt_times_out_at=lease.times_out_at,
        deadline_at=snapshot.deadline_at,
        retries=life.retries,
        max_retries=(execution.rules.retry_policy or RetryPolicy(max_retries=0)).max_retries,
        traceparent=execution.facts.trace,
        cancel_requested=describe_cleanup(CleanupRequest.of(snapshot)),
    )


def size_of(run: ClaimedRun | Corruption) -> int:
    """About how many bytes a run needs in an answer."""
    if isinstance(run, Corruption):
        return 0
    values = [run.payload_json, run.payload, *(step.value for step in run.steps)]
    for signal in run.signals:
        values += (signal.payload_json, signal.payload)
    return sum(len(value) for value in values if isinstance(value, str | bytes | msgspec.Raw))


def describe_cleanup(asked: CleanupRequest | None) -> CancelRequest | None:
    if asked is None:
        return None
    return CancelRequest(asked.until, asked.reason, asked.outcome.name.lower())


async def _input(engine: Engine, claim: Claim) -> bytes:
    """The payload, with the results of upstreams in their places. In a flow that is never sealed,
    the result that an upstream passes replaces it: of several, that of the upstream which ended
    last before the run could start. A join that does not need all of them takes it from the
    upstream that has fired it."""
    flow, join = claim.snapshot.execution.flow, claim.snapshot.life.join
    if flow is None or join is None or not join.inputs:
        return claim.payload
    found = await engine.flow_views.get(flow)
    if found is None or not found.eager:
        return fill_in(claim.payload, await engine.flow_views.inputs(claim.snapshot))
    edges = await engine.flow_views.edges(flow, downstream=claim.id)
    passing = [state for state in edges if state.edge.input is not None]
    if not isinstance(join.policy, AllOf) and join.last is not None:
        passing = [state for state in passing if state.edge.id.hex == join.last]
    upstreams = await engine.views.load([state.edge.upstream for state in passing])
    given = await passed_results(
        claim.snapshot, passing, upstreams, partial(_attempts, engine, flow)
    )
    passed = [
        (end.ended_at, edge.id.hex == join.last, edge.id, end.result)
        for edge in counting_edges(join, passing, given)
        if (end := given.get(edge.upstream)) is not None and end.result is not None
    ]
    return max(passed)[3] if passed else claim.payload


async def _attempts(engine: Engine, flow: UUID, member: UUID) -> list[Attempt]:
    return await engine.views.attempts(ExecutionId.member(flow, member))


async def _steps(engine: Engine, claim: Claim) -> list[StepOnRecord]:
    """A first attempt has none, unless they were copied from another run."""
    life = claim.snapshot.life
    if claim.lease.start is Start.INITIAL and not life.seeded:
        return []
    return describe_steps(await engine.attempts.steps(claim.uuid, life.generation))


async def _signals(engine: Engine, claim: Claim) -> list[ResumeSignal]:
    if claim.lease.start is not Start.CONTINUE or claim.snapshot.waits.last is None:
        return []
    return [describe_signal(signal) for signal in await engine.suspensions.observe(claim)]


def describe_steps(steps: Iterable[Step]) -> list[StepOnRecord]:
    """The calls among recorded steps, by position; those an operator has supplied as well."""
    found = []
    for step in steps:
        record = named("the recorded step", step.name, partial(_recorded.decode, step.doc))
        if record.skipped or not step.name.startswith(NO_CALL):
            name = step.name.removeprefix(SKIPPED)
            at = record.ended_at
            found.append(StepOnRecord(name, step.occurrence, step.position, record.value, at))
    return found


def describe_signal(signal: Signal) -> ResumeSignal:
    payload_json: Json = UNSET
    payload: str | None = None
    if signal.payload is not None:
        payload_json, payload = as_wire(signal.payload, signal.encoding)
    return ResumeSignal(
        signal_id=str(signal.id),
        name=signal.name,
        waitpoint_id=str(signal.waitpoint),
        waitpoint_key=signal.key,
        accepted_at=signal.accepted_at,
        source_type=signal.source_type,
        source_identity=signal.source,
        category=signal.category,
        payload_json=payload_json,
        payload=payload,
    )


def as_wire(data: bytes, encoding: str | None) -> tuple[Json, str | None]:
    """Bytes as a JSON value if that is what they are said to be, and are; else in base64, as what
    is nested more deeply than the server reads."""
    if _is_json(encoding):
        try:
            data.decode()
            return _any_json.decode(data), None
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
            pass
    return UNSET, b64encode(data).decode()


def _is_json(encoding: str | None) -> bool:
    kind = media_type(encoding)
    return kind in ("json", "application/json") or kind.endswith("+json")
