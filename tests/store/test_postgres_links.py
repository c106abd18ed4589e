"""Connections that die, fall silent or are refused: the work goes on, well within a lease."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import asyncpg
import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.execution import operator
from flowfabric.core.limit.lane import Lane
from flowfabric.store.postgres import dialer, open_postgres, wires
from flowfabric.store.postgres import link as links
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.wires import SIZE, Wires
from flowfabric.store.rows.record import LANES
from tests.kit.proxy import Proxy, proxied
from tests.store.postgres_bench import OPERATOR, Bench, opened, renewal, until_waiting, uuids
from tests.worker.bench import until

pytestmark = pytest.mark.long


Operation = Callable[[Bench], Awaitable[object]]


async def _cancel(bench: Bench) -> object:
    return await bench.apply(operator.cancel(await bench.submit(), bench.now, OPERATOR, ""))


OPERATIONS: dict[str, Operation] = {
    "submit": lambda bench: bench.store.submit([bench.creation()], bench.now),
    "claim": lambda bench: bench.claim(),
    "counts": lambda bench: bench.store.counts(None, None),
    "due": lambda bench: bench.store.due(bench.now, 9),
    "duty": lambda bench: bench.store.glance("d", "me", bench.now, bench.now),
    "load": lambda bench: bench.store.load([bench.fresh()]),
    "cancel": _cancel,
}


@pytest.fixture
async def way(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Proxy, str]]:
    monkeypatch.setattr(wires, "GREETING_SECONDS", 0.5)
    monkeypatch.setattr(wires, "CONNECT_SECONDS", 0.5)  # the farewell to a silent connection
    async with proxied(database) as way:
        yield way


@pytest.fixture
async def proxy(way: tuple[Proxy, str]) -> Proxy:
    return way[0]


@pytest.fixture
async def bench(way: tuple[Proxy, str], hasty: None) -> AsyncIterator[Bench]:
    """A store behind the proxy."""
    async with opened(way[1]) as bench:
        yield bench


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What works on a silent connection gives it up after half a second."""
    monkeypatch.setattr(links, "WORK_SECONDS", 0.5)
    monkeypatch.setattr(links, "QUESTION_SECONDS", 0.5)


async def every_kind(bench: Bench) -> None:
    """Both connections are open and in use."""
    held = await bench.running()
    await asyncio.gather(*(operation(bench) for operation in OPERATIONS.values()))
    assert await bench.store.end([bench.completion(held)], bench.now)


# -- connections that die just after they were dialled


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_connection_that_dies_once_dialled_is_dialled_again(
    bench: Bench, proxy: Proxy, name: str
) -> None:
    proxy.cut()
    proxy.dying = 1
    await OPERATIONS[name](bench)
    assert proxy.dying == 0


@pytest.mark.parametrize("name", OPERATIONS)
async def test_connections_that_always_die_are_unavailable(
    bench: Bench, proxy: Proxy, name: str
) -> None:
    proxy.cut()
    proxy.dying = 1000
    with pytest.raises(Unavailable):
        await OPERATIONS[name](bench)
    proxy.dying = 0
    await OPERATIONS[name](bench)


async def test_a_store_that_dies_while_it_is_opened_is_unavailable(
    way: tuple[Proxy, str],
) -> None:
    proxy, url = way
    proxy.dying = 1
    with pytest.raises(Unavailable):
        async with opened(url):
            pass


async def test_a_store_whose_opening_is_cancelled_leaves_no_connection(
    way: tuple[Proxy, str],
) -> None:
    """A worker that stops while its heartbeat opens a store does this."""
    proxy, url = way
    proxy.freeze_after = 2  # the greeting and the first answer arrive
    opening = asyncio.create_task(open_postgres(url))
    await until(lambda: proxy.statements == 2)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await until(lambda: not proxy.passages)


# -- connections that fall silent


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_silent_connection_is_replaced(bench: Bench, proxy: Proxy, name: str) -> None:
    await every_kind(bench)
    proxy.black_hole()
    async with asyncio.timeout(60):
        await OPERATIONS[name](bench)


async def test_a_cancel_within_a_transaction_on_a_silent_connection_ends_the_call(
    bench: Bench, proxy: Proxy
) -> None:
    """Its rollback fails with the connection: the call is not repeated on another one."""
    await every_kind(bench)
    (submitted,) = await bench.submit_many(1)
    proxy.freeze_after = 2  # begun, and the rows are locked
    change = operator.change_priority(submitted, bench.now, 5)
    applying = asyncio.create_task(bench.store.apply([change]))
    await proxy.frozen.wait()
    applying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await applying


async def test_one_silent_connection_gives_the_others_away(bench: Bench, proxy: Proxy) -> None:
    """The second kind of work does not wait for its own time limit."""
    await every_kind(bench)
    old = {wire.connection for wire in bench.store.session.wires.standing}
    assert len(old) == SIZE
    proxy.black_hole()
    await bench.claim()
    left = {wire.connection for wire in bench.store.session.wires.standing} & old
    assert not left


async def test_a_renewal_does_not_wait_longer_than_its_lease_allows(
    database: str, way: tuple[Proxy, str]
) -> None:
    """With the limits of every day."""
    proxy, url = way
    async with opened(url) as bench:
        held = await bench.running()
        await bench.store.renew([renewal(held)], bench.now)
        proxy.black_hole()
        async with asyncio.timeout(8.0):
            assert await bench.store.renew([renewal(held, 8_000)], bench.now)


async def test_work_under_way_is_done_once_when_its_reply_vanishes(
    bench: Bench, proxy: Proxy
) -> None:
    await every_kind(bench)
    (submitted,) = await bench.submit_many(1, priority=5)
    proxy.freeze_after = 1
    assert uuids(await bench.claim()) == uuids([submitted])
    assert proxy.frozen.is_set()
    raw = await bench.raw()
    count = "select count(*) from flowfabric.event where id = $1"
    assert await raw.fetchval(count, submitted.execution.uuid) == 1


async def test_no_session_is_left_behind_a_silent_connection(
    hasty: None, new_database: str
) -> None:
    async with proxied(new_database) as (proxy, url), opened(url) as bench:
        await every_kind(bench)
        proxy.black_hole()
        await asyncio.gather(*(operation(bench) for operation in OPERATIONS.values()))
        await no_more_sessions_than_needed(new_database)


async def no_more_sessions_than_needed(database: str) -> None:
    async with opened(database) as other:
        watcher = await other.raw()
        await other.store.close()
        sessions = """select count(*) from pg_stat_activity
            where datname = current_database() and application_name = 'flowfabric'"""
        async with asyncio.timeout(60):
            while await watcher.fetchval(sessions) > SIZE:
                pass


# -- connections that are refused


async def test_one_connection_is_enough_when_the_server_refuses_more(
    bench: Bench, proxy: Proxy
) -> None:
    assert len(bench.store.session.wires.standing) == 1
    proxy.refuses = True
    await every_kind(bench)
    assert len(bench.store.session.wires.standing) == 1


async def test_without_any_connection_a_refusal_is_named(bench: Bench, proxy: Proxy) -> None:
    proxy.cut()
    proxy.refuses = True
    with pytest.raises(Unavailable, match="too many clients"):
        await bench.claim()


async def test_a_slow_question_leaves_a_connection_for_work(bench: Bench, database: str) -> None:
    async with opened(database) as other:
        blocker = await other.raw()
        await bench.claim()  # knows its worker
        async with blocker.transaction():
            await blocker.execute("lock table flowfabric.done in access exclusive mode")
            bench.store.session.report._limit = bench.store.session.sweep._limit = 60.0
            asking = [
                asyncio.create_task(bench.store.counts(None, None)),
                asyncio.create_task(bench.store.trim(bench.now, bench.now, 9)),
            ]
            await until_waiting(blocker)
            await bench.submit()
            assert await bench.claim()
            assert not any(task.done() for task in asking)
        await asyncio.gather(*asking)


# -- processes that freeze


@pytest.mark.parametrize("replies", range(1, 7))
async def test_a_worker_frozen_in_a_claim_stops_no_other(
    way: tuple[Proxy, str], database: str, monkeypatch: pytest.MonkeyPatch, replies: int
) -> None:
    """Wherever it is frozen, the others take from the lane with a concurrency at once, and not
    when the server ends its silent transaction."""
    monkeypatch.setitem(dialer.PINNED, "idle_in_transaction_session_timeout", "60000")
    proxy, url = way
    async with opened(database) as other, opened(url) as bench:
        await every_kind(bench)
        await other.claim()
        assert await other.store.records.put(LANES, Lane(name="default", concurrency=50), 0)
        await other.submit_many(8)
        proxy.freeze_after = replies
        claiming = asyncio.create_task(bench.claim(2))
        await asyncio.wait(
            [claiming, freezing := asyncio.create_task(proxy.frozen.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        async with asyncio.timeout(30):
            assert await other.claim(2)
        for task in (claiming, freezing):
            task.cancel()
        await asyncio.wait([claiming, freezing])


async def test_a_transaction_of_a_frozen_process_is_ended_by_the_server(
    way: tuple[Proxy, str], database: str
) -> None:
    proxy, url = way
    async with opened(database) as other, opened(url) as bench:
        await every_kind(bench)
        (submitted,) = await other.submit_many(1)
        proxy.freeze_after = 2  # begun, and the rows are locked
        change = operator.change_priority(submitted, bench.now, 5)
        applying = asyncio.create_task(bench.store.apply([change]))
        await proxy.frozen.wait()
        cancel = operator.cancel(submitted, other.now, OPERATOR, "")
        assert await other.store.apply([cancel]) == set(uuids([submitted]))
        applying.cancel()
        await asyncio.wait([applying])


@pytest.mark.parametrize("error", [asyncio.CancelledError, ValueError])
async def test_what_follows_an_interrupted_transaction_is_committed(
    bench: Bench, error: type[BaseException]
) -> None:
    """A caller that is cancelled between its BEGIN and the answer to it leaves a transaction open:
    what others wrote in it was answered, and gone with the connection."""

    async def interrupted(connection: Connection, repeated: bool) -> None:
        await connection.execute("begin")
        raise error

    with pytest.raises(error):
        await bench.store.session.submit.run(interrupted)
    submitted = await bench.submit()
    raw = await bench.raw()
    assert await raw.fetchval("select id from flowfabric.execution") == submitted.execution.uuid


@pytest.mark.parametrize("error", [asyncio.CancelledError(), asyncpg.QueryCanceledError("late")])
async def test_an_interrupted_begin_spoils_no_transaction_after_it(
    database: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The driver took it for open: the next transactions were savepoints, and all of them refused
    until the connection broke."""
    async with opened(database) as bench:
        session = bench.store.session

        async def transaction(connection: Connection, repeated: bool) -> Any:
            async with connection.transaction():
                return connection

        first = await session.apply.run(transaction)
        with monkeypatch.context() as patch:
            cut = _interrupted(asyncpg.Connection.execute, error)
            patch.setattr(asyncpg.Connection, "execute", cut)
            with pytest.raises((asyncio.CancelledError, Unavailable)):
                await session.apply.run(transaction)
        assert await session.apply.run(transaction) is first


async def test_settings_whose_change_was_interrupted_are_set_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has changed them, and the caller was cancelled before it knew: work that then
    asks for the old ones would wait for locks without a limit."""
    store = await open_postgres(database, connections=1)
    session = store.session

    async def lock_timeout(connection: Connection, repeated: bool) -> Any:
        return await connection.fetchval("show lock_timeout")

    pinned, honest = await session.load.run(lock_timeout), asyncpg.Connection.execute
    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "execute", _interrupted(honest, asyncio.CancelledError()))
        with pytest.raises(asyncio.CancelledError):
            await session.sweep.run(lock_timeout)
    assert await session.load.run(lock_timeout) == pinned == f"{dialer.LOCK_MILLIS}ms"
    await store.close()


def _interrupted(
    honest: Callable[..., Awaitable[str]], error: BaseException
) -> Callable[..., Awaitable[str]]:
    """Done, but its caller hears only of the error."""

    async def execute(*args: Any, **options: Any) -> str:
        await honest(*args, **options)
        raise error

    return execute


async def test_a_lost_reply_is_remembered_while_others_hold_a_lock(bench: Bench) -> None:
    """Design, rule 7: what was done before the reply was lost would look like the work of a rival,
    if the try after the lock did not know that it may be a repeat."""
    told: list[bool] = []

    async def work(connection: Connection, repeated: bool) -> None:
        told.append(repeated)
        if len(told) == 1:
            connection.terminate()
            raise ConnectionResetError("the reply was lost")
        if len(told) == 2:
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")

    await bench.store.session.apply.run(work, patience=0.0)
    assert told == [False, True, True]


async def test_a_cancelled_caller_leaves_the_connection_to_the_next() -> None:
    """It is cancelled while it waits, and the connection comes back before it has run again."""
    wires = Wires(cast(Any, None), size=1)
    held = await wires._take(slow=False, urgent=False)
    gone, later = (asyncio.create_task(wires._take(slow=False, urgent=False)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    wires._give_back(held, slow=False)
    assert await later is held
    with pytest.raises(asyncio.CancelledError):
        await gone
