"""The HTTP API: one server process, or two on one port, with the load tool and the database on the
same machine. The log is on, as it is by default."""

import asyncio
import tempfile
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from msgspec import Struct

from bench import wrk
from bench.cost import counted
from bench.crew import crew
from bench.scenario import (
    PAYLOAD,
    RAW_LIMIT,
    RESULT,
    Figure,
    Figures,
    Load,
    Metric,
    least,
    most,
    scenario,
)
from bench.scenarios.worker import TEXT, Tasks, drained, serve
from bench.serve import Served, served

ONLY = ("postgres",)
CREATE = msgspec.json.encode(
    {
        "namespace": "default", "lane_id": "other", "execution_kind": "noop",
        "input_payload": b64encode(PAYLOAD).decode(), "priority": 0, "creator_identity": "bench",
    }
)  # fmt: skip
CANCEL = b'{"reason":"no longer needed"}'
MOST_PER_SECOND = 8_000
"""So many executions wait for each second of cancels: none is cancelled twice."""
CALLERS, BATCH = 4, 100


class Ids(Struct):
    """Executions that wait, in a file for wrk."""

    path: Path
    count: int


@asynccontextmanager
async def waiting(url: str, count: int) -> AsyncIterator[Ids]:
    """Submits `count` executions past the server."""
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
        tasks = Tasks(url)
        async with tasks.fabric:
            for start in range(0, count, 5_000):
                some = range(start, min(count, start + 5_000))
                for run in await tasks.noop.submit_many([(n, TEXT) for n in some]):
                    file.write(quote(str(run.id)) + "\n")
        file.flush()
        yield Ids(Path(file.name), count)


class Routes:
    """Measures routes of one server, each with what a request costs."""

    def __init__(self, load: Load, server: Served, limit: float) -> None:
        self._load = load
        self._server = server
        self._limit = limit
        self.seconds = max(1.0, round(load.size.seconds))

    async def measure(
        self, method: str, path: str, *, ids: Path | None = None, body: bytes = b""
    ) -> Figure:
        async with counted(self._load.url) as cost:
            before = self._server.cpu()
            answered = await wrk.load(
                self._server.url, method, path, seconds=self.seconds, ids=ids, body=body
            )
            used = self._server.cpu() - before
        figure = Figure(answered.rate, self._limit).costing(cost, answered.requests)
        figure.cpu_parts = cost.parts_us(answered.requests, server=used)
        return figure

    async def all(self, suffix: str = "") -> Figures:
        """The routes that most requests go to."""
        count = max(50, int(MOST_PER_SECOND * self.seconds))
        async with waiting(self._load.url, count) as ids:
            await self.measure("POST", "/v1/executions", body=CREATE)  # warms up
            create = await self.measure("POST", "/v1/executions", body=CREATE)
            state = await self.measure("GET", "/v1/executions/%s/state", ids=ids.path)
            cancel = await self.measure(
                "POST", "/v1/executions/%s/cancel", ids=ids.path, body=CANCEL
            )
        found = {"http-create": create, "http-state": state, "http-cancel": cancel}
        return {f"{name}{suffix}": figure for name, figure in found.items()}


def _routes(suffix: str, where: str, goals: Sequence[float | None]) -> list[Metric]:
    named = (("create", "create"), ("state", "read the state"), ("cancel", "cancel"))
    return [
        least(f"http-{name}{suffix}", f"{what}, {where}", "/s", RAW_LIMIT, postgres=goal)
        for (name, what), goal in zip(named, goals, strict=True)
    ]


@scenario(
    "http",
    [
        *_routes("", "one server process", (2_500, 4_000, 1_500)),
        least("http-work", "claim and complete by batches of 100", "/s", RAW_LIMIT, postgres=2_500),
    ],
    stores=ONLY,
)
async def http(load: Load) -> Figures:
    """32 connections to one server process: create, read the state, cancel; and four workers that
    claim 100 and complete them in one request each."""
    limit = await load.raw_limit()
    async with served(load.url) as server:
        found = await Routes(load, server, limit).all()
    return {**found, "http-work": await _work(load, limit)}


async def _work(load: Load, limit: float) -> Figure:
    url = load.fresh()
    async with served(url) as server, waiting(url, load.size.runs) as ids, counted(url) as cost:
        before, began = server.cpu(), time.perf_counter()
        done = await asyncio.gather(*(_worker(server.url, n) for n in range(CALLERS)))
        used, seconds = server.cpu() - before, time.perf_counter() - began
    if sum(done) != ids.count:
        raise wrk.WrkError(f"{sum(done)} of {ids.count} were completed")
    figure = Figure(ids.count / seconds, limit).costing(cost, ids.count)
    figure.cpu_parts = cost.parts_us(ids.count, server=used)
    return figure


class _Claim(Struct):
    handle: str


class _Claims(Struct):
    claims: list[_Claim]


class _Result(Struct):
    status: int


class _Results(Struct):
    results: list[_Result]


async def _worker(url: str, number: int) -> int:
    """Claims and completes until nothing is left."""
    result, done = msgspec.Raw(RESULT), 0
    claim = {"worker_id": "bench", "worker_instance_id": f"bench-{number}", "limit": BATCH}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            reply = await client.post("/v1/work/claim", json=claim)
            claims = msgspec.json.decode(reply.content, type=_Claims).claims
            if not claims:
                return done
            items: list[Any] = [
                {"op": "complete", "handle": each.handle, "result": result} for each in claims
            ]
            reply = await client.post(
                "/v1/work/batch",
                content=msgspec.json.encode({"operations": items}),
                headers={"content-type": "application/json"},
            )
            results = msgspec.json.decode(reply.content, type=_Results).results
            done += sum(each.status == 200 for each in results)


@scenario("http-processes", _routes("-2", "two server processes", (None,) * 3), stores=ONLY)
async def http_processes(load: Load) -> Figures:
    """The same with `--processes 2`: two processes that accept from one port."""
    limit = await load.raw_limit()
    async with served(load.url, processes=2) as server:
        return await Routes(load, server, limit).all("-2")


@scenario(
    "http-worker",
    [least("http-drain", 'worker of `Fabric("http://…")` drains a backlog', "/s", RAW_LIMIT)],
    stores=ONLY,
)
async def http_worker(load: Load) -> Figures:
    """A Python worker that reaches the store through the server alone; 100 runs at once."""
    limit, runs = await load.raw_limit(), load.size.runs
    async with served(load.url) as server, waiting(load.url, runs):
        tasks = Tasks(load.url)
        async with tasks.fabric, crew(1, serve, server.url) as others, counted(load.url) as cost:
            before = server.cpu()
            others.say()
            rate = await drained(tasks.fabric, runs)
            used = server.cpu() - before
    figure = Figure(rate, limit).costing(cost, runs)
    figure.cpu_parts = cost.parts_us(runs, server=used)
    return {"http-drain": figure}


@scenario(
    "http-tails",
    [
        most("http-tails", "memory of 1,000 idle tails", "MB", postgres=200),
        most("http-tails cpu", "CPU of 1,000 idle tails", "% of a core"),
    ],
    stores=ONLY,
    once=True,
)
async def http_tails(load: Load) -> Figures:
    """Connections that follow the stream of a run which has not begun: what the server process
    holds above what it held before, and its CPU with that of the database."""
    async with served(load.url) as server, waiting(load.url, load.size.tails) as ids:
        paths = [f"/v1/executions/{id}/stream" for id in ids.path.read_text().split()]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(_tail(server.url, paths[0]))
            before = server.memory()
            for path in paths:
                await stack.enter_async_context(_tail(server.url, path))
            held = server.memory() - before
            async with counted(load.url) as cost:
                used = server.cpu()
                await asyncio.sleep(load.size.idle)
                used = server.cpu() - used
    percent = (used + cost.server) / cost.seconds * 100
    return {"http-tails": Figure(max(0.0, held)), "http-tails cpu": Figure(percent)}


@asynccontextmanager
async def _tail(url: str, path: str) -> AsyncIterator[None]:
    """A connection that has got the beginning of the answer."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        await reader.readuntil(b"retry: 2000")
        yield
    finally:
        writer.close()
