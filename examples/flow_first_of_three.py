"""A race: three mirrors are asked for the same file, the first answer wins, the others stop.

`AnyOf` runs a member after the first upstream that succeeds. By default the losers are cancelled,
even running ones; they do not count as failures. `Rest.LET_RUN` would let them continue.

    python examples/flow_first_of_three.py
"""

import asyncio
import tempfile
from pathlib import Path

from flowfabric import AnyOf, Fabric, RunCancelled

store = Path(tempfile.mkdtemp()) / "mirrors.db"
fabric = Fabric(f"sqlite:///{store}")

asked: set[str] = set()
all_asked = asyncio.Event()


@fabric.task()
async def download(mirror: str) -> str:
    asked.add(mirror)
    if len(asked) == 3:
        all_asked.set()
    await all_asked.wait()  # all three run when the first one answers
    if mirror != "oslo":
        await asyncio.sleep(3600)
    return f"the file from {mirror}"


@fabric.task()
async def unpack() -> str:
    return "unpacked"


async def main() -> None:
    async with fabric:
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())

        async with fabric.flow("fetch") as flow:
            mirrors = [flow.add(download, name, name=name) for name in ("lima", "oslo", "pune")]
            flow.add(unpack, after=mirrors, join=AnyOf())

        print(await flow.result())
        for mirror in mirrors:
            try:
                print(f"{mirror.name}: {await mirror.run.result()}")
            except RunCancelled:
                print(f"{mirror.name}: cancelled, it lost the race")
        print(f"the flow has {await flow.state()}")
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
