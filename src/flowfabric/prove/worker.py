"""The worker process that is killed: `python -m flowfabric.prove.worker FOLDER LEASE [STEP]`.

It stays in this step, so that it is killed in the middle of its runs, however late.

The folder has the place to work at, and gets the ledger: one line before a step is done and one
when its value is recorded, each written at once, so that their order is what happened.
"""

import asyncio
import os
import secrets
import sys
from pathlib import Path

import msgspec

from flowfabric.core.base.time import Millis
from flowfabric.fabric import Fabric
from flowfabric.prove.ground import Place
from flowfabric.worker.api.context import Context
from flowfabric.worker.api.task import Task
from flowfabric.worker.run.exit import when_parent_ends

LANE = "crash"
STEPS = ("reserve", "charge", "pack", "ship", "thank")
URL = "FLOWFABRIC_PROVE_URL"
"""The environment variable with the URL: arguments of a process are seen by other users."""

_PLACE = "place.json"
_LEDGER = "ledger.jsonl"


class LedgerLine(msgspec.Struct, frozen=True, array_like=True):
    """`what` is `did` or `kept`."""

    what: str
    run: str
    step: str
    value: str


def prepare(place: Place, home: Path) -> None:
    """Makes the folder of the processes; the URL, which may have a password, is not in it."""
    home.mkdir(parents=True)
    without = msgspec.structs.replace(place, url="")
    (home / _PLACE).write_bytes(msgspec.json.encode(without))
    (home / _LEDGER).touch()


def read_ledger(home: Path) -> list[LedgerLine]:
    """The lines, without the last one if a kill has cut it short."""
    whole, _, _ = (home / _LEDGER).read_bytes().rpartition(b"\n")
    return [msgspec.json.decode(line, type=LedgerLine) for line in whole.splitlines()]


def order_task(
    place: Place, fabric: Fabric, home: Path, stay: str | None = None
) -> Task[[], list[str]]:
    """A run of five steps, each noted in the ledger; it stays in the step `stay`."""

    def note(what: str, run: str, step: str, value: str) -> None:
        line = msgspec.json.encode(LedgerLine(what, run, step, value)) + b"\n"
        file = os.open(home / _LEDGER, os.O_APPEND | os.O_WRONLY)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    async def do(run: str, step: str) -> str:
        value = secrets.token_hex(4)
        note("did", run, step, value)
        if step == stay:
            await asyncio.Event().wait()
        return value

    @place.task(fabric, LANE, name="order")
    async def order(ctx: Context) -> list[str]:
        run, values = str(ctx.info.id), []
        for step in STEPS:
            value: str = await ctx.step(do, run, step)
            note("kept", run, step, value)
            values.append(value)
        return values

    return order


async def main(folder: str, lease: str, stay: str | None = None) -> None:
    """Works until it is killed, or until the process that started it is gone."""
    home = Path(folder)
    written = msgspec.json.decode((home / _PLACE).read_bytes(), type=Place)
    place = msgspec.structs.replace(written, url=os.environ[URL])
    async with place.fabric() as fabric:
        order_task(place, fabric, home, stay)
        worker = await fabric.worker(place.settings(LANE, 5, Millis(int(lease))))
        worker.handle_signals()
        when_parent_ends(worker.stop)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
