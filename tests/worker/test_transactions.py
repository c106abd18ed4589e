"""Runs submitted in the application's own transaction, with every library it may use."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.orm import sessionmaker

from flowfabric import Context, Fabric, Invalid, NotFound
from flowfabric.core.base.errors import Unavailable
from flowfabric.worker.api.run import Run
from tests.kit.connections import NoSale, libraries, rolled_back, sqlalchemy_url
from tests.worker.bench import Bench, working

pytestmark = pytest.mark.inside


def double(n: int) -> int:
    return 2 * n


@contextmanager
def blocking(url: str) -> Iterator[Any]:
    """A transaction without an event loop."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            yield connection
    else:
        with psycopg.connect(url) as other:
            yield other


async def test_a_run_exists_once_the_transaction_commits(bench: Bench, store_url: str) -> None:
    task = bench.fabric.task(lane="slow", tags={"app.size": "big"})(double)
    for number, connect in enumerate(libraries(store_url)):
        async with connect() as connection:
            options = {"connection": connection, "key": f"k{number}", "priority": 7}
            run = await task.with_options(**options).submit(number)
            assert not run.duplicate
            with pytest.raises(NotFound):
                await run.state()
        about = await run.describe()
        assert (about.lane, about.priority, about.key) == ("slow", 7, f"k{number}")
        assert about.tags == {"app.size": "big"}
        assert await bench.work() == 1
        assert await run.result() == 2 * number


async def test_a_run_does_not_exist_when_the_transaction_fails(
    bench: Bench, store_url: str
) -> None:
    task = bench.fabric.task()(double)
    for connect in libraries(store_url):
        run: Run[int] = await rolled_back(
            connect, lambda connection: task.with_options(connection=connection, key="k").submit(1)
        )
        with pytest.raises(NotFound):
            await run.state()
    assert await bench.work() == 0
    assert not (await task.with_options(key="k").submit(1)).duplicate


async def test_a_known_key_gives_the_earlier_run(bench: Bench, store_url: str) -> None:
    task = bench.fabric.task()(double)
    earlier = await task.with_options(key="order-7", lane="fast").submit(7)
    for connect in libraries(store_url):
        async with connect() as connection:
            run = await task.with_options(connection=connection, key="order-7").submit(8)
        assert (run.id, run.duplicate) == (earlier.id, True)
    assert await bench.work() == 1


@pytest.mark.parametrize(
    "options",
    [
        {"lane": "x" * 65},
        {"tags": {"BAD": "x"}},
        {"key": "x" * 1025},
        {"delay": "soon"},
        {"id": "{fp:86}:01a1e105-5216-7000-b234-22890e43ab8b"},
    ],
)
async def test_bad_options_are_refused_before_anything_is_written(
    bench: Bench, store_url: str, options: dict[str, Any]
) -> None:
    task = bench.fabric.task()(double)
    async with libraries(store_url)[0]() as connection:
        with pytest.raises(Invalid):
            await task.with_options(connection=connection, **options).submit(1)
        with pytest.raises(Invalid):
            await task.with_options(connection=connection).submit("one")  # type: ignore[arg-type]
        good = await task.with_options(connection=connection).submit(2)
    assert await bench.work() == 1
    assert await good.result() == 4


async def test_many_runs_are_submitted_or_none(bench: Bench, store_url: str) -> None:
    task = bench.fabric.task()(double)
    for connect in libraries(store_url):
        async with connect() as connection:
            many = task.with_options(connection=connection)
            with pytest.raises(Invalid):
                await many.submit_many([1, "two"])
            with pytest.raises(Invalid, match="all runs need the same connection"):
                await many.submit_many([{"n": 1, "connection": object()}])
            runs = await many.submit_many([1, (2,), {"n": 3, "delay": "1h"}])
        assert await bench.work() == 2
        await bench.pass_time(3_600_000)
        assert await bench.work() == 1
        assert [await run.result() for run in runs] == [2, 4, 6]


async def test_options_may_stand_beside_the_arguments(bench: Bench, store_url: str) -> None:
    task: Any = bench.fabric.task()(double)
    async with libraries(store_url)[0]() as connection:
        run = await task.submit(4, connection=connection)
    await bench.work()
    assert await run.result() == 8


async def test_delays_and_deadlines_count_from_the_submission(bench: Bench, store_url: str) -> None:
    task = bench.fabric.task()(double)
    due = bench.moment(60_000)
    async with libraries(store_url)[0]() as connection:
        options = {"connection": connection, "delay": "10s", "deadline": "1m"}
        run = await task.with_options(**options).submit(1)
    await bench.pass_time(9_999)
    assert await bench.work() == 0
    about = await run.describe()
    assert (about.state, about.deadline_at) == ("delayed", due)
    await bench.pass_time(1)
    assert await bench.work() == 1


# -- without an event loop, and without an engine


def test_a_script_submits_in_its_own_thread(store_url: str) -> None:
    fabric = Fabric(store_url)
    task = fabric.task()(double)
    task.submit_sync(0).cancel_sync()  # whoever comes first makes the tables
    with suppress(NoSale), blocking(store_url) as connection:
        lost = task.with_options(connection=connection).submit_sync(1)
        raise NoSale
    with blocking(store_url) as connection:
        run = task.with_options(connection=connection).submit_sync(2)
        with pytest.raises(Invalid):
            task.with_options(connection=connection, lane="x" * 65).submit_sync(2)
    assert run.state_sync() == "waiting"
    with pytest.raises(NotFound):
        lost.state_sync()
    fabric.close_sync()


async def test_no_engine_is_needed(bench: Bench, store_url: str) -> None:
    """Not even an event loop of its own: a blocking connection is used where it is."""
    other = Fabric("postgresql://nobody@nowhere.invalid/none", clock=bench.clock)
    theirs, ours = other.task()(double), bench.fabric.task()(double)
    with blocking(store_url) as connection:
        run = theirs.with_options(connection=connection).submit_sync(5)
    assert threading.current_thread() is threading.main_thread()
    assert await bench.work() == 1
    assert await ours.run_of(run.id).result() == 10


async def test_a_connection_that_must_be_awaited_is_not_used_without(
    bench: Bench, store_url: str
) -> None:
    task = bench.fabric.task()(double)
    for connect in libraries(store_url):
        async with connect() as connection:
            call = task.with_options(connection=connection)
            if "async" in repr(type(connection)).lower():
                with pytest.raises(Invalid, match="await the call"):
                    call.submit_sync(1)
                await call.submit(2)
            else:
                call.submit_sync(2)
        assert await bench.work() == 1


# -- connections as they come


async def test_a_connection_without_a_transaction_is_refused(bench: Bench, store_url: str) -> None:
    """The run would be there at once, whatever fails afterwards."""
    task = bench.fabric.task()(double)
    for connect in AUTOMATIC[store_url.partition(":")[0]]:
        async with connect(store_url) as connection:
            with pytest.raises(Invalid, match="begin one first"):
                await task.with_options(connection=connection).submit(1)
    assert await bench.work() == 0


@asynccontextmanager
async def automatic_sqlite3(url: str) -> Any:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as it:
        yield it


@asynccontextmanager
async def automatic_psycopg(url: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def automatic_asyncpg(url: str) -> Any:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


AUTOMATIC = {
    "sqlite": (automatic_sqlite3,),
    "postgresql": (automatic_psycopg, automatic_asyncpg),
}


async def test_a_transaction_begun_by_hand_is_one(bench: Bench, store_url: str) -> None:
    task = bench.fabric.task()(double)
    async with AUTOMATIC[store_url.partition(":")[0]][0](store_url) as connection:
        connection.execute("begin")
        lost = await task.with_options(connection=connection, key="k").submit(1)
        connection.execute("rollback")
        connection.execute("begin")
        run = await task.with_options(connection=connection, key="k").submit(2)
        connection.execute("commit")
    assert (run.id != lost.id, run.duplicate) == (True, False)
    assert await bench.work() == 1


async def test_the_applications_kind_of_rows_does_not_matter(bench: Bench, store_url: str) -> None:
    task = bench.fabric.task()(double)
    with blocking(store_url) as connection:
        sqlite = isinstance(connection, sqlite3.Connection)
        connection.row_factory = (lambda *_: {}) if sqlite else dict_row
        first = await task.with_options(connection=connection, key="k").submit(1)
        again = await task.with_options(connection=connection, key="k").submit(1)
    assert (again.id, again.duplicate) == (first.id, True)


# -- beside workers


async def test_a_worker_hears_of_it_soon_after_the_commit(
    fabric: Fabric, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.engine.sweep.MAX_PAUSE", 60)
    monkeypatch.setattr("flowfabric.worker.run.claiming.REST", 60)
    task = fabric.task()(double)
    async with working(fabric):
        assert await (await task.submit(1)).result(60) == 2  # it works and waits
        for number, connect in enumerate(libraries(store_url)):
            async with connect() as connection:
                run = await task.with_options(connection=connection).submit(number)
            assert await run.result(60) == 2 * number


async def test_a_handler_submits_in_its_transaction_by_the_task_itself(
    bench: Bench, store_url: str
) -> None:
    child = bench.fabric.task()(double)

    @bench.fabric.task()
    async def parent(ctx: Context) -> str:
        async with libraries(store_url)[0]() as connection:
            call = child.with_options(connection=connection, key="once")
            with pytest.raises(Invalid, match="call submit of the task"):
                await ctx.submit(call, 1)
            return str((await call.submit(1)).id)

    run = await parent.submit()
    await bench.work()
    assert await (await bench.fabric.run(await run.result())).result() == 2


# -- what is no connection to our database


async def test_what_hands_out_connections_is_refused(bench: Bench, store_url: str) -> None:
    task = bench.fabric.task()(double)
    for make in MAKERS[store_url.partition(":")[0]]:
        async with make(store_url) as maker:
            with pytest.raises(Invalid, match=f"{type(maker).__name__}.*take one"):
                await task.with_options(connection=maker).submit(1)
            with pytest.raises(Invalid):
                task.with_options(connection=maker).submit_sync(1)
    assert await bench.work() == 0


async def test_a_cursor_is_refused(bench: Bench) -> None:
    task = bench.fabric.task()(double)
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(Invalid, match="got a Cursor: give its connection"),
    ):
        await task.with_options(connection=connection.cursor()).submit(1)


@asynccontextmanager
async def asyncpg_pool(url: str) -> Any:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        yield pool


@asynccontextmanager
async def sqlalchemy_engine(url: str) -> Any:
    engine = sa.create_engine(sqlalchemy_url(url, "psycopg"))
    yield engine
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_maker(url: str) -> Any:
    engine = sa.create_engine(sqlalchemy_url(url, "psycopg"))
    yield sessionmaker(engine)
    engine.dispose()


MAKERS = {
    "sqlite": (sqlalchemy_engine, sqlalchemy_maker),
    "postgresql": (asyncpg_pool, sqlalchemy_engine, sqlalchemy_maker),
}


async def test_a_database_without_our_tables_is_refused(
    bench: Bench, store_url: str, tmp_path: Path, fresh_database: Callable[[], str]
) -> None:
    """And the application's transaction is none the worse."""
    task = bench.fabric.task()(double)
    await bench.work()
    empty = f"sqlite:///{tmp_path}/empty.db"
    for connect in libraries(fresh_database() if store_url.startswith("postgres") else empty):
        async with connect() as connection:
            with pytest.raises(
                Unavailable, match="no FlowFabric tables; run `flowfabric migrate` first"
            ):
                await task.with_options(connection=connection).submit(1)
            with pytest.raises(Unavailable, match="flowfabric migrate"):
                await task.with_options(connection=connection).submit(1)


async def test_another_database_is_refused(
    bench: Bench, store_url: str, tmp_path: Path, fresh_database: Callable[[], str]
) -> None:
    task = bench.fabric.task()(double)
    await bench.work()
    for url in (f"sqlite:///{tmp_path}/other.db", fresh_database()):
        async with Fabric(url) as theirs:
            for connect in libraries(url):
                async with connect() as connection:
                    with pytest.raises(Invalid, match="is not the database of this Fabric"):
                        await task.with_options(connection=connection, key="k").submit(1)
            assert await theirs.task()(double).with_options(key="k").submit(1)
    for connect in libraries(store_url):
        async with connect() as connection:
            await task.with_options(connection=connection).submit(1)
