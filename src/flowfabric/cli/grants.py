"""`flowfabric grants …`"""

import asyncio
from typing import Annotated
from uuid import UUID

import typer
from msgspec import Struct

from flowfabric.cli.connect import connect
from flowfabric.cli.errors import Code, CommandError
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, document
from flowfabric.cli.options import AsJson, Debug, RunId, Url
from flowfabric.cli.output import Screen
from flowfabric.core.base.ids import parse_uuid
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.core.execution.grant import (
    Granted,
    GrantNotFound,
    NotReclaimable,
    ReclaimCapExceeded,
)
from flowfabric.core.execution.granted import Grant, GrantKind, GrantNotes, NewAttempt
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim

app = typer.Typer(
    help="Reserve runs for one worker, and take what is reserved.", no_args_is_help=True
)

WorkerName = Annotated[
    str, typer.Option("--worker", show_default=False, help="The worker it is for.")
]
Instance = Annotated[
    str | None, typer.Option("--instance", show_default=False, help="Which process of it.")
]
Capability = Annotated[
    list[str] | None,
    typer.Option("--capability", show_default=False, help="What the worker offers, repeatable."),
]
GrantTtl = Annotated[str, typer.Option("--ttl", help="How long it is reserved, at most 1m.")]
LeaseTtl = Annotated[str, typer.Option("--ttl", help="How long the lease lasts.")]
GrantKey = Annotated[
    str | None, typer.Option("--key", show_default=False, help="The key of the grant.")
]
CapabilityHash = Annotated[str | None, typer.Option("--capability-hash", show_default=False)]
RouteSnapshot = Annotated[str | None, typer.Option("--route-snapshot", show_default=False)]
Summary = Annotated[str | None, typer.Option("--admission-summary", show_default=False)]
LeaseId = Annotated[
    str | None,
    typer.Option("--lease-id", show_default=False, help="Repeat with the same one after a loss."),
]


class GrantOptions(Struct, frozen=True, kw_only=True):
    """What a person asked to be granted."""

    worker: str
    instance: str | None
    capabilities: tuple[str, ...]
    ttl: str
    key: str | None = None
    notes: GrantNotes = GrantNotes()

    @property
    def who(self) -> str | WorkerIdentity:
        return self.worker if self.instance is None else WorkerIdentity(self.worker, self.instance)

    @property
    def span(self) -> Millis:
        return parse_span(self.ttl, "--ttl")


@app.command()
def issue(  # noqa: PLR0913 - the options are the interface
    run: RunId,
    worker: WorkerName,
    instance: Instance = None,
    capability: Capability = None,
    ttl: GrantTtl = "10s",
    key: GrantKey = None,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="For a run whose worker was lost.")
    ] = False,
    max_reclaims: Annotated[
        int | None,
        typer.Option("--max-reclaims", min=0, show_default=False, help="With --reclaim: its cap."),
    ] = None,
    capability_hash: CapabilityHash = None,
    route_snapshot: RouteSnapshot = None,
    admission_summary: Summary = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Reserve a waiting, interrupted or (with --reclaim) lost run for one worker.

    Prints the key of the grant. Issuing again with the same --key gives the same grant.
    """
    notes = _notes(capability_hash, route_snapshot, admission_summary)
    wanted = GrantOptions(
        worker=worker,
        instance=instance,
        capabilities=tuple(capability or ()),
        ttl=ttl,
        key=key,
        notes=notes,
    )
    if max_reclaims is not None and not reclaim:
        raise CommandError("--max-reclaims goes with --reclaim", Code.USAGE, "usage")
    cap = max_reclaims if reclaim else None
    asyncio.run(_issue(url, run, wanted, Screen(as_json), reclaim=reclaim, cap=cap))


@app.command(name="next")
def issue_next(  # noqa: PLR0913 - the options are the interface
    lane: Annotated[str, typer.Option("--lane", show_default=False, help="Of this lane.")],
    worker: WorkerName,
    instance: Instance = None,
    capability: Capability = None,
    ttl: GrantTtl = "10s",
    namespace: Annotated[str | None, typer.Option("--namespace", show_default=False)] = None,
    admission_summary: Summary = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Reserve the best waiting run of a lane that the worker can run; exits with 1 if none."""
    wanted = GrantOptions(
        worker=worker,
        instance=instance,
        capabilities=tuple(capability or ()),
        ttl=ttl,
        notes=_notes(None, None, admission_summary),
    )
    asyncio.run(_next(url, lane, namespace, wanted, Screen(as_json)))


@app.command()
def show(run: RunId, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show who holds the grant of a run, until when and on what grounds."""
    asyncio.run(_show(url, run, Screen(as_json)))


@app.command()
def redeem(  # noqa: PLR0913 - the options are the interface
    run: RunId,
    worker: WorkerName,
    instance: Annotated[str, typer.Option("--instance", show_default=False)],
    ttl: LeaseTtl = "30s",
    lease_id: LeaseId = None,
    key: GrantKey = None,
    attempt_id: Annotated[str | None, typer.Option("--attempt-id", show_default=False)] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", show_default=False, help="How long the attempt may take."),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", show_default=False, help="How long the run may take from now."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take the lease of a run that is granted to this worker, in the way its grant asks for.

    Prints the handle for `flowfabric lease`. A repeat with the same --lease-id gets the same lease.
    """
    wanted = Redeeming(
        worker=WorkerIdentity(worker, instance),
        ttl=parse_span(ttl, "--ttl"),
        lease=None if lease_id is None else parse_uuid(lease_id, "--lease-id"),
        key=key,
        attempt=None if attempt_id is None else parse_uuid(attempt_id, "--attempt-id"),
        timeout=None if timeout is None else parse_span(timeout, "--timeout"),
        deadline=None if deadline is None else parse_span(deadline, "--deadline"),
    )
    asyncio.run(_redeem(url, run, wanted, Screen(as_json)))


@app.command()
def take(
    run: RunId,
    ttl: LeaseTtl = "30s",
    lease_id: LeaseId = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take a waiting run as an operator in one step, whatever it requires."""
    lease = None if lease_id is None else parse_uuid(lease_id, "--lease-id")
    asyncio.run(_take(url, run, parse_span(ttl, "--ttl"), lease, Screen(as_json)))


class Redeeming(Struct, frozen=True, kw_only=True):
    """Who redeems a grant, and what is said about the attempt."""

    worker: WorkerIdentity
    ttl: Millis
    lease: UUID | None
    key: str | None
    attempt: UUID | None
    timeout: Millis | None
    deadline: Millis | None

    def new_attempt(self, now: Millis) -> NewAttempt:
        until = None if self.deadline is None else Millis(now + self.deadline)
        return NewAttempt(id=self.attempt, timeout=self.timeout, deadline_at=until)


def _notes(hash: str | None, route: str | None, summary: str | None) -> GrantNotes:
    return GrantNotes(capability_hash=hash, route_snapshot=route, admission_summary=summary)


async def _issue(
    url: str | None,
    run: str,
    wanted: GrantOptions,
    screen: Screen,
    *,
    reclaim: bool,
    cap: int | None,
) -> None:
    async with connect(url) as fabric:
        grants = (await fabric.engine()).grants
        answer: Granted | NotReclaimable | ReclaimCapExceeded
        if reclaim:
            answer = await grants.issue_reclaim(
                run,
                wanted.who,
                capabilities=wanted.capabilities,
                ttl=wanted.span,
                max_reclaims=cap,
                key=wanted.key,
                notes=wanted.notes,
            )
        else:
            answer = await grants.issue(
                run,
                wanted.who,
                capabilities=wanted.capabilities,
                ttl=wanted.span,
                key=wanted.key,
                notes=wanted.notes,
            )
    match answer:
        case NotReclaimable(detail=detail):
            raise CommandError(detail, Code.FAILED, "not_reclaimable")
        case ReclaimCapExceeded(reclaims=count):
            text = f"the run was reclaimed {count} times, which is its cap"
            raise CommandError(text, Code.FAILED, "reclaim_cap_exceeded")
        case Granted():
            _tell_granted(screen, answer)


async def _next(
    url: str | None, lane: str, namespace: str | None, wanted: GrantOptions, screen: Screen
) -> None:
    async with connect(url) as fabric:
        granted = await (await fabric.engine()).grants.find_and_issue(
            wanted.who,
            lane=lane,
            capabilities=wanted.capabilities,
            ttl=wanted.span,
            namespace=namespace,
            notes=wanted.notes,
        )
    if granted is None:
        raise CommandError("nothing waits that this worker can run", Code.FAILED, "no_work")
    _tell_granted(screen, granted)


async def _show(url: str | None, run: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        grant = await (await fabric.engine()).grants.identity(run)
    if grant is None:
        raise CommandError(f"{run} is granted to nobody", Code.NOT_FOUND, "not_found")
    if screen.as_json:
        screen.document(document(grant))
    else:
        screen.fields([(name, value) for name, value in _fields(grant) if value])


async def _redeem(url: str | None, run: str, wanted: Redeeming, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        claim = await _claimed(engine, run, wanted)
        handle = engine.attempts.seal(claim)
    _tell_lease(screen, claim, handle)


async def _claimed(engine: Engine, run: str, wanted: Redeeming) -> Claim:
    """Without a grant a plain claim says why, or finds the lease that was taken before."""
    grants, grant = engine.grants, await engine.grants.identity(run)
    kind = GrantKind.CLAIM if grant is None else grant.kind
    worker, ttl, lease, key = wanted.worker, wanted.ttl, wanted.lease, wanted.key
    attempt = wanted.new_attempt(engine.now())
    match kind:
        case GrantKind.CLAIM:
            return await grants.claim(
                run, worker, ttl=ttl, lease_id=lease, key=key, attempt=attempt
            )
        case GrantKind.RESUME:
            return await grants.claim_resumed(
                run, worker, ttl=ttl, lease_id=lease, key=key, timeout=wanted.timeout
            )
        case GrantKind.RECLAIM:
            answer = await grants.reclaim(
                run, worker, ttl=ttl, lease_id=lease, key=key, attempt=attempt
            )
            return _reclaimed(run, answer)


def _reclaimed(
    run: str, answer: Claim | GrantNotFound | NotReclaimable | ReclaimCapExceeded
) -> Claim:
    match answer:
        case Claim():
            return answer
        case ReclaimCapExceeded(reclaims=count):
            text = f"the run has failed: it was lost {count} times"
            raise CommandError(text, Code.FAILED, "reclaim_cap_exceeded")
        case NotReclaimable(detail=detail):
            raise CommandError(detail, Code.FAILED, "not_reclaimable")
        case GrantNotFound():
            raise CommandError(f"{run} has no such grant", Code.NOT_FOUND, "not_found")


async def _take(url: str | None, run: str, ttl: Millis, lease: UUID | None, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        claim = await engine.grants.take(run, ttl=ttl, lease_id=lease)
        handle = engine.attempts.seal(claim)
    _tell_lease(screen, claim, handle)


def _tell_granted(screen: Screen, granted: Granted) -> None:
    if screen.as_json:
        screen.document(document(granted))
        return
    screen.line(granted.key)
    until = local(granted.expires_at)
    screen.note(f"{granted.id} is reserved for {granted.worker} until {until}")


def _tell_lease(screen: Screen, claim: Claim, handle: str) -> None:
    if screen.as_json:
        screen.document(_lease(claim, handle))
        return
    screen.line(handle)
    until = local(claim.expires_at)
    screen.note(f"{claim.id}: attempt {claim.attempt + 1} is leased until {until}")


def _lease(claim: Claim, handle: str) -> Document:
    lease = claim.lease
    return {
        "id": str(claim.id),
        "kind": str(claim.handle_kind),
        "attempt": claim.attempt,
        "attempt_id": str(claim.attempt_id),
        "epoch": claim.epoch,
        "handle": handle,
        "lease": document(lease),
    }


def _fields(grant: Grant) -> list[tuple[str, str]]:
    return [
        ("kind", grant.kind),
        ("worker", grant.worker),
        ("instance", grant.instance),
        ("lane", grant.lane),
        ("granted", local(grant.granted_at)),
        ("until", local(grant.expires_at)),
        ("offers", ", ".join(grant.capabilities)),
        ("capability hash", grant.capability_hash),
        ("route", grant.route_snapshot or ""),
        ("admission", grant.admission_summary or ""),
        ("grant id", grant.id),
    ]
