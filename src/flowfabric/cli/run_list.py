"""Listing runs: filters in, pages out."""

from datetime import datetime
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.cli.connect import connect
from flowfabric.cli.errors import Code, CommandError
from flowfabric.cli.format import RUN_COLUMNS, run_row
from flowfabric.cli.json import document
from flowfabric.cli.output import Screen
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis, from_datetime, parse_span
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.views import Info, Infos
from flowfabric.store.queries import Query


class RunFilter(Struct, frozen=True, kw_only=True):
    """What a person asked to see, as it was written."""

    states: tuple[PublicState, ...]
    lane: str | None
    kind: str | None
    tag: str | None
    namespace: str | None
    since: str | None
    limit: int
    cursor: str | None


async def list_runs(
    url: str | None, wanted: RunFilter, screen: Screen, *, only_ids: bool = False
) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        found = await _collect(engine, wanted)
        now = engine.now()
    if only_ids or screen.as_json:
        for info in found.items:
            screen.document(document(info)) if screen.as_json else screen.line(info.id)
    elif found.items:
        screen.table(RUN_COLUMNS, [run_row(info, now) for info in found.items])
    else:
        screen.note("no runs")
    for uuid in found.unreadable:
        screen.note(f"run {uuid} cannot be read and is left out")
    _tell_cursor(screen, found.cursor)


async def _collect(engine: Engine, wanted: RunFilter) -> Infos:
    """Pages may be short; goes on until enough was found or nothing is left."""
    query, cursor = _query(wanted, engine.now()), wanted.cursor
    items: list[Info] = []
    unreadable: list[UUID] = []
    while True:
        page = await engine.views.list(replace(query, limit=wanted.limit - len(items)), cursor)
        items += page.items
        unreadable += page.unreadable
        cursor = page.cursor
        if cursor is None or len(items) >= wanted.limit:
            return Infos(tuple(items), cursor, tuple(unreadable))


def _query(wanted: RunFilter, now: Millis) -> Query:
    return Query(
        namespace=wanted.namespace,
        lane=wanted.lane,
        kind=wanted.kind,
        states=wanted.states,
        tag=read_tag(wanted.tag),
        created_from=_since(wanted.since, now),
        newest_first=True,
    )


def _tell_cursor(screen: Screen, cursor: str | None) -> None:
    if cursor is None:
        return
    if screen.as_json:
        screen.aside({"cursor": cursor})
    else:
        screen.note(f"there are more: --cursor {cursor}")


def read_tag(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"--tag is written app.tenant=acme, not {text!r}", Code.USAGE, "usage")
    return key, value


def _since(text: str | None, now: Millis) -> Millis | None:
    if text is None:
        return None
    try:
        return Millis(max(0, now - parse_span(text, "--since")))
    except Invalid:
        pass
    try:
        return from_datetime(datetime.fromisoformat(text).astimezone(), "--since")
    except ValueError:
        reason = f"--since is a span such as 2h or a moment such as 2025-03-01T08:00, not {text!r}"
        raise CommandError(reason, Code.USAGE, "usage") from None
