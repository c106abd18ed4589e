"""Real processes: killed, stopped, stalled, crashed. Nothing is lost and nothing counts twice."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowfabric import Fabric, PublicState, Run, RunFailed, Submission
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.registry import Marked
from tests.kit.damage import run_sql
from tests.worker import handlers
from tests.worker.apps.shop import Shop
from tests.worker.bench import gather_results, until

ROOT = Path(__file__).parents[2]
TTL = 300
"""No lease ends by itself, however busy the machine is."""
BRIEF = 3

pytestmark = pytest.mark.long


class Street:
    """The client's side: a shop of its own on the same store, and workers in other processes."""

    def __init__(self, fabric: Fabric, url: str, place: Path) -> None:
        self.fabric = fabric
        self.shop = Shop(fabric, place)
        self._url = url
        self._env = {**os.environ, "FLOWFABRIC_URL": url, "SHOP": str(place)}
        self._workers: list[subprocess.Popen[bytes]] = []

    async def submit(self, task: str, *args: Any) -> Run[Any]:
        return await self.shop.tasks[task].submit(*args)

    async def worker(self, **options: Any) -> subprocess.Popen[bytes]:
        """A worker in a process of its own, ready to work."""
        worker = self._start(msgspec.json.encode({"ttl": TTL, **options}).decode())
        self._workers.append(worker)
        await self.told(f"ready {worker.pid}")
        return worker

    def _start(self, options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-W", "error", "-m", "tests.worker.apps.shop", options]
        with self._log(len(self._workers)).open("wb") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=self._env, stderr=log, start_new_session=True
            )

    async def told(self, word: str, seconds: float = 60.0) -> None:
        await until(lambda: word in self.shop.ledger(), seconds)

    def said(self, worker: subprocess.Popen[bytes]) -> str:
        """What a worker logged."""
        return self._log(self._workers.index(worker)).read_text()

    async def expire(self) -> None:
        """Lets the time of all leases run out. What holds one is dead or frozen: nothing renews."""
        await run_sql(self._url, "update lease set expires_at = started_at")
        await (await self.fabric.engine()).sweep.once()

    async def freeze(self, worker: subprocess.Popen[bytes]) -> None:
        """Stops a process, but not within a write on SQLite: as long as it slept, no other process
        could write."""
        while True:
            worker.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(os.waitpid, worker.pid, os.WUNTRACED)
            if not self._locked():
                return
            worker.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.005)

    def _locked(self) -> bool:
        path = self._url.removeprefix("sqlite:///")
        if path == self._url:
            return False
        with contextlib.closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as file:
            try:
                file.execute("begin immediate")
            except sqlite3.OperationalError:
                return True
        return False

    async def registered(self, instance: str) -> None:
        engine = await self.fabric.engine()
        async with asyncio.timeout(60):
            while await engine.workers.get(instance) is None:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    def close(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def _log(self, number: int) -> Path:
        return self.shop.place / f"worker-{number}.log"


@pytest.fixture
async def street(store_url: str, tmp_path: Path) -> AsyncIterator[Street]:
    async with Fabric(store_url) as fabric:
        street = Street(fabric, store_url, tmp_path)
        try:
            yield street
        finally:
            street.close()


async def ended(worker: subprocess.Popen[bytes], seconds: float = 60.0) -> int:
    await until(lambda: worker.poll() is not None, seconds)
    return worker.returncode


async def kinds(run: Run[Any]) -> list[str]:
    """What happened to its leases; a run that was lost is watched and cleared on the way."""
    seen = [event.kind for event in await run.events()]
    return [kind.name for kind in seen if kind not in (EventKind.PROBATION, EventKind.CLEARED)]


# -- killed


async def test_a_worker_killed_in_a_step(street: Street) -> None:
    worker = await street.worker()
    run = await street.submit("steps")
    await street.told("two begins")
    worker.kill()
    await ended(worker)
    street.shop.allow("go")
    await street.expire()
    await street.worker()
    assert await run.result(60) == "12"
    told = Counter(street.shop.ledger())
    assert (told["one"], told["two begins"], told["two ends"]) == (1, 2, 1)
    assert await kinds(run) == ["CLAIMED", "LEASE_EXPIRED", "RECLAIMED", "COMPLETED"]


async def test_a_worker_killed_between_a_steps_work_and_its_record(street: Street) -> None:
    """At least once is all that can be promised for the work; the record exists once."""
    worker = await street.worker()
    run = await street.submit("dies_in_step")
    assert await ended(worker) == -signal.SIGKILL
    street.shop.allow("live")
    await street.expire()
    await street.worker()
    assert await run.result(60) == "survived"
    assert Counter(street.shop.ledger())["worked"] == 2
    engine = await street.fabric.engine()
    assert len(await engine.attempts.steps(run.id.uuid, 0)) == 1


async def test_a_worker_killed_while_it_drains(street: Street) -> None:
    worker = await street.worker(drain="1m")
    run = await street.submit("waits", "go")
    await street.told("waits go")
    worker.send_signal(signal.SIGTERM)
    await until(lambda: "stopping: 1 running" in street.said(worker))
    worker.kill()
    await ended(worker)
    street.shop.allow("go")
    await street.expire()
    await street.worker()
    assert await run.result(60) == "waited for go"


async def test_a_worker_killed_among_hundreds_of_jobs_loses_none(street: Street) -> None:
    """The other one finds the leases that ran out."""
    first = await street.worker(ttl=BRIEF, concurrency=8)
    await street.worker(concurrency=8)
    job = street.shop.tasks["job"]
    runs = await job.submit_many([(number, 20) for number in range(300)])
    await until(lambda: len(street.shop.ledger()) > 60)
    first.kill()
    assert await gather_results(runs, timeout=60) == list(range(300))
    told = Counter(word for word in street.shop.ledger() if word.startswith("job "))
    assert len(told) == 300
    assert sum(told.values()) <= 300 + 8, "only what the dead worker had in hand ran twice"


@pytest.mark.rules
async def test_processes_of_a_killed_worker_end_with_it(street: Street) -> None:
    worker = await street.worker()
    path = street.shop.place / "pid"
    await street.submit("nap", str(path))
    await until(path.exists)
    child = int(path.read_text())
    assert handlers.alive(child)
    worker.kill()
    await until(lambda: not handlers.alive(child))


async def test_the_work_of_a_killed_worker_is_taken_over_when_it_is_marked_dead(
    street: Street,
) -> None:
    """C-T131, F-61: at once, although its leases would have lasted for minutes"""
    worker = await street.worker(instance="doomed")
    runs = [await street.submit("waits", "go") for _ in range(3)]
    await until(lambda: street.shop.ledger().count("waits go") == 3)
    await street.registered("doomed")
    worker.kill()
    await ended(worker)
    await street.worker(instance="heir")
    street.shop.allow("go")
    engine = await street.fabric.engine()
    (entry,) = [one for one in await engine.workers.list() if one.instance == "doomed"]
    assert await engine.workers.held([entry]) == [3]
    assert await engine.workers.mark_dead("doomed", reason="killed", revoke=True) == Marked(3)
    assert await gather_results(runs, timeout=60) == ["waited for go"] * 3
    for run in runs:
        assert await kinds(run) == ["CLAIMED", "LEASE_REVOKED", "RECLAIMED", "COMPLETED"]


# -- stopped in its tracks


async def test_a_worker_that_wakes_after_its_lease_changes_nothing(street: Street) -> None:
    sleeper = await street.worker()
    run = await street.submit("stale")
    await street.told("begun 1")
    await street.freeze(sleeper)
    await street.expire()
    other = await street.worker()
    assert await run.result(60) == other.pid
    street.shop.allow("go")
    sleeper.send_signal(signal.SIGCONT)
    await street.told("the first goes on")
    other.kill()
    later = await street.submit("add", 1, 2)
    assert await later.result(60) == 3, "the one that slept works on"
    assert await run.result() == other.pid
    assert await kinds(run) == ["CLAIMED", "LEASE_EXPIRED", "RECLAIMED", "COMPLETED"]
    engine = await street.fabric.engine()
    (step,) = await engine.attempts.steps(run.id.uuid, 0)
    assert str(other.pid) in step.doc.decode()


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(street: Street) -> None:
    worker = await street.worker(ttl=BRIEF)
    run = await street.submit("blocks_loop", 3.2)
    assert await run.result(60) == "at last"
    assert (await run.describe()).epoch == 1
    said = street.said(worker)
    assert said.count("the event loop is blocked for") == 1
    assert "in blocks_loop" in said


# -- many


async def test_two_workers_run_everything_once(street: Street) -> None:
    await street.worker(concurrency=5)
    await street.worker(concurrency=5)
    runs = await street.shop.tasks["job"].submit_many(range(100))
    assert await gather_results(runs, timeout=60) == list(range(100))
    told = Counter(word for word in street.shop.ledger() if word.startswith("job "))
    assert told == {f"job {number}": 1 for number in range(100)}


async def test_ten_thousand_submissions_from_many_tasks(street: Street) -> None:
    add = street.shop.tasks["add"]

    async def client(number: int) -> set[str]:
        return {(await add.submit(number, other)).id for other in range(50)}

    ids = await asyncio.gather(*(client(number) for number in range(200)))
    assert len(set().union(*ids)) == 10_000
    engine = await street.fabric.engine()
    assert (await engine.views.counts()).by_state["waiting"] == 10_000


# -- harm


@pytest.mark.rules
async def test_a_process_that_crashes_harms_no_other_run(street: Street) -> None:
    await street.worker(processes=2)
    crash = await street.submit("crash")
    others = [await street.submit("square", 3), await street.submit("add", 1, 2)]
    with pytest.raises(RunFailed, match="the process that ran crash died") as caught:
        await crash.result(60)
    assert caught.value.category == "infra_crash"
    assert [await run.result(60) for run in others] == [9, 3]
    assert await (await street.submit("square", 4)).result(60) == 16


@pytest.mark.rules
async def test_a_poison_payload_harms_no_other_run(street: Street) -> None:
    engine = await street.fabric.engine()
    submit = engine.executions.submit
    poisons = [
        await submit(Submission(kind=kind, payload=payload))
        for kind in ("add", "square", "blocks_loop")
        for payload in (b"{", b"\xff\x00", b'{"a": [], "x": [], "seconds": []}')
    ]
    await street.worker(processes=1)
    good = await street.submit("add", 1, 2)
    assert await good.result(60) == 3
    for poison in poisons:
        with pytest.raises(RunFailed, match="the arguments do not fit"):
            await (await street.fabric.run(poison.id)).result(60)


# -- asked to stop


async def test_sigterm_hands_back_what_does_not_finish(street: Street) -> None:
    """C-T131: and signs the worker off"""
    worker = await street.worker(drain="200ms", instance="leaving")
    runs = [await street.submit("waits", "never"), await street.submit("blocks_thread")]
    await street.told("waits never")
    await street.told("thread begins")
    await street.registered("leaving")
    worker.send_signal(signal.SIGTERM)
    assert await ended(worker) == 0, street.said(worker)
    assert await (await street.fabric.engine()).workers.list(alive=None) == []
    for run in runs:
        about = await run.describe()
        assert (about.state, about.retries) == (PublicState.WAITING, 0)
        assert await kinds(run) == ["CLAIMED", "HANDED_BACK"]


@pytest.mark.rules
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_now(street: Street, number: signal.Signals) -> None:
    worker = await street.worker(drain="5m")
    run = await street.submit("waits", "never")
    await street.told("waits never")
    worker.send_signal(number)
    await until(lambda: "stopping: 1 running" in street.said(worker))
    worker.send_signal(number)
    assert await ended(worker) == 0, street.said(worker)
    assert await kinds(run) == ["CLAIMED", "HANDED_BACK"]


@pytest.mark.rules
async def test_ctrl_c_lets_processes_finish(street: Street) -> None:
    """It reaches the whole group, of which the worker decides."""
    worker = await street.worker()
    path = street.shop.place / "pid"
    run = await street.submit("nap", str(path), 0.5)
    await until(path.exists)
    os.killpg(worker.pid, signal.SIGINT)
    assert await ended(worker) == 0, street.said(worker)
    assert await run.result(60) == "slept"
