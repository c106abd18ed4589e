"""The recorded steps of executions: what operators change about them, and what comes before one."""

from collections.abc import Callable
from typing import Literal
from uuid import UUID

import msgspec

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.text import MAX_REASON, check_bytes, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import rewrite
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.cut import KnownWaits, StepCut, cut_before, decided_at
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.rewrite import RewriteBy, SeenSteps, StepSkipped, StepsRenamed
from flowfabric.core.execution.step_order import check_reference, check_step_name
from flowfabric.core.wait.model import Needs
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.engine.context import Service, T
from flowfabric.engine.execution.attempts import MAX_STEP
from flowfabric.engine.wait.signals import signals_of
from flowfabric.store.readable import named


class StepCuts(Service):
    """What comes before a step, for forks and replays."""

    async def before(self, snapshot: Snapshot, from_step: str | int) -> tuple[StepCut, KnownWaits]:
        """What a run has recorded before a step, and what its waits have received."""
        wanted, uuid = check_reference(from_step), snapshot.execution.uuid
        (steps,) = await self._context.store.steps([(uuid, snapshot.life.generation)])
        attempts = [*await self._context.store.attempts(uuid), *inline_attempts(snapshot)]
        cut = named("the steps of", uuid, lambda: cut_before(snapshot, steps, attempts, wanted))
        return cut, await self._known(uuid, cut)

    async def _known(self, uuid: UUID, cut: StepCut) -> KnownWaits:
        several = {wait.suspension for wait in cut.waits if wait.signal is None and wait.suspension}
        store = self._context.store
        signals = {each: tuple(await signals_of(store, uuid, each)) for each in several}
        asked = tuple({at for wait in cut.waits if (at := decided_at(wait)) is not None})
        if not asked:
            return KnownWaits(signals)
        (loaded,) = await store.load_needs([Needs(uuid, waitpoints=asked)])
        terms = {id: row.terms for id, row in loaded.waitpoints.items()}
        return KnownWaits(signals, {id: each.about for id, each in terms.items() if each})


class RecordedSteps(Service):
    """`engine.steps`"""

    async def rename(
        self, id: str, step: str, name: str, *, by: str = "", reason: str = ""
    ) -> StepsRenamed:
        """Gives recorded steps another name: all calls of `step`, or only one (`charge#2`). The run
        must not be leased; `by` and `reason` are kept in its history."""
        asked, new, who = _step(step), check_step_name(name), _who(by, reason)
        return await self._rewrite(
            id, lambda found, now, seen: rewrite.rename(found, now, seen, asked, new, who)
        )

    async def skip(
        self, id: str, step: str, result: bytes | None = None, *, by: str = "", reason: str = ""
    ) -> StepSkipped:
        """Supplies the result (JSON) of a step that then is not run, wherever the code calls it;
        without one, the recorded result is used. The run must not be leased; `by` and `reason` are
        kept in its history."""
        asked, who = _step(step), _who(by, reason)
        value = None if result is None else _json(result)
        return await self._rewrite(
            id, lambda found, now, seen: rewrite.skip(found, now, seen, asked, value, who)
        )

    async def _rewrite(
        self,
        id: str,
        rule: Callable[[Snapshot | None, Millis, SeenSteps], Change[T | None]],
    ) -> T:
        """Decides on the steps of a version of the run, and again if it has moved since."""
        key = ExecutionId(id)

        async def round(number: int) -> T | Literal[RaceLost.RACE_LOST]:
            snapshot = rewrite.check_unleased(await self._present(key))
            asked = (key.uuid, snapshot.life.generation)
            (steps,) = await self._context.store.steps([asked])
            seen = SeenSteps(snapshot.head.version, tuple(steps))
            answer = await self._decide(key, rule, seen)
            return RACE_LOST if answer is None else answer

        return await retry(round, f"run {key}")


def _step(step: object) -> str:
    wanted = check_reference(step)
    if isinstance(wanted, int):
        raise Invalid("name the step by its name, not by a number")
    return wanted


def _who(by: object, reason: object) -> RewriteBy:
    return RewriteBy(
        check_text(by, "by", limit=MAX_REASON), check_text(reason, "reason", limit=MAX_REASON)
    )


def _json(result: object) -> bytes:
    data = check_bytes(result, "result", MAX_STEP)
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the result of a step must be JSON: {error}") from None
    return data
