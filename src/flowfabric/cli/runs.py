"""`flowfabric run …`, and `flowfabric resume`."""

import asyncio
import sys
from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec.structs import replace
from typer import Option, Typer, confirm

from flowfabric.cli.bulk import AT_ONCE, CleansUp, for_each
from flowfabric.cli.command import Limit, RunId, RunIds, Timeout, command
from flowfabric.cli.ending import show_ending, watch
from flowfabric.cli.errors import CommandError, ExitCode
from flowfabric.cli.format import (
    first_line,
    local,
    optional,
    pairs_text,
    progress_text,
    readable,
    shortened,
    span,
)
from flowfabric.cli.json import Document, body, counted, document
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import read_object, read_since, read_tag, read_tags
from flowfabric.cli.table import Table
from flowfabric.cli.waitpoints import MOST, WAITPOINT, how_to_answer
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.pages import in_pages
from flowfabric.core.base.time import NO_TIME, Millis, parse_span, to_datetime
from flowfabric.core.execution.failures import FailureGroup
from flowfabric.core.execution.history import StepView
from flowfabric.core.execution.status import (
    ADMISSION_BLOCKS,
    Blocking,
    PublicState,
)
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.described import Info, Infos
from flowfabric.fabric import Fabric
from flowfabric.store.queries import Query
from flowfabric.worker.api.described import (
    RunCleanup,
    RunDescription,
    RunGrant,
    detail_of,
)
from flowfabric.worker.api.history import RunAttempt, RunEvent
from flowfabric.worker.api.ids import find_tag
from flowfabric.worker.api.signals import open_waitpoints

app = Typer(help="Inspect, cancel and replay runs.", no_args_is_help=True)

MOST_STEPS = 200
"""How many steps people see; `--json` has all of them."""

FromStep = Annotated[
    str | None,
    Option(metavar="STEP", help="Keep the steps before this one: charge, or charge#2."),
]
TaskName = Annotated[
    str | None, Option("--task", "--kind", metavar="TASK", help="Only of this task.")
]


def _attempt_row(attempt: RunAttempt) -> Cells:
    return [
        ("attempt", str(attempt.number)),
        ("begun as", attempt.type.name.lower()),
        ("outcome", attempt.outcome.removeprefix("ended_").replace("_", " ")),
        ("worker", "" if attempt.worker is None else attempt.worker.id),
        ("took", span(attempt.took)),
        ("failure", "" if attempt.failure is None else attempt.failure.message),
    ]


def _step_row(step: StepView) -> Cells:
    took = None
    if step.started_at is not None and step.ended_at is not None:
        took = step.ended_at - step.started_at
    call = f" (call {step.call})" if step.call > 1 else ""
    return [
        ("step", f"{step.name}{call}"),
        ("branch", step.branch),
        ("started", local(step.started_at)),
        ("ended", local(step.ended_at)),
        ("took", span(took)),
        ("result", _step_result(step)),
        ("error", _step_error(step)),
    ]


def _step_result(step: StepView) -> str:
    waited = "" if step.waited is None else step.waited.replace("_", " ")
    value = "" if step.result is None else first_line(shortened(body(step.result)))
    skipped = "skipped" if step.skipped else ""
    return ": ".join(part for part in (skipped, waited, value) if part)


def _was_tried_again(step: StepView) -> bool:
    return step.tries > 1 or step.of is not None


def _tried_step_row(step: StepView) -> Cells:
    return [*_step_row(step), ("tries", _step_tries(step))]


def _step_tries(step: StepView) -> str:
    """Empty for a step that was tried once."""
    if step.of is None:
        return str(step.tries) if step.tries > 1 else ""
    due = "" if step.next_try_at is None else f", next at {local(step.next_try_at)}"
    return f"{step.tries} of {step.of}{due}"


def _step_error(step: StepView) -> str:
    return "" if step.error is None else f"attempt {step.attempt}: {first_line(step.error)}"


def _event_row(event: RunEvent) -> Cells:
    detail = ", ".join(f"{name}: {_detail(value)}" for name, value in (event.detail or {}).items())
    return [
        ("number", str(event.seq)),
        ("at", local(event.at)),
        ("event", event.kind.name.lower().replace("_", " ")),
        ("attempt", optional(event.attempt)),
        ("worker", "" if event.worker is None else event.worker.id),
        ("detail", detail),
    ]


def _detail(value: object) -> str:
    return local(value) if isinstance(value, datetime) else readable(str(value))


ATTEMPT = Table[RunAttempt](row=_attempt_row)
STEP = Table[StepView](row=_step_row)
TRIED_STEP = Table[StepView](row=_tried_step_row)
EVENT = Table[RunEvent](
    row=_event_row, empty="no events: nothing has happened since it was submitted"
)


@command(app)
async def show(fabric: Fabric, engine: Engine, screen: Screen, id: RunId) -> None:
    """Show everything about one run."""
    run = await fabric.run(id)
    facts, attempts = await run.describe(), await run.attempts()
    steps = await engine.views.steps(id)
    payload, result = (await engine.views.context(id)).payload, await engine.views.result(id)
    shown_state = await engine.views.state_value(id)
    waits = [] if facts.ended_at else await open_waitpoints(engine, id, MOST)
    bodies = {
        "payload": body(payload) if payload else None,
        "result": None if result is None else body(result),
        "state_value": None if shown_state is None else body(shown_state),
    }
    if screen.as_json:
        inner = {
            "attempts": [document(attempt) for attempt in attempts],
            "steps": [document(step) for step in steps],
            "waitpoints": [document(item) for item in waits],
        }
        screen.document({**document(facts), **bodies, **inner})
        return
    shown = [(name, shortened(value)) for name, value in bodies.items() if value is not None]
    screen.fields([*_fields(facts, to_datetime(engine.now())), *shown])
    ATTEMPT.below(screen, attempts)
    tried = any(_was_tried_again(step) for step in steps)
    (TRIED_STEP if tried else STEP).below(screen, steps, MOST_STEPS)
    if facts.failure is not None and facts.failure.detail is not None:
        screen.line("")
        screen.text(facts.failure.detail.decode("utf-8", "replace").rstrip())
    if facts.state == PublicState.SUSPENDED:
        _show_waits(screen, facts, waits)


def _show_waits(screen: Screen, facts: RunDescription, waits: list[OpenWaitpoint]) -> None:
    """What a suspended run waits for, and how to answer."""
    active = [item for item in waits if item.state == "active"]
    screen.line("")
    if active:
        screen.table([WAITPOINT.row(item)[1:] for item in active])
    for answer in [line for item in active for line in how_to_answer(item)]:
        screen.note(f"answer with: {answer}")
    if not active:
        screen.note(f"only an operator can wake it: flowfabric resume {facts.id.uuid}")


def _fields(facts: RunDescription, now: datetime) -> Cells:
    lease, failure = facts.lease, facts.failure
    return [
        ("id", facts.id),
        ("kind", facts.kind),
        ("version", facts.version or ""),
        ("forked from", _forked(facts)),
        ("state", facts.state),
        ("because", readable(facts.blocking_detail)),
        ("progress", progress_text(facts.progress)),
        ("worker", "" if lease is None else f"{lease.worker} ({lease.instance})"),
        ("lease", "" if lease is None else f"{span(lease.expires_at - now)} left"),
        ("reserved", _reserved(facts.grant)),
        ("lane", facts.lane),
        ("namespace", facts.namespace),
        ("priority", str(facts.priority)),
        ("key", facts.key or ""),
        ("tags", pairs_text(facts.tags)),
        ("needs", ", ".join(facts.capabilities)),
        ("created", local(facts.created_at)),
        ("started", local(facts.started_at)),
        ("ended", local(facts.ended_at)),
        ("deadline", local(facts.deadline_at)),
        ("failure", "" if failure is None else f"{failure.message} ({failure.category})"),
        ("cancelled", facts.cancel_reason or ""),
        ("cleans up", _cleans_up(facts.cleanup)),
    ]


def _cleans_up(cleanup: RunCleanup | None) -> str:
    if cleanup is None:
        return ""
    return f"since {local(cleanup.since)}, until {local(cleanup.until)} at the latest"


def _forked(facts: RunDescription) -> str:
    if facts.forked_from is None:
        return ""
    return facts.forked_from + (f" at {facts.forked_at}" if facts.forked_at else "")


def _reserved(grant: RunGrant | None) -> str:
    if grant is None:
        return ""
    instance = f" ({grant.instance})" if grant.instance else ""
    return f"for {grant.worker}{instance} until {local(grant.expires_at)}"


@command(app, "list")
async def list_runs(  # noqa: PLR0913 - the options are the interface
    engine: Engine,
    screen: Screen,
    state: Annotated[
        list[PublicState] | None,
        Option(metavar="STATE", help=f"Only in this state; repeatable: {', '.join(PublicState)}."),
    ] = None,
    lane: Annotated[str | None, Option(help="Only of this lane.")] = None,
    task: TaskName = None,
    tag: Annotated[str | None, Option(help="Only with this tag, as app.tenant=acme.")] = None,
    namespace: Annotated[str | None, Option(help="Only of this namespace.")] = None,
    since: Annotated[str | None, Option(help="Of the last 2h, or since 2025-03-01T08:00.")] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, Option(help="Continue where an earlier list ended.")] = None,
    ids: Annotated[bool, Option("--ids", "-q", help="Only the ids, one per line.")] = False,
) -> None:
    """List runs, the newest first.

    If there are more, stderr says with which cursor to continue.
    """
    now = engine.now()
    query = Query(
        namespace=namespace,
        lane=lane,
        kind=task,
        states=tuple(state or ()),
        tag=await find_tag(engine, read_tag(tag)),
        created_from=read_since(since, now),
        newest_first=True,
        limit=limit,
    )
    found = await _collect(engine, query, cursor)
    if ids and not screen.as_json:
        for info in found.items:
            screen.line(info.id)
    else:
        runs = Table[Info](row=lambda info: _row(info, now), json=_info_document, empty="no runs")
        runs.lines(screen, found.items)
    for uuid in found.unreadable:
        screen.note(f"run {uuid} cannot be read and is left out")
    if found.cursor is not None and screen.as_json:
        screen.aside({"cursor": found.cursor})
    elif found.cursor is not None:
        screen.note(f"there are more: --cursor {found.cursor}")


async def _collect(engine: Engine, query: Query, cursor: str | None) -> Infos:
    """Pages may be short: reads on until there are enough, or no more."""
    items: list[Info] = []
    unreadable: list[UUID] = []
    while True:
        page = await engine.views.list(replace(query, limit=query.limit - len(items)), cursor)
        items += page.items
        unreadable += page.unreadable
        cursor = page.cursor
        if cursor is None or len(items) >= query.limit:
            return Infos(tuple(items), cursor, tuple(unreadable))


def _info_document(info: Info) -> Document:
    return {**counted(info), "blocking_detail": detail_of(info)}


def _row(info: Info, now: Millis) -> Cells:
    took = None if info.started_at is None else (info.ended_at or now) - info.started_at
    return [
        ("id", info.id),
        ("kind", info.kind),
        ("lane", info.lane),
        ("state", info.state),
        ("tries", str(info.attempts_made)),
        ("age", span(now - info.created_at)),
        ("took", span(took)),
        ("waits for", _wait_text(info, now)),
        ("failure", _failure_text(info)),
    ]


def _wait_text(info: Info, now: Millis) -> str:
    left = f" ({span(info.due_at - now)} left)" if info.due_at else ""
    return first_line(info.waits_for or "") + left


def _failure_text(info: Info) -> str:
    return first_line(info.failure.message if info.failure else info.cancel_reason or "")


FAILURE = Table[FailureGroup](
    row=lambda group: [
        ("runs", str(group.count)),
        ("task", group.kind),
        ("error", first_line(group.error)),
        ("first", local(group.first_at)),
        ("last", local(group.last_at)),
        ("example", group.example),
    ],
    empty="no failed runs",
)


@command(app)
async def failures(
    engine: Engine,
    screen: Screen,
    task: TaskName = None,
    since: Annotated[
        str | None, Option(help="Only what failed in the last 2h, or since 2025-03-01T08:00.")
    ] = None,
    namespace: Annotated[str | None, Option(help="Only of this namespace.")] = None,
    limit: Annotated[int, Option(min=1, help="At most this many groups.")] = 50,
) -> None:
    """Group failed runs by error, the most frequent error first.

    Messages that differ only in numbers and ids are one group. The example is the run that failed
    last: `flowfabric run show` prints its traceback.
    """
    start = read_since(since, engine.now())
    found = await engine.views.failures(kind=task, namespace=namespace, since=start)
    FAILURE.lines(screen, found.groups[:limit])
    if len(found.groups) > limit:
        screen.note(f"there are more errors ({len(found.groups) - limit}): use --limit")
    if not found.complete:
        earliest = local(found.read_since)
        screen.note(f"only the latest failures were counted, from {earliest}: use --since")


@command(app)
async def cancel(
    engine: Engine,
    screen: Screen,
    ids: RunIds,
    reason: Annotated[
        str, Option(help="Why; kept with the run.")
    ] = "cancelled on the command line",
    force: Annotated[bool, Option("--force", help="End them at once, without clean-up.")] = False,
) -> ExitCode:
    """Cancel runs in any state; a handler that is running is stopped.

    A run whose task cleans up ends after that, or when its time to clean up is over.
    """

    async def act(id: str) -> PublicState | CleansUp:
        answer = await engine.executions.cancel(id, reason=reason, force=force)
        if answer.until is None:
            return PublicState.CANCELLED
        return CleansUp(await engine.views.state(id), answer.until)

    return await for_each(screen, ids, act, doing="cancelling", done="cancelled")


@command(app)
async def hold(
    engine: Engine,
    screen: Screen,
    ids: RunIds,
    reason: Annotated[str | None, Option(help="Why; `run show` tells it.")] = None,
) -> ExitCode:
    """Hold waiting runs back, no matter what they wait for; they do not start before `unhold`."""

    async def act(id: str) -> PublicState:
        return (await engine.executions.hold(id, reason)).state

    return await for_each(screen, ids, act, doing="holding", done="held")


@command(app)
async def unhold(engine: Engine, screen: Screen, ids: RunIds) -> ExitCode:
    """Let runs start again that were held back."""

    async def act(id: str) -> PublicState:
        return (await engine.executions.unhold(id)).state

    return await for_each(screen, ids, act, doing="letting go", done="let go")


@command(app)
async def replay(
    engine: Engine,
    screen: Screen,
    ids: RunIds,
    from_step: FromStep = None,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Do not ask before runs that had succeeded run again.")
    ] = False,
) -> ExitCode:
    """Run ended runs again. Recorded steps are kept unless the run had succeeded.

    With --from-step, the steps before that one are kept and the later ones run again. The command
    asks before it executes runs again that had succeeded; without a terminal it needs --yes.
    """
    if not yes:
        await _ask_before_again(engine, screen, ids)

    async def act(id: str) -> PublicState:
        return (await engine.executions.replay(id, from_step=from_step)).state

    return await for_each(screen, ids, act, doing="replaying", done="replayed")


async def _ask_before_again(engine: Engine, screen: Screen, ids: list[str]) -> None:
    """Raises unless all runs that had succeeded may run again."""
    completed: list[str] = []
    for page in in_pages(ids, AT_ONCE):
        states = await asyncio.gather(*(_has_completed(engine, id) for id in page))
        completed += [id for id, is_completed in zip(page, states, strict=True) if is_completed]
    if not completed:
        return
    which = f"run {completed[0]} has" if len(completed) == 1 else f"{len(completed)} runs have"
    words = f"{which} succeeded, and a replay executes the work again"
    if screen.as_json or not sys.stdin.isatty():
        raise CommandError(f"{words}; confirm with --yes", ExitCode.USAGE, "not_confirmed")
    if not confirm(f"{words}. Replay?", err=True):
        raise CommandError("nothing was replayed", word="not_confirmed")


async def _has_completed(engine: Engine, id: str) -> bool:
    try:
        return await engine.views.state(id) is PublicState.COMPLETED
    except Invalid:
        return False  # what is no id is reported with the others


@command(app)
async def fork(  # noqa: PLR0913 - the options are the interface
    fabric: Fabric,
    screen: Screen,
    id: RunId,
    from_step: FromStep = None,
    args: Annotated[
        str | None, Option(metavar="JSON", help="Other arguments, all as one JSON object.")
    ] = None,
    version: Annotated[str | None, Option(help="Pin it to this version of the task.")] = None,
    lane: Annotated[str | None, Option(help="Another lane.")] = None,
    priority: Annotated[int | None, Option(help="0 to 9000, the highest first.")] = None,
    key: Annotated[str | None, Option(help="The same key again changes nothing.")] = None,
    tag: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="Another tag; repeatable.")
    ] = None,
) -> None:
    """Submit a new run that has recorded the steps of another one before a chosen step.

    The run it is forked from may be in any state and stays as it is. The fork has its arguments,
    options and tags, and runs the chosen step and those after it.
    """
    run = await fabric.run(id)
    made = await run.fork(
        from_step,
        arguments=None if args is None else read_object(args, "--args"),
        version=version,
        lane=lane,
        priority=priority,
        key=key,
        tags=read_tags(tag),
    )
    words = f"{made.id} was forked before" if made.duplicate else f"forked {made.id}"
    screen.answer(
        {"id": made.id, "forked_from": run.id, "from_step": from_step, "duplicate": made.duplicate},
        words,
    )


@command(app)
async def block(
    engine: Engine,
    screen: Screen,
    ids: RunIds,
    reason: Annotated[
        str, Option(metavar="REASON", help=f"One of {', '.join(sorted(ADMISSION_BLOCKS))}.")
    ] = Blocking.OPERATOR,
    detail: Annotated[str | None, Option(help="An explanation for people.")] = None,
) -> ExitCode:
    """Keep waiting runs from being claimed until `unblock`. A block for a budget, a quota or a
    capable worker ends by itself when that is there."""

    async def act(id: str) -> PublicState | None:
        await engine.executions.block(id, reason, detail)
        return await engine.views.state(id)

    return await for_each(screen, ids, act, doing="blocking", done="blocked")


@command(app)
async def unblock(
    engine: Engine,
    screen: Screen,
    ids: RunIds,
    expected: Annotated[
        str | None, Option(metavar="REASON", help="Only if they are blocked for this reason.")
    ] = None,
) -> ExitCode:
    """Let workers claim blocked runs again."""

    async def act(id: str) -> PublicState | None:
        await engine.executions.unblock(id, expected)
        return await engine.views.state(id)

    return await for_each(screen, ids, act, doing="unblocking", done="unblocked")


async def resume(
    engine: Engine,
    screen: Screen,
    ids: RunIds,
    delay: Annotated[str | None, Option(help="Let them continue only after 10s, 5m, …")] = None,
) -> ExitCode:
    """Wake suspended runs before what they wait for has come. Nothing counts as approved."""
    wait = NO_TIME if delay is None else parse_span(delay, "--delay")

    async def act(id: str) -> PublicState:
        return (await engine.executions.resume(id, delay=wait)).state

    return await for_each(screen, ids, act, doing="resuming", done="resumed")


@command(app)
async def result(
    fabric: Fabric,
    engine: Engine,
    screen: Screen,
    id: RunId,
    wait: Annotated[bool, Option("--wait", help="Wait until the run has ended.")] = False,
    timeout: Timeout = None,
) -> ExitCode:
    """Print what a run returned; exits with 1 if it did not succeed."""
    run = await fabric.run(id)
    facts = await run.describe()
    if facts.ended_at is None and not wait:
        raise CommandError(f"{id} has not ended: it is {facts.state} (use --wait)")
    return show_ending(screen, await watch(engine, run.id, screen, timeout))


@command(app)
async def events(
    fabric: Fabric,
    screen: Screen,
    id: RunId,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    after: Annotated[int, Option(min=0, help="Only events after this number.")] = 0,
) -> None:
    """Show what happened to a run, the oldest event first."""
    run = await fabric.run(id)
    if not follow:
        EVENT.lines(screen, [event for event in await run.events() if event.seq > after])
        return
    async for event in run.follow():
        if event.seq > after:
            words = "  ".join(text for _, text in EVENT.row(event)).rstrip()
            screen.answer(document(event), words)
