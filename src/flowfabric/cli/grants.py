"""`flowfabric grants …`"""

from typing import Annotated
from uuid import UUID

from typer import Option, Typer

from flowfabric.cli.command import RunId, command
from flowfabric.cli.errors import CommandError, ExitCode, usage
from flowfabric.cli.format import local
from flowfabric.cli.json import counted, document
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import read_optional_span
from flowfabric.cli.table import Table
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.core.execution.grant import (
    Granted,
    GrantNotFound,
    NotReclaimable,
    ReclaimCapExceeded,
)
from flowfabric.core.execution.grant_record import Grant, GrantKind, GrantNotes
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.new_attempt import NewAttempt
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim

app = Typer(help="Reserve runs for one worker, and claim reserved runs.", no_args_is_help=True)

WorkerName = Annotated[str, Option("--worker", help="The worker it is for.")]
Instance = Annotated[str | None, Option(help="Which process of it.")]
Capability = Annotated[list[str] | None, Option(help="A capability the worker offers; repeatable.")]
GrantTtl = Annotated[str, Option(help="How long to reserve it, at most 24h.")]
LeaseTtl = Annotated[str, Option(help="How long the lease lasts.")]
GrantKey = Annotated[str | None, Option(help="The key of the grant.")]
Note = Annotated[str | None, Option(help="A note that the grant keeps.")]
LeaseId = Annotated[UUID | None, Option(help="The same id again gives the same lease.")]


def _fields(grant: Grant) -> Cells:
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


GRANT = Table[Grant](fields=_fields)


@command(app)
async def issue(  # noqa: PLR0913 - the options are the interface
    engine: Engine,
    screen: Screen,
    run: RunId,
    worker: WorkerName,
    instance: Instance = None,
    capability: Capability = None,
    ttl: GrantTtl = "10s",
    key: GrantKey = None,
    reclaim: Annotated[bool, Option("--reclaim", help="For a run whose worker was lost.")] = False,
    max_reclaims: Annotated[
        int | None, Option(min=0, help="With --reclaim: at most this often.")
    ] = None,
    capability_hash: Note = None,
    route_snapshot: Note = None,
    admission_summary: Note = None,
) -> None:
    """Reserve a waiting, interrupted or (with --reclaim) lost run for one worker.

    Prints the key of the grant. Issuing it again with the same --key gives the same grant.
    """
    if max_reclaims is not None and not reclaim:
        raise usage("--max-reclaims goes with --reclaim")
    who, offers, span = _who(worker, instance), tuple(capability or ()), parse_span(ttl, "--ttl")
    notes = GrantNotes(
        capability_hash=capability_hash,
        route_snapshot=route_snapshot,
        admission_summary=admission_summary,
    )
    if reclaim:
        answer = await engine.grants.issue_reclaim(
            run,
            who,
            capabilities=offers,
            ttl=span,
            max_reclaims=max_reclaims,
            key=key,
            notes=notes,
        )
        _print_grant(screen, _reclaimable(answer))
    else:
        granted = await engine.grants.issue(
            run, who, capabilities=offers, ttl=span, key=key, notes=notes
        )
        _print_grant(screen, granted)


def _reclaimable(answer: Granted | NotReclaimable | ReclaimCapExceeded) -> Granted:
    match answer:
        case NotReclaimable(detail=detail):
            raise CommandError(detail, ExitCode.FAILED, "not_reclaimable")
        case ReclaimCapExceeded(reclaims=count):
            text = f"the run was reclaimed {count} times, which is its cap"
            raise CommandError(text, ExitCode.FAILED, "reclaim_cap_exceeded")
        case _:
            return answer


def _who(worker: str, instance: str | None) -> str | WorkerIdentity:
    return worker if instance is None else WorkerIdentity(worker, instance)


@command(app, "next")
async def issue_next(  # noqa: PLR0913 - the options are the interface
    engine: Engine,
    screen: Screen,
    lane: Annotated[str, Option(help="The lane.")],
    worker: WorkerName,
    instance: Instance = None,
    capability: Capability = None,
    ttl: GrantTtl = "10s",
    namespace: Annotated[str | None, Option(help="Only runs of this namespace.")] = None,
    admission_summary: Note = None,
) -> None:
    """Reserve the best waiting run of a lane that the worker can run; exits with 1 if none."""
    granted = await engine.grants.find_and_issue(
        _who(worker, instance),
        lane=lane,
        capabilities=tuple(capability or ()),
        ttl=parse_span(ttl, "--ttl"),
        namespace=namespace,
        notes=GrantNotes(admission_summary=admission_summary),
    )
    if granted is None:
        raise CommandError("no waiting run fits this worker", ExitCode.FAILED, "no_work")
    _print_grant(screen, granted)


def _print_grant(screen: Screen, granted: Granted) -> None:
    until = local(granted.expires_at)
    note = f"{granted.id} is reserved for {granted.worker} until {until}"
    screen.answer(document(granted), granted.key, note)


@command(app)
async def show(engine: Engine, screen: Screen, run: RunId) -> None:
    """Show which worker a run is reserved for, until when and on what grounds."""
    grant = await engine.grants.identity(run)
    if grant is None:
        raise CommandError(f"{run} is not reserved", ExitCode.NOT_FOUND, "not_found")
    GRANT.show(screen, grant)


@command(app)
async def redeem(  # noqa: PLR0913 - the options are the interface
    engine: Engine,
    screen: Screen,
    run: RunId,
    worker: WorkerName,
    instance: Annotated[str, Option(help="Which process of it.")],
    ttl: LeaseTtl = "30s",
    lease_id: LeaseId = None,
    key: GrantKey = None,
    attempt_id: Annotated[UUID | None, Option(help="The id of a new attempt.")] = None,
    timeout: Annotated[str | None, Option(help="How long the attempt may take.")] = None,
    deadline: Annotated[str | None, Option(help="How long the run may take from now.")] = None,
) -> None:
    """Claim a run that is reserved for this worker, in the way its grant asks for.

    Prints the handle for `flowfabric lease`. The same --lease-id gives the same lease.
    """
    length, until = parse_span(ttl, "--ttl"), read_optional_span(deadline, "--deadline")
    who = WorkerIdentity(worker, instance)
    new = NewAttempt(
        id=attempt_id,
        timeout=read_optional_span(timeout, "--timeout"),
        deadline_at=None if until is None else Millis(engine.now() + until),
    )
    grants, grant = engine.grants, await engine.grants.identity(run)
    # Without a grant a plain claim says why, or finds the lease that was taken before.
    match GrantKind.CLAIM if grant is None else grant.kind:
        case GrantKind.CLAIM:
            claim = await grants.claim(
                run, who, ttl=length, lease_id=lease_id, key=key, attempt=new
            )
        case GrantKind.RESUME:
            claim = await grants.claim_resumed(
                run, who, ttl=length, lease_id=lease_id, key=key, timeout=new.timeout
            )
        case GrantKind.RECLAIM:
            answer = await grants.reclaim(
                run, who, ttl=length, lease_id=lease_id, key=key, attempt=new
            )
            claim = _reclaimed(run, answer)
    await _print_lease(engine, screen, claim)


def _reclaimed(
    run: str, answer: Claim | GrantNotFound | NotReclaimable | ReclaimCapExceeded
) -> Claim:
    match answer:
        case Claim():
            return answer
        case ReclaimCapExceeded(reclaims=count):
            text = f"the run has failed: it was lost {count} times"
            raise CommandError(text, ExitCode.FAILED, "reclaim_cap_exceeded")
        case NotReclaimable(detail=detail):
            raise CommandError(detail, ExitCode.FAILED, "not_reclaimable")
        case GrantNotFound():
            raise CommandError(f"{run} has no such grant", ExitCode.NOT_FOUND, "not_found")


@command(app)
async def take(
    engine: Engine,
    screen: Screen,
    run: RunId,
    ttl: LeaseTtl = "30s",
    lease_id: LeaseId = None,
) -> None:
    """Claim a waiting run as an operator in one step, no matter what it requires."""
    claim = await engine.grants.take(run, ttl=parse_span(ttl, "--ttl"), lease_id=lease_id)
    await _print_lease(engine, screen, claim)


async def _print_lease(engine: Engine, screen: Screen, claim: Claim) -> None:
    handle = await engine.grants.handle_of(claim)
    lease = {
        "id": str(claim.uuid),
        "kind": str(claim.handle_kind),
        "attempt": claim.attempt + 1,
        "attempt_id": str(claim.attempt_id),
        "epoch": claim.epoch,
        "handle": handle,
        "lease": counted(claim.lease),
    }
    until = local(claim.expires_at)
    note = f"{claim.id}: attempt {claim.attempt + 1} is leased until {until}"
    screen.answer(lease, handle, note)
