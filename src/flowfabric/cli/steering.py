"""Cancelling and replaying, one run or ten thousand."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flowfabric.cli.connect import connect
from flowfabric.cli.documents import Document
from flowfabric.cli.errors import EXPECTED, Code, CommandError, told
from flowfabric.cli.screen import Screen
from flowfabric.core.vector import PublicState
from flowfabric.engine.engine import Engine

AT_ONCE = 200
BAR_FROM = 20

Steer = Callable[[Engine, str], Awaitable[Document]]


class Deed(Struct, frozen=True):
    """What is done to each run, and the word for it when it was done."""

    verb: str
    done: str
    steer: Steer


def given(ids: list[str]) -> list[str]:
    """The ids on the command line; `-` stands for those on stdin."""
    found: list[str] = []
    for id in ids:
        found += sys.stdin.read().split() if id == "-" else [id]
    if not found:
        raise CommandError("no ids on stdin", Code.USAGE, "usage")
    return list(dict.fromkeys(found))


async def cancel(url: str | None, ids: list[str], reason: str, screen: Screen) -> Code:
    async def steer(engine: Engine, id: str) -> Document:
        await engine.executions.cancel(id, reason=reason)
        return {"id": id, "state": PublicState.CANCELLED}

    return await _all(url, ids, Deed("cancelling", "cancelled", steer), screen)


async def replay(url: str | None, ids: list[str], screen: Screen) -> Code:
    async def steer(engine: Engine, id: str) -> Document:
        replayed = await engine.executions.replay(id)
        return {"id": id, "state": replayed.state}

    return await _all(url, ids, Deed("replaying", "replayed", steer), screen)


async def _all(url: str | None, ids: list[str], deed: Deed, screen: Screen) -> Code:
    """Does it to each, says how each went. The code is that of the failures if they agree."""
    codes: set[Code] = set()
    async with connect(url) as fabric:
        engine = await fabric.engine()
        with _bar(screen, len(ids)) as bar:
            task = bar.add_task(deed.verb, total=len(ids)) if bar else None
            for start in range(0, len(ids), AT_ONCE):
                page = ids[start : start + AT_ONCE]
                answers = await asyncio.gather(*(_one(deed, engine, id) for id in page))
                codes |= {_tell(screen, deed, *answer) for answer in answers}
                if bar and task is not None:
                    bar.advance(task, len(page))
    failures = codes - {Code.OK}
    return min(failures) if len(failures) == 1 else Code.FAILED if failures else Code.OK


async def _one(deed: Deed, engine: Engine, id: str) -> tuple[str, Document | Exception]:
    try:
        return id, await deed.steer(engine, id)
    except EXPECTED as error:
        return id, error


def _tell(screen: Screen, deed: Deed, id: str, answer: Document | Exception) -> Code:
    if isinstance(answer, Exception):
        code, word, text = told(answer)
        screen.error(word, text if id in text else f"{id}: {text}", id=id)
        return code
    if screen.as_json:
        screen.document(answer)
    else:
        screen.line(f"{deed.done} {id}")
    return Code.OK


def _bar(screen: Screen, total: int) -> Any:
    """A bar on stderr for people who wait for many."""
    if total < BAR_FROM or screen.as_json or not screen.err.is_terminal:
        return nullcontext()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=screen.err, transient=True)
