"""`flowfabric why`: what keeps a run, or the runs of a lane."""

import asyncio
from math import ceil
from typing import Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from flowfabric.cli.connect import connect
from flowfabric.cli.errors import Code, CommandError
from flowfabric.cli.format import local, span
from flowfabric.cli.json import document
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen, printable
from flowfabric.core.base.time import Millis
from flowfabric.core.explain.lane import LaneExplanation, Share, count_words, percent_words
from flowfabric.core.explain.reasons import Explanation, Reason, ReasonCode

COLUMNS = ("share", "runs", "why")

_POINTS = frozenset({ReasonCode.DEADLINE, ReasonCode.ATTEMPT_TIMEOUT, ReasonCode.RETRY_BACKOFF})
"""Reasons whose moment is when something happens, not when something ends."""


def why(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", show_default=False, help="{fp:86}:01a1e105-…")
    ] = None,
    lane: Annotated[
        str | None,
        typer.Option("--lane", show_default=False, help="What all runs of this lane wait for."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", show_default=False, help="With --lane: only of this one."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Tell why a run is not running, or what the runs of a lane wait for.

    What keeps it first comes first: nothing below helps before that has changed.
    """
    if (id is None) == (lane is None):
        raise CommandError("give the id of a run, or --lane", Code.USAGE, "usage")
    if id is not None and namespace is not None:
        raise CommandError("--namespace goes with --lane", Code.USAGE, "usage")
    screen = Screen(as_json)
    if id is not None:
        asyncio.run(_run(url, id, screen))
    else:
        asyncio.run(_lane(url, lane or "", namespace, screen))


async def _run(url: str | None, id: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        found = await (await fabric.engine()).explain(id)
    if screen.as_json:
        screen.document(document(found))
    else:
        screen.out.print(_tree(found), soft_wrap=True)


async def _lane(url: str | None, lane: str, namespace: str | None, screen: Screen) -> None:
    async with connect(url) as fabric:
        found = await (await fabric.engine()).explain.lane(lane, namespace)
    if screen.as_json:
        screen.document(document(found))
    else:
        _show_lane(found, screen)


def _tree(found: Explanation) -> Tree:
    name = f"{found.name}, " if found.name else ""
    head = Text(printable(f"{found.id} ({name}{found.kind}, lane {found.lane})"))
    head.append(f" is {found.state}", style="bold")
    tree = Tree(head)
    for number, reason in enumerate(found.reasons):
        _grow(tree, reason, found.at, style="bold" if number == 0 else "")
    return tree


def _grow(tree: Tree, reason: Reason, now: Millis, style: str = "") -> None:
    line = Text(printable(reason.text), style=style)
    if moments := _moments(reason, now):
        line.append(f" ({moments})", style="dim")
    branch = tree.add(line)
    for child in reason.children:
        _grow(branch, child, now)


def _moments(reason: Reason, now: Millis) -> str:
    since, until = reason.since, reason.until
    words = []
    if since is not None:
        words.append(f"since {local(since)}, {_length(now - since)} ago")
    if until is not None:
        left = f", in {_length(until - now)}" if until > now else ""
        words.append(f"{'at' if reason.code in _POINTS else 'until'} {local(until)}{left}")
    return "; ".join(words)


def _length(millis: int) -> str:
    """A length of time, in whole seconds below a minute."""
    return f"{max(0, ceil(millis / 1000))} s" if millis < 60_000 else span(millis)


def _show_lane(found: LaneExplanation, screen: Screen) -> None:
    where = "" if found.namespace is None else f" of namespace {found.namespace}"
    waiting = count_words(found.waiting, capped=found.capped)
    wait, run = "waits" if waiting == "1" else "wait", "runs" if found.running == 1 else "run"
    head = f"lane {found.lane}{where}: {waiting} {wait}, {found.running:,} {run}"
    screen.line(head, style="bold")
    for reason in found.reasons:
        moments = _moments(reason, found.at)
        screen.line(f"{reason.text} ({moments})" if moments else reason.text)
    if found.shares:
        screen.line("")
        screen.table(COLUMNS, [_row(share) for share in found.shares])


def _row(share: Share) -> list[str]:
    count = count_words(share.count, capped=share.capped)
    return [percent_words(share.percent), count, share.text]
