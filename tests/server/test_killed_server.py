"""kill -9 of the server while programs submit and workers work: nothing that was acknowledged is
lost, and nothing is done twice by those that repeat the request they have no answer to."""

import asyncio
import secrets
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from flowfabric import Context, Fabric, Unavailable, WorkerOptions
from flowfabric.worker.api.run import Run
from tests.kit.http import EXECUTION
from tests.kit.server_process import ServerProcess

RUNS = 120
KILLED_AFTER = 30
WORKERS = 4
SOON = 0.05
LEASE = 600_000  # on a busy machine the next server takes its time


class Place:
    """Where the server is, and what it has acknowledged. Every request is sent until it is
    answered: the same one, to whichever server there is."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url = url
        self.http = http
        self.submitted: list[str] = []
        self.completed: dict[str, str] = {}
        self.claims: Counter[str] = Counter()
        self.unanswered = 0
        self.enough = threading.Event()
        self.over = threading.Event()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        while not self.over.is_set():
            try:
                reply = self.http.post(self.url + path, json=body)
            except httpx.HTTPError:
                self.unanswered += 1
                time.sleep(SOON)
                continue
            assert reply.status_code in (200, 201), reply.text
            found: dict[str, Any] = reply.json()
            return found
        raise AssertionError("it took too long, or another one failed")

    def submit(self, number: int) -> None:
        body = {**EXECUTION, "execution_kind": "load", "idempotency_key": f"k{number}"}
        (answer,) = self.post("/v1/executions", body).values()
        self.submitted.append(answer["execution_id"])

    def work(self, name: str) -> None:
        asking: dict[str, Any] = {"worker_id": "load", "worker_instance_id": name, "limit": 3}
        asking |= {"kinds": ["load"], "lease_ms": LEASE}
        while len(self.completed) < RUNS:
            asking |= {"claim_id": secrets.token_hex(), "wait_ms": 200}
            for claim in self.post("/v1/work/claim", asking)["claims"]:
                self.claims[claim["execution_id"]] += 1
                self.complete(claim, f"{name} {claim['lease_epoch']}")

    def complete(self, claim: dict[str, Any], result: str) -> None:
        id, fence = claim["execution_id"], {"handle": claim["handle"]}
        step = self.post(f"/v1/work/{id}/steps", {**fence, "name": "charge", "value": result})
        done = self.post(f"/v1/work/{id}/complete", {**fence, "result": step["value"]})
        assert done["outcome"] == "completed"
        self.completed[id] = result
        if len(self.completed) >= KILLED_AFTER:
            self.enough.set()


@pytest.mark.long
def test_submitters_and_workers_go_on_with_the_next_server(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'work.db'}"
    first = ServerProcess("--store", store)
    with httpx.Client(timeout=60) as http, ThreadPoolExecutor(WORKERS + 2) as pool:
        place = Place(first.url, http)
        work = [pool.submit(place.work, f"w{number}") for number in range(WORKERS)]
        work += [pool.submit(place.submit, number) for number in range(RUNS)]
        place.enough.wait(60)
        first.kill()
        acknowledged = dict(place.completed)
        second = ServerProcess("--store", store)
        try:
            for id, result in acknowledged.items():
                assert http.get(f"{second.url}/v1/executions/{id}/result").json() == result
            place.url = second.url
            for each in work:
                each.result(60)
            counts = http.get(f"{second.url}/v1/counts").json()["by_state"]
        finally:
            place.over.set()
            second.kill()
    assert place.unanswered, "the server was not under load"
    assert len(set(place.submitted)) == RUNS
    assert set(place.completed) == set(place.submitted)
    assert counts["completed"] == RUNS
    assert set(place.claims.values()) == {1}, "a lost answer was not given again"
    assert {result[-2:] for result in place.completed.values()} == {" 1"}, "a lease was lost"


def _double(number: int) -> int:
    return 2 * number


async def _result(run: Run[int]) -> int:
    """The result, asked for as long as there is no server."""
    while True:
        try:
            return await run.result(60)
        except Unavailable:
            continue


@pytest.mark.long
async def test_a_python_worker_goes_on_with_the_next_server(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'work.db'}"
    server = await asyncio.to_thread(ServerProcess, "--store", store)
    url = await asyncio.to_thread(lambda: server.url)
    begun = Counter[int]()
    held = asyncio.Event()
    async with Fabric(url) as fabric:

        @fabric.task()
        async def job(ctx: Context, number: int) -> int:
            begun[number] += 1
            if number >= KILLED_AFTER:
                await held.wait()
            return await ctx.step(_double, number)

        runs = [await job.submit(number) for number in range(2 * KILLED_AFTER)]
        worker = await fabric.worker(WorkerOptions(concurrency=2 * KILLED_AFTER, ttl="10m"))
        working = asyncio.create_task(worker.run())
        try:
            await asyncio.gather(*(run.result(60) for run in runs[:KILLED_AFTER]))
            await asyncio.to_thread(server.kill)
            listen = url.removeprefix("http://")
            held.set()  # those under way report to no server for a while
            server = await asyncio.to_thread(ServerProcess, "--store", store, listen=listen)
            results = await asyncio.gather(*map(_result, runs))
        finally:
            held.set()
            worker.stop()
            await working
            await asyncio.to_thread(server.kill)
    assert results == [2 * number for number in range(2 * KILLED_AFTER)]
    assert set(begun.values()) == {1}
