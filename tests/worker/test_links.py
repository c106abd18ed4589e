"""Workers whose connections to Postgres fall silent or are refused: no handler is stopped."""

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import asyncpg
import pytest

from flowfabric import Fabric
from flowfabric.core.base.time import Millis
from tests.kit.proxy import Proxy, proxied
from tests.worker.bench import until, working

pytestmark = pytest.mark.long

TTL = Millis(9_000)
ENDS = "select expires_at from flowfabric.lease where id = any($1::uuid[])"
SESSIONS = """select count(*) from pg_stat_activity
    where datname = current_database() and application_name = 'flowfabric'"""


@pytest.fixture
def url(migrated_template: str, fresh_database: Callable[..., str]) -> str:
    return fresh_database(template=migrated_template)


@pytest.fixture
async def way(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    async with proxied(url) as way:
        yield way


async def until_renewed(url: str, *uuids: UUID) -> None:
    """Waits until leases that are held now have been renewed."""
    watcher = await asyncpg.connect(url)
    before = {end for (end,) in await watcher.fetch(ENDS, uuids)}
    async with asyncio.timeout(60):
        while not before.isdisjoint(  # noqa: ASYNC110 - the heartbeat has a thread of its own
            end for (end,) in await watcher.fetch(ENDS, uuids)
        ):
            await asyncio.sleep(0.02)
    await watcher.close()


async def runs_through(
    database: str, way: tuple[Proxy, str], trouble: Callable[[Proxy], None]
) -> None:
    """A handler whose lease has to be renewed while there is trouble."""
    proxy, url = way
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with Fabric(url) as fabric:

        @fabric.task()
        async def job() -> str:
            begun.set()
            await go_on.wait()
            return "done"

        async with working(fabric, ttl=TTL) as worker:
            run = await job.submit()
            await begun.wait()
            trouble(proxy)
            await until_renewed(database, run.id.uuid)
            assert worker.active
            go_on.set()
            assert await run.result(60) == "done"
        proxy.refuses = False
        assert (await run.describe()).epoch == 1


async def test_no_handler_is_stopped_when_open_connections_fall_silent(
    url: str, way: tuple[Proxy, str]
) -> None:
    await runs_through(url, way, lambda proxy: proxy.black_hole())


async def test_no_handler_is_stopped_when_the_heartbeat_is_refused_a_connection(
    url: str, way: tuple[Proxy, str]
) -> None:
    """The server is full before the heartbeat has dialled: the worker's connections renew."""

    def refuse(proxy: Proxy) -> None:
        proxy.refuses = True

    await runs_through(url, way, refuse)


async def test_a_worker_has_at_most_three_connections(url: str) -> None:
    watcher = await asyncpg.connect(url)
    seen: list[int] = []
    async with Fabric(url) as fabric:

        @fabric.task()
        async def job(number: int) -> int:
            seen.append(await watch())
            return number

        lock, go_on = asyncio.Lock(), asyncio.Event()

        async def watch() -> int:
            async with lock:
                return int(await watcher.fetchval(SESSIONS))

        @fabric.task()
        async def stay() -> None:
            await go_on.wait()

        async with working(fabric) as worker:
            last = await stay.submit()
            await until(lambda: worker._heartbeat and worker._heartbeat._store)
            runs = await job.submit_many([(number,) for number in range(60)])
            await asyncio.gather(*(run.result(60) for run in runs))
            seen.append(await watch())
            go_on.set()
            await last.result(60)
    await watcher.close()
    assert max(seen) <= 3


async def test_a_lease_that_is_locked_elsewhere_costs_its_neighbours_nothing(url: str) -> None:
    """A transaction of the application keeps one of three leases locked for longer than a lease."""
    application = await asyncpg.connect(url)
    go_on = asyncio.Event()
    async with Fabric(url) as fabric:

        @fabric.task()
        async def job() -> str:
            await go_on.wait()
            return "done"

        async with working(fabric, ttl=Millis(6_000)) as worker:
            runs = await job.submit_many([()] * 3)
            await until(lambda: len(worker.active) == 3)
            locked, *others = worker.active
            async with application.transaction():
                lock = "select 1 from flowfabric.lease where id = $1 for update"
                await application.execute(lock, locked[0])
                await until(lambda: locked not in worker.active)
                await until_renewed(url, *(uuid for uuid, _ in others))
                assert set(others) <= set(worker.active)
            go_on.set()
            assert [await run.result(60) for run in runs] == ["done"] * 3
    await application.close()


async def until_at_rest(proxy: Proxy) -> None:
    """What follows a run has ended: two seconds pass with one statement each."""
    quiet = 0
    async with asyncio.timeout(60):
        while quiet < 2:
            before = proxy.statements
            await asyncio.sleep(1)
            quiet = quiet + 1 if proxy.statements - before <= 1 else 0


@pytest.mark.deep  # test_idle.py counts the statements of each turn
async def test_a_worker_at_rest_sends_one_statement_a_second(way: tuple[Proxy, str]) -> None:
    """The only worker, so the one with the duty, for as long as it needs to say it is there."""
    proxy, url = way
    async with Fabric(url) as fabric:

        @fabric.task()
        async def job() -> str:
            return "done"

        async with working(fabric, ttl=Millis(30_000)):
            assert await (await job.submit()).result(60) == "done"
            await until_at_rest(proxy)
            before = proxy.statements
            await asyncio.sleep(12)
            sent = proxy.statements - before
    assert sent <= 12 + 2  # a sweep a second; one heartbeat reads and writes the registry entry
