"""Suspects in a worker: one at a time, and nothing new beside it.

A run whose worker was lost may be what ended it (`core/execution/takeover.py`). The worker that
takes such a run begins nothing else until the run has shown that a worker survives it: by a
recorded step, a suspension, its end, or by outliving the attempt that was lost. What runs already
has a few seconds to end; what takes longer goes on beside the suspect, whose loss is then not held
against it.

Suspects never have more than about half of a worker's time while others wait.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from uuid import UUID

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.execution.model import Flags
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.worker.run.active import ActiveRun
from flowfabric.worker.run.executor import Executor

log = logging.getLogger("flowfabric.worker")

ALONE_WITHIN = 5.0
"""Seconds that other runs have to end before a suspect begins beside them."""

SHORTEST_TURN = 1.0
"""Seconds between two suspects that belong to other runs, at least."""

UNKNOWN_LIFE = 60.0
"""Seconds that a suspect has to survive if the length of the lost attempt is unknown."""


_SUSPECT = int(Flags.SUSPECT)
"""As a number: this is asked for every claim, and flags are slow."""


class Trial:
    """One suspect that runs."""

    def __init__(self, active: ActiveRun, taken_at: float) -> None:
        self.active = active
        self.taken_at = taken_at
        self.clearing: asyncio.Task[None] | None = None


class ProbationWard:
    """Keeps the suspect of one worker apart."""

    def __init__(
        self,
        engine: Engine,
        active: Mapping[tuple[UUID, int], ActiveRun],
        on_open: Callable[[], None],
    ) -> None:
        """`active` is what the worker runs; `on_open` is called when it may begin others again."""
        self._engine = engine
        self._active = active
        self._on_open = on_open
        self._trial: Trial | None = None
        self._others_until = 0.0

    @property
    def closed(self) -> bool:
        """Whether the worker may begin nothing else."""
        return self._trial is not None

    @property
    def idle(self) -> bool:
        """Whether the worker runs nothing."""
        return not self._active

    @property
    def has_turn(self) -> bool:
        """Whether a suspect may be taken before others."""
        return not self.closed and time.monotonic() >= self._others_until

    def admit(self, active: ActiveRun) -> Trial:
        """Makes this run the suspect: the worker begins nothing else until it is cleared."""
        trial = self._trial = Trial(active, time.monotonic())
        active.on_step = partial(self._survived, trial, "it recorded a step")
        return trial

    async def run(self, trial: Trial, executor: Executor) -> None:
        """Runs the suspect as soon as it is alone, or has waited long enough to be."""
        active, outlived = trial.active, None
        try:
            await self._until_alone(active)
            if not active.stopped:
                await self._watch(active)
                outlived = asyncio.get_running_loop().call_later(
                    lifetime(active.claim),
                    partial(self._survived, trial, "it outlived the attempt that was lost"),
                )
            await executor.run(active)
        finally:
            if outlived is not None:
                outlived.cancel()
            if trial.clearing is not None:
                await asyncio.wait([trial.clearing])
            self._open(trial)

    async def _until_alone(self, active: ActiveRun) -> None:
        active.handling = True  # so that a stop ends the wait
        try:
            async with asyncio.timeout(ALONE_WITHIN):
                while jobs := self._others(active):
                    await asyncio.wait(jobs)
        except TimeoutError:
            log.info(
                "run %s may have ended its last worker; it begins beside other runs",
                active.claim.uuid,
                extra=active.fields,
            )
        except asyncio.CancelledError:
            if not active.stopped:
                raise
        finally:
            active.handling = False

    def _others(self, active: ActiveRun) -> list[asyncio.Task[None]]:
        others = (other for other in self._active.values() if other is not active)
        return [other.job for other in others if other.job is not None]

    async def _watch(self, active: ActiveRun) -> None:
        """Records whether it runs alone. If that fails, it still runs, and another loss counts."""
        with suppress(FlowFabricError):
            alone = not self._others(active)
            active.claim = await self._engine.claims.watch(active.claim, alone=alone)

    def _survived(self, trial: Trial, reason: str) -> None:
        if self._trial is trial and trial.clearing is None:
            trial.clearing = asyncio.ensure_future(self._clear(trial, reason))

    async def _clear(self, trial: Trial, reason: str) -> None:
        with suppress(FlowFabricError):
            await self._engine.claims.clear(trial.active.claim, reason)
        self._open(trial)

    def _open(self, trial: Trial) -> None:
        if self._trial is not trial:
            return
        now = time.monotonic()
        self._others_until = now + max(SHORTEST_TURN, now - trial.taken_at)
        self._trial = None
        self._on_open()


def is_suspect(claim: Claim) -> bool:
    return int(claim.snapshot.head.flags) & _SUSPECT != 0


def lifetime(claim: Claim) -> float:
    """Seconds the attempt had lived when it was found lost."""
    lapsed = claim.snapshot.life.lapsed
    return UNKNOWN_LIFE if lapsed is None else max(1.0, (lapsed.at - lapsed.started_at) / 1000)
