"""`flowfabric why`: what keeps a run, or the runs of a lane."""

from math import ceil
from typing import Annotated

from rich.text import Text
from rich.tree import Tree
from typer import Argument, Option

from flowfabric.cli.command import NAMES_RUNS
from flowfabric.cli.errors import usage
from flowfabric.cli.format import local, span
from flowfabric.cli.json import document
from flowfabric.cli.output import Screen, printable
from flowfabric.cli.table import Table
from flowfabric.core.base.time import Millis
from flowfabric.core.explain.lane import LaneExplanation, Share, count_words, percent_words
from flowfabric.core.explain.reasons import Explanation, Reason, ReasonCode
from flowfabric.engine.engine import Engine
from flowfabric.worker.api.explained import explain_run

SHARE = Table[Share](
    row=lambda share: [
        ("share", percent_words(share.percent)),
        ("runs", count_words(share.count, capped=share.capped)),
        ("why", share.text),
    ]
)

_POINTS = frozenset(
    {
        ReasonCode.DEADLINE,
        ReasonCode.CLEANING_UP,
        ReasonCode.ATTEMPT_TIMEOUT,
        ReasonCode.RETRY_BACKOFF,
    }
)
"""Reasons whose moment is when something happens, not when something ends."""


async def why(
    engine: Engine,
    screen: Screen,
    id: Annotated[
        str | None, NAMES_RUNS, Argument(metavar="ID", help="The run, as 01a1e105-7c1b-…")
    ] = None,
    lane: Annotated[str | None, Option(help="Explain what the runs of this lane wait for.")] = None,
    namespace: Annotated[str | None, Option(help="With --lane: only of this namespace.")] = None,
) -> None:
    """Explain why a run is not running, or what the runs of a lane wait for.

    The first reason is the one to solve first: solving the others alone does not help.
    """
    if (id is None) == (lane is None):
        raise usage("give the id of a run, or --lane")
    if id is not None and namespace is not None:
        raise usage("--namespace goes with --lane")
    if id is not None:
        found = await engine.explain(id)
        if screen.as_json:
            screen.document(document(explain_run(found)))
        else:
            screen.out.print(_tree(found))
    else:
        _show_lane(await engine.explain.lane(lane or "", namespace), screen)


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
    if screen.as_json:
        screen.document(document(found))
        return
    where = "" if found.namespace is None else f" of namespace {found.namespace}"
    waiting = count_words(found.waiting, capped=found.capped)
    head = f"lane {found.lane}{where}: {waiting} waiting, {found.running:,} running"
    screen.line(head, style="bold")
    for reason in found.reasons:
        moments = _moments(reason, found.at)
        screen.line(f"{reason.text} ({moments})" if moments else reason.text)
    SHARE.below(screen, found.shares)
