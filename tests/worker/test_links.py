"""Workers whose connections to Postgres fall silent or are refused: no handler is stopped."""

import asyncio
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

from flowfabric import Fabric
from flowfabric.core.base.time import Millis
from tests.kit.proxy import Proxy, proxied
from tests.worker.bench import until, working

pytestmark = pytest.mark.long

TTL = Millis(3_000)
SESSIONS = """select count(*) from pg_stat_activity
    where datname = current_database() and application_name = 'flowfabric'"""


@pytest.fixture
def url(migrated_template: str, fresh_database: Callable[..., str]) -> str:
    return fresh_database(template=migrated_template)


@pytest.fixture
async def way(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    async with proxied(url) as way:
        yield way


async def runs_through(way: tuple[Proxy, str], trouble: Callable[[Proxy], None]) -> None:
    """A handler that outlives its lease several times over, with trouble in between."""
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
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(until(lambda: not worker.active), TTL * 1.5 / 1000)
            go_on.set()
            assert await run.result(60) == "done"
        proxy.refuses = False
        assert (await run.describe()).epoch == 1


async def test_no_handler_is_stopped_when_open_connections_fall_silent(
    way: tuple[Proxy, str],
) -> None:
    await runs_through(way, lambda proxy: proxy.black_hole())


async def test_no_handler_is_stopped_when_the_heartbeat_is_refused_a_connection(
    way: tuple[Proxy, str],
) -> None:
    """The server is full before the heartbeat has dialled: the worker's connections renew."""

    def refuse(proxy: Proxy) -> None:
        proxy.refuses = True

    await runs_through(way, refuse)


async def test_a_worker_has_at_most_three_connections(url: str) -> None:
    watcher = await asyncpg.connect(url)
    seen: list[int] = []
    async with Fabric(url) as fabric:

        @fabric.task()
        async def job(number: int) -> int:
            seen.append(await watch())
            return number

        lock = asyncio.Lock()

        async def watch() -> int:
            async with lock:
                return int(await watcher.fetchval(SESSIONS))

        async with working(fabric, ttl=Millis(600)):
            runs = await job.submit_many([(number,) for number in range(60)])
            await asyncio.gather(*(run.result(60) for run in runs))
            await until(lambda: len(seen) == 60)
            for _ in range(10):
                seen.append(await watch())
                await asyncio.sleep(0.05)
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

        async with working(fabric, ttl=TTL) as worker:
            runs = await job.submit_many([()] * 3)
            await until(lambda: len(worker.active) == 3)
            locked, *others = worker.active
            async with application.transaction():
                lock = "select 1 from flowfabric.lease where id = $1 for update"
                await application.execute(lock, locked[0])
                await until(lambda: locked not in worker.active)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(until(lambda: len(worker.active) < 2), TTL / 1000)
                assert set(others) <= set(worker.active)
            go_on.set()
            assert [await run.result(60) for run in runs] == ["done"] * 3
    await application.close()


async def until_at_rest(proxy: Proxy) -> None:
    """What follows a run has ended: two seconds pass with one statement each."""
    quiet = 0
    async with asyncio.timeout(20):
        while quiet < 2:
            before = proxy.statements
            await asyncio.sleep(1)
            quiet = quiet + 1 if proxy.statements - before <= 1 else 0


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
