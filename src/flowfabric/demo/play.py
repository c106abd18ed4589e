"""The play: five runs, two worker processes, one of them killed, no step done twice."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.ids import RunId
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.demo import tasks
from flowfabric.demo.board import Board, choose
from flowfabric.demo.proof import DemoVerdict, Evidence, judge
from flowfabric.demo.stage import Stage, WorkerDied
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.task import Task

TIME_LIMIT = 60.0
LOOK_EVERY = 0.05
INTERRUPTED = 130

_STATES = {
    EventKind.CLAIMED: ("active", "a worker took it"),
    EventKind.RESUMED: ("active", "woke up and goes on"),
    EventKind.RECLAIMED: ("active", "taken over from a dead worker"),
    EventKind.PROBATION: ("active", "runs alone: it may have killed its worker"),
    EventKind.CLEARED: ("active", "its worker lives: it is trusted again"),
    EventKind.LEASE_EXPIRED: ("lost", "its worker is gone: the lease ran out"),
    EventKind.RETRY_SCHEDULED: ("delayed", "will be tried again"),
    EventKind.DELAYED: ("delayed", "sleeps and holds no slot"),
    EventKind.COMPLETED: ("completed", "completed"),
    EventKind.FAILED: ("failed", "failed for good"),
}


def main(*, as_json: bool = False) -> int:
    """Runs the demo, checks what it promised and reports it; the exit code is 0 on success."""
    board = choose(as_json=as_json)
    try:
        with Stage() as stage:
            verdict = asyncio.run(_limited(stage, board))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; everything was cleaned up", file=sys.stderr)
        return INTERRUPTED
    except (FlowFabricError, WorkerDied, TimeoutError) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    board.conclude(verdict)
    return 1 if verdict.broken else 0


async def _limited(stage: Stage, board: Board) -> DemoVerdict:
    play = Play(stage, board)
    task = asyncio.current_task()
    if task is not None:
        with suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(TIME_LIMIT):
            with board:
                return await play.perform()
    except TimeoutError:
        raise TimeoutError(
            f"not done within {TIME_LIMIT:.0f} s; waiting for {play.scene}"
        ) from None


class Play:
    """Submits the runs, kills a worker and collects the evidence."""

    def __init__(self, stage: Stage, board: Board) -> None:
        self.scene = "the first worker"
        self._stage = stage
        self._board = board
        self._runs: dict[str, Run[Any]] = {}
        self._names: dict[str, str] = {}
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._told = 0
        self._submitting = asyncio.Lock()  # an event is shown after the name of its run is known

    async def perform(self) -> DemoVerdict:
        tasks.fabric.url = self._stage.url
        async with tasks.fabric:
            audience = [
                asyncio.create_task(self._show_events()),
                asyncio.create_task(self._show_steps()),
            ]
            try:
                await self._retry()
                await self._sleep()
                await self._crash()
                return judge(await self._evidence())
            finally:
                for task in audience:
                    task.cancel()
                await asyncio.wait(audience)

    # -- scenes

    async def _retry(self) -> None:
        self._board.say("a store in one SQLite file; worker ada starts, a process with one slot")
        self._pids["ada"] = self._stage.start("ada")
        await self._submit("hello", tasks.greet, "world")
        await self._submit("rates", tasks.fetch_rates)
        await self._completed("hello", "rates")
        self._board.say("the rates failed twice and came at the third attempt")

    async def _sleep(self) -> None:
        await self._submit("reminder", tasks.remind, "drink water")
        await self._until(lambda: self._state("reminder") == "delayed", "the reminder to sleep")
        self._board.say("the reminder sleeps; ada's only slot is free for a guest meanwhile")
        await self._submit("guest", tasks.greet, "guest")
        await self._completed("guest")

    async def _crash(self) -> None:
        await self._submit("order", tasks.ship_order, 7)
        await self._until(self._two_steps_recorded, "two steps of the order")
        self._show_ledger()
        self._board.say("two of five steps are recorded and ada is in the third: SIGKILL to ada")
        self._codes["ada"] = self._stage.kill("ada")
        self._board.update("order", happened="its worker was killed; the lease has not expired yet")
        self._board.say("worker bob starts and knows nothing about ada")
        self._pids["bob"] = self._stage.start("bob")
        (self._stage.home / tasks.PACKING_LINE).touch()
        await self._completed("reminder", "order")
        self._board.say("bob finished the order from the third step on; SIGTERM to bob")
        self._codes["bob"] = await asyncio.to_thread(self._stage.stop, "bob")

    async def _evidence(self) -> Evidence:
        events = {name: await run.events() for name, run in self._runs.items()}
        return Evidence(events=events, ledger=self._ledger(), pids=self._pids, codes=self._codes)

    # -- what the scenes are made of

    async def _submit(self, name: str, task: Task[Any, Any], *args: object) -> None:
        async with self._submitting:
            run = await task.submit(*args)
            self._board.add(name, task.name)
            self._runs[name] = run
            self._names[run.id] = name

    async def _completed(self, *names: str) -> None:
        for name in names:
            await self._until(partial(self._ended, name), f"{name} to end")

    async def _until(self, true: Callable[[], bool | Awaitable[bool]], scene: str) -> None:
        """Waits until the condition is true. Raises WorkerDied if a worker process is missing."""
        self.scene = scene
        while True:
            answer = true()
            if answer if isinstance(answer, bool) else await answer:
                return
            self._stage.check()
            await asyncio.sleep(LOOK_EVERY)

    async def _two_steps_recorded(self) -> bool:
        engine = await tasks.fabric.engine()
        return len(await engine.attempts.steps(self._runs["order"].id.uuid, 0)) == 2

    def _state(self, name: str) -> str:
        return self._board.rows[name].state

    def _ended(self, name: str) -> bool:
        return self._state(name) in ("completed", "failed")

    def _ledger(self) -> list[str]:
        path = self._stage.home / tasks.LEDGER
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    # -- telling the audience

    async def _show_events(self) -> None:
        engine = await tasks.fabric.engine()
        async for event in engine.events.subscribe(after=0):
            if event.id is None:
                continue  # a worker came or went
            async with self._submitting:
                name = self._names[RunId(event.id)]
            ended = event.kind is EventKind.COMPLETED
            result = await engine.views.result(event.id) if ended else None
            self._show_event(name, event, None if result is None else result.decode())

    def _show_event(self, name: str, event: StoredEvent, result: str | None) -> None:
        self._show_ledger()  # a step is shown before the events that follow it
        state, text = _STATES.get(event.kind, ("", event.kind.name.lower()))
        message = (event.detail or {}).get("message") if result is None else result
        self._board.update(
            name,
            state=state or self._state(name),
            attempt=(event.attempt or 0) + 1,
            worker=event.worker.id if event.worker else "",
            happened=f"{text}: {message}" if message else text,
        )

    async def _show_steps(self) -> None:
        while True:
            self._show_ledger()
            await asyncio.sleep(LOOK_EVERY)

    def _show_ledger(self) -> None:
        lines = self._ledger()
        for line in lines[self._told :]:
            self._board.update("order", happened=f"step {line.split()[0]} is done")
        self._told = len(lines)
