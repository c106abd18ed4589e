"""Showing one run: its facts, its result, its events."""

import shlex
from collections.abc import AsyncIterator

from flowfabric.cli import waiting
from flowfabric.cli.connect import connect
from flowfabric.cli.errors import Code, CommandError
from flowfabric.cli.format import (
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    attempt_row,
    event_row,
    run_fields,
    shortened,
)
from flowfabric.cli.json import body, document
from flowfabric.cli.output import Screen
from flowfabric.cli.watch import ending_code, show_ending, watch
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.model import Attempt
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.engine.execution.views import Description
from flowfabric.worker.api.run import Run


async def show(url: str | None, id: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        run, engine = await fabric.run(id), await fabric.engine()
        facts, attempts = await run.describe(), await run.attempts()
        payload, result = (await engine.views.context(id)).payload, await engine.views.result(id)
        open_ones = [] if facts.ended_at else await fabric.waitpoints(id, limit=waiting.MOST)
        now = engine.now()
    bodies = {
        "payload": body(payload) if payload else None,
        "result": None if result is None else body(result),
    }
    if screen.as_json:
        inner = [document(attempt) for attempt in attempts]
        waits = [waiting.told(item) for item in open_ones]
        screen.document({**document(facts), **bodies, "attempts": inner, "waitpoints": waits})
    else:
        _show(screen, facts, attempts, bodies, now)
        _show_waits(screen, facts, open_ones)


def _show(
    screen: Screen,
    facts: Description,
    attempts: list[Attempt],
    bodies: dict[str, object],
    now: Millis,
) -> None:
    shown = [(name, shortened(value)) for name, value in bodies.items() if value is not None]
    screen.fields([*run_fields(facts, now), *shown])
    if attempts:
        screen.line("")
        screen.table(ATTEMPT_COLUMNS, [attempt_row(attempt) for attempt in attempts])
    if facts.failure is not None and facts.failure.detail is not None:
        screen.line("")
        screen.text(facts.failure.detail.decode("utf-8", "replace").rstrip())


def _show_waits(screen: Screen, facts: Description, found: list[OpenWaitpoint]) -> None:
    """What a suspended run waits for, and how to answer."""
    if facts.state != PublicState.SUSPENDED:
        return
    active = [item for item in found if item.state == "active"]
    screen.line("")
    if active:
        screen.table(waiting.COLUMNS[1:], [waiting.row(item)[1:] for item in active])
    for command in [line for item in active for line in waiting.how_to_answer(item)]:
        screen.note(f"answer with: {command}")
    if not active:
        screen.note(f"only an operator wakes it: flowfabric resume {shlex.quote(facts.id)}")


async def result(
    url: str | None, id: str, screen: Screen, *, wait: bool, timeout: str | None
) -> Code:
    async with connect(url) as fabric:
        run, engine = await fabric.run(id), await fabric.engine()
        facts = await run.describe()
        if facts.ended_at is None and not wait:
            raise CommandError(f"{id} has not ended: it is {facts.state} (--wait waits)")
        ending = await watch(engine, run.id, screen, timeout)
    show_ending(screen, ending)
    return ending_code(ending)


async def events(url: str | None, id: str, screen: Screen, *, after: int, follow: bool) -> None:
    rows: list[list[str]] = []
    async with connect(url) as fabric:
        run = await fabric.run(id)
        async for event in run.follow() if follow else _past(run):
            if event.seq <= after:
                continue
            if screen.as_json:
                screen.document(document(event))
            elif follow:
                screen.line("  ".join(event_row(event)).rstrip())
            else:
                rows.append(event_row(event))
    if rows:
        screen.table(EVENT_COLUMNS, rows)
    elif not (follow or screen.as_json):
        screen.note("no events: nothing happened since it was submitted")


async def _past(run: Run[object]) -> AsyncIterator[StoredEvent]:
    for event in await run.events():
        yield event
