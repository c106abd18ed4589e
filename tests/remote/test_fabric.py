"""An application and its workers that reach the engine through a server only."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flowfabric import Context, Fabric, Fixed, Forbidden, Invalid, WorkerOptions
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from tests.kit.lab import W1
from tests.kit.served import EngineApp, caller_named, served, served_in_thread


def double(n: int) -> int:
    return 2 * n


def test_a_script_without_an_event_loop(tmp_path: Path) -> None:
    with served_in_thread(f"sqlite:///{tmp_path / 'work.db'}") as url:
        fabric = Fabric(url)
        task = fabric.task()(double)
        run = task.submit_sync(3)
        assert run.state_sync().value == "waiting"
        assert fabric.block_on(_work(fabric)) == 1
        assert run.result_sync(10) == 6
        assert [each.id for each in fabric.runs_sync()] == [run.id]
        fabric.close_sync()


async def _work(fabric: Fabric) -> int:
    return await (await fabric.worker()).run_until_idle()


async def test_a_blocked_event_loop_keeps_its_leases(tmp_path: Path) -> None:
    """The heartbeat has a session of its own, in its own thread."""
    path = tmp_path / "work.db"
    with served_in_thread(f"sqlite:///{path}") as url:
        async with Fabric(url) as fabric:

            @fabric.task()
            async def blocks() -> str:
                _block_until_renewed(path)
                return "done"

            run = await blocks.submit()
            worker = await fabric.worker(WorkerOptions(ttl="4500ms"))
            running = asyncio.create_task(worker.run())
            assert await run.result(60) == "done"
            assert (await run.describe()).epoch == 1
            worker.stop()
            await running


def _block_until_renewed(path: Path) -> None:
    """As some libraries do: nothing else happens in this event loop."""
    until, ends = time.monotonic() + 60, "select expires_at from lease"
    with closing(sqlite3.connect(path)) as database:
        begun = database.execute(ends).fetchall()
        while database.execute(ends).fetchall() == begun:
            assert time.monotonic() < until
            time.sleep(0.01)


async def test_a_worker_survives_its_server(tmp_path: Path) -> None:
    """The handler is under way while the server goes, and reports to the next one."""
    store_url = f"sqlite:///{tmp_path / 'work.db'}"
    begun, go_on = asyncio.Event(), asyncio.Event()
    engine = await Engine.open(await open_store(store_url))
    engine.sweep.start()
    proxy = Switch()
    proxy.app = EngineApp(engine)
    async with served(proxy) as url, Fabric(url) as fabric:

        @fabric.task()
        async def job(ctx: Context) -> int:
            begun.set()
            await go_on.wait()
            return await ctx.step(double, 4)

        run = await job.submit()
        worker = await fabric.worker(WorkerOptions(ttl="30s"))
        running = asyncio.create_task(worker.run())
        await begun.wait()
        proxy.app = None  # it drains
        go_on.set()
        await asyncio.sleep(0.1)
        proxy.app = EngineApp(engine)  # another process: it has not handed out the claim
        assert await run.result(60) == 8
        worker.stop()
        await running
    await engine.close()


class Switch:
    """A load balancer in front of at most one server."""

    app: EngineApp | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
            return
        start = {
            "type": "http.response.start",
            "status": 503,
            "headers": [(b"content-length", b"0")],
        }
        await send(start)
        await send({"type": "http.response.body", "body": b""})


async def test_the_token_may_come_from_the_environment(
    app: EngineApp, url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.callers = {"right": caller_named()}
    with pytest.raises(Forbidden):
        await Fabric(url, clock=clock).engine()
    monkeypatch.setenv("FLOWFABRIC_TOKEN", "right")
    async with Fabric(url, clock=clock) as fabric:
        assert [run async for run in fabric.runs()] == []
    with pytest.raises(Forbidden):
        await Fabric(url, clock=clock, token="wrong").engine()


def test_a_token_is_text() -> None:
    with pytest.raises(Invalid):
        Fabric("http://localhost:1", token=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["", " ", "two words", "a\nb", "tökén"])
def test_a_token_that_no_header_can_carry_is_refused_at_once(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """server-sdk.md 3.6: a mistake of the configuration, not a refusal of the server"""
    with pytest.raises(Invalid, match="the token is not printable ASCII") as caught:
        Fabric("http://localhost:1", token=token)
    assert not token.strip() or token not in str(caught.value)
    monkeypatch.setenv("FLOWFABRIC_TOKEN", token)
    if not token:
        Fabric("http://localhost:1")
        return
    with pytest.raises(Invalid, match="FLOWFABRIC_TOKEN is not printable ASCII"):
        Fabric("http://localhost:1")


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("executions.cancel", {"id": None, "reason": "r"}),
    ("executions.set_tags", {"id": str(UUID(int=1)), "tags": 5}),
    ("views.state", {"id": 5}),
    ("attempts.complete", {"owned": None, "result": b""}),
    ("claims.renew", {"owned": None}),
    ("grants.find_and_issue", {"worker": W1, "lane": "default", "capabilities": None}),
    ("keys.rotate", {"kid": 5, "secret": "ab"}),
    ("keys.rotate", {"kid": "k", "secret": 5}),
    ("executions.cancel", {"id": str(UUID(int=1)), "reason": "\ud800"}),
    ("lanes.get", {"lane": 5}),
    ("flows.join", {"flow": "x", "id": str(UUID(int=1))}),
]


@pytest.mark.parametrize(("operation", "arguments"), WRONG)
async def test_wrong_types_are_refused_with_the_error_of_the_engine(
    fabric: Fabric, inside: Engine, operation: str, arguments: dict[str, Any]
) -> None:
    """server-sdk.md 10.5 E: the same error through a server as on the store itself."""
    service, _, method = operation.partition(".")
    found = []
    for engine in (inside, await fabric.engine()):
        with pytest.raises(Invalid) as refused:
            await getattr(getattr(engine, service), method)(**arguments)
        found.append((type(refused.value), refused.value.code))
    assert found[0] == found[1]


async def test_the_text_of_a_uuid_is_one_through_a_server_as_well(
    fabric: Fabric, inside: Engine
) -> None:
    await inside.flows.create("build", id=UUID(int=7))
    remote: Any = await fabric.engine()
    assert isinstance(await remote.flows.create("build", id=str(UUID(int=7))), AlreadySatisfied)


def test_a_program_without_a_server_does_not_import_its_client() -> None:
    code = "import flowfabric, sys; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_worker_leaves_webhooks_to_its_server(fabric: Fabric) -> None:
    with pytest.raises(Invalid, match="webhooks are delivered by the server"):
        await fabric.worker(WorkerOptions(webhooks=True))


async def test_a_transaction_of_the_application_needs_the_database(
    fabric: Fabric, tmp_path: Path
) -> None:
    task = fabric.task()(double)
    with sqlite3.connect(tmp_path / "app.db") as connection:
        connection.execute("create table t (x)")
        connection.execute("insert into t values (1)")
        with pytest.raises(Invalid, match="through a server"):
            await task.with_options(connection=connection).submit(1)
    connection.close()


async def test_a_tenant_works_in_its_namespace(
    app: EngineApp, url: str, clock: ManualClock, inside: Engine
) -> None:
    app.callers = {"ours": caller_named("ours", namespaces=frozenset({"ours"}))}
    async with Fabric(url, clock=clock, token="ours") as fabric:
        task = fabric.task(namespace="ours")(double)
        run = await task.submit(3)
        worker = await fabric.worker(WorkerOptions(namespace="ours"))
        # `run_until_idle` settles the whole engine, which is not a tenant's to ask for.
        running = asyncio.create_task(worker.run())
        assert await run.result(60) == 6
        worker.stop()
        await running
        with pytest.raises(Forbidden):
            await fabric.task(name="other", namespace="theirs")(double).submit(1)


async def test_a_worker_with_the_scope_of_workers_closes_what_lost_a_race(
    app: EngineApp, url: str, clock: ManualClock
) -> None:
    app.callers = {"worker": caller_named("worker", scopes=frozenset({"work"}))}
    async with Fabric(url, clock=clock, token="worker") as fabric:

        @fabric.task()
        async def pay(ctx: Context) -> str:
            callback = await ctx.callback("payment")
            approval = ctx.approval("manager")
            won = await ctx.race(step=ctx.step(double, 2), paid=callback.result(), asked=approval)
            return won.name

        run = await pay.submit()
        await _work(fabric)
        assert await run.result(10) == "step"


async def test_a_worker_with_the_scope_of_workers_raises_a_budget_that_a_person_approved(
    app: EngineApp, url: str, clock: ManualClock, inside: Engine
) -> None:
    app.callers = {"worker": caller_named("worker", scopes=frozenset({"work"}))}
    async with Fabric(url, clock=clock, token="worker") as fabric:

        @fabric.task(budgets=["team"])
        async def spend(ctx: Context) -> str:
            await ctx.spend(tokens=8)
            return "spent"

        await fabric.budget("team", soft={"tokens": 5}, more={"tokens": 10}, on_soft="approve")
        run = await spend.submit()
        await _work(fabric)
        (asked,) = await inside.suspensions.waitpoints(run.id)
        await fabric.approve(run, asked.key, approver="ada")
        await _work(fabric)
        assert await run.result(10) == "spent"


async def test_a_worker_with_the_scope_of_workers_runs_its_failed_flow_again(
    app: EngineApp, url: str, clock: ManualClock
) -> None:
    app.callers = {"worker": caller_named("worker", scopes=frozenset({"work"}))}
    tries: list[int] = []
    async with Fabric(url, clock=clock, token="worker") as fabric:

        @fabric.task()
        async def part(n: int) -> int:
            tries.append(n)
            if len(tries) == 1:
                raise ValueError("not yet")
            return n

        @fabric.task(retries=1, backoff=Fixed(delay=0))
        async def whole(ctx: Context) -> list[int]:
            return await ctx.map(part, [1])

        run = await whole.submit()
        await _work(fabric)
        assert await run.result(10) == [1]
    assert tries == [1, 1]
