"""Several real processes on one file, and one that is killed in the middle of its work."""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import complete
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner, fence_of
from flowfabric.core.execution.model import Active, Ended, WorkerIdentity
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission, create
from flowfabric.store.queries import ClaimCall, EventQuery, Taken
from flowfabric.store.sqlite import SqliteStore, open_sqlite

HERE = Path(__file__).resolve()


def spawn(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", f"from tests.store.{HERE.stem} import main; main()"]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parent.parent.parent,
    )


@pytest.mark.parametrize(("processes", "each"), [(2, 500), (8, 60)])
async def test_processes_share_a_file_and_nothing_is_lost_or_done_twice(
    tmp_path: Path, processes: int, each: int
) -> None:
    path = tmp_path / "work.db"
    workers = [spawn("work", path, number, each, each * processes) for number in range(processes)]
    lines = [worker.communicate(timeout=240)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * processes
    store = await open_sqlite(str(path))
    counts = await store.counts(None, None)
    assert counts.by_state[PublicState.COMPLETED] == sum(counts.by_state.values())
    done = Counter(uuid for finished in lines for uuid in finished)
    assert len(done) == each * processes
    assert set(done.values()) == {1}
    query = EventQuery(kinds=frozenset({EventKind.CLAIMED}), limit=100_000)
    claims = Counter(event.id for event in (await store.events(query)).events)
    assert len(claims) == each * processes
    assert set(claims.values()) == {1}
    await store.close()


async def test_a_killed_process_loses_nothing_it_was_told_is_written(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    told: list[tuple[str, UUID]] = []
    for life in range(3):
        worker = spawn("until killed", path, life)
        assert worker.stdout is not None
        for _ in range(40):
            word, uuid = worker.stdout.readline().split()
            told.append((word, UUID(uuid)))
        worker.kill()
        # From the same reader, which has read ahead.
        rest = worker.stdout.read()
        worker.stdout.close()
        worker.wait(timeout=60)
        # A line that was cut short may be the last one.
        whole = [line.split() for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        told += [(word, UUID(uuid)) for word, uuid in whole]
    store = await open_sqlite(str(path))
    found = await store.load([uuid for _, uuid in told])
    assert {uuid for _, uuid in told} == found.keys()
    ended = {uuid for word, uuid in told if word == "ended"}
    assert ended
    assert all(isinstance(found[uuid].state, Ended) for uuid in ended)
    assert check(path) == "ok"
    await store.close()


async def test_processes_agree_on_the_secret_and_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    workers = [spawn("secret", path, number) for number in range(4)]
    secrets = {worker.communicate(timeout=240)[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0] * 4
    assert len(secrets) == 1


def check(path: Path) -> str:
    connection = sqlite3.connect(path)
    (answer,) = connection.execute("pragma integrity_check").fetchone()
    connection.close()
    return str(answer)


# -- what the processes do


class Process:
    """A worker as simple as can be: it submits, claims and completes in batches."""

    def __init__(self, store: SqliteStore, number: int) -> None:
        self.store = store
        self.worker = WorkerIdentity(f"w{number}", f"w{number}-{os.getpid()}")
        self.jitter = random.Random(os.getpid())

    def uuid(self) -> UUID:
        return new_uuid7(self.store.clock.now(), self.jitter.getrandbits(74))

    async def submit(self, count: int) -> list[UUID]:
        now = self.store.clock.now()
        made = [create(Submission(kind="job"), self.uuid(), now) for _ in range(count)]
        assert await self.store.submit(made, now) == [None] * count
        return [creation.snapshot.execution.uuid for creation in made]

    async def claim(self, limit: int) -> list[Taken]:
        call = ClaimCall(self.uuid(), self.worker, frozenset(), (), None, limit, Millis(60_000))
        return await self.store.claim(call, self.store.clock.now())

    async def complete(self, taken: list[Taken]) -> list[UUID]:
        now = self.store.clock.now()
        changes = []
        for item in taken:
            assert isinstance(item.snapshot.state, Active)
            owner = Owner.of(fence_of(item.snapshot, item.snapshot.state.lease))
            changes.append(complete(item.snapshot, now, owner, b"done"))
        ended = await self.store.end(changes, now)
        assert len(ended) == len(taken)
        return list(ended)


async def work(store: SqliteStore, number: int, each: int, total: int) -> None:
    """Submits its share in small batches while it works on anybody's, until all is done."""
    process = Process(store, number)
    left = each
    while True:
        if left:
            left -= len(await process.submit(min(20, left)))
        taken = await process.claim(10)
        for uuid in await process.complete(taken):
            print(uuid)
        if taken or left:
            continue
        counts = await store.counts(None, None)
        if counts.by_state[PublicState.COMPLETED] == total:
            return
        await store.hints.wait(0.05)


async def until_killed(store: SqliteStore, number: int) -> None:
    """Submits and works several batches at a time and tells what it knows to be written."""
    process = Process(store, number)

    async def submitting() -> None:
        while True:
            for uuid in await process.submit(3):
                print("made", uuid, flush=True)

    async def working() -> None:
        while True:
            for uuid in await process.complete(await process.claim(2)):
                print("ended", uuid, flush=True)

    await asyncio.gather(*[job() for job in (submitting, working) for _ in range(3)])


async def run(what: str, path: str, number: int, *numbers: int) -> None:
    store = await open_sqlite(path)
    await store.migrate()
    match what:
        case "work":
            await work(store, number, *numbers)
        case "until killed":
            await until_killed(store, number)
        case _:
            print((await store.identity()).secret.hex())
    await store.close()


def main() -> None:
    what, path, *numbers = sys.argv[1:]
    asyncio.run(run(what, path, *map(int, numbers)))
