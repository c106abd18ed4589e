"""An application whose runs wait, and a worker that runs them as far as they go."""

import asyncio
from typing import Any

from flowfabric import Context, Fabric
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.wait.condition.model import Single
from flowfabric.core.wait.request import Binding, Suspend, Wait
from flowfabric.worker.api.task import Task

PLAN = {"amount": 250, "to": "ada"}


def patient(url: str) -> Fabric:
    fabric = Fabric(url)

    @fabric.task()
    async def order(ctx: Context) -> Any:
        return await ctx.wait_for_signal("paid")

    @fabric.task()
    async def pay(ctx: Context) -> str:
        verdict = await ctx.approval("budget", approvers=["ada", "bob"], about=PLAN)
        comments = [f"{each.approver}: {each.comment}" for each in verdict.decisions]
        return f"{verdict.ended} {comments}"

    @fabric.task()
    async def publish(ctx: Context) -> dict[str, bool]:
        wanted = ("legal", "style")
        verdicts = await ctx.gather(*(ctx.approval(name, timeout="2d") for name in wanted))
        return {verdict.name: verdict.approved for verdict in verdicts}

    @fabric.task()
    async def split(ctx: Context) -> list[bool]:
        verdicts = await ctx.gather(*(ctx.approval("part", about=n) for n in (1, 2)))
        return [verdict.approved for verdict in verdicts]

    @fabric.task()
    async def ship(ctx: Context) -> Any:
        callback = await ctx.callback("carrier")
        return await callback.result()

    @fabric.task(on_cancel="cleanup", cleanup_timeout="1h")
    async def rent(ctx: Context) -> None:
        await ctx.wait_for_signal("returned")

    return fabric


class Patient:
    """The application on a store, as seen by a test without an event loop."""

    def __init__(self, url: str) -> None:
        self.url = url

    def start(self, name: str) -> str:
        """The id of a run that has gone as far as it can."""

        async def submit() -> str:
            async with patient(self.url) as fabric:
                task: Task[Any, Any] = fabric.get_task(name)
                return (await task.submit()).id

        id = asyncio.run(submit())
        self.work()
        return id

    def suspend_without_a_step(self, key: str) -> str:
        """The id of a run that a worker of another kind has suspended."""

        async def suspend() -> str:
            async with patient(self.url) as fabric:
                engine = await fabric.engine()
                await fabric.get_task("order").submit()
                (claim,) = await engine.claims.claim(
                    WorkerIdentity("w", "w1"), ttl=Millis(30_000), limit=1
                )
                binding = Binding(id=engine.suspensions.new_id(), key=key)
                wait = Wait(condition=Single(key), bindings=(binding,))
                request = Suspend(id=engine.suspensions.new_id(), waits=(wait,))
                await engine.suspensions.suspend(claim, request)
                return claim.id

        return asyncio.run(suspend())

    def work(self) -> None:
        async def run() -> None:
            async with patient(self.url) as fabric:
                await (await fabric.worker()).run_until_idle()

        asyncio.run(run())

    def result(self, id: str) -> Any:
        """What the run returns, once everything that can run has."""
        self.work()

        async def wait() -> Any:
            async with patient(self.url) as fabric:
                return await (await fabric.run(id)).result(60)

        return asyncio.run(wait())
