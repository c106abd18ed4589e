"""A quorum: a write counts once two of three replicas have it.

`Quorum(2)` runs a member after two successes. As soon as two have failed, it is impossible, and the
member is skipped without waiting for the third.

    python examples/flow_quorum.py
"""

import asyncio
import tempfile
from pathlib import Path

from flowfabric import Fabric, Fail, FlowFailed, Quorum, Rest

store = Path(tempfile.mkdtemp()) / "replicas.db"
fabric = Fabric(f"sqlite:///{store}")

REPLICAS = ["amber", "basalt", "coral"]


@fabric.task()
async def write(replica: str, value: str, broken: list[str]) -> str:
    if replica in broken:
        raise Fail(f"{replica} is down")
    return replica


@fabric.task()
async def commit(value: str) -> str:
    return f"{value!r} is safe"


async def store_value(value: str, broken: list[str]) -> str:
    async with fabric.flow("replicated write") as flow:
        writes = [flow.add(write, name, value, broken, name=name) for name in REPLICAS]
        done = flow.add(commit, value, after=writes, join=Quorum(2, rest=Rest.LET_RUN))
    try:
        await flow.result()
    except FlowFailed as error:
        if str(await done.run.state()) == "skipped":
            return f"not safe: {len(error.members)} replicas failed"
    return await done.run.result()


async def main() -> None:
    async with fabric:
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())
        print("all are up:    ", await store_value("one", []))
        print("one is down:   ", await store_value("two", ["coral"]))
        print("two are down:  ", await store_value("three", ["amber", "coral"]))
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
