"""Submits a run, approves its tool call, kills its worker in the middle of the call, and starts
another one.

    cd examples; python -m agent.main
"""

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import Process
from pathlib import Path

os.environ["AGENT_HOME"] = tempfile.mkdtemp()

from flowfabric.agents import ToolCall

from .assistant import HOME, assist, fabric


async def start_worker() -> Process:
    worker = f"{__package__}.assistant"
    return await asyncio.create_subprocess_exec(sys.executable, "-m", worker)


async def until_gone(path: Path) -> None:
    while path.exists():  # noqa: ASYNC110, ASYNC240 - another process removes it
        await asyncio.sleep(0.02)


async def main() -> None:
    hang = HOME / "hang"
    hang.touch()
    async with fabric:
        await fabric.budget("refunds", cents=5_000)
        run = await assist.submit("The parcel of c-17 was late.")
        first = await start_worker()
        async for event in run.follow():
            if event.kind.name == "SUSPENDED":
                break
        seen = ToolCall("refund", {"customer": "c-17", "cents": 2500})
        await fabric.approve(run, "tool:refund", approver="ada", about=seen)
        print("ada has approved the refund")

        await until_gone(hang)
        first.kill()
        await first.wait()
        print("the worker was killed in the middle of the refund")

        second = await start_worker()
        print(await run.result())
        second.terminate()
        await second.wait()
        budget = await fabric.budget_status("refunds")
    print((HOME / "diary.txt").read_text(), end="")
    print(f"{len(list(HOME.glob('refund-*')))} refund, {budget.used['cents']} cents are spent")


if __name__ == "__main__":
    asyncio.run(main())
