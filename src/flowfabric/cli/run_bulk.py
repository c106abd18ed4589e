"""Cancelling, replaying and resuming, one run or ten thousand."""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flowfabric.cli.connect import connect
from flowfabric.cli.errors import EXPECTED, Code, CommandError, told
from flowfabric.cli.json import Document
from flowfabric.cli.output import Screen
from flowfabric.core.base.time import NO_TIME, parse_span
from flowfabric.core.execution.status import PublicState
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


async def hold(url: str | None, ids: list[str], reason: str | None, screen: Screen) -> Code:
    async def steer(engine: Engine, id: str) -> Document:
        held = await engine.executions.hold(id, reason)
        return {"id": id, "state": held.state}

    return await _all(url, ids, Deed("holding", "held", steer), screen)


async def unhold(url: str | None, ids: list[str], screen: Screen) -> Code:
    async def steer(engine: Engine, id: str) -> Document:
        freed = await engine.executions.unhold(id)
        return {"id": id, "state": freed.state}

    return await _all(url, ids, Deed("letting go", "let go", steer), screen)


async def replay(url: str | None, ids: list[str], screen: Screen) -> Code:
    async def steer(engine: Engine, id: str) -> Document:
        replayed = await engine.executions.replay(id)
        return {"id": id, "state": replayed.state}

    return await _all(url, ids, Deed("replaying", "replayed", steer), screen)


async def resume(url: str | None, ids: list[str], delay: str | None, screen: Screen) -> Code:
    wait = NO_TIME if delay is None else parse_span(delay, "--delay")

    async def steer(engine: Engine, id: str) -> Document:
        resumed = await engine.executions.resume(id, delay=wait)
        return {"id": id, "state": resumed.state}

    return await _all(url, ids, Deed("resuming", "resumed", steer), screen)


async def block(
    url: str | None, ids: list[str], reason: str, detail: str | None, screen: Screen
) -> Code:
    async def steer(engine: Engine, id: str) -> Document:
        await engine.executions.block(id, reason, detail)
        return {"id": id, "state": await engine.views.state(id)}

    return await _all(url, ids, Deed("blocking", "blocked", steer), screen)


async def unblock(url: str | None, ids: list[str], expected: str | None, screen: Screen) -> Code:
    async def steer(engine: Engine, id: str) -> Document:
        await engine.executions.unblock(id, expected)
        return {"id": id, "state": await engine.views.state(id)}

    return await _all(url, ids, Deed("unblocking", "unblocked", steer), screen)


async def _all(url: str | None, ids: list[str], deed: Deed, screen: Screen) -> Code:
    """Does it to each, says how each went. The code is that of the failures if they agree."""
    report = Report(screen, deed, len(ids))
    async with connect(url) as fabric:
        engine = await fabric.engine()
        with report:
            for start in range(0, len(ids), AT_ONCE):
                page = ids[start : start + AT_ONCE]
                report.tell(await asyncio.gather(*(_one(deed, engine, id) for id in page)))
    return report.code()


async def _one(deed: Deed, engine: Engine, id: str) -> tuple[str, Document | Exception]:
    try:
        return id, await deed.steer(engine, id)
    except EXPECTED as error:
        return id, error


class Report:
    """How each run took it: a line each, or a bar and a sum for people who wait for many."""

    def __init__(self, screen: Screen, deed: Deed, total: int) -> None:
        self._screen = screen
        self._deed = deed
        self._codes: Counter[Code] = Counter()
        self._bar = _bar(screen, deed.verb, total)
        self._quiet = self._bar is not None and screen.out.is_terminal

    def __enter__(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._quiet:
            self._screen.line(f"{self._deed.done} {self._codes[Code.OK]} runs")

    def tell(self, answers: Sequence[tuple[str, Document | Exception]]) -> None:
        for id, answer in answers:
            if isinstance(answer, Exception):
                self._codes[self._failed(id, answer)] += 1
            else:
                self._codes[Code.OK] += 1
                self._succeeded(id, answer)
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], len(answers))

    def code(self) -> Code:
        failures = set(self._codes) - {Code.OK}
        return failures.pop() if len(failures) == 1 else Code.FAILED if failures else Code.OK

    def _succeeded(self, id: str, answer: Document) -> None:
        if self._screen.as_json:
            self._screen.document(answer)
        elif not self._quiet:
            self._screen.line(f"{self._deed.done} {id}")

    def _failed(self, id: str, error: Exception) -> Code:
        code, word, text = told(error)
        self._screen.error(word, text if id in text else f"{id}: {text}", id=id)
        return code


def _bar(screen: Screen, verb: str, total: int) -> Progress | None:
    if total < BAR_FROM or screen.as_json or not screen.err.is_terminal:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=screen.err, redirect_stdout=False, redirect_stderr=False)
    bar.add_task(verb, total=total)
    return bar
