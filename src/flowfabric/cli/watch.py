"""Waiting for a run to end, telling its state and progress meanwhile."""

import asyncio
from typing import Any

from rich.status import Status
from rich.text import Text

from flowfabric.cli.errors import Code
from flowfabric.cli.format import progress_text, readable
from flowfabric.cli.json import Document, body, iso
from flowfabric.cli.output import Screen, printable
from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import parse_span
from flowfabric.core.execution.model import Outcome
from flowfabric.core.execution.status import outcome_word
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.views import Description, Ending

LOOK_EVERY = 0.25


async def watch(engine: Engine, id: ExecutionId, screen: Screen, timeout: str | None) -> Ending:
    """How the run ended. People see on stderr how it stands; TimeoutError says it too."""
    limit = None if timeout is None else parse_span(timeout, "--timeout") / 1000
    waiting = asyncio.ensure_future(engine.views.wait(id, limit))
    watching = asyncio.ensure_future(_tell(engine, id, screen))
    try:
        return await waiting
    except TimeoutError:
        state = await engine.views.state(id)
        raise TimeoutError(f"{id} is still {state} after {timeout}") from None
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _tell(engine: Engine, id: ExecutionId, screen: Screen) -> None:
    if screen.as_json:
        return
    if not screen.err.is_terminal:
        await _follow(engine, id, screen.note)
        return
    with Status("", console=screen.err) as status:
        await _follow(engine, id, lambda text: status.update(Text(printable(text))))


async def _follow(engine: Engine, id: ExecutionId, tell: Any) -> None:
    told = ""
    while True:
        facts = await engine.views.describe(id)
        if facts is None:
            raise NotFound("run", id)
        if (text := _standing(facts)) != told:
            told = text
            tell(text)
        await asyncio.sleep(LOOK_EVERY)


def _standing(facts: Description) -> str:
    """State, attempt, worker, progress: what a waiting person wants to know."""
    if facts.ended_at is not None:
        return ""
    parts = [
        readable(facts.blocking_detail) or facts.state.replace("_", " "),
        f"attempt {facts.attempts_made}" if facts.attempts_made > 1 else "",
        f"on {facts.lease.worker}" if facts.lease else "",
        progress_text(facts.progress),
    ]
    return " · ".join(part for part in parts if part)


def ending_code(ending: Ending) -> Code:
    return Code.OK if ending.outcome is Outcome.SUCCESS else Code.FAILED


def ending_document(ending: Ending) -> Document:
    failure = ending.failure
    return {
        "id": ending.id,
        "outcome": outcome_word(ending.outcome),
        "ended_at": iso(ending.ended_at),
        "result": None if ending.result is None else body(ending.result),
        "failure": None
        if failure is None
        else {"message": failure.message, "category": failure.category},
        "reason": ending.reason,
    }


def show_ending(screen: Screen, ending: Ending, **more: object) -> None:
    """The result on stdout, or on stderr why there is none."""
    if screen.as_json:
        screen.document({**ending_document(ending), **more})
    elif ending.outcome is Outcome.SUCCESS:
        screen.value(None if ending.result is None else body(ending.result))
    else:
        why = ending.failure.message if ending.failure else ending.reason
        word = outcome_word(ending.outcome)
        screen.error(word, f"{ending.id} {word}" + (f": {why}" if why else ""))
