"""Compensations: what a run undoes, in reverse order, before it ends without success.

They are recorded by the order they were registered in. A worker that takes the run over calls the
handler again: it registers the same ones on its way to the place where it was stopped, and those
that are done already are not done again.
"""

import logging
from collections.abc import Generator
from typing import Any

from flowfabric.core.base.errors import LeaseLost
from flowfabric.core.execution.step import Recorded
from flowfabric.core.execution.step_order import UNDO
from flowfabric.worker.run.branches import StepPlace
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.steps import Work, attempt, perform

log = logging.getLogger("flowfabric.worker")


class Compensation:
    """A registered compensation. It counts from the moment it was made; awaiting it makes it
    durable, so that a run that loses its worker now is cleaned up too."""

    def __init__(self, scope: CallScope, place: StepPlace) -> None:
        self._scope = scope
        self._place = place

    def __await__(self) -> Generator[Any, None, None]:
        return self.record().__await__()

    async def record(self) -> None:
        journal = self._scope.journal
        with journal.branches.under_way():
            if await journal.recorded(self._place) is None:
                await self._scope.announce_undos()
                await journal.record(self._place, Recorded())


def register(scope: CallScope, work: Work) -> Compensation:
    """Takes the place of the call. The compensation counts even if the cancel is raised here."""
    scope.undos.append(work)
    try:
        return Compensation(scope, scope.branches.place(f"compensate:{work.name}"))
    except Exception:  # refused; a cancel is no Exception
        scope.undos.pop()
        raise


async def undo_all(scope: CallScope, undos: list[Work]) -> Exception | None:
    """Does what is registered in reverse order, each once. One that raises does not keep the
    others from being done; returns the first error."""
    places = _places(undos)
    error: Exception | None = None
    for work, place in reversed(list(zip(undos, places, strict=True))):
        try:
            await _undo(scope, work, place)
        except LeaseLost:
            raise
        except Exception as raised:
            log.warning(
                "undoing %s of run %s failed; the rest is still undone",
                work.name,
                scope.claim.uuid,
                exc_info=raised,
                extra={"run": str(scope.claim.uuid), "task": scope.claim.kind, "step": work.name},
            )
            error = error or raised
    return error


async def _undo(scope: CallScope, work: Work, place: StepPlace) -> None:
    tries = work.tries(scope, place, under_way=True)
    await perform(scope.journal, place, lambda: attempt(work, scope.threads, tries), Any)


def _places(undos: list[Work]) -> list[StepPlace]:
    counts: dict[str, int] = {}
    places = []
    for position, work in enumerate(undos):
        name = f"{UNDO}/undo:{work.name}"
        places.append(StepPlace(UNDO, position, name, counts.get(name, 0)))
        counts[name] = counts.get(name, 0) + 1
    return places
