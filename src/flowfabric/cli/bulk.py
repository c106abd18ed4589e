"""Doing the same to one run or to ten thousand."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flowfabric.cli.errors import EXPECTED, ExitCode, report
from flowfabric.cli.format import local
from flowfabric.cli.output import Screen
from flowfabric.core.base.pages import in_pages
from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.status import PublicState

AT_ONCE = 200
BAR_FROM = 20

State = PublicState | None


class CleansUp(Struct, frozen=True):
    """The run is being cancelled: it cleans up first, until then at the latest."""

    state: State
    until: Millis


Act = Callable[[str], Awaitable[State | CleansUp]]
"""What is done to the run of an id; gives its state afterwards."""


async def for_each(screen: Screen, ids: list[str], act: Act, *, doing: str, done: str) -> ExitCode:
    """Does it to each run and says how each went. The code is that of the failures if they
    agree."""
    outcomes = Outcomes(screen, doing, done, len(ids))
    with outcomes:
        for page in in_pages(ids, AT_ONCE):
            outcomes.add(await asyncio.gather(*(_one(act, id) for id in page)))
    return outcomes.code()


async def _one(act: Act, id: str) -> tuple[str, State | CleansUp | Exception]:
    try:
        return id, await act(id)
    except EXPECTED as error:
        return id, error


class Outcomes:
    """How it went for each run: a line each, or a bar and a sum for people who wait for many."""

    def __init__(self, screen: Screen, doing: str, done: str, total: int) -> None:
        self._screen = screen
        self._done = done
        self._codes: Counter[ExitCode] = Counter()
        self._bar = _bar(screen, doing, total)
        self._quiet = self._bar is not None and screen.out.is_terminal
        self._cleaning_up = 0

    def __enter__(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._quiet:
            self._screen.line(f"{self._done} {self._codes[ExitCode.OK]} runs{self._rest()}")

    def add(self, answers: Sequence[tuple[str, State | CleansUp | Exception]]) -> None:
        for id, answer in answers:
            if isinstance(answer, Exception):
                self._codes[self._failed(id, answer)] += 1
            else:
                self._codes[ExitCode.OK] += 1
                self._cleaning_up += isinstance(answer, CleansUp)
                if self._screen.as_json or not self._quiet:
                    self._say(id, answer)
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], len(answers))

    def _say(self, id: str, answer: State | CleansUp) -> None:
        if isinstance(answer, CleansUp):
            text = f"cancelling {id}: it cleans up first, until {local(answer.until)} at the latest"
            facts = {"id": id, "state": answer.state, "until": to_datetime(answer.until)}
            self._screen.answer(facts, text)
        else:
            self._screen.answer({"id": id, "state": answer}, f"{self._done} {id}")

    def _rest(self) -> str:
        return f", {self._cleaning_up} of them after their clean-up" if self._cleaning_up else ""

    def code(self) -> ExitCode:
        failures = set(self._codes) - {ExitCode.OK}
        if len(failures) == 1:
            return failures.pop()
        return ExitCode.FAILED if failures else ExitCode.OK

    def _failed(self, id: str, error: Exception) -> ExitCode:
        code, word, text = report(error)
        self._screen.error(word, text if id in text else f"{id}: {text}", id=id)
        return code


def _bar(screen: Screen, doing: str, total: int) -> Progress | None:
    if total < BAR_FROM or not screen.is_watched:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=screen.err, redirect_stdout=False, redirect_stderr=False)
    bar.add_task(doing, total=total)
    return bar
