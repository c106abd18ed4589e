"""A rival that commits at the worst moment of somebody else's call, and what they fight over."""

from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.operator import Cancelled
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab
from tests.kit.situations import take

Rival = Callable[[], Awaitable[object]]


class Race:
    """Lets a rival go first, a given number of times."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store = lab.engine.store
        self._monkeypatch = monkeypatch
        self.left = 0

    def after_load(self, rival: Rival, *, times: int = 1) -> None:
        """The rival commits when a decision has been made possible and not yet written."""
        honest = self._store.load

        async def raced(*args: Any) -> Any:
            found = await honest(*args)
            await self._let(rival)
            return found

        self._begin("load", raced, times)

    def before(self, method: str, rival: Rival) -> None:
        """The rival commits just before a statement, such as `end` or `records.put`."""
        honest = attrgetter(method)(self._store)

        async def raced(*args: Any, **kwargs: Any) -> Any:
            await self._let(rival)
            return await honest(*args, **kwargs)

        self._begin(method, raced, 1)

    def _begin(self, method: str, raced: Callable[..., Any], times: int) -> None:
        *owner, name = method.split(".")
        part = attrgetter(*owner)(self._store) if owner else self._store
        self._monkeypatch.setattr(part, name, raced)
        self.left = times

    async def _let(self, rival: Rival) -> None:
        if self.left:
            self.left -= 1
            await rival()


async def kinds(lab: Lab, id: str) -> list[EventKind]:
    return [event.kind for event in await lab.events(id)]


def cancel(lab: Lab, id: str, reason: str = "enough", **options: Any) -> Awaitable[Cancelled]:
    return lab.engine.executions.cancel(id, reason=reason, **options)


async def running(lab: Lab, *, flagged: bool = False, **members: Any) -> Claim:
    """A running execution; a flagged one cannot end by the short way."""
    if flagged:
        members["deadline_at"] = Millis(lab.clock.now() + 1_000_000)
    return await take(lab, await lab.submit(**members))
