"""How a run ends: waiting for it, and printing its result or why there is none."""

import asyncio
from collections.abc import Callable

from rich.status import Status
from rich.text import Text

from flowfabric.cli.errors import ExitCode
from flowfabric.cli.format import progress_text, readable
from flowfabric.cli.json import Document, body, iso
from flowfabric.cli.output import Screen, printable
from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import parse_span
from flowfabric.core.execution.model import Outcome
from flowfabric.core.execution.status import PublicState, outcome_word
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.described import Description, Ending
from flowfabric.worker.api.described import blocked_because

LOOK_EVERY = 0.25
LOOKS_UNTIL_WHY = 8
"""A worker that is free takes a run long before."""


async def watch(engine: Engine, id: ExecutionId, screen: Screen, timeout: str | None) -> Ending:
    """How the run ended. People see on stderr how it stands, and after a while why it does not
    start; TimeoutError says both."""
    limit = None if timeout is None else parse_span(timeout, "--timeout") / 1000
    waiting = asyncio.ensure_future(engine.views.wait(id, limit))
    watching = asyncio.ensure_future(_report(engine, id, screen))
    try:
        return await waiting
    except TimeoutError:
        found = await engine.explain(id)
        why = readable(found.main.text)
        raise TimeoutError(f"{id} is still {found.state} after {timeout}: {why}") from None
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _report(engine: Engine, id: ExecutionId, screen: Screen) -> None:
    if screen.as_json:
        return
    if not screen.err.is_terminal:
        await _follow(engine, id, screen.note)
        return
    with Status("", console=screen.err) as status:
        await _follow(engine, id, lambda text: status.update(Text(printable(text))))


async def _follow(engine: Engine, id: ExecutionId, show: Callable[[str], None]) -> None:
    known, looks = "", 0
    while True:
        facts = await engine.views.describe(id)
        if facts is None:
            raise NotFound("run", id)
        text = _state_text(facts)
        looks = looks + 1 if text == known else 0
        if looks == 0:
            show(text)
        elif looks == LOOKS_UNTIL_WHY and facts.state is PublicState.WAITING:
            show(f"{text} · {readable((await engine.explain(id)).main.text)}")
        known = text
        await asyncio.sleep(LOOK_EVERY)


def _state_text(facts: Description) -> str:
    """State, attempt, worker, progress: what a waiting person wants to know."""
    if facts.ended_at is not None:
        return ""
    parts = [
        readable(blocked_because(facts.blocking, facts.blocking_detail))
        or facts.state.replace("_", " "),
        f"attempt {facts.attempts_made}" if facts.attempts_made > 1 else "",
        f"on {facts.lease.worker}" if facts.lease else "",
        progress_text(facts.progress),
    ]
    return " · ".join(part for part in parts if part)


def show_ending(screen: Screen, ending: Ending, **more: object) -> ExitCode:
    """The result on stdout, or on stderr why there is none."""
    succeeded = ending.outcome is Outcome.SUCCESS
    if screen.as_json:
        screen.document({**_ending_document(ending), **more})
    elif succeeded:
        screen.value(None if ending.result is None else body(ending.result))
    else:
        why = ending.failure.message if ending.failure else ending.reason
        word = outcome_word(ending.outcome)
        screen.error(word, f"{ending.id} {word}" + (f": {why}" if why else ""))
    return ExitCode.OK if succeeded else ExitCode.FAILED


def _ending_document(ending: Ending) -> Document:
    failure = ending.failure
    return {
        "id": str(ending.id.uuid),
        "outcome": outcome_word(ending.outcome),
        "ended_at": iso(ending.ended_at),
        "result": None if ending.result is None else body(ending.result),
        "failure": None
        if failure is None
        else {"message": failure.message, "category": failure.category},
        "reason": ending.reason,
    }
